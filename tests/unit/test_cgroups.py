"""Control groups of both versions, on folders that stand in for the kernel's files."""

from __future__ import annotations

from pathlib import Path

import pytest
from refill.runtimes.cgroups import (
    ControlGroups,
    Counters,
    Limits,
    Mount,
    cpu_list,
    mounted,
    read_cpu_list,
)
from refill.runtimes.counters import container_resources

GIB = 1 << 30
WHOLE = Limits(2.0, 4 * GIB, "0-1")
GROUP = "/refill_ab12_77"

V1_MOUNTINFO = """\
25 30 0:23 / /sys/fs/cgroup ro,nosuid - tmpfs tmpfs ro,mode=755
26 25 0:24 / /sys/fs/cgroup/systemd rw,nosuid shared:9 - cgroup cgroup rw,xattr,name=systemd
27 25 0:25 / /sys/fs/cgroup/cpu,cpuacct rw,nosuid shared:10 - cgroup cgroup rw,cpu,cpuacct
28 25 0:26 / /sys/fs/cgroup/memory rw,nosuid shared:11 - cgroup cgroup rw,memory
29 25 0:27 / /sys/fs/cgroup/cpuset rw - cgroup cgroup rw,cpuset
31 25 0:29 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw
"""
V2_MOUNTINFO = "29 22 0:26 / /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw,nsdelegate\n"


def v1_tree(folder: Path) -> ControlGroups:
    files = {
        "cpu": {"cpu.cfs_quota_us": "-1", "cpu.cfs_period_us": "100000"},
        "cpuacct": {"cpuacct.usage": "1"},
        "cpuset": {"cpuset.cpus": "0-3", "cpuset.mems": "0"},
        "memory": {"memory.limit_in_bytes": "9223372036854771712", "memory.use_hierarchy": "1"},
    }
    for name, content in files.items():
        (folder / name).mkdir(parents=True)
        for file, text in content.items():
            (folder / name / file).write_text(text + "\n")
    return ControlGroups({name: Mount(folder / name) for name in files}, folder / "proc")


def v2_tree(folder: Path) -> ControlGroups:
    (folder / "tree").mkdir(parents=True)
    (folder / "tree/cgroup.subtree_control").write_text("")
    return ControlGroups({"": Mount(folder / "tree")}, folder / "proc")


def write_all(folder: Path, files: dict[str, str]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (folder / name).write_text(text)


def test_trees_are_found_where_they_are_mounted() -> None:
    one = ControlGroups(mounted(V1_MOUNTINFO))
    assert one.version == 1
    assert one.mounts["cpu"].folder == one.mounts["cpuacct"].folder
    assert one.mounts["cpu"].folder == Path("/sys/fs/cgroup/cpu,cpuacct")
    assert {"name=systemd", "cpuset", ""} <= one.mounts.keys()
    two = ControlGroups(mounted(V2_MOUNTINFO))
    assert two.version == 2
    assert two.folders(GROUP)["cpu"] == Path("/sys/fs/cgroup/refill_ab12_77")
    assert ControlGroups({}).version is None


def test_a_group_below_the_mounted_one_is_found_there() -> None:
    """In a container the tree that is mounted begins at the container's own group."""
    mount = mounted(V2_MOUNTINFO.replace(" / /sys", " /docker/x /sys"))[""]
    assert mount.at("/docker/x/inner") == Path("/sys/fs/cgroup/inner")


def test_limits_of_version_1_go_into_its_files(tmp_path: Path) -> None:
    groups = v1_tree(tmp_path)
    groups.make(GROUP, WHOLE)
    read = {
        path.name: path.read_text()
        for name in ("cpu", "memory", "cpuset")
        for path in (tmp_path / name / GROUP[1:]).iterdir()
    }
    assert read == {
        "cpu.cfs_period_us": "100000",
        "cpu.cfs_quota_us": "200000",
        "cpuset.cpus": "0-1",
        "cpuset.mems": "0",
        "memory.limit_in_bytes": str(4 * GIB),
    }
    assert groups.limits(groups.folders(GROUP)) == WHOLE


def test_an_old_kernel_counts_memory_of_groups_below_only_when_told(tmp_path: Path) -> None:
    groups = v1_tree(tmp_path)
    folder = tmp_path / "memory" / GROUP[1:]
    made = Path.mkdir

    def with_files(self: Path, *args: int, **kwargs: bool) -> None:
        made(self, *args, **kwargs)
        if self == folder:
            (folder / "memory.use_hierarchy").write_text("0\n")
            (folder / "memory.memsw.limit_in_bytes").write_text("9\n")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Path, "mkdir", with_files)
        groups.make(GROUP, WHOLE)
    assert (folder / "memory.use_hierarchy").read_text() == "1"
    # No swap beside the memory.
    assert (folder / "memory.memsw.limit_in_bytes").read_text() == str(4 * GIB)


def test_limits_of_version_2_go_into_its_files(tmp_path: Path) -> None:
    groups = v2_tree(tmp_path)
    groups.make(GROUP, WHOLE)
    folder = tmp_path / "tree" / GROUP[1:]
    assert {path.name: path.read_text() for path in folder.iterdir()} == {
        "cpu.max": "200000 100000",
        "memory.max": str(4 * GIB),
        "cpuset.cpus": "0-1",
        # Containers below it are limited and counted, too.
        "cgroup.subtree_control": "+cpu +cpuset +memory",
    }
    assert (tmp_path / "tree/cgroup.subtree_control").read_text() == "+cpu +cpuset +memory"
    (folder / "cpuset.cpus.effective").write_text("0-1\n")
    assert groups.limits(groups.folders(GROUP)) == WHOLE


def test_what_is_not_limited_reads_as_such(tmp_path: Path) -> None:
    one, two = v1_tree(tmp_path / "1"), v2_tree(tmp_path / "2")
    assert one.limits(one.folders("/")) == Limits(None, None, "0-3")
    write_all(tmp_path / "2/tree/a", {"cpu.max": "max 100000\n", "memory.max": "max\n"})
    assert two.limits(two.folders("/a")) == Limits()
    assert ControlGroups({}, tmp_path).limits({}) == Limits()


def test_swap_beside_the_memory_is_read_and_is_none_where_the_machine_has_none(
    tmp_path: Path,
) -> None:
    one, two = v1_tree(tmp_path / "1"), v2_tree(tmp_path / "2")
    for tree in (one, two):
        write_all(tree.proc, {"meminfo": "MemTotal: 24 kB\nSwapTotal:       1024 kB\n"})
    memory = {"memory.limit_in_bytes": f"{GIB}\n", "memory.memsw.limit_in_bytes": f"{3 * GIB}\n"}
    write_all(tmp_path / "1/memory/a", memory)
    write_all(tmp_path / "2/tree/a", {"memory.max": f"{GIB}\n", "memory.swap.max": "4096\n"})
    assert one.limits(one.folders("/a")).swap_bytes == 2 * GIB
    assert two.limits(two.folders("/a")).swap_bytes == 4096
    # A kernel that does not account for swap limits none of it.
    (tmp_path / "1/memory/a/memory.memsw.limit_in_bytes").unlink()
    (tmp_path / "2/tree/a/memory.swap.max").write_text("max\n")
    assert one.limits(one.folders("/a")).swap_bytes is None
    assert two.limits(two.folders("/a")).swap_bytes is None
    for tree in (one, two):
        write_all(tree.proc, {"meminfo": "MemTotal: 24 kB\nSwapTotal: 0 kB\n"})
        assert tree.limits(tree.folders("/a")).swap_bytes == 0


def test_counters_have_the_units_of_their_version(tmp_path: Path) -> None:
    one, two = v1_tree(tmp_path / "1"), v2_tree(tmp_path / "2")
    write_all(
        tmp_path / "1/cpu/a",
        {"cpu.stat": "nr_periods 9\nnr_throttled 3\nthrottled_time 2500000000\n"},
    )
    write_all(tmp_path / "1/cpuacct/a", {"cpuacct.usage": "7500000000\n"})
    write_all(tmp_path / "1/memory/a", {"memory.max_usage_in_bytes": "4096\n"})
    assert one.counters(one.folders("/a")) == Counters(7.5, 2.5, 4096.0)
    write_all(
        tmp_path / "2/tree/a",
        {
            "cpu.stat": "usage_usec 7500000\nnr_throttled 3\nthrottled_usec 2500000\n",
            "memory.peak": "4096\n",
        },
    )
    assert two.counters(two.folders("/a")) == Counters(7.5, 2.5, 4096.0)
    unknown = one.counters({})
    assert all(value != value for value in (unknown.cpu_s, unknown.throttled_s))


def test_a_process_names_its_group(tmp_path: Path) -> None:
    one = v1_tree(tmp_path / "1")
    lines = "5:memory:/docker/c1\n4:cpu,cpuacct:/docker/c1\n3:pids:/docker/c1\n2:cpuset:/../x\n"
    write_all(tmp_path / "1/proc/77", {"cgroup": lines})
    for name in ("memory", "cpu"):
        (tmp_path / "1" / name / "docker/c1").mkdir(parents=True)
    # Seen are only the trees in which this process can look at it.
    assert one.of_process(77) == {
        "memory": tmp_path / "1/memory/docker/c1",
        "cpu": tmp_path / "1/cpu/docker/c1",
    }
    assert one.of_process(78) == {}
    two = v2_tree(tmp_path / "2")
    write_all(tmp_path / "2/proc/77", {"cgroup": "0::/docker/c1\n"})
    (tmp_path / "2/tree/docker/c1").mkdir(parents=True)
    assert set(two.of_process(77).values()) == {tmp_path / "2/tree/docker/c1"}


def test_a_containers_counters_are_its_groups_and_its_processes(tmp_path: Path) -> None:
    two = v2_tree(tmp_path)
    write_all(
        tmp_path / "tree/c",
        {
            "cgroup.procs": "7\n8\n",
            "cpu.stat": "usage_usec 1500000\nthrottled_usec 250000\n",
            "memory.peak": "900000\n",
        },
    )
    for pid, pages in ((7, 10), (8, 5)):
        write_all(
            tmp_path / f"proc/{pid}",
            {
                "statm": f"99 {pages} 1 1 0 1 0\n",
                "io": f"rchar: 1\nread_bytes: {pid}\nwrite_bytes: 10\n",
            },
        )
    found = container_resources(two, two.folders("/c"))
    assert found.rss_bytes % 15 == 0
    assert found.rss_bytes >= 15 * 4096
    assert (found.cpu_s, found.throttled_s, found.memory_peak_bytes) == (1.5, 0.25, 900000.0)
    assert (found.read_bytes, found.write_bytes) == (15.0, 20.0)
    # Nothing is told as nothing used when no process is left.
    write_all(tmp_path / "tree/c", {"cgroup.procs": ""})
    gone = container_resources(two, two.folders("/c"))
    assert gone.cpu_s != gone.cpu_s


def test_a_refusal_of_the_kernel_names_file_and_value(tmp_path: Path) -> None:
    groups = v2_tree(tmp_path)
    (tmp_path / "tree/cgroup.subtree_control").unlink()
    (tmp_path / "tree/cgroup.subtree_control").mkdir()
    with pytest.raises(OSError, match=r"'\+cpu \+cpuset \+memory' into cgroup.subtree_control"):
        groups.make(GROUP, WHOLE)
    with pytest.raises(OSError, match="shows no control groups"):
        ControlGroups({}).make(GROUP, WHOLE)
    partly = ControlGroups({"memory": Mount(tmp_path)})
    with pytest.raises(OSError, match="for cpu is mounted"):
        partly.make(GROUP, WHOLE)


def test_groups_are_found_by_name_and_removed_with_what_is_below(tmp_path: Path) -> None:
    groups = v1_tree(tmp_path)
    (tmp_path / "memory/refill_ab12_77/c1").mkdir(parents=True)
    (tmp_path / "cpu/refill_ab12_77").mkdir()
    (tmp_path / "cpu/other_ab12_77").mkdir()
    assert groups.named(r"refill_[0-9a-f]+_\d+") == {GROUP}
    groups.remove(GROUP)
    assert groups.named(r".*_77") == {"/other_ab12_77"}
    groups.remove(GROUP)  # it is gone, and that is what was wanted


@pytest.mark.parametrize(
    ("cpus", "text"), [([0, 1, 2], "0-2"), ([4, 0, 1], "0-1,4"), ([7], "7"), ([0, 2], "0,2")]
)
def test_cpus_are_written_as_the_kernel_does(cpus: list[int], text: str) -> None:
    assert cpu_list(cpus) == text
    assert read_cpu_list(text + "\n") == sorted(cpus)
