"""Loops, client processes and the ledger together: nothing is dropped, nothing is hidden."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import replace
from multiprocessing.connection import Connection
from pathlib import Path

import numpy as np
import pandas as pd
import psutil
import pytest
from null_server import NullServer, ok
from refill.load.clients import ClientError, Clients
from refill.load.floor import Same
from refill.load.ledger import (
    Judgement,
    Ledger,
    conservation,
    join_parts,
    latency_s,
    part_files,
    read_parts,
)
from refill.load.loops import Job, Row
from refill.load.wire import Address, prepare
from refill.load.worker import Done, Setup, Stop, _Jobs
from refill.processes import module_command, module_environment, wait_for


def judge(row: Row) -> Judgement:
    if row.http != 200:
        return Judgement("error", -1, float("nan"), f"{row.http}")
    return Judgement("ok" if row.body == b"{}" else "wrong", 10, 1.0, "")


def setup(address: Address, timeout_s: float = 5.0, number: int = 0) -> Setup:
    source = Same(prepare(address, "POST", "/", b"{}"))
    return Setup(number, address, source, timeout_s, time.monotonic())


def drive(
    folder: Path, setups: Sequence[Setup], jobs: Sequence[Job]
) -> tuple[pd.DataFrame, list[Done], Ledger]:
    ledger = Ledger(folder, judge)
    with Clients(setups, ledger.add) as clients:
        done = clients.run(jobs)
    return ledger.frame(), done, ledger


def closed(count: int, window: int = 0) -> Job:
    return Job("steady", "closed", window, range(5), count=count)


def test_every_request_has_one_row(tmp_path: Path) -> None:
    with NullServer() as server:
        frame, done, ledger = drive(tmp_path, [setup(server.address)], [closed(500)])
    assert len(server.requests) == 500 == len(frame) == ledger.issued == done[0].issued
    assert frame["query"].tolist() == [n % 5 for n in range(500)]
    assert (frame["status"] == "ok").all()
    assert (frame["planned"] <= frame["sent"]).all()
    assert (frame["sent"] <= frame["done"]).all()
    assert conservation(frame, done)["ok"]


def test_what_is_told_of_a_phase_is_of_that_phase_alone(tmp_path: Path) -> None:
    def slow_at_first(number: int, _: bytes) -> bytes:
        time.sleep(0.02 if number < 60 else 0)
        return ok()

    ledger = Ledger(tmp_path, judge)
    with (
        NullServer(slow_at_first) as server,
        Clients([setup(server.address)], ledger.add) as clients,
    ):
        clients.run([Job("warm-up", "closed", 0, [0], count=60)])
        assert min(ledger.recent_ms) >= 20
        clients.run([Job("steady", "closed", 1, [0], count=40)])
    assert len(ledger.recent_ms) == 40


def test_a_client_goes_on_behind_a_ctrl_c_until_it_is_ended(
    capfd: pytest.CaptureFixture[str],
) -> None:
    """A terminal sends it to all processes, and the controller decides what comes of it."""
    with NullServer() as server, Clients([setup(server.address)], lambda _: None) as clients:
        for child in psutil.Process().children():
            if "refill.load.worker" in child.cmdline():
                child.send_signal(signal.SIGINT)
        (done,) = clients.run([closed(20)])
    assert done.issued == 20
    assert "Traceback" not in capfd.readouterr().err


def test_nobody_listens_on_a_pipe_that_is_closed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its number would be given to the next file, and a part of that read away."""
    close, listening = Connection.close, []

    def watched(pipe: Connection) -> None:
        listening.extend(t for t in threading.enumerate() if t.name == "rows")
        close(pipe)

    with NullServer() as server:
        setups = [setup(server.address, number=n) for n in range(2)]
        with Clients(setups, lambda _: None) as clients:
            clients.run([closed(20)] * 2)
            alive = [thread for thread in threading.enumerate() if thread.name == "rows"]
            monkeypatch.setattr(Connection, "close", watched)
    assert len(alive) == 2
    first_closed = [thread for thread in listening if thread is alive[0]]
    assert first_closed == []
    assert not any(thread.is_alive() for thread in alive)


def test_eight_clients_are_eight_processes(tmp_path: Path) -> None:
    with NullServer() as server:
        setups = [setup(server.address, number=n) for n in range(8)]
        frame, done, _ = drive(tmp_path, setups, [closed(50)] * 8)
    assert frame.groupby("client").size().to_dict() == dict.fromkeys(range(8), 50)
    assert conservation(frame, done)["ok"]


def test_an_open_loop_counts_a_stall_against_all_who_waited(tmp_path: Path) -> None:
    """One stall of 0.6 s: a closed loop shows one slow request, an open loop all that waited."""

    def stall_at_10(number: int, _: bytes) -> bytes:
        if number == 10:
            time.sleep(0.6)
        return ok()

    def slow(loop: str) -> int:
        per_s = 100.0 if loop == "open" else 0.0
        job = Job("steady", loop, 0, [0], count=80, per_s=per_s, workers=1)
        with NullServer(stall_at_10) as server:
            frame, done, _ = drive(tmp_path / loop, [setup(server.address)], [job])
        assert len(frame) == 80
        assert conservation(frame, done)["ok"]
        return int((latency_s(frame) > 0.1).sum())

    assert slow("closed") == 1
    # Planned every 10 ms, so about 50 requests were planned at least 0.1 s before the stall's end.
    assert 40 <= slow("open") <= 70


def test_an_open_loop_keeps_its_plan_with_several_connections(tmp_path: Path) -> None:
    def slow(_: int, __: bytes) -> bytes:
        time.sleep(0.05)
        return ok()

    job = Job("steady", "open", 0, range(5), count=60, per_s=100.0, workers=16)
    with NullServer(slow) as server:
        frame, _, _ = drive(tmp_path, [setup(server.address)], [job])
    assert frame["query"].value_counts().to_dict() == dict.fromkeys(range(5), 12)
    planned = np.sort(frame["planned"].to_numpy())
    assert np.allclose(np.diff(planned), 0.01)
    # 100 requests of 50 ms each second need five connections at least; one would take 3 s.
    assert frame["done"].max() - planned[0] < 2.0


def test_timeouts_errors_and_wrong_answers_are_rows(tmp_path: Path) -> None:
    def reply(number: int, _: bytes) -> bytes | None:
        if number == 3:
            time.sleep(1.0)
        if number == 5:
            return None
        if number == 7:
            return b"HTTP/1.1 503 Busy\r\nContent-Length: 4\r\n\r\nbusy"
        return ok(b"[]") if number == 9 else ok()

    with NullServer(reply) as server:
        frame, done, ledger = drive(tmp_path, [setup(server.address, 0.3)], [closed(20)])
    assert dict(ledger.counts) == {"ok": 16, "timeout": 1, "error": 2, "wrong": 1}
    timeout = frame[frame["status"] == "timeout"].iloc[0]
    assert timeout["done"] - timeout["sent"] >= 0.3
    assert frame[frame["http"] == 503]["detail"].tolist() == ["503"]
    assert conservation(frame, done)["ok"]


def test_a_server_that_dies_fills_rows_with_errors_and_no_loop_runs_wild(tmp_path: Path) -> None:
    server = NullServer()
    with server:
        ledger = Ledger(tmp_path, judge)
        with Clients([setup(server.address)], ledger.add) as clients:
            threading.Timer(0.3, server.close).start()
            clients.run([Job("steady", "closed", 0, [0], seconds=1.0)])
    frame = ledger.frame()
    assert ledger.counts["ok"] >= 1
    assert 1 <= ledger.counts["error"] <= 40
    assert len(frame) == ledger.issued


def test_a_window_can_be_stopped(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path, judge)
    with NullServer() as server, Clients([setup(server.address)], ledger.add) as clients:
        job = Job("draining", "open", 0, [0], seconds=30.0, per_s=50.0, workers=4)
        done = clients.run([job], clients.stop, 0.3)
        again = clients.run([closed(10, window=1)])
    assert done[0].end - done[0].start < 10
    assert again[0].issued == 10
    assert ledger.issued == done[0].issued + 10


def test_a_client_that_stood_still_says_so(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path, judge)

    timers: list[threading.Timer] = []

    def suspend() -> None:
        if timers:
            clients.stop()
            return
        if ledger.issued <= 10:
            return  # the window has not begun
        (client,) = [c for c in psutil.Process().children() if "refill.load.worker" in c.cmdline()]
        client.suspend()
        timers.append(threading.Timer(1.5, client.resume))
        timers[0].start()

    with NullServer() as server, Clients([setup(server.address)], ledger.add) as clients:
        quick = clients.run([closed(10)])
        job = Job("steady", "closed", 1, [0], seconds=30.0)
        slow = clients.run([job], suspend, 0.3)
    assert quick[0].stalled_s < 1.0
    assert slow[0].stalled_s > 1.0


def test_a_late_stop_ends_no_later_window() -> None:
    """A stop that comes when its window is over must not cut the next one short."""
    stop = threading.Event()
    jobs = _Jobs(stop)
    jobs.put(closed(1, window=1))
    assert jobs.take().window == 1
    jobs.over()
    jobs.put(Stop(1))
    jobs.put(closed(1, window=2))
    assert jobs.take().window == 2
    assert not stop.is_set()
    jobs.put(Stop(2))
    assert stop.is_set()
    jobs.over()
    # One that comes before its job has begun is not forgotten either.
    jobs.put(Stop(3))
    jobs.put(closed(1, window=3))
    jobs.take()
    assert stop.is_set()


def test_a_killed_client_is_told(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path, judge)

    def kill() -> None:
        for child in psutil.Process().children():
            if "refill.load.worker" in child.cmdline():
                child.kill()

    with (
        NullServer() as server,
        Clients([setup(server.address)], ledger.add) as clients,
        pytest.raises(ClientError, match="client 0 ended"),
    ):
        clients.run([Job("steady", "closed", 0, [0], seconds=30.0)], kill, 0.3)


def test_a_hidden_retry_breaks_the_conservation_law(tmp_path: Path) -> None:
    with NullServer() as server:
        frame, done, _ = drive(tmp_path, [setup(server.address)], [closed(200)])
    hidden = frame.drop(index=[50]).reset_index(drop=True)
    assert "issued 200, but the ledger holds 199" in conservation(hidden, done)["violations"][0]
    done_later = [
        Done(0, 0, d.start, d.end + 10.0, d.issued, d.delivering_s, 0.0, None) for d in done
    ]
    verdict = conservation(frame, done_later)
    assert not verdict["ok"]
    assert "unaccounted" in verdict["violations"][0]


def test_a_hole_is_explained_by_the_kernels_own_count_and_by_no_more(tmp_path: Path) -> None:
    with NullServer() as server:
        frame, (done,), _ = drive(tmp_path, [setup(server.address)], [closed(200)])
    later = replace(done, end=done.end + 0.3)
    for waited_s, kept in ((0.3, True), (0.1, False)):
        assert conservation(frame, [replace(later, waited_s=waited_s)])["ok"] is kept
    # It explains no latencies beyond the window.
    earlier = replace(done, end=done.end - 0.3, waited_s=0.3)
    assert "waited for a processor for 0.300 s" in conservation(frame, [earlier])["violations"][0]


def test_a_client_tells_how_long_it_waited_for_a_processor(tmp_path: Path) -> None:
    """It shares one processor with a process that wants all of it."""
    if not Path("/proc/thread-self/schedstat").exists():
        pytest.skip("the kernel does not count it")
    cpu = min(os.sched_getaffinity(0))
    with NullServer() as server, Clients([setup(server.address)], lambda _: None) as clients:
        os.sched_setaffinity(clients._processes[0].pid, {cpu})
        (alone,) = clients.run([closed(300)])
        hog = subprocess.Popen([sys.executable, "-c", "while True: pass"])
        os.sched_setaffinity(hog.pid, {cpu})
        try:
            (beside,) = clients.run([Job("steady", "closed", 1, [0], seconds=1.0)])
        finally:
            hog.kill()
            hog.wait()
    assert 0 <= alone.waited_s < alone.end - alone.start
    assert 0 < beside.waited_s < beside.end - beside.start


def test_rows_that_go_behind_the_window_are_no_part_of_it() -> None:
    """The controller reads late, and the last rows are more than a pipe takes."""
    body = b"x" * 4_000_000
    with NullServer(lambda _, __: ok(body)) as server:
        ours, theirs = socket.socketpair()
        worker = subprocess.Popen(
            module_command("refill.load.worker", str(theirs.fileno())),
            pass_fds=[theirs.fileno()],
            env=module_environment(),
        )
        theirs.close()
        pipe = Connection(ours.detach())
        try:
            pipe.send(setup(server.address))
            pipe.send(closed(1))
            assert wait_for(lambda: len(server.requests) == 1, 30)
            time.sleep(0.5)
            rows, done = pipe.recv(), pipe.recv()
        finally:
            worker.kill()
            worker.wait()
            pipe.close()
    assert len(rows) == done.issued == 1
    assert done.delivering_s <= done.end - done.start


KILLED = """
import sys, time
from pathlib import Path
from refill.load.clients import Clients
from refill.load.floor import Same
from refill.load.ledger import Judgement, Ledger
from refill.load.loops import Job
from refill.load.wire import Address, prepare
from refill.load.worker import Setup
address = Address("127.0.0.1", int(sys.argv[1]))
ledger = Ledger(Path(sys.argv[2]), lambda row: Judgement("ok", 0, 1.0, ""))
setup = Setup(0, address, Same(prepare(address, "GET", "/")), 5.0, time.monotonic())
with Clients([setup], ledger.add) as clients:
    clients.run([Job("steady", "closed", 0, [0], seconds=60.0)], ledger.tick, 0.1)
"""


def test_a_killed_run_loses_at_most_its_last_moments_and_leaves_no_client(tmp_path: Path) -> None:
    def paced(_: int, __: bytes) -> bytes:
        time.sleep(0.005)
        return ok()

    with NullServer(paced) as server:
        run = subprocess.Popen(
            [sys.executable, "-c", KILLED, str(server.address.port), str(tmp_path)],
            env=module_environment(),
        )
        assert wait_for(lambda: len(part_files(tmp_path)) >= 2, 30)
        client = psutil.Process(run.pid).children()[0]
        sent_before = len(server.requests)
        os.kill(run.pid, signal.SIGKILL)
        run.wait()
        assert wait_for(lambda: not client.is_running(), 10)
    rows = read_parts(tmp_path)
    # 200 a second at the most: what is missing is less than two seconds' worth.
    assert sent_before - 400 <= len(rows) <= len(server.requests)
    assert (rows["seq"].to_numpy() == np.arange(len(rows))).all()


def test_parts_join_to_one_file_and_a_missing_part_is_noticed(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / "parts", judge)
    row = Row("steady", "closed", 0, 0, 1, 0.0, 0.0, 0.1, "answered", 200, b"{}", "")
    for _ in range(3):
        ledger.add([row] * 10)
        ledger.frame()
    assert len(part_files(tmp_path / "parts")) == 3
    assert ledger.finish(tmp_path / "all.parquet") == 30
    assert len(pd.read_parquet(tmp_path / "all.parquet")) == 30
    part_files(tmp_path / "parts")[1].unlink()
    assert join_parts(tmp_path / "parts", tmp_path / "again.parquet") == 20
    with pytest.raises(RuntimeError, match="20 rows were written, 30 were issued"):
        ledger.finish(tmp_path / "again.parquet")
