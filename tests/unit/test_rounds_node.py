"""The node that all rounds run on: chosen once, held to, and said when it takes no jobs."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path

import pytest
from refill import rounds_node
from refill.rounds_node import NodeError, check_node, check_same_node, read_node, waits, write_node

SLURM = {"SLURM_JOB_ID": "12", "SLURMD_NODENAME": "n1"}


@pytest.fixture(autouse=True)
def no_scheduler(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("SLURM_JOB_ID", "PBS_JOBID", "LSB_JOBID", "JOB_ID"):
        monkeypatch.delenv(name, raising=False)
    rounds_node._state.cache_clear()


def on(node: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {**SLURM, "SLURMD_NODENAME": node}.items():
        monkeypatch.setitem(os.environ, name, value)


def test_a_node_is_written_and_then_held_to(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "rounds.node"
    with pytest.raises(NodeError, match="no cluster's job"):
        write_node(file)
    assert not file.exists()
    on("n1", monkeypatch)
    assert write_node(file) == "n1"
    assert file.read_text() == "n1\n"
    check_node(file)
    on("n2", monkeypatch)
    with pytest.raises(NodeError, match=r"to run on n1, .* runs on n2: .* set-resources"):
        check_node(file)
    monkeypatch.delenv("SLURM_JOB_ID")
    with pytest.raises(NodeError, match="runs on no node of a cluster"):
        check_node(file)


@pytest.mark.parametrize(
    "text", [b"", b"\n", b"n1,n2\n", b"n[1-2]", b"n1\nn2\n", b"-w n1", b"\xff"]
)
def test_a_file_that_names_no_one_node_says_what_it_must_hold(tmp_path: Path, text: bytes) -> None:
    file = tmp_path / "rounds.node"
    file.write_bytes(text)
    with pytest.raises(NodeError, match=r"rounds\.node: must hold the name of the one node"):
        read_node(file)
    for name in ("n1", "node-07.cluster.example", "gpu_3"):
        file.write_text(f"{name}\n")
        assert read_node(file) == name


def test_a_round_on_a_second_node_is_refused_where_none_was_chosen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "on-main"
    folder.mkdir()
    (folder / "old-1.json").write_text(json.dumps({"host": {"node": "n1"}}))
    (folder / "old-1.cold.json").write_text("{}")
    check_same_node(tmp_path)  # no cluster: machines are told apart by their hardware
    on("n1", monkeypatch)
    check_same_node(tmp_path)
    on("n2", monkeypatch)
    with pytest.raises(NodeError, match=r"on node n2, and .*old-1\.json was measured on n1"):
        check_same_node(tmp_path)


@pytest.mark.parametrize(
    ("answer", "told"),
    [
        ("echo 'idle|none'", ""),
        ("echo 'allocated*|none'", ""),
        ("echo 'drained|disk'", r"node n1, as .*, and that node is drained \(disk\), so nothing"),
        ("echo 'down*|Not responding'", r"is down\* \(Not responding\)"),
        ("echo 'draining|none'", "is draining, so"),
        ("true", "is unknown to Slurm"),
        ("echo 'no controller' >&2; exit 1", ""),
    ],
)
def test_a_chosen_node_that_takes_no_jobs_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, answer: str, told: str
) -> None:
    program = tmp_path / "sinfo"
    program.write_text(f"#!/bin/sh\n{answer}\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    file = tmp_path / "rounds.node"
    file.write_text("n1\n")
    line = waits(file)
    if told:
        assert line
        assert "--forcerun pick_node" in line
        assert re.search(told, line), line
    else:
        assert line == ""
