"""The control group of a run: its name, and how systemd is asked for it where it owns the tree.

A program in the place of `systemctl` keeps what it is asked, and makes the folder as systemd would.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from refill.engines.description import EngineError
from refill.runtimes.cgroups import ControlGroups, Limits, Mount
from refill.runtimes.run_group import group_of, group_path, make_group, remove_group

GIB = 1 << 30
LIMITS = Limits(1.5, 4 * GIB, "0-1")
SLICE = group_of("ab12", 77, "systemd")


@pytest.fixture
def asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A systemctl that writes its arguments into a file, a call a line."""
    log, tree = tmp_path / "asked", tmp_path / "tree"
    tree.mkdir()
    log.touch()
    program = tmp_path / "bin/systemctl"
    program.parent.mkdir()
    program.write_text(
        f"""#!/bin/sh
echo "$*" >> {log}
case $1 in
  start) mkdir {tree}/$2 ;;
  stop) rmdir {tree}/$2 ;;
esac
"""
    )
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}:/bin:/usr/bin")
    return log


def trees(tmp_path: Path, version: int) -> ControlGroups:
    return ControlGroups({"memory" if version == 1 else "": Mount(tmp_path / "tree")})


def test_its_name_tells_run_and_process_and_suits_the_daemon() -> None:
    assert group_of("ab12", 77, "cgroupfs") == "/refill_ab12_77"
    # No dash: systemd would put it below a slice of the first word.
    assert SLICE == "refill_ab12_77.slice"
    assert group_path(SLICE) == "/refill_ab12_77.slice"
    assert group_path("/refill_ab12_77") == "/refill_ab12_77"


def test_systemd_is_asked_for_a_slice_of_version_2(tmp_path: Path, asked: Path) -> None:
    groups = trees(tmp_path, 2)
    make_group(SLICE, LIMITS, groups)
    properties = f"CPUQuota=150% MemoryMax={4 * GIB} MemorySwapMax=0 AllowedCPUs=0-1"
    assert asked.read_text().splitlines() == [
        f"set-property --runtime {SLICE} {properties}",
        f"start {SLICE}",
    ]
    assert groups.has("/refill_ab12_77.slice")
    asked.write_text("")
    remove_group(SLICE, groups)
    remove_group(SLICE, groups)  # it is gone, and that is what was wanted
    assert asked.read_text().splitlines() == [f"stop {SLICE}", f"revert {SLICE}"]


def test_version_1_has_older_names_and_no_sets_of_cpus(tmp_path: Path, asked: Path) -> None:
    make_group(SLICE, LIMITS, trees(tmp_path, 1))
    first = asked.read_text().splitlines()[0]
    assert first == f"set-property --runtime {SLICE} CPUQuota=150% MemoryLimit={4 * GIB}"


def test_what_systemd_refuses_is_told(
    tmp_path: Path, asked: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = asked.parent / "bin/systemctl"
    program.write_text("#!/bin/sh\necho Access denied >&2\nexit 1\n")
    with pytest.raises(EngineError, match=r"systemctl set-property .*: Access denied"):
        make_group(SLICE, LIMITS, trees(tmp_path, 2))
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(EngineError, match="no systemctl here"):
        make_group(SLICE, LIMITS, trees(tmp_path, 2))
