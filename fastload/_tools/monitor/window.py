"""window.json: what the monitor measured over some seconds, with every raw sample. docs/monitor.md lists the keys."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path

from fastload._common.files import write_atomically
from fastload._common.public import public
from fastload._common.strict_json import Json, loads
from fastload._tools.monitor.series import GpuSummary
from fastload.errors import ConfigError

FORMAT = "fastload-window"
VERSION = 1
GPU_SERIES = (
    "t",
    "util",
    "mem_mb",
    "power_w",
    "power_limit_w",
    "sm_mhz",
    "mem_mhz",
    "temp_c",
    "throttle",
    "jpeg",
    "pcie_rx_mb_s",
    "pcie_tx_mb_s",
)
HOST_SERIES = (
    "t",
    "cpu",
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
Series = list[float | None]


@public()
@dataclass(frozen=True, slots=True)
class GpuWindow:
    """One GPU: series of equal length, ``None`` where something could not be read."""

    index: int
    name: str
    uuid: str
    t: list[float]  # seconds since the window's start
    series: dict[str, Series]  # by name, all of GPU_SERIES but t and throttle
    throttle: list[list[str] | None]
    summary: GpuSummary
    mem_total_mb: float | None = None


@public()
@dataclass(frozen=True, slots=True)
class HostWindow:
    """The machine: its own times, as it is read less often."""

    t: list[float]
    cpu: list[list[float]]  # % per core
    series: dict[str, Series]  # by name, all of HOST_SERIES but t and cpu
    summary: dict[str, float | None]


@public()
@dataclass(frozen=True, slots=True)
class Window:
    """A measurement."""

    started: float  # unix
    seconds: float
    hz: float
    gpus: tuple[GpuWindow, ...]
    host: HostWindow
    summary: dict[str, float | None]
    notes: tuple[str, ...] = ()
    gate: dict[str, Json] | None = None
    training: dict[str, Json] | None = (
        None  # what the metrics file says of these seconds: steps, images, images_per_s ...
    )
    machine: dict[str, Json] = field(default_factory=dict)

    def as_json(self) -> dict[str, object]:
        """The file's content."""
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


def write_window(path: Path, window: Window) -> None:
    """Whole or not at all."""
    write_atomically(
        path, json.dumps(window.as_json(), allow_nan=False, separators=(",", ":")).encode() + b"\n"
    )


@public()
def read_window(path: str | os.PathLike[str]) -> Window:
    """Reads what ``write_window`` wrote; ConfigError says what else a file is. Series that are missing are all None."""
    try:
        found = loads(Path(path).read_bytes(), max_depth=_MAX_DEPTH)
        return _window(found)
    except OSError as error:
        raise ConfigError(
            f"reading a window: {error.strerror}: {os.fspath(path)}; 'fastload monitor --out FILE' writes one"
        ) from error
    except (ValueError, TypeError, KeyError) as error:
        raise ConfigError(
            f"reading {os.fspath(path)}: no window of fastload monitor: {error!s:.200}; "
            "'fastload monitor --out FILE' writes one"
        ) from error


def _window(found: Json) -> Window:
    top = _object(found, "the file")
    if top.get("format") != FORMAT:
        raise ValueError(f"format is {top.get('format')!r:.40}, expected {FORMAT!r}")
    if top.get("version") != VERSION:
        raise ValueError(f"version {top.get('version')!r:.40}, this fastload reads {VERSION}")
    host = _object(top["host"], "host")
    samples = _object(host["samples"], "host samples")
    t = _floats(samples.get("t"), "host t")
    cpu = samples.get("cpu")
    cores = [_floats(each, "cpu") for each in cpu] if isinstance(cpu, list) else [[] for _ in t]
    return Window(
        _float(top["started"]),
        _float(top["seconds"]),
        _float(top["hz"]),
        tuple(_gpu(each) for each in _list(top["gpus"], "gpus")),
        HostWindow(
            t,
            cores,
            {name: _series(samples, name, len(t)) for name in HOST_SERIES[2:]},
            _numbers(host.get("summary")),
        ),
        _numbers(top["summary"]),
        tuple(str(each) for each in _list(top.get("notes") or [], "notes")),
        _maybe(top.get("gate"), "gate"),
        _maybe(top.get("training"), "training"),
        _object(top.get("machine") or {}, "machine"),
    )


def _gpu(found: Json) -> GpuWindow:
    gpu = _object(found, "a gpu")
    samples = _object(gpu["samples"], "gpu samples")
    t = _floats(samples["t"], "gpu t")
    reasons = samples.get("throttle") or [None] * len(t)
    throttle = [
        [str(word) for word in each] if isinstance(each, list) else None
        for each in _list(reasons, "throttle")
    ]
    summary_json = _object(gpu["summary"], "gpu summary")
    summary = {each.name: summary_json.get(each.name) for each in fields(GpuSummary)}
    numbers = {
        name: _float_or_none(value)
        for name, value in summary.items()
        if name not in ("state", "rule")
    }
    total = gpu.get("mem_total_mb")
    return GpuWindow(
        int(_float(gpu["index"])),
        str(gpu["name"]),
        str(gpu["uuid"]),
        t,
        {
            name: _series(samples, name, len(t))
            for name in GPU_SERIES
            if name not in ("t", "throttle")
        },
        throttle,
        GpuSummary(**numbers, state=str(summary["state"]), rule=str(summary["rule"])),
        _float_or_none(total),
    )


def _object(value: Json, what: str) -> dict[str, Json]:
    if not isinstance(value, dict):
        raise TypeError(f"{what} is no object")
    return value


def _maybe(value: Json, what: str) -> dict[str, Json] | None:
    return None if value is None else _object(value, what)


def _list(value: Json, what: str) -> list[Json]:
    if not isinstance(value, list):
        raise TypeError(f"{what} is no list")
    return value


def _float(value: Json) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError(f"{value!r:.40} is no number")
    return float(value)


def _float_or_none(value: Json) -> float | None:
    return None if value is None else _float(value)


def _floats(value: Json, what: str) -> list[float]:
    return [_float(each) for each in _list(value, what)]


def _series(samples: Mapping[str, Json], name: str, length: int) -> Series:
    values = samples.get(name)
    found: Series = (
        [None] * length
        if values is None
        else [_float_or_none(each) for each in _list(values, name)]
    )
    if len(found) != length:
        raise ValueError(f"{name} has {len(found)} samples, t has {length}")
    return found


def _numbers(value: Json) -> dict[str, float | None]:
    return {
        name: _float_or_none(each)
        for name, each in _object(value if value is not None else {}, "a summary").items()
    }
