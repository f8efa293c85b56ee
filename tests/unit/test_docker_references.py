"""What is read of images without a daemon: references, Dockerfiles, and a daemon that is absent."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest
from null_server import NullServer, ok
from refill.docker_build.dockerfile import Bases, bases, declared
from refill.image_sources import ImageError
from refill.runtimes.docker_daemon import DockerError, connect
from refill.runtimes.docker_pulls import Reference, parse

DIGEST = f"sha256:{'0' * 64}"


@pytest.mark.parametrize(
    ("reference", "parts", "floating"),
    [
        ("valkey/valkey:8.1.10", ("valkey/valkey", "8.1.10", None), False),
        ("qdrant/qdrant:v1.19.2", ("qdrant/qdrant", "v1.19.2", None), False),
        ("python:3.11.14-slim-bookworm", ("python", "3.11.14-slim-bookworm", None), False),
        ("python:3.11-slim-bookworm", ("python", "3.11-slim-bookworm", None), True),
        ("valkey/valkey:8", ("valkey/valkey", "8", None), True),
        ("valkey/valkey:latest", ("valkey/valkey", "latest", None), True),
        ("valkey", ("valkey", None, None), True),
        ("localhost:5000/valkey", ("localhost:5000/valkey", None, None), True),
        ("localhost:5000/valkey:8.1.10", ("localhost:5000/valkey", "8.1.10", None), False),
        (f"valkey@{DIGEST}", ("valkey", None, DIGEST), False),
        (f"localhost:5000/valkey:8@{DIGEST}", ("localhost:5000/valkey", "8", DIGEST), False),
    ],
)
def test_a_reference_floats_unless_it_names_a_digest_or_a_whole_version(
    reference: str, parts: tuple[str, str | None, str | None], floating: bool
) -> None:
    assert parse(reference) == Reference(*parts)
    assert parse(reference).floating is floating


@pytest.mark.parametrize(
    ("text", "arguments", "expected"),
    [
        ("FROM debian:12", {}, Bases("debian:12", ())),
        ("ARG BASE=a:1\nFROM ${BASE}", {}, Bases("a:1", ())),
        ("ARG BASE=a:1\nFROM $BASE", {"BASE": "b:2"}, Bases("b:2", ())),
        ('ARG V="12"\nFROM debian:${V:-11}', {}, Bases("debian:12", ())),
        ("FROM debian:${V:-11}", {"V": "12"}, Bases("debian:11", ())),
        (
            "FROM --platform=linux/amd64 rust:1.88 AS builder\nRUN x\nfrom debian:12-slim\n"
            "COPY --from=builder /a /b",
            {},
            Bases("debian:12-slim", ("rust:1.88",)),
        ),
        ("FROM rust:1 AS one\nFROM One AS two\nFROM TWO", {}, Bases("rust:1", ())),
        (
            "FROM go:1 AS b\nFROM scratch\nCOPY --from=b /a /a",
            {},
            Bases("scratch", ("go:1",)),
        ),
        ("# FROM nothing\nFROM \\\n  debian:12", {}, Bases("debian:12", ())),
    ],
)
def test_the_bases_of_a_dockerfile(text: str, arguments: dict[str, str], expected: Bases) -> None:
    assert bases("image", text.encode(), arguments) == expected


@pytest.mark.parametrize(
    ("text", "said"),
    [("RUN x", "has no FROM"), ("ARG BASE\nFROM ${BASE}", r"\$\{BASE\} has no value.*build_arg")],
)
def test_a_dockerfile_whose_base_is_not_known(text: str, said: str) -> None:
    with pytest.raises(ImageError, match=f"image: .*{said}"):
        bases("image", text.encode(), {})


def test_arguments_of_every_stage_count_as_declared() -> None:
    text = b"ARG BASE=a\nFROM $BASE\narg ONE\nFROM b\nARG TWO=2\nRUN echo ARG THREE\n"
    assert declared(text) == {"BASE", "ONE", "TWO"}


def test_an_absent_daemon_is_told_in_one_line_with_the_default_that_needs_none(
    tmp_path: Path,
) -> None:
    nobody = tmp_path / "s"
    with socket.socket(socket.AF_UNIX) as closed:
        closed.bind(str(nobody))
        # Bound and not listening: what a daemon leaves that was killed.
        for host in (f"unix://{nobody}", f"unix://{tmp_path}/none"):
            with pytest.raises(DockerError) as caught:
                connect(host)
            text = str(caught.value)
            assert "\n" not in text
            assert f"{host} is not running" in text
            assert "`runtime: process`" in text


def test_docker_host_counts_where_no_host_is_given(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/elsewhere")
    with pytest.raises(DockerError, match=r"/elsewhere is not running"):
        connect()


def test_a_daemon_of_another_machine_is_refused_as_its_ports_cannot_be_reached() -> None:
    """What answers here says that it is a daemon, under a name that is no loopback address."""
    version = b'{"ApiVersion": "1.41", "MinAPIVersion": "1.12", "Version": "20.10"}'
    with NullServer(lambda _, __: ok(version)) as server, pytest.MonkeyPatch.context() as patch:
        connect(f"tcp://127.0.0.1:{server.address.port}").close()
        resolve = socket.getaddrinfo

        def known(host: object, *given: object, **more: object) -> object:
            return resolve("127.0.0.1" if host == "builder.example" else host, *given, **more)  # type: ignore[arg-type]

        patch.setattr(socket, "getaddrinfo", known)
        with pytest.raises(DockerError) as caught:
            connect(f"tcp://builder.example:{server.address.port}")
    text = str(caught.value)
    assert "\n" not in text
    assert "builder.example runs on another machine" in text
    assert "`runtime: process`" in text


def test_a_host_that_is_no_address() -> None:
    with pytest.raises(DockerError, match=r"nonsense cannot be used.*docker\.host"):
        connect("nonsense")
