"""Nothing private is written: the check that refuses."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from refill.evidence.scrub import (
    SHORTENED,
    PrivateError,
    machine_folders,
    make_packable,
    scrub,
    without_paths,
)

PROJECT = Path("/srv/some where/project")


def refused(value: Any, **named: Any) -> str:
    with pytest.raises(PrivateError) as caught:
        scrub(value, PROJECT, **{"environment": {}, **named})
    return str(caught.value)


@pytest.mark.parametrize(
    "text",
    ["/srv/some where/project", "/srv/some where/project/a.json", "x=/srv/some where/project/b c"],
)
def test_absolute_paths_of_the_project_are_refused(text: str) -> None:
    message = refused({"a": [{"b": text}]})
    assert message.startswith("a[0].b: holds this project's absolute path")


def test_the_home_folder_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/somebody")
    assert "x: holds the home folder's path" in refused({"x": "log in /home/somebody/x.log"})
    scrub({"x": "/home/somebody-else", "y": "a/home/somebody"}, PROJECT, {})


@pytest.mark.parametrize("name", ["API_KEY", "my_token", "DB_PASSWORD", "Some_Secret_1"])
def test_values_of_secret_variables_are_refused_and_not_shown(name: str) -> None:
    message = refused({"a": {"b": "say hunter22 twice"}}, environment={name: "hunter22"})
    assert message.startswith(f"a.b: holds the value of the environment variable {name}")
    assert "hunter22" not in message


def test_keys_are_looked_at_too() -> None:
    message = refused({"a": {"x": 1, "hunter22": 2}}, environment={"KEY": "hunter22"})
    assert message.startswith("a: key 2: holds")
    assert "hunter22" not in message


def test_the_configured_variable_counts_whatever_its_name_and_length() -> None:
    environment = {"QDRANT_ACCESS": "abc"}
    scrub({"a": "abc"}, PROJECT, environment)
    assert "QDRANT_ACCESS" in refused(
        {"a": "abc"}, environment=environment, secret_variables=["QDRANT_ACCESS"]
    )


def test_ordinary_values_pass() -> None:
    environment = {"KEYBOARD": "us", "TOKEN": "", "HOST": "database1"}
    value = {"a": "results/optimizers/A1/1.json", "b": [1, None, True, 0.5], "c": "us database1"}
    scrub(value, PROJECT, environment)
    scrub({"a": "/srv/some where/projects/x"}, PROJECT, environment)
    scrub({"a": "/anything/else"}, Path("/"), environment)


def test_paths_are_taken_out_of_free_text(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/me")
    project = Path("/home/me/project")
    for text, expected in (
        ("no '/home/me/project/results/x'", "no 'results/x'"),
        ("in /home/me/project: no", "in : no"),
        ("at /home/me/.cache/y", "at ~/.cache/y"),
        ("/home/me/project2/z", "~/project2/z"),
        ("/home/me2/z", "/home/me2/z"),
        ("a/home/me/project/z", "a/home/me/project/z"),
    ):
        assert without_paths(text, [project]) == expected
        scrub({"x": without_paths(text, [project])}, project, {})


def test_a_log_can_be_packed_when_its_paths_are_shortened(tmp_path: Path) -> None:
    log, project = tmp_path / "engine.log", tmp_path / "a project"
    lines = [
        f"using data at [{project}/results/scratch/data], java at /usr/lib/jvm/some/bin/java",
        f"loaded {tmp_path}/elsewhere/lib/a.jar and file://{project}/b.jar",
        "GET /flights/_search/x: 200; [\u00fc] at some.Class.method(Class.java:1)",
    ]
    log.write_text("\n".join(lines) + "\n", encoding="utf-8")
    assert list(machine_folders(log.read_text(encoding="utf-8")))
    make_packable(log, [project])
    assert log.read_text(encoding="utf-8").splitlines() == [
        "using data at [results/scratch/data], java at /usr/lib/jvm/some/bin/java",
        "loaded .../a.jar and file://b.jar",
        lines[2],
        SHORTENED,
    ]
    scrub(log.read_text(encoding="utf-8"), project, {})
    assert not list(machine_folders(log.read_text(encoding="utf-8")))
    before = log.read_bytes()
    make_packable(log, [project])
    assert log.read_bytes() == before
    make_packable(tmp_path / "none.log", [project])
    assert not (tmp_path / "none.log").exists()
