"""What a fastload loader did between two rows: its own figures count from the loader's creation."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fastload._common.metrics import DATA_PROBE, Span, StageStats
from fastload._tools.monitor.clocks import clock, torch_here

if TYPE_CHECKING:
    from fastload._load.loader import DataLoader

_AT_MOST_EVERY_S = 0.25  # a snapshot costs 160 us


class LoaderDeltas:
    """Means since the last row, and the largest times so far, of a fastload loader; nothing for other loaders."""

    def __init__(self) -> None:
        self._loader: DataLoader | None = None
        self._before: dict[str, StageStats] = {}
        self._taken = 0.0

    def look_at(self, loader: object) -> None:
        """From now on this loader. One that is no fastload loader has no such figures."""
        found = _fastload_loader(loader)
        if found is not self._loader:
            self._loader = found
            self._before = found.stats().stages if found is not None else {}

    def since_last(self) -> dict[str, Span]:
        """By stage; empty where nothing was loaded, or too short a time ago."""
        now = clock()
        if self._loader is None or now - self._taken < _AT_MOST_EVERY_S:
            return {}
        stages = self._loader.stats().stages
        before = self._before
        self._before = stages
        self._taken = now
        found = {}
        for name in DATA_PROBE:
            count = stages[name].count
            seconds = stages[name].mean * count
            # Fewer than before: the loader's figures have been reset.
            if name in before and before[name].count <= count:
                count -= before[name].count
                seconds -= before[name].mean * before[name].count
            if count:
                found[name] = Span(max(seconds, 0.0) / count, stages[name].max)
        return found


def _fastload_loader(loader: object) -> DataLoader | None:
    """The loader, if it is ours. Nothing is imported for other iterables: ours is always one of torch's loaders."""
    torch = torch_here()
    if torch is None or not isinstance(loader, torch.utils.data.DataLoader):
        return None
    from fastload._load.loader import DataLoader

    return loader if isinstance(loader, DataLoader) else None
