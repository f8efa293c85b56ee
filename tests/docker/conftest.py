"""Fixtures of the tests on a real Docker daemon; without one they skip, or fail in CI."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from daemon_fixture import Daemon, base_image, cannot, missing, running_host
from refill.runtimes.docker_daemon import connect


@pytest.fixture(scope="session")
def docker_host() -> Iterator[str]:
    """The address of a daemon, which every process of these tests is given as DOCKER_HOST."""
    if (host := running_host()) is not None:
        yield from _as_default(host)
        return
    if why := missing("dockerd", "debootstrap"):
        cannot(why)
    with Daemon() as daemon:
        yield from _as_default(daemon.host)


def _as_default(host: str) -> Iterator[str]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DOCKER_HOST", host)
        yield host


@pytest.fixture(scope="session")
def docker_client(docker_host: str) -> Iterator[Any]:
    client = connect(docker_host)
    yield client
    client.close()


@pytest.fixture(scope="session", name="base_image")
def _base_image(docker_client: Any) -> str:
    """The tag of an image with Debian's Python that images are built on."""
    return base_image(docker_client)
