"""Synthetic training runs with a known cause, in the files of the probe and the monitor."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

START = 1_790_000_000.0
STAGE_PARTS = {
    "to_device": 0.02,
    "forward": 0.33,
    "loss": 0.02,
    "backward": 0.55,
    "optimizer": 0.08,
}


@dataclass(frozen=True)
class Made:
    """One run with one value per step."""

    data: NDArray[np.float64]
    work: NDArray[np.float64]  # step time without data wait
    extra: NDArray[np.float64]  # time of stalls, in no stage
    batch: int = 32
    swap: NDArray[np.float64] | None = None
    parts: Mapping[str, float] | None = field(default_factory=lambda: dict(STAGE_PARTS))
    probe: Mapping[str, float] | None = None  # seconds per sample
    rank: int = 0
    world: int = 1
    events: Sequence[tuple[int, str, float]] = ()
    warm: int = 30

    @property
    def step(self) -> NDArray[np.float64]:
        return self.data + self.work + self.extra


def made(
    steps: int = 2000,
    *,
    step: float = 0.15,
    data: float = 0.001,
    noise: float = 0.03,
    seed: int = 0,
    warm: int = 30,
    **rest: object,
) -> Made:
    """A healthy run; change its arrays to plant a cause."""
    rng = np.random.default_rng(seed)
    work = step * np.exp(noise * rng.standard_normal(steps))
    wait = data * np.exp(0.3 * rng.standard_normal(steps))
    work[:warm] *= np.linspace(4, 1.3, warm)
    if warm:
        wait[0] += 5.0
    return Made(wait, work, np.zeros(steps), warm=warm, **rest)  # type: ignore[arg-type]


def every(run: Made, period: int, seconds: float, *, phase: int = 0, data: bool = False) -> Made:
    """Adds a pause of ``seconds`` to the steps phase, phase + period, ...; steps start at 1."""
    numbers = np.arange(1, len(run.data) + 1)
    (run.data if data else run.extra)[
        (numbers % period == phase % period) & (numbers > run.warm)
    ] += seconds
    return run


def rows_of(run: Made, *, every_steps: int = 10) -> list[dict[str, object]]:
    """Rows in the format of StepProbe."""
    step = run.step
    ends = START + np.cumsum(step)
    rows: list[dict[str, object]] = [
        {
            "kind": "run",
            "version": 1,
            "time": START,
            "rank": run.rank,
            "world": run.world,
            "host": "node7",
            "pid": 4711,
            "python": "3.11.9",
            "torch": "2.9.1",
            "fastload": "0.1.0",
            "device": "cuda",
            "gpu": "NVIDIA GeForce RTX 3090",
            "batch_size": run.batch,
        }
    ]
    events = list(run.events)
    median = float(np.median(step[run.warm :]))
    for first in range(0, len(step) - every_steps + 1, every_steps):
        part = slice(first, first + every_steps)
        row: dict[str, object] = {
            "kind": "step",
            "time": round(ends[first + every_steps - 1], 4),
            "rank": run.rank,
            "iter": first + every_steps,
            "steps": every_steps,
            "data_time": _mean(run.data[part]),
            "data_time_max": round(float(run.data[part].max()), 6),
            "iter_time": _mean(step[part]),
            "iter_time_max": round(float(step[part].max()), 6),
            "samples": run.batch * every_steps,
            "samples_per_s": round(run.batch * every_steps / float(step[part].sum()), 2),
            "gpu_mem_mb": 9120.0,
            "swap_bytes": int(run.swap[part].sum()) if run.swap is not None else 0,
            "slow": [
                [
                    first + 1 + k,
                    round(float(step[first + k]), 6),
                    round(float(run.data[first + k]), 6),
                ]
                for k in range(every_steps)
                if step[first + k] > 2 * median
            ][:8],
        }
        if run.parts is not None:
            row["stage_times"] = {
                name: _mean(run.work[part]) * share for name, share in run.parts.items()
            }
        if run.probe is not None:
            row["data_probe"] = {
                name: {"mean": value, "max": 12 * value} for name, value in run.probe.items()
            }
        while events and events[0][0] <= first + every_steps:
            number, name, seconds = events.pop(0)
            rows.append(
                {
                    "kind": "event",
                    "time": ends[number - 1],
                    "rank": run.rank,
                    "iter": number,
                    "name": name,
                    "seconds": seconds,
                }
            )
        rows.append(row)
    return rows


def foreign_rows(run: Made, *, number: str = "step", took: str = "time") -> list[dict[str, object]]:
    """One row per step, in the format of a hand-written logger."""
    return [
        {
            number: k + 1,
            took: round(float(run.step[k]), 6),
            "data_time": round(float(run.data[k]), 6),
            "lr": 0.01,
        }
        for k in range(len(run.data))
    ]


def write(path: Path, *rows: Sequence[Mapping[str, object]]) -> Path:
    """Writes JSON lines; several ranks one after the other."""
    path.write_text("".join(json.dumps(row) + "\n" for part in rows for row in part))
    return path


def window(
    *,
    util: float = 95.0,
    power: float = 320.0,
    limit: float = 350.0,
    cpu: float = 40.0,
    cores: int = 16,
    iowait: float = 1.0,
    swap: float = 0.0,
    hot: float = 0.0,
    seconds: float = 60.0,
    gpus: int = 1,
    seed: int = 0,
    waves: float = 0.0,
    own_share: float = 0.9,
) -> dict[str, object]:
    """A window of the monitor.

    ``hot`` is the share of the time in which heat reduces the clock from 1700 to 1200 MHz.
    ``own_share`` is the share of the CPU load that the watched processes cause.
    """
    rng = np.random.default_rng(seed)
    n = int(seconds * 10)
    t = [round(k / 10, 1) for k in range(n)]

    def noisy(mean: float, spread: float = 0.02, top: float = 1e9) -> list[float]:
        return [
            round(float(value), 2)
            for value in np.clip(mean * (1 + spread * rng.standard_normal(n)), 0, top)
        ]

    listed = []
    for index in range(gpus):
        slow = np.arange(n) % 100 < 100 * hot
        use = np.array(noisy(util, 0.02, 100.0))
        if waves:
            use = np.where(
                np.sin(np.arange(n) / 12 + index) > 1 - 2 * waves,
                0.0,
                np.minimum(use / (1 - waves), 100),
            )
        listed.append(
            {
                "index": index,
                "name": "NVIDIA GeForce RTX 3090",
                "uuid": f"GPU-{index}",
                "samples": {
                    "t": t,
                    "util": [round(float(value), 1) for value in use],
                    "mem_mb": [9120.0] * n,
                    "power_w": noisy(power),
                    "power_limit_w": [limit] * n,
                    "sm_mhz": [1200.0 if one else 1700.0 for one in slow],
                    "mem_mhz": [9501.0] * n,
                    "temp_c": [88.0 if one else 71.0 for one in slow],
                    "throttle": [["thermal slowdown"] if one else [] for one in slow],
                    "jpeg": None,
                    "pcie_rx_mb_s": None,
                    "pcie_tx_mb_s": None,
                },
                "summary": {"avg": util, "state": "steady"},
            }
        )
    return {
        "format": "fastload-window",
        "version": 1,
        "started": START + 60,
        "seconds": seconds,
        "hz": 10,
        "gpus": listed,
        "host": {
            "samples": {
                "t": t,
                "cpu": [[min(value, 100.0)] * cores for value in noisy(cpu)],
                "iowait": noisy(iowait),
                "ram_used_mb": [20000.0] * n,
                "swap_in_mb_s": [swap / 2] * n,
                "swap_out_mb_s": [swap / 2] * n,
                "disk_read_mb_s": noisy(200.0),
                "disk_write_mb_s": [0.0] * n,
                "net_mb_s": [0.0] * n,
                "tree_cpu": noisy(cpu * cores * own_share),
                "tree_rss_mb": [9000.0] * n,
            },
            "summary": {},
        },
        "summary": {},
        "notes": [],
        "gate": None,
    }


def write_window(path: Path, found: Mapping[str, object]) -> Path:
    path.write_text(json.dumps(found))
    return path


def _mean(values: NDArray[np.float64]) -> float:
    return round(float(values.mean()), 6)
