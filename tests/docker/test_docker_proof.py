"""The crash proof in containers: the images' own scripts, real kills, damage and power cuts."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from refill.config import PROJECT, load_images
from refill.engines.description import EngineError
from refill.image_sources import read_source
from refill.progress import silent
from refill.proofs import containers, crash_server, suite
from refill.proofs.containers import Image, in_containers
from refill.proofs.findings import IMAGES, NOT_RUN, PASS, PUBLISHED, Findings
from refill.proofs.measure import Files, prove
from refill.proofs.servers import DEFAULT
from refill.proofs.setup import Setup, opened
from refill.proofs.subject import Scale, Subject, create
from refill.runtimes.docker_images import BuildFiles, build

NAMES = {"old": "gateway-old", "new": "gateway-new", "qdrant": "qdrant-edge", "valkey": "valkey"}
SMALL = Scale("test", 20, 4, {"new": 3, "old": 2}, other_kills=2, cut_s=0.3)


@pytest.fixture(scope="module")
def built(
    docker_client: Any, base_image: str, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, Path]:
    """The records of the four images, by their part in the proof."""
    folder = tmp_path_factory.mktemp("images")
    records = {part: folder / f"{name}.json" for part, name in NAMES.items()}
    for part, name in NAMES.items():
        files = BuildFiles(records[part], folder / f"{name}.log", folder / "wheels")
        settings = {"base": base_image, "python": "3.11"}
        build(docker_client, PROJECT, name, load_images(), settings, files, "0", say=silent)
    return records


@pytest.fixture(scope="module")
def setup(
    docker_host: str, built: dict[str, Path], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Setup]:
    plan = {"runtime": "docker", "docker": {"host": docker_host}}
    with opened(plan, built, tmp_path_factory.mktemp("first"), print) as made:
        yield made
