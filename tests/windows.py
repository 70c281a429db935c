"""Synthetic monitor windows for tests."""

from __future__ import annotations

from collections.abc import Sequence

from fastload._common.strict_json import Json
from fastload._tools.monitor.window import (
    GPU_SERIES,
    HOST_SERIES,
    GpuWindow,
    HostWindow,
    Series,
    Window,
    summarize,
    summary_of_all,
)


def window(
    *utils: Sequence[float | None],
    hz: float = 10.0,
    training: dict[str, Json] | None = None,
    gate: dict[str, Json] | None = None,
    limit: float = 575.0,
) -> Window:
    """Builds a window in which GPU i has the utilization ``utils[i]``."""
    seconds = max((len(util) for util in utils), default=0) / hz
    gpus = []
    for index, util in enumerate(utils):
        t = [place / hz for place in range(len(util))]
        series: dict[str, Series] = {name: [None] * len(util) for name in GPU_SERIES}
        series |= {"util": list(util), "power_limit_w": [limit] * len(util)}
        gpus.append(
            GpuWindow(
                index,
                "Stub",
                f"GPU-{index}",
                t,
                series,
                [[] for _ in util],
                summarize(t, util, seconds=seconds),
            )
        )
    host = HostWindow(
        [0.0, 1.0], [[50.0], [60.0]], {name: [None, 1.0] for name in HOST_SERIES}, {"cpu": 55.0}
    )
    summary = summary_of_all(gpus, None)
    return Window(
        1.8e9, seconds, hz, tuple(gpus), host, summary, ("a note",), gate, training, {"host": "a"}
    )
