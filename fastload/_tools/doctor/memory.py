"""Memory of this job: RAM, the container's limit, swap, /dev/shm."""

from __future__ import annotations

import os
from pathlib import Path

from fastload._tools.doctor.verdicts import BAD, LOOK, OK, Check

GIB = 2**30
SHM = "/dev/shm"  # noqa: S108 - looked at, not written to
LITTLE_RAM = 2 * GIB  # torch with CUDA takes about 2 GiB before the first batch
TIGHT_RAM = (
    8 * GIB
)  # buffers of 16 batches of 256 x 224 x 224 x 3 floats have 2.5 GiB; and the page cache wants some
SWAP_USED = 0.1  # of the RAM: what is out there will be missed
SMALL_SHM = GIB  # 64 MiB is Docker's default; torch's workers die of it with a bus error


def memory_limit(*, root: Path = Path("/")) -> int | None:
    """The container's limit in bytes, the innermost that can be read; None: unlimited."""
    for name in ("sys/fs/cgroup/memory.max", "sys/fs/cgroup/memory/memory.limit_in_bytes"):
        try:
            text = (root / name).read_text().strip()
        except (OSError, UnicodeDecodeError):
            continue
        if text.isdigit() and int(text) < 1 << 50:  # v1 says 2**63 for "none"
            return int(text)
    return None


def ram_check(*, root: Path = Path("/")) -> Check:
    """Free memory, as seen from here."""
    import psutil

    memory = psutil.virtual_memory()
    total, free = int(memory.total), int(memory.available)
    limit = memory_limit(root=root)
    found = f"{free / GIB:.1f} of {total / GIB:.1f} GiB free"
    if limit is not None and limit < total:
        found += f"; the container may use {limit / GIB:.1f} GiB"
        free = min(free, limit)
    if free < LITTLE_RAM:
        return Check(
            "RAM",
            BAD,
            found,
            "a training job will swap or be killed here: free some, or ask for more (--mem)",
        )
    if free < TIGHT_RAM:
        return Check(
            "RAM",
            LOOK,
            found,
            "enough for small batches; the loader's buffers are in loader.stats().buffer_bytes",
        )
    return Check("RAM", OK, found)


def swap_check() -> Check:
    """Is something swapped out already?"""
    import psutil

    swap, ram = psutil.swap_memory(), psutil.virtual_memory().total
    if not swap.total:
        return Check("swap", OK, "none: a job that is too large is killed, not slowed down")
    found = f"{swap.used / GIB:.1f} of {swap.total / GIB:.1f} GiB used"
    if swap.used > SWAP_USED * ram:
        return Check(
            "swap",
            LOOK,
            found,
            "somebody needed more memory than there is; fastload monitor shows whether it goes on",
        )
    return Check("swap", OK, found)


def shm_check(*, path: Path = Path(SHM)) -> Check:
    """Shared memory: torch's worker processes need it, fastload does not."""
    if not path.is_dir():
        return Check(SHM, OK, "none; fastload needs none (torch's worker processes do)")
    space = os.statvfs(path)
    total, free = space.f_blocks * space.f_frsize, space.f_bavail * space.f_frsize
    found = f"{free / GIB:.1f} of {total / GIB:.1f} GiB free"
    if free < SMALL_SHM:
        return Check(
            SHM,
            LOOK,
            found,
            "torch's DataLoader workers die of this with a bus error (docker --shm-size=8g, --ipc=host); "
            "fastload.DataLoader uses none",
        )
    return Check(SHM, OK, found)
