"""How the monitor shows itself: a table with sparklines or plain lines while it measures, sections of text afterwards."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING

from fastload._common.formatting import number
from fastload._common.tables import Row, Section
from fastload._tools.monitor.compare import Comparison, Figure
from fastload._tools.monitor.sampling import GpuSamples, HostSamples, Sampler
from fastload._tools.monitor.series import RULE, mean, sparkline, summarize
from fastload._tools.monitor.window import GpuWindow, Series, Window

if TYPE_CHECKING:
    from rich.console import Group
    from rich.live import Live
    from rich.table import Table as RichTable
    from rich.text import Text

_WIDTH = 40  # values of a sparkline
_WIDE = 150  # columns that the table needs
_WAITING_S = 5.0  # between two lines while the gate is shut


class Screen:
    """Where the monitor shows what it sees; this one shows nothing, for ``--json``."""

    def waiting(self, text: str) -> None:
        """The gate is not open yet, and why."""

    def show(self, sampler: Sampler, duration: float) -> None:
        """An interval is over."""

    def close(self) -> None:
        """The measurement is over."""


class Lines(Screen):
    """A plain line an interval: means over the interval for utilization, the last reading for the rest."""

    def __init__(self) -> None:
        self._shown = 0.0
        self._waited = -_WAITING_S

    def waiting(self, text: str) -> None:
        """A line now and then: a run that warms up has a new reason with each row."""
        if time.monotonic() - self._waited >= _WAITING_S:
            self._waited = time.monotonic()
            self._print(f"waiting: {text}")

    def show(self, sampler: Sampler, duration: float) -> None:  # noqa: ARG002 - Screen's
        """One line."""
        parts = [_gpu_line(gpu, self._shown) for gpu in sampler.gpus]
        self._shown = sampler.elapsed
        self._print(f"{self._shown:5.0f} s  " + " | ".join([*parts, _host_line(sampler.host)]))

    def _print(self, text: str) -> None:
        sys.stdout.write(text + "\n")
        sys.stdout.flush()


class Table(Screen):
    """A table that is redrawn each interval."""

    def __init__(self) -> None:
        self._live: Live | None = None

    def waiting(self, text: str) -> None:
        """One line that changes."""
        from rich.text import Text

        self._open().update(Text(f"waiting: {text}", style="yellow"), refresh=True)

    def show(self, sampler: Sampler, duration: float) -> None:
        """The table of this moment."""
        live = self._open()
        live.update(_drawn(sampler, duration, live.console.width), refresh=True)

    def close(self) -> None:
        """Leaves the last table on the screen."""
        if self._live is not None:
            self._live.stop()
            self._live = None

    def _open(self) -> Live:
        if self._live is None:
            from rich.live import Live

            self._live = Live(auto_refresh=False)
            self._live.start()
        return self._live


def _gpu_line(gpu: GpuSamples, since: float) -> str:
    if gpu.gpu.gone:
        return f"gpu{gpu.gpu.index} gone ({gpu.gpu.gone})"
    first = next((place for place, at in enumerate(gpu.t) if at >= since), 0)
    return f"gpu{gpu.gpu.index} {number(mean(gpu.series['util'][first:]), '%')} {_details(gpu)}"


def _details(gpu: GpuSamples) -> str:
    last = _last(gpu.series)
    throttled = ", ".join(gpu.throttle[-1] or []) if gpu.throttle else ""
    return (
        f"{number(last['mem_mb'])} MiB {number(last['power_w'])}/{number(last['power_limit_w'])} W {number(last['sm_mhz'])}/"
        f"{number(last['mem_mhz'])} MHz {number(last['temp_c'])} C jpeg {number(last['jpeg'], '%')} pcie "
        f"{number(last['pcie_rx_mb_s'])}/{number(last['pcie_tx_mb_s'])} MB/s"
        + (f" [{throttled}]" if throttled else "")
    )


def _last(series: Mapping[str, Series]) -> dict[str, float | None]:
    return {name: values[-1] if values else None for name, values in series.items()}


def _host_line(host: HostSamples) -> str:
    last = _last(host.series)
    cores = host.cpu[-1] if host.cpu else []
    swapping = f"{number(last['swap_in_mb_s'], digits=1)}/{number(last['swap_out_mb_s'], digits=1)}"
    tree = (
        f" job {number(last['tree_cpu'], '%')} {number(last['tree_rss_mb'])} MiB"
        if last["tree_cpu"] is not None
        else ""
    )
    return (
        f"cpu {number(mean(cores), '%')} iowait {number(last['iowait'], '%')} ram {number(last['ram_used_mb'])} MiB swap {swapping} "
        f"disk {number(last['disk_read_mb_s'], digits=1)}/{number(last['disk_write_mb_s'], digits=1)} net "
        f"{number(last['net_mb_s'], digits=1)} MB/s{tree}"
    )


def _drawn(sampler: Sampler, duration: float, width: int) -> Group:
    from rich.console import Group
    from rich.text import Text

    host = sampler.host
    each = f"  per core {sparkline(host.cpu[-1], width=256)}" if host.cpu else ""
    lines = [
        Text.assemble(
            ("cpu    ", "dim"), sparkline([mean(cores) for cores in host.cpu], width=_WIDTH), each
        ),
        Text.assemble(("iowait ", "dim"), sparkline(host.series["iowait"], width=_WIDTH)),
        Text(_host_line(host)),
    ]
    gpus = (
        [_wide(sampler)]
        if width >= _WIDE and sampler.gpus
        else [_narrow(gpu, sampler.elapsed) for gpu in sampler.gpus]
    )
    notes = [Text(note, style="yellow") for gpu in sampler.gpus for note in gpu.gpu.notes]
    title = f"{sampler.elapsed:.0f} of {duration:g} s" + ("" if sampler.gpus else ", no GPU")
    return Group(Text(title, style="bold"), *gpus, *lines, *notes)


def _wide(sampler: Sampler) -> RichTable:
    """A row a GPU."""
    from rich.table import Table as RichTable
    from rich.text import Text

    table = RichTable(expand=False)
    for name in (
        "GPU",
        "utilization",
        "",
        "memory MiB",
        "W",
        "SM/mem MHz",
        "C",
        "JPEG",
        "PCIe MB/s",
        "state",
        "throttled by",
    ):
        table.add_column(
            name,
            no_wrap=name != "throttled by",
            justify="left" if name in ("utilization", "throttled by") else "right",
        )
    for gpu in sampler.gpus:
        last = _last(gpu.series)
        table.add_row(
            Text(_name(gpu)),
            sparkline(gpu.series["util"], width=_WIDTH),
            number(last["util"], "%"),
            f"{number(last['mem_mb'])}/{number(gpu.gpu.mem_total_mb)}",
            f"{number(last['power_w'])}/{number(last['power_limit_w'])}",
            f"{number(last['sm_mhz'])}/{number(last['mem_mhz'])}",
            number(last["temp_c"]),
            number(last["jpeg"], "%"),
            f"{number(last['pcie_rx_mb_s'])}/{number(last['pcie_tx_mb_s'])}",
            _state(gpu, sampler.elapsed),
            ", ".join(gpu.throttle[-1] or []) if gpu.throttle else "",
        )
    return table


def _narrow(gpu: GpuSamples, seconds: float) -> Text:
    """Two lines a GPU, for terminals that the table does not fit into."""
    from rich.text import Text

    now = f" {number(_last(gpu.series)['util'], '%'):>5}  "
    return Text.assemble(
        (f"{_name(gpu):16} ", "bold"),
        sparkline(gpu.series["util"], width=_WIDTH),
        now,
        (_state(gpu, seconds), "cyan"),
        "\n  " + _details(gpu),
    )


def _name(gpu: GpuSamples) -> str:
    return f"{gpu.gpu.index} {gpu.gpu.name.removeprefix('NVIDIA ').removeprefix('GeForce ')}"


def _state(gpu: GpuSamples, seconds: float) -> str:
    count = len(gpu.t)  # the sampler goes on meanwhile
    return (
        "gone"
        if gpu.gpu.gone
        else summarize(gpu.t[:count], gpu.series["util"][:count], seconds=seconds).state
    )


def sections(window: Window) -> list[Section]:
    """The summary as the terminal shows it."""
    shown = [Section(f"gpu {gpu.index}", _gpu_rows(gpu), gpu.name) for gpu in window.gpus]
    whole = window.summary
    if len(window.gpus) > 1:
        shown.append(
            Section(
                "all GPUs",
                [
                    Row(
                        "utilization",
                        f"{number(whole['all_avg'], '%', digits=1)} mean, {number(whole['p50'], '%')} median",
                    ),
                    Row(
                        "spread",
                        f"{number(whole['spread'])} points p95 - p5, {number(whole['std'], digits=1)} standard deviation",
                    ),
                    Row(
                        "active",
                        f"{number(whole['active_seconds'], 's', digits=1)}, idle {number(whole['idle_seconds'], 's', digits=1)}, "
                        f"{number(whole['avg_active'], '%', digits=1)} while active",
                    ),
                ],
            )
        )
    shown.append(Section("host", _host_rows(window), "means"))
    if window.training is not None:
        shown.append(Section("training", _training_rows(window)))
    if window.gate is not None:
        shown.append(Section("gate", [Row("opened after", f"{window.gate['waited_s']} s")]))
    if window.gpus:
        shown.append(Section("states", [Row("rule", RULE)]))
    if window.notes:
        shown.append(Section("notes", [Row("", note) for note in window.notes]))
    return shown


def _gpu_rows(gpu: GpuWindow) -> list[Row]:
    summary = gpu.summary
    throttled = sorted({reason for reasons in gpu.throttle for reason in reasons or []})
    shares = [
        f"{reason} {100 * sum(reason in (reasons or []) for reasons in gpu.throttle) / len(gpu.throttle):.0f} %"
        for reason in throttled
    ]
    throttle = "-"
    if shares:
        throttle = ", ".join(shares) + " of the samples"
    elif [] in gpu.throttle:
        throttle = "no"
    return [
        Row("state", summary.state),
        Row(
            "utilization",
            f"{number(summary.avg, '%', digits=1)} mean, {number(summary.p50, '%')} median, {number(summary.p5)} to "
            f"{number(summary.p95)} (p5 to p95), {number(summary.std, digits=1)} standard deviation",
        ),
        Row(
            "active",
            f"{number(summary.active_seconds, 's', digits=1)}, idle {number(summary.idle_seconds, 's', digits=1)}, "
            f"{number(summary.avg_active, '%', digits=1)} while active",
        ),
        Row("energy", number(summary.energy_j, "J")),
        Row("throttled", throttle),
    ]


def _training_rows(window: Window) -> list[Row]:
    summary = window.training or {}
    names = {
        "it_per_s": "steps/s",
        "images_per_s": "images/s",
        "data_time": "data wait, s",
        "ranks": "ranks",
    }
    rows = [
        Row(label, f"{value:g}")
        for name, label in names.items()
        if isinstance(value := summary.get(name), int | float)
    ]
    return [*rows, Row("joules/image", number(window.summary["joules_per_image"], digits=3))]


def _host_rows(window: Window) -> list[Row]:
    summary = window.host.summary
    rows = [
        Row(
            "cpu",
            f"{number(summary.get('cpu'), '%')} of all cores, iowait {number(summary.get('iowait'), '%', digits=1)}",
        ),
        Row("ram", number(summary.get("ram_used_mb"), "MiB")),
        Row(
            "swap",
            f"{number(summary.get('swap_in_mb_s'), digits=2)} in, {number(summary.get('swap_out_mb_s'), digits=2)} out, MB/s",
        ),
        Row(
            "disk",
            f"{number(summary.get('disk_read_mb_s'), digits=1)} read, {number(summary.get('disk_write_mb_s'), digits=1)} written, "
            "MB/s",
        ),
        Row("network", number(summary.get("net_mb_s"), "MB/s", digits=1)),
    ]
    if summary.get("tree_cpu") is not None:
        rows.append(
            Row(
                "this job",
                f"{number(summary.get('tree_cpu'), '% of one core')}, {number(summary.get('tree_rss_mb'), 'MiB')}",
            )
        )
    return rows


def comparison_sections(found: Comparison) -> list[Section]:
    """What `--compare` shows."""

    def figure(name: str, each: Figure | None) -> Row:
        error = (
            ""
            if each is None or each.error is None
            else f" ± {each.error:.2f} (standard error of {each.parts} parts)"
        )
        return Row(name, "-" if each is None else f"{each.mean:.1f} {found.unit}{error}")

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
    return (
        [*shown, Section("notes", [Row("", note) for note in found.notes])]
        if found.notes
        else shown
    )
