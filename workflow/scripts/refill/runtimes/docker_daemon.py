"""The Docker daemon that containers run on: found, asked who it is, and errors in plain words."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from ipaddress import ip_address
from typing import Any
from urllib.parse import urlsplit

import docker
import requests
from docker.errors import APIError, DockerException

from refill.engines.description import RunnerError
from refill.told import ToldError

DEFAULT_HOST = "unix:///var/run/docker.sock"
CONNECT_TIMEOUT_S = 10
# Between two signs of life: saving and loading an image are silent for a while on a slow disk.
TIMEOUT_S = 600
EMBEDDED = "without Docker the embedded engines do (`runtime: process`)"


class DockerError(ToldError, RunnerError):
    """The daemon is absent, refuses, or cannot do what it is asked; the text says what to do."""


def connect(host: str | None = None) -> Any:
    """Connect to a Docker daemon (or what speaks its API) and see that it answers.

    Args:
        host: its address, such as "unix:///var/run/docker.sock"; None: what DOCKER_HOST, the
            command line's context or else the default says, as for the `docker` command.

    Returns:
        A `docker.DockerClient`; close it.

    Raises:
        DockerError: nobody answers there, this user may not ask, or it is another machine's; in one
            line.
    """
    try:
        client = (
            docker.from_env(version="auto", timeout=CONNECT_TIMEOUT_S)
            if host is None
            else docker.DockerClient(base_url=host, version="auto", timeout=CONNECT_TIMEOUT_S)
        )
    except (DockerException, requests.RequestException, ValueError) as error:
        raise DockerError(_refusal(host or os.environ.get("DOCKER_HOST"), error)) from error
    if (elsewhere := _other_machine(str(client.api.base_url))) is not None:
        client.close()
        raise DockerError(
            f"docker: the daemon at {elsewhere} runs on another machine, and engines publish their "
            f"ports on loopback alone: give one of this machine (`docker.host`, DOCKER_HOST); "
            f"{EMBEDDED}"
        )
    client.api.timeout = TIMEOUT_S
    return client


def _other_machine(base_url: str) -> str | None:
    """Give the host of a daemon that is reached over the network; None: it is this machine."""
    # docker-py names a socket's file localhost.
    host = urlsplit(base_url).hostname or base_url
    try:
        return None if host == "localhost" or ip_address(host).is_loopback else host
    except ValueError:
        return host


def daemon_record(client: Any) -> dict[str, str]:
    """Return who the daemon is: {"name", "version", "api", "storage_driver", "architecture"}.

    The name is that of the program: Docker, or what speaks its API (Podman).
    """
    with told("docker: the daemon does not say who it is"):
        version, info = client.version(), client.info()
    parts = [str(part["Name"]) for part in version.get("Components") or []]
    return {
        "name": "Podman" if any("Podman" in part for part in parts) else "Docker",
        "version": version["Version"],
        "api": version["ApiVersion"],
        "storage_driver": info["Driver"],
        "architecture": info["Architecture"],
    }


@contextmanager
def told(what: str) -> Iterator[None]:
    """Turn an error of the daemon, or the loss of it, into a DockerError: `what`, and why."""
    try:
        yield
    except APIError as error:
        raise DockerError(f"{what}: {error.explanation or error}") from error
    except (DockerException, requests.RequestException) as error:
        why = _root(error)
        gone = isinstance(why, FileNotFoundError | ConnectionError)
        raise DockerError(f"{what}: {'the daemon is gone' if gone else why}") from error


def _refusal(host: str | None, error: BaseException) -> str:
    where, cause = host or DEFAULT_HOST, _root(error)
    if isinstance(cause, PermissionError):
        why = "refuses this user: join the group of its socket, or take another `docker.host`"
    elif isinstance(cause, FileNotFoundError | ConnectionRefusedError):
        why = "is not running: start it, or say where one is (`docker.host`, DOCKER_HOST)"
    else:
        why = f"cannot be used ({cause}): see `docker.host` and DOCKER_HOST"
    return f"docker: the daemon at {where} {why}; {EMBEDDED}"


def _root(error: BaseException) -> BaseException:
    """Return what an error came from: docker-py wraps requests, which wraps urllib3."""
    seen: BaseException | None = error
    while seen is not None:
        if isinstance(seen, OSError) and seen.errno is not None:
            return seen
        inner = [part for part in seen.args if isinstance(part, BaseException)]
        seen = inner[-1] if inner else seen.__cause__ or seen.__context__
    return error
