"""Counts the CPUs that this process may use, from its affinity and its cgroup quotas."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from pathlib import Path


def available_cpus(*, root: str = "/") -> int:
    """Returns the number of CPUs to use, at least 1.

    A quota of 2.5 CPUs counts as 3, because threads also wait for the disk.
    """
    count = len(os.sched_getaffinity(0))
    return max(1, min([count, *(math.ceil(quota) for quota in _quotas(Path(root)))]))


def _quotas(root: Path) -> Iterator[float]:
    """Yields the CPU quota of each cgroup of this process and of its parents, if readable."""
    base = root / "sys/fs/cgroup"
    for line in _text(root / "proc/self/cgroup").splitlines():
        _, controllers, path = (*line.split(":", 2), "", "")[:3]
        if controllers and "cpu" not in controllers.split(","):
            continue
        top = base / "cpu" if controllers else base
        # In a container, the path may be that of the host; the group is then mounted at ``top``.
        folders = [top / path.lstrip("/")]
        folders += [
            folder for folder in folders[0].parents if folder == top or top in folder.parents
        ]
        for folder in {*folders, top}:
            names = ("cpu.cfs_quota_us", "cpu.cfs_period_us") if controllers else ("cpu.max",)
            limits = [word for name in names for word in _text(folder / name).split()]
            # "max" and -1 mean unlimited.
            if len(limits) == 2 and all(word.isdigit() for word in limits) and int(limits[1]):
                yield int(limits[0]) / int(limits[1])


def _text(path: Path) -> str:
    try:
        return path.read_text()
    except (OSError, UnicodeDecodeError):
        return ""
