"""What explains the gateway's bench: processor time, a synced write, a slower log."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest
from refill.bench import cpu, disk, inputs, slow_log
from refill.bench.__main__ import main
from refill.config import load_images
from refill.operations.catalog import load_operations
from round_fixture import build_image
from test_bench_gateway import flights

DELAY_MS = 250.0


def test_processor_time_is_that_of_all_threads() -> None:
    code = (
        "import threading, time\n"
        "def work():\n"
        "    while time.thread_time() < 0.2: pass\n"
        "threads = [threading.Thread(target=work) for _ in range(2)]\n"
        "[t.start() for t in threads]; work(); print(flush=True); time.sleep(60)\n"
    )
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout is not None
            process.stdout.readline()
            deadline = time.monotonic() + 30
            seconds = 0.0
            # The main thread has worked; the other one is at it or has ended.
            while seconds < 0.2 and time.monotonic() < deadline:
                seconds = cpu.seconds(process.pid) or 0.0
            assert 0.2 <= seconds < 20
        finally:
            process.kill()


def test_processor_time_where_it_is_not_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cpu, "PROC", tmp_path)
    assert cpu.seconds(1) is None
    (tmp_path / "1/task/1").mkdir(parents=True)
    assert cpu.seconds(1) is None
    (tmp_path / "1/task/1/schedstat").write_text("1500000000 7 3\n")
    (tmp_path / "1/task/2").mkdir()
    (tmp_path / "1/task/2/schedstat").write_text("500000000 7 3\n")
    assert cpu.seconds(1) == 2.0


def test_synced_write_waits_for_the_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced = []

    def fdatasync(descriptor: int) -> None:
        synced.append(os.fstat(descriptor).st_size)
        time.sleep(0.02)

    monkeypatch.setattr(os, "fdatasync", fdatasync)
    found = disk.synced_write(tmp_path, 700, writes=5)
    assert synced == [700, 1400, 2100, 2800, 3500]
    assert found["bytes"] == 700
    assert 20 <= found["p50_ms"] <= found["p95_ms"]
    assert list(tmp_path.iterdir()) == []


def test_figure_that_is_not_there(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--output", str(tmp_path / "bench.json"), "--only", "gateway,speed"])
    assert "no figure speed; there are driver_floor," in capsys.readouterr().err


@pytest.mark.parametrize("given", ["-1", "1,x", "2000"])
def test_delay_that_is_none(given: str, tmp_path: Path) -> None:
    with pytest.raises(SystemExit):
        main(["--output", str(tmp_path / "bench.json"), "--log-delays", given])


def test_slow_log_without_strace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    documents = inputs.documents(flights(tmp_path, 600), tmp_path, tmp_path)
    with pytest.raises(RuntimeError, match="needs strace"):
        slow_log.measure({}, documents, load_operations(), tmp_path, [1.0])


def test_slower_log_is_felt_by_old_alone(tmp_path: Path) -> None:
    if shutil.which("strace") is None:
        if os.environ.get("CI") == "true":
            pytest.fail("strace is missing: apt-get install strace")
        pytest.skip("strace is not installed")
    results, work = tmp_path / "results", tmp_path / "work"
    work.mkdir()
    config = flights(results, 600)
    entries = load_images()
    for name in ("gateway-old", "gateway-new", "qdrant-edge"):
        build_image(tmp_path, name, entries[name])
    archives = inputs.archives(config, results, work)
    documents = inputs.documents(config, results, work)

    found = slow_log.measure(
        archives, documents, load_operations(), work, [DELAY_MS], requests=4, clients=(1,)
    )

    assert "not this disk" in found["label"]
    slow = found[f"+{DELAY_MS:g} ms"]["1 client"]
    assert min(slow["p50_ms"]["old"]) >= DELAY_MS
    # No page of `new` waits for the log: were it so, all of them would.
    assert min(slow["p50_ms"]["new"]) < DELAY_MS
    assert slow["p50_ratio"] < 1
