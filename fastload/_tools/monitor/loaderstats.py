"""What a fastload loader did between two rows: its own figures count from the loader's beginning."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from fastload._tools.monitor.clocks import clock

if TYPE_CHECKING:
    from fastload._load.loader import DataLoader
    from fastload._load.stats import StageStats

STAGES = ("read", "cut", "decode", "resize", "finish", "wait")
_AT_MOST_EVERY_S = 0.25  # a snapshot costs 160 us


class LoaderDeltas:
    """Means since the last row, and the largest times so far, of the loader being watched; nothing for other loaders."""

    def __init__(self) -> None:
        self._loader: DataLoader | None = None
        self._before: dict[str, StageStats] = {}
        self._taken = 0.0

    def look_at(self, loader: object) -> None:
        """From now on this loader. One that is no fastload loader has no such figures."""
        module = sys.modules.get("fastload._load.loader")
        found: DataLoader | None = (
            loader if module is not None and isinstance(loader, module.DataLoader) else None
        )
        if found is not self._loader:
            self._loader = found
            self._before = found.stats().stages if found is not None else {}

    def since_last(self) -> dict[str, dict[str, float]]:
        """By stage; empty where nothing was loaded, or too short a time ago."""
        now = clock()
        if self._loader is None or now - self._taken < _AT_MOST_EVERY_S:
            return {}
        stages = self._loader.stats().stages
        before, self._before, self._taken = self._before, stages, now
        found = {}
        for name in STAGES:
            count, seconds = stages[name].count, stages[name].mean * stages[name].count
            if (
                name in before and before[name].count <= count
            ):  # less: somebody has reset the loader's figures
                count, seconds = (
                    count - before[name].count,
                    seconds - before[name].mean * before[name].count,
                )
            if count:
                found[name] = {
                    "mean": round(max(seconds, 0.0) / count, 9),
                    "max": round(stages[name].max, 9),
                }
        return found
