"""An image with OpenSearch in it that is told what to do as the published one is.

The published image cannot be pulled everywhere. This one holds the artifacts of config/native.yaml
and a Java of this machine, and its entry point makes settings of variables whose names have a dot.
"""

from __future__ import annotations

import io
import json
import tarfile
from pathlib import Path
from typing import Any

from refill.engines import opensearch
from refill.engines.installations import Installed, open_installation, prepare
from refill.engines.native import LOGGING

HOME = Path("/usr/share/opensearch")
UID = 1000
# What a server needs nothing of.
LEFT_OUT = ("jmods", "include", "man", "legal", "demo", "src.zip")
ENTRY = """\
import os
import re

dotted = re.compile(r"[a-z0-9_]+\\.[a-z0-9_]+")
settings = [f"-E{key}={value}" for key, value in os.environ.items() if dotted.match(key)]
options = os.environ.get("OPENSEARCH_JAVA_OPTS", "").split()
os.execv(COMMAND[0], [COMMAND[0], *options, *COMMAND[1:], *settings])
"""
DOCKERFILE = """\
FROM {base}
COPY opensearch {home}
RUN mkdir -p {home}/data {home}/logs && chown -R {uid} {home}/data {home}/logs {home}/config
WORKDIR {home}
USER {uid}
ENTRYPOINT ["python3", "{home}/entry.py"]
"""


def installed(root: Path, specs: dict[str, Any], settings: dict[str, Any]) -> Installed:
    """Put OpenSearch together below `root`; EngineError says why it is not at hand."""
    name, base = opensearch.NAME, root / "engines"
    home, record = base / name / "home", base / f"{name}.json"
    prepare(root, name, specs[name], settings, home, record, "test")
    return open_installation(record, name, specs[name], settings, home)


def build(client: Any, base: str, tag: str, found: Installed) -> None:
    """Build the image on `base` and tag it."""
    assert found.home is not None
    assert found.java is not None
    command = [
        str(HOME / "jdk/bin/java"), "-XX:+UseG1GC", "-Xss1m",
        *opensearch.DIALECT.flags(HOME, HOME / "config", HOME / "data"),
        *opensearch.DIALECT.start(HOME),
    ]  # fmt: skip
    files = {
        "Dockerfile": DOCKERFILE.format(base=base, home=HOME, uid=UID),
        "opensearch/entry.py": f"COMMAND = {json.dumps(command)}\n{ENTRY}",
        "opensearch/config/opensearch.yml": "cluster.name: docker-cluster\nnetwork.host: 0.0.0.0\n",
        "opensearch/config/log4j2.properties": LOGGING,
    }
    with io.BytesIO() as context:
        with tarfile.open(fileobj=context, mode="w") as tar:
            for name, text in files.items():
                info = tarfile.TarInfo(name)
                info.size = len(text.encode())
                tar.addfile(info, io.BytesIO(text.encode()))
            tar.add(found.home, "opensearch", filter=_kept)
            tar.add(found.java.program.parents[1], "opensearch/jdk", filter=_kept)
        context.seek(0)
        client.images.build(fileobj=context, custom_context=True, tag=tag, rm=True)


def _kept(info: tarfile.TarInfo) -> tarfile.TarInfo | None:
    return None if Path(info.name).name in LEFT_OUT else info
