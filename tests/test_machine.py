"""What a machine grants, read from trees of files as the kernel lays them out."""

from __future__ import annotations

import os
from pathlib import Path

from asyncpage.machine import read_cores, read_memory

MIB = 1024**2


def tree(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text + "\n")
    return root


MEMINFO = {"proc/meminfo": f"MemTotal: {8192 * 1024} kB\nMemFree: 1 kB\nMemAvailable: {6000 * 1024} kB"}


def test_without_control_groups_the_kernels_figures_hold(tmp_path: Path) -> None:
    memory = read_memory(tree(tmp_path, MEMINFO))
    assert (memory.total, memory.available, memory.limit) == (8192 * MIB, 6000 * MIB, None)


def test_the_tightest_group_on_the_way_up_limits_memory_and_its_page_cache_counts_as_free(tmp_path: Path) -> None:
    group = "sys/fs/cgroup/user/job/"
    files = {
        "proc/self/cgroup": "0::/user/job",
        group + "memory.max": "max",
        group + "memory.current": str(100 * MIB),
        "sys/fs/cgroup/user/memory.max": str(2048 * MIB),
        "sys/fs/cgroup/user/memory.current": str(1500 * MIB),
        "sys/fs/cgroup/user/memory.stat": f"anon 7\nactive_file {100 * MIB}\ninactive_file {300 * MIB}",
    }
    memory = read_memory(tree(tmp_path, MEMINFO | files))
    assert memory.limit == 2048 * MIB
    assert memory.available == (2048 - 1500 + 400) * MIB


def test_version_1_groups_limit_memory_and_their_no_limit_is_none(tmp_path: Path) -> None:
    top = "sys/fs/cgroup/memory/"
    files = {
        "proc/self/cgroup": "9:cpu,cpuacct:/box\n7:memory:/box",
        top + "memory.limit_in_bytes": "9223372036854771712",
        top + "box/memory.limit_in_bytes": str(1024 * MIB),
        top + "box/memory.usage_in_bytes": str(1000 * MIB),
    }
    memory = read_memory(tree(tmp_path, MEMINFO | files))
    assert (memory.limit, memory.available) == (1024 * MIB, 24 * MIB)


def test_inside_a_container_the_top_of_the_tree_is_our_group(tmp_path: Path) -> None:
    files = {
        "proc/self/cgroup": "0::/a/path/of/the/host",
        "sys/fs/cgroup/memory.max": str(512 * MIB),
        "sys/fs/cgroup/memory.current": str(12 * MIB),
        "sys/fs/cgroup/cpu.max": "50000 100000",
    }
    root = tree(tmp_path, MEMINFO | files)
    assert read_memory(root).available == 500 * MIB
    assert read_cores(root) == 0.5


def test_a_group_without_a_quota_leaves_the_affinity(tmp_path: Path) -> None:
    root = tree(tmp_path, {"proc/self/cgroup": "0::/", "sys/fs/cgroup/cpu.max": "max 100000"})
    assert read_cores(root) == len(os.sched_getaffinity(0))


def test_version_1_quotas_limit_cores_and_minus_one_does_not(tmp_path: Path) -> None:
    top = "sys/fs/cgroup/cpu/"
    files = {
        "proc/self/cgroup": "4:cpu:/box",
        top + "cpu.cfs_quota_us": "-1",
        top + "cpu.cfs_period_us": "100000",
        top + "box/cpu.cfs_quota_us": "25000",
        top + "box/cpu.cfs_period_us": "100000",
    }
    assert read_cores(tree(tmp_path, files)) == 0.25


def test_this_machine_has_memory_and_cores() -> None:
    memory = read_memory()
    assert 0 < memory.available <= memory.total
    assert 0 < read_cores() <= (os.cpu_count() or 1)
