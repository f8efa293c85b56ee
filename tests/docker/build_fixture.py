"""Small projects whose images Docker builds, and what is in an image."""

from __future__ import annotations

import io
import re
import secrets
import tarfile
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import yaml
from docker.errors import ImageNotFound
from refill import images
from refill.config import load_images
from refill.runtimes.docker_images import BuildFiles, build

DOCKERFILE = """\
ARG BASE
FROM ${BASE}
COPY tool /opt/tool
RUN mkdir /opt/made && echo made > /opt/made/file
ENTRYPOINT ["python3", "/opt/tool"]
"""


class BuildProject:
    """A project in a folder of its own; what it builds is no other test's and is removed.

    Args:
        folder: an empty folder.
        client: the daemon's.
        base: tag of the image to build on.
    """

    def __init__(self, folder: Path, client: Any, base: str) -> None:
        self.folder, self.client, self.base = folder, client, base
        self._built: list[str] = []
        self._steps: list[str] = []
        (folder / "config").mkdir(parents=True)
        (folder / "requirements.lock").write_text("# nothing\n")

    def configure(self, **entries: Mapping[str, Any]) -> None:
        """Write config/images.yaml and pin everything in it."""
        full = {
            name: {"runtime": "docker", "dependencies": [], "pinned": None, **entry}
            for name, entry in entries.items()
        }
        path = self.folder / "config/images.yaml"
        path.write_text(yaml.safe_dump({"images": full}))
        assert images.main(["pin"], self.folder) == 0

    def tree(self, dockerfile: str = DOCKERFILE) -> str:
        """Write a source that no other test has; give its folder's name."""
        name = f"images/{secrets.token_hex(4)}"
        (self.folder / name / "tool").mkdir(parents=True)
        (self.folder / name / "tool/__main__.py").write_text("import sys\nprint(sys.argv[1:])\n")
        (self.folder / name / "tool/unique").write_text(name)
        (self.folder / name / "Dockerfile").write_text(dockerfile)
        return name

    def files(self, name: str) -> BuildFiles:
        """Give where the build of an image puts what it writes."""
        results = self.folder / "results"
        record = results / f"images/{name}.json"
        return BuildFiles(record, record.with_suffix(".build.log"), results / "wheels")

    def build(self, name: str, nocache: bool = True, **settings: str) -> dict[str, Any]:
        """Build an image as its rule does; give its record."""
        entries = images.needed(load_images(self.folder / "config/images.yaml"), name)
        try:
            record = build(
                self.client,
                self.folder,
                name,
                entries,
                {"base": self.base, "python": "3.11", **settings},
                self.files(name),
                "code",
                nocache=nocache,
            )
        finally:
            # The steps of an earlier stage, or of a build that failed, stay as the daemon's cache.
            if self.files(name).log.exists():
                self._steps += re.findall(r"^ ---> ([0-9a-f]{12})$", self.log(name), re.MULTILINE)
        self._built.append(record["id"])
        return record

    def log(self, name: str) -> str:
        """Give the log of the last build of an image."""
        return self.files(name).log.read_text()

    def remove(self) -> None:
        """Remove all images that were built, and what their builds left."""
        base: str = self.client.api.inspect_image(self.base)["Id"]
        made = [step for step in self._steps if not base.startswith(f"sha256:{step}")]
        for identity in dict.fromkeys([*self._built, *reversed(made)]):
            with suppress(ImageNotFound):
                self.client.api.remove_image(identity, force=True)


def contents(client: Any, identity: str, folder: str) -> dict[str, bytes]:
    """Give the files below a folder of an image, by their path from it."""
    container = client.api.create_container(identity)["Id"]
    try:
        stream, _ = client.api.get_archive(container, folder)
        with tarfile.open(fileobj=io.BytesIO(b"".join(stream))) as tar:
            opened = {member.name: tar.extractfile(member) for member in tar if member.isfile()}
            return {name.partition("/")[2]: file.read() for name, file in opened.items() if file}
    finally:
        client.api.remove_container(container, force=True)
