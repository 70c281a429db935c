"""From what was counted to the stages of a batch, in the order in which they happen."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fastload._tools.diagnose.opened import Opened
from fastload._tools.diagnose.result import Stage


def of_torch(opened: Opened, workers: int) -> tuple[tuple[Stage, ...], str]:
    """Read, decode, transform, the rest of the items' time, collate, the way between processes and, where one is in use, to the GPU."""
    work = opened.shown
    seconds = {"read": 0.0, "decode": 0.0, "transform": 0.0}
    detail: dict[str, float] = {}
    for name, value in work.stages.items():
        stage, _, part = name.partition(".")
        seconds[stage] = seconds.get(stage, 0.0) + value
        if part:
            detail[part] = value
    seconds["other"] = max(0.0, work.wall_s - sum(seconds.values()))
    seconds |= (
        {"collate": work.collate_s, "ipc": opened.ipc_s} if workers else {"collate": work.collate_s}
    )
    seconds |= {
        name: value for name, value in (("pin", opened.pin_s), ("copy", opened.copy_s)) if value
    }
    largest = tuple(sorted(detail.items(), key=lambda each: -each[1])[:4])
    where = f"one batch of {work.items}" + (
        f" in one of {workers} worker{'s' * (workers != 1)}" if opened.there else ", in one process"
    )
    return _shares(seconds, {"transform": largest}), where


def of_fastload(loader: Any, size: int) -> tuple[tuple[Stage, ...], str]:
    """As the loader's own statistics say; stages of an image times the images of a batch."""
    stats = loader.stats()
    per_batch = max(1, size) * loader.images_per_sample
    seconds = {
        name: each.mean * (1 if name in ("plan", "copy") else per_batch)
        for name, each in stats.stages.items()
        if name != "wait"
    }
    return _shares(
        seconds, {}
    ), f"one batch of {size} on one of {stats.threads} threads, from loader.stats()"


def _shares(
    seconds: Mapping[str, float], detail: Mapping[str, tuple[tuple[str, float], ...]]
) -> tuple[Stage, ...]:
    total = sum(seconds.values()) or 1.0
    return tuple(
        Stage(name, value, value / total, detail.get(name, ())) for name, value in seconds.items()
    )
