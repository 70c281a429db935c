"""Output of the monitor: a live table or plain lines while it measures, then a summary."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from fastload._common import formatting as fmt
from fastload._common.formatting import number
from fastload._common.tables import Row, Section
from fastload._tools.monitor.compare import BLOCK_S, Comparison, Figure
from fastload._tools.monitor.sampling import GpuSamples, HostSamples, Sampler
from fastload._tools.monitor.window import RULE, GpuWindow, Numbers, Series, Window, mean, summarize

if TYPE_CHECKING:
    from rich.console import Group, RenderableType

_SPARKLINE = 40  # values in a sparkline
_TABLE_COLUMNS = 150  # terminal width that the table needs
_WAITING_S = 5.0  # between two plain lines while the gate is closed
_COLUMNS = (
    "GPU",
    "utilization",
    "now",
    "memory MiB",
    "power W",
    "SM/mem MHz",
    "°C",
    "JPEG",
    "PCIe in/out MB/s",
    "state",
    "throttled by",
)


class Screen:
    """Interface of the live output. This implementation shows nothing and serves ``--json``."""

    def waiting(self, text: str) -> None:
        """Shows why the gate is still closed."""

    def show(self, sampler: Sampler, duration: float) -> None:
        """Shows the state at the end of an interval."""

    def close(self) -> None:
        """Ends the live output."""


class Lines(Screen):
    """One plain line per interval: mean utilization, and the latest value of everything else."""

    def __init__(self) -> None:
        self._shown = 0.0
        self._waited = -_WAITING_S

    def waiting(self, text: str) -> None:
        # Rate-limited, because the reason changes with every row of a run that warms up.
        if time.monotonic() - self._waited >= _WAITING_S:
            self._waited = time.monotonic()
            print(f"waiting: {text}", flush=True)  # noqa: T201 - output of the command

    def show(self, sampler: Sampler, duration: float) -> None:  # noqa: ARG002 - signature of Screen
        parts = [_gpu_line(gpu, self._shown) for gpu in sampler.gpus]
        self._shown = sampler.elapsed
        line = " | ".join([*parts, _host_line(sampler.host)])
        print(f"{self._shown:5.0f} s  {line}", flush=True)  # noqa: T201 - output of the command


class Table(Screen):
    """A table that is redrawn each interval. The last one stays on the screen."""

    def __init__(self) -> None:
        from rich.live import Live

        self._live = Live(auto_refresh=False)
        self._live.start()

    def waiting(self, text: str) -> None:
        from rich.text import Text

        self._live.update(Text(f"waiting: {text}", style="yellow"), refresh=True)

    def show(self, sampler: Sampler, duration: float) -> None:
        self._live.update(_screen(sampler, duration, self._live.console.width), refresh=True)

    def close(self) -> None:
        self._live.stop()


def _gpu_line(gpu: GpuSamples, since: float) -> str:
    if gpu.gpu.gone:
        return f"gpu{gpu.gpu.index} lost ({gpu.gpu.gone})"
    first = next((place for place, at in enumerate(gpu.t) if at >= since), 0)
    return f"gpu{gpu.gpu.index} {number(mean(gpu.series['util'][first:]), '%')} {_details(gpu)}"


def _details(gpu: GpuSamples) -> str:
    last = _last(gpu.series)
    throttled = _throttled(gpu)
    return (
        f"mem {number(last['mem_mb'])} MiB "
        f"power {number(last['power_w'])}/{number(last['power_limit_w'])} W "
        f"clocks {number(last['sm_mhz'])}/{number(last['mem_mhz'])} MHz "
        f"{number(last['temp_c'])} °C jpeg {number(last['jpeg'], '%')} "
        f"pcie {number(last['pcie_rx_mb_s'])}/{number(last['pcie_tx_mb_s'])} MB/s"
        + (f" [throttled by {throttled}]" if throttled else "")
    )


def _throttled(gpu: GpuSamples) -> str:
    return ", ".join(gpu.throttle[-1] or []) if gpu.throttle else ""


def _last(series: Mapping[str, Series]) -> dict[str, float | None]:
    return {name: values[-1] if values else None for name, values in series.items()}


def _host_line(host: HostSamples) -> str:
    last = _last(host.series)
    rates = {name: number(value, digits=1) for name, value in last.items()}
    training = (
        f" training: cpu {number(last['tree_cpu'], '%')} mem {number(last['tree_rss_mb'])} MiB"
        if last["tree_cpu"] is not None
        else ""
    )
    return (
        f"cpu {number(mean(host.cpu[-1] if host.cpu else []), '%')} "
        f"iowait {number(last['iowait'], '%')} ram {number(last['ram_used_mb'])} MiB "
        f"swap in/out {rates['swap_in_mb_s']}/{rates['swap_out_mb_s']} "
        f"disk r/w {rates['disk_read_mb_s']}/{rates['disk_write_mb_s']} "
        f"net {rates['net_mb_s']} MB/s{training}"
    )


def _screen(sampler: Sampler, duration: float, width: int) -> Group:
    from rich.console import Group
    from rich.text import Text

    host = sampler.host
    cores = f"  each core now {sparkline(host.cpu[-1], width=256)}" if host.cpu else ""
    cpu = sparkline([mean(each) for each in host.cpu], width=_SPARKLINE)
    title = f"{sampler.elapsed:.0f} of {duration:g} s" + ("" if sampler.gpus else ", no GPU")
    return Group(
        Text(title, style="bold"),
        *_gpu_rows(sampler, width),
        Text.assemble(("cpu    ", "dim"), cpu, cores),
        Text.assemble(("iowait ", "dim"), sparkline(host.series["iowait"], width=_SPARKLINE)),
        Text(_host_line(host)),
        *(Text(note, style="yellow") for gpu in sampler.gpus for note in gpu.gpu.notes),
    )


def sparkline(values: Numbers, *, width: int, top: float = 100.0) -> str:
    """Draws the last ``width`` values as block characters; a dot is an unknown value."""
    blocks = "▁▂▃▄▅▆▇█"
    return "".join(
        "·" if value is None else blocks[min(max(int(value / top * 8), 0), 7)]
        for value in list(values)[-width:]
    )


def _gpu_rows(sampler: Sampler, width: int) -> list[RenderableType]:
    """A table with one row per GPU, or two lines per GPU if the terminal is too narrow."""
    from rich.table import Table as RichTable
    from rich.text import Text

    if width < _TABLE_COLUMNS:
        return [
            Text.assemble(
                (f"{_name(gpu):16} ", "bold"),
                sparkline(gpu.series["util"], width=_SPARKLINE),
                f" {number(_last(gpu.series)['util'], '%'):>5}  ",
                (_state(gpu, sampler.elapsed), "cyan"),
                "\n  " + _details(gpu),
            )
            for gpu in sampler.gpus
        ]
    table = RichTable(expand=False)
    for name in _COLUMNS:
        is_text = name in ("GPU", "utilization", "state", "throttled by")
        table.add_column(
            name, no_wrap=name != "throttled by", justify="left" if is_text else "right"
        )
    for gpu in sampler.gpus:
        last = _last(gpu.series)
        table.add_row(
            Text(_name(gpu)),
            sparkline(gpu.series["util"], width=_SPARKLINE),
            number(last["util"], "%"),
            f"{number(last['mem_mb'])}/{number(gpu.gpu.mem_total_mb)}",
            f"{number(last['power_w'])}/{number(last['power_limit_w'])}",
            f"{number(last['sm_mhz'])}/{number(last['mem_mhz'])}",
            number(last["temp_c"]),
            number(last["jpeg"], "%"),
            f"{number(last['pcie_rx_mb_s'])}/{number(last['pcie_tx_mb_s'])}",
            _state(gpu, sampler.elapsed),
            _throttled(gpu),
        )
    return [table] if sampler.gpus else []


def _name(gpu: GpuSamples) -> str:
    return f"{gpu.gpu.index} {gpu.gpu.name.removeprefix('NVIDIA ').removeprefix('GeForce ')}"


def _state(gpu: GpuSamples, seconds: float) -> str:
    if gpu.gpu.gone:
        return "lost"
    count = len(gpu.t)  # the sampling thread may append meanwhile
    return summarize(gpu.t[:count], gpu.series["util"][:count], seconds=seconds).state


def sections(window: Window) -> list[Section]:
    """Returns the summary that the terminal shows after the measurement."""
    shown = [Section(f"gpu {gpu.index}", _gpu_summary(gpu), gpu.name) for gpu in window.gpus]
    if len(window.gpus) > 1:
        shown.append(Section("all GPUs", _all_gpus_summary(window.summary)))
    shown.append(Section("host", _host_summary(window.host.summary), "means"))
    if window.training is not None:
        shown.append(Section("training", _training_summary(window)))
    if window.gate is not None:
        shown.append(Section("gate", [Row("opened after", f"{window.gate['waited_s']} s")]))
    if window.gpus:
        shown.append(Section("states", [Row("rule", RULE)]))
    if window.notes:
        shown.append(Section("notes", [Row("", note) for note in window.notes]))
    return shown


def _gpu_summary(gpu: GpuWindow) -> list[Row]:
    summary = gpu.summary
    throttle = "no" if [] in gpu.throttle else "-"
    reasons = sorted({reason for sample in gpu.throttle for reason in sample or []})
    if reasons:
        counts = {name: sum(name in (each or []) for each in gpu.throttle) for name in reasons}
        throttle = ", ".join(
            f"{name} ({100 * count / len(gpu.throttle):.0f} % of samples)"
            for name, count in counts.items()
        )
    return [
        Row("state", summary.state),
        Row(
            "utilization",
            f"mean {number(summary.avg, '%', digits=1)}, median {number(summary.p50, '%')}, "
            f"p5 {number(summary.p5, '%')}, p95 {number(summary.p95, '%')}, "
            f"standard deviation {number(summary.std, digits=1)}",
        ),
        _active_row(summary.active_seconds, summary.idle_seconds, summary.avg_active),
        Row("energy", number(summary.energy_j, "J")),
        Row("throttled", throttle),
    ]


def _active_row(active_s: float | None, idle_s: float | None, average: float | None) -> Row:
    return Row(
        "active",
        f"{number(active_s, 's', digits=1)} (mean {number(average, '%', digits=1)}), "
        f"idle {number(idle_s, 's', digits=1)}",
    )


def _all_gpus_summary(summary: Mapping[str, float | None]) -> list[Row]:
    return [
        Row(
            "utilization",
            f"mean {number(summary['all_avg'], '%', digits=1)}, "
            f"median {number(summary['p50'], '%')}, "
            f"p95 - p5 {number(summary['spread'], 'points')}, "
            f"standard deviation {number(summary['std'], digits=1)}",
        ),
        _active_row(summary["active_seconds"], summary["idle_seconds"], summary["avg_active"]),
    ]


def _training_summary(window: Window) -> list[Row]:
    training = window.training or {}
    formats: dict[str, tuple[str, Callable[[float], str]]] = {
        "it_per_s": ("steps/s", fmt.rate),
        "images_per_s": ("images/s", fmt.rate),
        "data_time": ("data wait", lambda value: f"{fmt.seconds(value)} per step"),
        "ranks": ("ranks", fmt.count),
    }
    rows = [
        Row(label, show(value))
        for name, (label, show) in formats.items()
        if isinstance(value := training.get(name), int | float)
    ]
    return [*rows, Row("joules/image", number(window.summary["joules_per_image"], digits=3))]


def _host_summary(summary: Mapping[str, float | None]) -> list[Row]:
    def show(name: str, unit: str, digits: int = 1) -> str:
        return number(summary.get(name), unit, digits=digits)

    rows = [
        Row("cpu", f"{show('cpu', '%', 0)} of all cores, iowait {show('iowait', '%')}"),
        Row("ram", show("ram_used_mb", "MiB", 0)),
        Row("swap", f"{show('swap_in_mb_s', 'MB/s')} in, {show('swap_out_mb_s', 'MB/s')} out"),
        Row(
            "disk",
            f"{show('disk_read_mb_s', 'MB/s')} read, {show('disk_write_mb_s', 'MB/s')} written",
        ),
        Row("network", show("net_mb_s", "MB/s")),
    ]
    if summary.get("tree_cpu") is None:
        return rows
    training = f"{show('tree_cpu', '% of one core', 0)}, {show('tree_rss_mb', 'MiB', 0)}"
    return [*rows, Row("training", training)]


def comparison_sections(found: Comparison) -> list[Section]:
    """Returns the output of ``--compare``."""

    def figure(name: str, each: Figure | None) -> Row:
        if each is None:
            return Row(name, "-")
        error = "" if each.error is None else f" ± {each.error:.2f}"
        return Row(
            name, f"{each.mean:.1f}{error} {found.unit} ({each.parts} blocks of {BLOCK_S:.0f} s)"
        )

    shown = [
        Section(
            found.quantity,
            [
                figure("before", found.before),
                figure("after", found.after),
                Row("verdict", found.verdict),
                Row("why", found.why),
            ],
        ),
        Section("rule", [Row("", found.rule)]),
    ]
    notes = [Section("notes", [Row("", note) for note in found.notes])] if found.notes else []
    return shown + notes
