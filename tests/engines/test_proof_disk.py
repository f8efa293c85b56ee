"""The disk whose power is cut: that it comes back, that the cut is seen, and that none is left."""

from __future__ import annotations

import os
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest
from proof_subject import sources, subject
from refill.batch_job import SCRATCH as FOLDER
from refill.processes import StoppedError
from refill.proofs import disk, power
from refill.proofs.disk import IMAGE_NAME, Disk, DiskError, left_below, remove_leftovers
from refill.proofs.findings import BEYOND, FAIL, HARNESS, NOT_RUN, VOID, Check, Findings, run_check
from refill.proofs.scratch import PREFIX, Scratch
from refill.proofs.servers import Server
from refill.proofs.subject import Subject
from refill.runtimes.owner import Owner, _began

root = pytest.mark.skipif(
    os.geteuid() != 0 and not os.environ.get("CI"), reason="needs root for a loop device"
)
both = pytest.mark.parametrize("kind", ["ext4", "xfs"])


def need_mkfs(kind: str) -> None:
    if shutil.which(f"mkfs.{kind}") is None and not os.environ.get("CI"):
        pytest.skip(f"no mkfs.{kind}")


@root
@both
def test_a_disk_comes_back_with_its_power_although_others_hold_its_mount(
    kind: str, tmp_path: Path
) -> None:
    """A container that starts has a copy of all mounts for a moment, and keeps the disk alive."""
    need_mkfs(kind)
    with Disk(kind, tmp_path / "a disk") as made:
        synced = made.mount_point / "synced"
        synced.write_text("kept")
        handle = os.open(synced, os.O_RDONLY)
        os.fsync(handle)
        os.close(handle)
        with subprocess.Popen(
            ["unshare", "-m", "--propagation", "private", "sh", "-c", "echo ready; exec sleep 3"],
            stdout=subprocess.PIPE,
        ) as holder:
            assert holder.stdout
            assert holder.stdout.readline() == b"ready\n"
            made.cut()
            with pytest.raises(OSError, match="Input/output error"):
                synced.with_name("more").write_text("lost")
            assert holder.poll() is None
            made.come_back()
        assert synced.read_text() == "kept"
        synced.with_name("more").write_text("written")
        made.cut()
    assert not (tmp_path / "a disk").exists()


@root
def test_a_mount_that_others_keep_is_not_run_and_no_failure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(disk, "UNMOUNT_S", 0.5)

    def check(_: Subject, found: Findings) -> None:
        with Disk("ext4", tmp_path / "disk") as made:
            holder = subprocess.Popen(
                ["unshare", "-m", "--propagation", "private", "sh", "-c", "echo; exec sleep 60"],
                stdout=subprocess.PIPE,
            )
            try:
                assert holder.stdout
                holder.stdout.readline()
                made.cut()
                made.come_back()
            finally:
                holder.kill()
                holder.communicate()

    made = run_check(Check("x", "x", BEYOND, check), subject("new", tmp_path))
    assert made["outcome"] == NOT_RUN
    assert "somebody else holds the mount" in made["why"]
    assert HARNESS not in made["why"]
    assert left_below(tmp_path) == []


@root
@both
def test_a_server_that_does_not_sync_fails_the_check_of_one_that_does(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The check of `always`, on a server whose syncs are taken away."""
    need_mkfs(kind)
    made = subject("new", tmp_path)
    found = Findings()

    def without_syncs(data: Path | None = None, **settings: str) -> Server:
        return Subject.server(made, data, **{**settings, "appendfsync": "no"})

    monkeypatch.setattr(made, "server", without_syncs)
    power.power_cut(kind, "always")(made, found)
    assert found.outcome == FAIL


@root
@both
@pytest.mark.parametrize("policy", ["everysec", "no"])
def test_a_cut_that_cuts_nothing_makes_its_control_void(
    policy: str, kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    need_mkfs(kind)
    monkeypatch.setattr(Disk, "cut", lambda _: None)
    check = next(c for c in power.CHECKS if c.id == f"power-cut-{kind}-{policy}")
    made = run_check(check, subject("new", tmp_path))
    assert made["outcome"] == VOID
    assert made["why"] == f"appendfsync {policy} lost nothing: the cut does not cut"


@root
@pytest.mark.parametrize(
    ("image", "sentence"),
    [
        ("old", "old answers that are served after the cut"),
        ("new", "responses that the log brought back"),
    ],
)
def test_old_answers_after_a_power_cut_are_a_failure(
    image: str, sentence: str, tmp_path: Path
) -> None:
    """A lookup that takes any generation, over fills that are in the log."""
    lookup, looks = sources("old")["lookup"], b"index[1] .. ' ' .. index[2]"
    assert looks in lookup
    anything = b"index[1] .. ' ' .. string.match(entry, '^%S+ %S+ (%d+) ')"
    faulty = {**sources("old"), "lookup": lookup.replace(looks, anything)}
    if image == "new":
        # Here no answer is old, and yet none may have been in the log.
        faulty = sources("old")
    made, found = replace(subject(image, tmp_path), sources=faulty), Findings()
    power.power_cut("ext4", "always")(made, found)
    assert [failure.partition(":")[0] for failure in found.failures] == [sentence]
    assert found.evidence["hits_after"] > 0
    assert (found.evidence["old_answers_after"] > 0) == (image == "old")


def test_without_root_a_power_cut_is_not_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    check = next(c for c in power.CHECKS if c.id == "power-cut-ext4-always")
    made = run_check(check, subject("new", tmp_path))
    assert made["outcome"] == NOT_RUN
    assert "sudo make proof" in made["why"]
    assert not made["required"]


# ---- what is left


def name_of(owner: Owner) -> str:
    return f"{PREFIX}_{owner.label}".replace("/", "_")


def devices() -> str:
    """The files behind all loop devices, also removed ones."""
    return "".join(p.read_text() for p in Path("/sys/block").glob("loop*/loop/backing_file"))


@root
@both
@pytest.mark.parametrize("mounted", [True, False])
def test_the_disk_of_a_killed_proof_is_removed_although_its_results_are_gone(
    kind: str, mounted: bool, tmp_path: Path
) -> None:
    """Killed behind a cut, mounted or not, and then `rm -rf results`."""
    need_mkfs(kind)
    project = tmp_path / 'a"b #c ö\\'
    dead = project / FOLDER / name_of(replace(Owner.this_process(), began=1))
    left = Disk(kind, dead / "new-valkey-8.1-3")
    left.__enter__()
    try:
        left.cut()
        if not mounted:
            subprocess.run(["umount", left.mount_point], check=True)
        subprocess.run(["rm", "-rf", project / "results"], check=False, stderr=subprocess.DEVNULL)
        assert left_below(project) == [dead / "new-valkey-8.1-3"]
        assert not (dead / "new-valkey-8.1-3" / IMAGE_NAME).exists()
        said: list[str] = []
        with Scratch(project, said.append) as scratch:
            assert not dead.exists()
            assert not scratch.path.exists()
        assert said == []
        assert left_below(project) == []
        assert str(project) not in Path("/proc/self/mountinfo").read_text()
        assert str(tmp_path) not in devices()
    finally:
        # Where it was not removed.
        subprocess.run(["umount", left.mount_point], check=False, stderr=subprocess.DEVNULL)
        if str(tmp_path) in devices():
            subprocess.run(["losetup", "--detach", left._device], check=True)


def test_what_another_proof_uses_is_left_alone(tmp_path: Path) -> None:
    """A replay beside a proof: a folder's name says whose it is, and the kernel if that lives."""
    here = Owner.this_process()
    parent = os.getppid()
    began = _began(Path("/proc"), parent)
    assert began is not None
    names = {
        name_of(replace(here, pid=parent, began=began)): True,
        name_of(replace(here, boot="another")): True,
        name_of(replace(here, began=began + 1)): False,
        PREFIX: False,
    }
    for name in names:
        (tmp_path / FOLDER / name).mkdir(parents=True)
        (tmp_path / FOLDER / name / "server.log").write_text("in use")
    with Scratch(tmp_path, print) as scratch:
        scratch.path.mkdir()
        there = {path.name for path in (tmp_path / FOLDER).iterdir()} - {scratch.path.name}
        assert there == {name for name, stays in names.items() if stays}
    assert not scratch.path.exists()


@root
def test_what_is_in_use_of_a_killed_proof_is_told_and_in_nobodys_way(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(disk, "UNMOUNT_S", 0.2)
    dead = tmp_path / FOLDER / name_of(replace(Owner.this_process(), began=1))
    left = Disk("ext4", dead / "disk")
    left.__enter__()
    said: list[str] = []
    try:
        with (left.mount_point / "open").open("w"), Scratch(tmp_path, said.append):
            pass
    finally:
        remove_leftovers(dead / "disk")
    assert len(said) == 1
    assert f"umount {left.mount_point}" in said[0]


def test_cleaning_a_disk_tries_every_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    image = tmp_path / IMAGE_NAME
    ran: list[list[str]] = []

    def run(command: list[str]) -> str:
        ran.append(command)
        raise DiskError("busy")

    def unmount(_: Path) -> None:
        raise DiskError("target is busy")

    loops = {"/dev/loop7": image, "/dev/loop8": image, "/dev/loop9": Path("/other")}
    monkeypatch.setattr(disk, "_mount_points", lambda: [tmp_path / "mounted"])
    monkeypatch.setattr(disk, "_attached", lambda: loops)
    monkeypatch.setattr(disk, "_unmount", unmount)
    monkeypatch.setattr(disk, "_run", run)
    with pytest.raises(DiskError) as told:
        remove_leftovers(tmp_path)
    for words in (f"umount {tmp_path}/mounted", "--detach /dev/loop7", "--detach /dev/loop8"):
        assert words in str(told.value)
    assert "loop9" not in str(told.value)
    assert len(ran) == 2


@pytest.mark.parametrize("error", [StoppedError("stopped by SIGTERM"), ValueError("it is 3")])
def test_what_ended_a_check_is_told_beside_what_could_not_be_cleaned(
    error: BaseException, tmp_path: Path
) -> None:
    class Stuck(Disk):
        def _start(self) -> None:
            self._open.callback(self._stay)

        def _stay(self) -> None:
            raise DiskError("umount: target is busy")

    def check(_: Subject, found: Findings) -> None:
        with Stuck("ext4", tmp_path / "disk"):
            raise error

    if isinstance(error, StoppedError):
        with pytest.raises(StoppedError) as told:
            run_check(Check("x", "x", BEYOND, check), subject("new", tmp_path))
        assert "target is busy" in told.value.__notes__[0]
        return
    made = run_check(Check("x", "x", BEYOND, check), subject("new", tmp_path))
    assert made["outcome"] == FAIL
    assert "it is 3" in made["why"]
    assert "target is busy" in made["why"]


@pytest.mark.parametrize("fails_first", [True, False])
def test_a_disk_that_cannot_be_cleaned_is_no_finding_on_the_server(
    fails_first: bool, tmp_path: Path
) -> None:
    def check(_: Subject, found: Findings) -> None:
        found.expect(not fails_first, "a step is lost")
        raise DiskError("umount: target is busy")

    made = run_check(Check("x", "x", BEYOND, check, needs="root"), subject("new", tmp_path))
    assert made["outcome"] == (FAIL if fails_first else NOT_RUN)
    assert f"{HARNESS}: DiskError: umount" in made["why"]
    assert ("a step is lost" in made["why"]) == fails_first
