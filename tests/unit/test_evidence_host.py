"""Host facts: read from what the system shows, null where it shows nothing."""

from __future__ import annotations

import getpass
import json
import platform
from pathlib import Path
from typing import Any

import pytest
from refill.evidence.host import host_facts
from refill.evidence.records import canonical_json

CPUINFO = """\
processor\t: 0
model name\t: Some CPU 3000 @ 2.00GHz
flags\t\t: fpu avx avx2 hypervisor fma
"""
MOUNTS = r"""22 1 8:1 / / rw - ext4 /dev/sda1 rw
23 22 0:30 / {shown} rw shared:1 - xfs /dev/sdb1 rw
24 22 0:31 / {shown}x rw - tmpfs tmpfs rw
"""


@pytest.fixture
def machine(tmp_path: Path) -> Path:
    """A machine of files: two cores of an Amazon guest, in a container with limits."""
    place = tmp_path / "with space"
    (place / "results").mkdir(parents=True)
    files = {
        "proc/cpuinfo": CPUINFO,
        "proc/loadavg": "9.50 1.25 0.05 1/100 999\n",
        "proc/meminfo": "MemTotal: 100 kB\nSwapTotal: 2048 kB\n",
        "proc/self/mountinfo": MOUNTS.format(shown=str(place).replace(" ", r"\040")),
        "proc/1/cgroup": "0::/docker/abc\n",
        "sys/devices/system/cpu/cpu0/cpufreq/scaling_governor": "powersave\n",
        "sys/devices/system/cpu/cpu0/cpufreq/cpuinfo_max_freq": "3000000\n",
        "sys/devices/system/cpu/intel_pstate/no_turbo": "1\n",
        "sys/kernel/mm/transparent_hugepage/enabled": "always [madvise] never\n",
        "sys/class/dmi/id/sys_vendor": "Amazon EC2\n",
        "sys/fs/cgroup/cpu.max": "150000 100000\n",
        "sys/fs/cgroup/memory.max": "1073741824\n",
        "sys/dev/block/0:30/queue/rotational": "0\n",
        "sys/dev/block/0:30/queue/scheduler": "none [mq-deadline] kyber\n",
        "sys/dev/block/0:30/queue/write_cache": "write back\n",
        "sys/devices/system/clocksource/clocksource0/current_clocksource": "tsc\n",
        "sys/devices/system/cpu/smt/active": "1\n",
        "etc/os-release": 'NAME="x"\nPRETTY_NAME="Some Linux 12"\n',
    }
    root = tmp_path / "root"
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return root


def test_facts_are_read_from_the_system(machine: Path) -> None:
    facts = host_facts(machine.parent / "with space/results", machine)
    cpu = facts["cpu"]
    assert cpu["model"] == "Some CPU 3000 @ 2.00GHz"
    assert cpu["governor"] == "powersave"
    assert cpu["max_mhz"] == 3000
    assert cpu["turbo"] is False
    assert cpu["smt"] is True
    assert facts["clocksource"] == "tsc"
    assert facts["disk"]["scheduler"] == "mq-deadline"
    assert facts["disk"]["write_cache"] == "write back"
    assert cpu["simd"] == ["avx", "avx2", "fma"]
    assert cpu["cores_limit"] == 1.5
    assert facts["memory"]["limit_bytes"] == 1 << 30
    assert facts["memory"]["swap_total_bytes"] == 2 << 20
    assert facts["memory"]["transparent_hugepages"] == "madvise"
    assert facts["disk"]["filesystem"] == "xfs"
    assert facts["disk"]["rotational"] is False
    assert facts["load"] == {"1min": 9.5, "5min": 1.25, "15min": 0.05}
    assert facts["distribution"] == "Some Linux 12"
    assert facts["virtualisation"] == {
        "virtual_machine": True,
        "hypervisor": "amazon",
        "container": True,
    }


def test_the_disk_is_that_of_the_nearest_folder_that_exists(machine: Path) -> None:
    facts = host_facts(machine.parent / "with space/not/yet/there", machine)
    assert facts["disk"]["filesystem"] == "xfs"


def test_what_makes_figures_unsteady_is_said(machine: Path) -> None:
    text = " ".join(host_facts(machine.parent, machine)["warnings"])
    assert "load 9.50" in text
    assert "governor is powersave" in text
    assert "virtual machine" in text


def test_where_the_system_shows_nothing_facts_are_null(tmp_path: Path) -> None:
    facts = host_facts(tmp_path, tmp_path / "nothing here")
    assert facts["cpu"]["model"] is None
    assert facts["cpu"]["governor"] is None
    assert facts["cpu"]["cores_limit"] is None
    assert facts["memory"]["limit_bytes"] is None
    assert facts["disk"]["filesystem"] is None
    assert facts["load"] == {"1min": None, "5min": None, "15min": None}
    assert facts["virtualisation"]["virtual_machine"] is None
    assert not any("load" in warning for warning in facts["warnings"])


def test_unlimited_control_groups_are_no_limit(machine: Path) -> None:
    (machine / "sys/fs/cgroup/cpu.max").write_text("max 100000\n")
    (machine / "sys/fs/cgroup/memory.max").write_text("max\n")
    facts = host_facts(machine, machine)
    assert facts["cpu"]["cores_limit"] is None
    assert facts["memory"]["limit_bytes"] is None
    (machine / "sys/fs/cgroup/cpu.max").unlink()
    (machine / "sys/fs/cgroup/cpu").mkdir()
    (machine / "sys/fs/cgroup/cpu/cpu.cfs_quota_us").write_text("250000\n")
    (machine / "sys/fs/cgroup/cpu/cpu.cfs_period_us").write_text("100000\n")
    assert host_facts(machine, machine)["cpu"]["cores_limit"] == 2.5


def words(value: Any) -> list[str]:
    if isinstance(value, dict):
        return [word for item in value.values() for word in words(item)]
    if isinstance(value, list):
        return [word for item in value for word in words(item)]
    return [value] if isinstance(value, str) else []


def test_this_machines_facts_are_json_and_name_nobody(tmp_path: Path) -> None:
    facts = json.loads(canonical_json(host_facts(tmp_path)))
    assert facts["cpu"]["cores_usable"] >= 1
    assert facts["memory"]["total_bytes"] > 0
    assert facts["disk"]["total_bytes"] >= facts["disk"]["free_bytes"] > 0
    assert not any(word.startswith("/") for word in words(facts))
    assert getpass.getuser() not in words(facts)
    assert platform.node() not in words(facts)
