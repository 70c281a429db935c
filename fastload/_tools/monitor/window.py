"""window.json: one measurement of the monitor with every raw sample, and its statistics.

docs/monitor.md lists the keys.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from itertools import pairwise
from pathlib import Path

import numpy as np

from fastload._common.files import write_atomically
from fastload._common.public import public
from fastload._common.strict_json import Json, loads, typed
from fastload.errors import ConfigError

FORMAT = "fastload-window"
VERSION = 1
# Numeric series besides "t". GPUs also have "throttle" (lists of text), the host "cpu" (per core).
GPU_SERIES = (
    "util",
    "mem_mb",
    "power_w",
    "power_limit_w",
    "sm_mhz",
    "mem_mhz",
    "temp_c",
    "jpeg",
    "pcie_rx_mb_s",
    "pcie_tx_mb_s",
)
HOST_SERIES = (
    "iowait",
    "ram_used_mb",
    "swap_in_mb_s",
    "swap_out_mb_s",
    "disk_read_mb_s",
    "disk_write_mb_s",
    "net_mb_s",
    "tree_cpu",
    "tree_rss_mb",
)
_MAX_DEPTH = 16
ACTIVE = 5.0  # % of utilization from which a sample counts as active
IDLE_SHARE = 0.05  # of the window
STARVED = 70.0  # % of mean utilization
WAVY = 25.0  # points between p5 and p95
RULE = (
    f"idle: utilization is {ACTIVE:.0f} % or more for less than {100 * IDLE_SHARE:.0f} % of the "
    f"window; starved: mean below {STARVED:.0f} %; wavy: p95 - p5 above {WAVY:.0f} points; "
    "otherwise steady"
)
Series = list[float | None]
Numbers = Sequence[float | None]


@public()
@dataclass(frozen=True, slots=True)
class GpuSummary:
    """Statistics of one GPU over a window. Utilization is in percent; unknown values are None.

    Attributes:
        avg: Mean utilization.
        p50: Median utilization.
        p5: 5th percentile.
        p95: 95th percentile.
        std: Standard deviation.
        active_seconds: Seconds with a utilization of at least 5 %.
        idle_seconds: The remaining measured seconds.
        avg_active: Mean utilization while active.
        energy_j: Energy in joules.
        state: "steady", "wavy", "starved", "idle" or "unknown".
        rule: How ``state`` was decided.

    Examples:
        >>> window = fastload.read_window("window.json")
        >>> window.gpus[0].summary.state
        'steady'
    """

    avg: float | None = None
    p50: float | None = None
    p5: float | None = None
    p95: float | None = None
    std: float | None = None
    active_seconds: float | None = None
    idle_seconds: float | None = None
    avg_active: float | None = None
    energy_j: float | None = None
    state: str = "unknown"
    rule: str = "no utilization was read"


@public()
@dataclass(frozen=True, slots=True)
class GpuWindow:
    """Samples of one GPU. All series have the length of ``t``; unknown values are None.

    Attributes:
        index: Index of the GPU as NVML counts.
        name: Product name.
        uuid: UUID from the driver.
        t: Sample times in seconds since the start of the window.
        series: Values by name: ``util`` and ``jpeg`` in percent, ``mem_mb``, ``power_w``,
            ``power_limit_w``, ``sm_mhz``, ``mem_mhz``, ``temp_c``, ``pcie_rx_mb_s``,
            ``pcie_tx_mb_s``.
        throttle: Reasons why the clocks were reduced, per sample.
        summary: Statistics over the window.
        mem_total_mb: Memory of the GPU in MiB.

    Examples:
        >>> gpu = fastload.read_window("window.json").gpus[0]
        >>> max(gpu.series["power_w"])
    """

    index: int
    name: str
    uuid: str
    t: list[float]
    series: dict[str, Series]
    throttle: list[list[str] | None]
    summary: GpuSummary
    mem_total_mb: float | None = None


@public()
@dataclass(frozen=True, slots=True)
class HostWindow:
    """Samples of the machine, which is read less often than the GPUs.

    Attributes:
        t: Sample times in seconds since the start of the window.
        cpu: Utilization in percent, one list per sample with one value per core.
        series: Values by name: ``iowait`` in percent of all cores, ``ram_used_mb``,
            ``swap_in_mb_s``, ``swap_out_mb_s``, ``disk_read_mb_s``, ``disk_write_mb_s``,
            ``net_mb_s``, and ``tree_cpu`` (percent of one core) and ``tree_rss_mb`` of the
            training processes.
        summary: Means over the window.

    Examples:
        >>> fastload.read_window("window.json").host.summary["iowait"]
    """

    t: list[float]
    cpu: list[list[float]]
    series: dict[str, Series]
    summary: dict[str, float | None]


@public()
@dataclass(frozen=True, slots=True)
class Window:
    """One measurement of ``fastload monitor``.

    Attributes:
        started: Unix time of the start.
        seconds: Length of the window.
        hz: Samples per second.
        gpus: One entry per GPU.
        host: CPU, memory, disk and network.
        summary: Statistics over all GPUs.
        notes: What could not be read, and why.
        gate: What ``--gate`` waited for, or None.
        training: Steps and images in the window, from the metrics file, or None.
        machine: Host name, CPUs, memory and driver.

    Examples:
        >>> window = fastload.read_window("window.json")
        >>> window.summary["all_avg"]
    """

    started: float
    seconds: float
    hz: float
    gpus: tuple[GpuWindow, ...]
    host: HostWindow
    summary: dict[str, float | None]
    notes: tuple[str, ...] = ()
    gate: dict[str, Json] | None = None
    training: dict[str, Json] | None = None
    machine: dict[str, Json] = field(default_factory=dict)

    def as_json(self) -> dict[str, object]:
        """Returns the content of window.json."""
        return {
            "format": FORMAT,
            "version": VERSION,
            "started": self.started,
            "seconds": self.seconds,
            "hz": self.hz,
            "gpus": [
                {
                    "index": gpu.index,
                    "name": gpu.name,
                    "uuid": gpu.uuid,
                    "mem_total_mb": gpu.mem_total_mb,
                    "samples": {"t": gpu.t, **gpu.series, "throttle": gpu.throttle},
                    "summary": asdict(gpu.summary),
                }
                for gpu in self.gpus
            ],
            "host": {
                "samples": {"t": self.host.t, "cpu": self.host.cpu, **self.host.series},
                "summary": self.host.summary,
            },
            "summary": self.summary,
            "notes": list(self.notes),
            "gate": self.gate,
            "training": self.training,
            "machine": self.machine,
        }


def summarize(
    t: Sequence[float], util: Numbers, *, seconds: float, energy_j: float | None = None
) -> GpuSummary:
    """Summarizes one GPU.

    ``t`` has the sample times in seconds since the start of the window. A sample counts for the
    time until the next sample.
    """
    known = [
        (max(end - start, 0.0), value)
        for (start, end), value in zip(pairwise([*t, seconds]), util, strict=True)
        if value is not None
    ]
    energy_j = None if energy_j is None else round(energy_j, 2)
    if not known:
        return GpuSummary(energy_j=energy_j)
    spans, values = np.array(known, float).T
    active = values >= ACTIVE
    p5, p50, p95 = (float(each) for each in np.percentile(values, (5, 50, 95)))
    active_s = float(spans[active].sum())
    all_s = float(spans.sum())
    average = float(values.mean())
    return GpuSummary(
        round(average, 2),
        round(p50, 2),
        round(p5, 2),
        round(p95, 2),
        round(float(values.std()), 2),
        round(active_s, 2),
        round(all_s - active_s, 2),
        round(float(values[active].mean()), 2) if active.any() else None,
        energy_j,
        state_of(average, p95 - p5, active_s / all_s if all_s else float(active.mean())),
        RULE,
    )


def state_of(average: float, spread: float, active_share: float) -> str:
    """Classifies a GPU by ``RULE``."""
    if active_share < IDLE_SHARE:
        return "idle"
    if average < STARVED:
        return "starved"
    return "wavy" if spread > WAVY else "steady"


def energy(t: Sequence[float], power_w: Numbers) -> float | None:
    """Integrates power readings to joules, for GPUs without an energy counter."""
    known = [(at, watts) for at, watts in zip(t, power_w, strict=True) if watts is not None]
    if len(known) < 2:
        return None
    return sum(
        (later[0] - sooner[0]) * (later[1] + sooner[1]) / 2 for sooner, later in pairwise(known)
    )


def mean(values: Iterable[float | None]) -> float | None:
    """Averages the known values."""
    known = [value for value in values if value is not None]
    return round(sum(known) / len(known), 3) if known else None


def summary_of_all(gpus: Sequence[GpuWindow], images: float | None) -> dict[str, float | None]:
    """Returns the ``summary`` of window.json over all GPUs.

    ``images`` is the number of images trained on in the window.
    """
    util = [value for gpu in gpus for value in gpu.series["util"]]
    pooled = summarize(range(len(util)), util, seconds=len(util))  # every sample counts the same
    joules = [gpu.summary.energy_j or 0.0 for gpu in gpus]
    return {
        **{f"gpu{gpu.index}_avg": gpu.summary.avg for gpu in gpus},
        "all_avg": mean(gpu.summary.avg for gpu in gpus),
        "p50": pooled.p50,
        "spread": None
        if pooled.p5 is None or pooled.p95 is None
        else round(pooled.p95 - pooled.p5, 2),
        "std": pooled.std,
        "active_seconds": mean(gpu.summary.active_seconds for gpu in gpus),
        "idle_seconds": mean(gpu.summary.idle_seconds for gpu in gpus),
        "avg_active": pooled.avg_active,
        "joules_per_image": round(sum(joules) / images, 4)
        if images and joules and all(joules)
        else None,
    }


def write_window(path: Path, window: Window) -> None:
    """Writes the file atomically."""
    write_atomically(
        path, json.dumps(window.as_json(), allow_nan=False, separators=(",", ":")).encode() + b"\n"
    )


@public()
def read_window(path: str | os.PathLike[str]) -> Window:
    """Reads a window that ``fastload monitor --out`` wrote.

    Args:
        path: The window.json file.

    Returns:
        The measurement. Series that the file lacks are all None.

    Raises:
        ConfigError: The file cannot be read or is not a valid window.

    Examples:
        >>> fastload.read_window("window.json").gpus[0].summary.state
        'steady'
    """
    try:
        return _window(loads(Path(path).read_bytes(), max_depth=_MAX_DEPTH))
    except OSError as error:
        raise ConfigError(
            f"cannot read window {os.fspath(path)}: {error.strerror}. "
            "Write one with 'fastload monitor --out FILE'."
        ) from error
    except (ValueError, TypeError, KeyError) as error:
        raise ConfigError(
            f"{os.fspath(path)} is not a window of fastload monitor: {error!s:.200}. "
            "Write one with 'fastload monitor --out FILE'."
        ) from error


def _window(found: Json) -> Window:
    top = typed("file", found, dict)
    if top.get("format") != FORMAT:
        raise ValueError(f"format={top.get('format')!r:.40}: expected {FORMAT!r}")
    if top.get("version") != VERSION:
        raise ValueError(f"version={top.get('version')!r:.40}: expected {VERSION}")
    host = typed("host", top["host"], dict)
    samples = typed("host samples", host["samples"], dict)
    t = _floats(samples.get("t"), "host t")
    cpu = samples.get("cpu")
    gate = top.get("gate")
    training = top.get("training")
    return Window(
        _float(top["started"]),
        _float(top["seconds"]),
        _float(top["hz"]),
        tuple(_gpu(each) for each in typed("gpus", top["gpus"], list)),
        HostWindow(
            t,
            [_floats(each, "cpu") for each in cpu] if isinstance(cpu, list) else [[] for _ in t],
            {name: _series(samples, name, len(t)) for name in HOST_SERIES},
            _numbers(host.get("summary")),
        ),
        _numbers(top["summary"]),
        tuple(str(each) for each in typed("notes", top.get("notes") or [], list)),
        None if gate is None else typed("gate", gate, dict),
        None if training is None else typed("training", training, dict),
        typed("machine", top.get("machine") or {}, dict),
    )


def _gpu(found: Json) -> GpuWindow:
    gpu = typed("gpu", found, dict)
    samples = typed("gpu samples", gpu["samples"], dict)
    t = _floats(samples["t"], "gpu t")
    reasons = typed("throttle", samples.get("throttle") or [None] * len(t), list)
    summary = typed("gpu summary", gpu["summary"], dict)
    numbers = {
        each.name: _float_or_none(summary.get(each.name))
        for each in fields(GpuSummary)
        if each.name not in ("state", "rule")
    }
    return GpuWindow(
        int(_float(gpu["index"])),
        str(gpu["name"]),
        str(gpu["uuid"]),
        t,
        {name: _series(samples, name, len(t)) for name in GPU_SERIES},
        [[str(word) for word in each] if isinstance(each, list) else None for each in reasons],
        GpuSummary(**numbers, state=str(summary.get("state")), rule=str(summary.get("rule"))),
        _float_or_none(gpu.get("mem_total_mb")),
    )


def _float(value: Json) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError(f"expected a number, found {value!r:.40}")
    return float(value)


def _float_or_none(value: Json) -> float | None:
    return None if value is None else _float(value)


def _floats(value: Json, name: str) -> list[float]:
    return [_float(each) for each in typed(name, value, list)]


def _series(samples: Mapping[str, Json], name: str, length: int) -> Series:
    values = samples.get(name)
    if values is None:
        return [None] * length
    found = [_float_or_none(each) for each in typed(name, values, list)]
    if len(found) != length:
        raise ValueError(f"{name} has {len(found)} samples, but t has {length}")
    return found


def _numbers(value: Json) -> dict[str, float | None]:
    summary = typed("summary", {} if value is None else value, dict)
    return {name: _float_or_none(each) for name, each in summary.items()}
