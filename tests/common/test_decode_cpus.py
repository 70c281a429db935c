"""The number of CPUs respects affinity and cgroup quotas."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from fastload._common.cpus import available_cpus


def system(root: Path, groups: str, files: dict[str, str]) -> int:
    """Returns the CPU count for a fake /proc and /sys."""
    for name, text in {
        "proc/self/cgroup": groups,
        **{f"sys/fs/cgroup/{name}": text for name, text in files.items()},
    }.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return available_cpus(root=str(root))


@pytest.fixture(autouse=True)
def sixteen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(16)))


@pytest.mark.parametrize(
    ("groups", "files", "expected"),
    [
        ("0::/\n", {}, 16),
        ("0::/\n", {"cpu.max": "max 100000\n"}, 16),
        ("0::/\n", {"cpu.max": "400000 100000\n"}, 4),
        ("0::/\n", {"cpu.max": "250000 100000\n"}, 3),
        ("0::/\n", {"cpu.max": "10000 100000\n"}, 1),
        ("0::/a/b\n", {"a/cpu.max": "200000 100000\n", "a/b/cpu.max": "max 100000\n"}, 2),
        ("0::/a/b\n", {"a/cpu.max": "max 100000\n", "a/b/cpu.max": "500000 100000\n"}, 5),
        ("0::/of/the/host\n", {"cpu.max": "300000 100000\n"}, 3),
        (
            "4:memory:/x\n3:cpu,cpuacct:/x\n",
            {"cpu/x/cpu.cfs_quota_us": "600000\n", "cpu/x/cpu.cfs_period_us": "100000\n"},
            6,
        ),
        (
            "3:cpu,cpuacct:/x\n",
            {"cpu/x/cpu.cfs_quota_us": "-1\n", "cpu/x/cpu.cfs_period_us": "100000\n"},
            16,
        ),
        ("0::/\n", {"cpu.max": "nonsense\n"}, 16),
        ("0::/\n", {"cpu.max": "100 0\n"}, 16),
        ("garbage", {}, 16),
        ("", {}, 16),
    ],
)
def test_cgroup_quotas_limit_the_cpu_count(
    tmp_path: Path, groups: str, files: dict[str, str], expected: int
) -> None:
    assert system(tmp_path, groups, files) == expected


def test_affinity_limits_the_cpu_count(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {3, 5})
    assert system(tmp_path, "0::/\n", {"cpu.max": "900000 100000\n"}) == 2


def test_this_machine_has_at_least_one_cpu() -> None:
    assert available_cpus() >= 1
