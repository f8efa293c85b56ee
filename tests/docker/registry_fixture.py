"""A Docker registry of Debian's package on loopback, and images of a few bytes to pull from it."""

from __future__ import annotations

import io
import shutil
import tarfile
from pathlib import Path
from typing import Any, Self

import requests
import yaml
from refill.runtimes.ports import free_port
from service_process import PATH, ServiceProcess

PROGRAM = "docker-registry"
MANIFEST = "application/vnd.docker.distribution.manifest.v2+json"


class Registry:
    """A registry that keeps its images in a folder. Used as a context; `stop` ends it earlier."""

    def __init__(self, folder: Path) -> None:
        self.host = f"127.0.0.1:{free_port()}"
        self._folder = folder

    def __enter__(self) -> Self:
        settings = {
            "version": "0.1",
            "storage": {"filesystem": {"rootdirectory": str(self._folder / "images")}},
            "http": {"addr": self.host},
        }
        config = self._folder / "config.yml"
        config.write_text(yaml.safe_dump(settings))
        program = shutil.which(PROGRAM, path=PATH)
        assert program is not None
        command = [program, "serve", str(config)]
        log = self._folder / "registry.log"
        self._service = ServiceProcess(command, log, self._answers)
        self._service.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def stop(self) -> None:
        """End it; what it holds cannot be pulled any more."""
        self._service.end()

    def _answers(self) -> bool:
        try:
            return requests.get(f"http://{self.host}/v2/", timeout=5).ok
        except requests.RequestException:
            return False

    def log(self) -> str:
        """Give what it has printed: among it, a line for each request."""
        return self._service.log()

    def digest(self, name: str, tag: str) -> str:
        """Give the digest of a tag as the registry itself says it."""
        answer = requests.head(
            f"http://{self.host}/v2/{name}/manifests/{tag}",
            headers={"Accept": MANIFEST},
            timeout=10,
        )
        answer.raise_for_status()
        return answer.headers["Docker-Content-Digest"]

    def push(self, client: Any, name: str, tag: str, content: str) -> tuple[str, str]:
        """Push an image that holds `content`; give its reference and ID. The daemon forgets it."""
        repository = f"{self.host}/{name}"
        buffer = io.BytesIO()
        with tarfile.open(fileobj=buffer, mode="w") as tar:
            info = tarfile.TarInfo("content")
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content.encode()))
        client.api.import_image_from_data(buffer.getvalue(), repository=repository, tag=tag)
        identity: str = client.api.inspect_image(f"{repository}:{tag}")["Id"]
        for event in client.api.push(repository, tag=tag, stream=True, decode=True):
            assert "error" not in event, event
        client.api.remove_image(identity, force=True)
        return f"{repository}:{tag}", identity
