"""The monitor's results in words, for people."""

from __future__ import annotations

from fastload._common.formatting import number
from fastload._common.tables import Row, Section
from fastload._tools.monitor.compare import Comparison, Figure
from fastload._tools.monitor.series import RULE
from fastload._tools.monitor.window import GpuWindow, Window


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
                        "utilisation",
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
    told = gpu.summary
    throttled = sorted({word for words in gpu.throttle for word in words or []})
    shares = [
        f"{word} {100 * sum(word in (words or []) for words in gpu.throttle) / len(gpu.throttle):.0f} %"
        for word in throttled
    ]
    return [
        Row("state", told.state),
        Row(
            "utilisation",
            f"{number(told.avg, '%', digits=1)} mean, {number(told.p50, '%')} median, {number(told.p5)} to "
            f"{number(told.p95)} (p5 to p95), {number(told.std, digits=1)} standard deviation",
        ),
        Row(
            "active",
            f"{number(told.active_seconds, 's', digits=1)}, idle {number(told.idle_seconds, 's', digits=1)}, "
            f"{number(told.avg_active, '%', digits=1)} while active",
        ),
        Row("energy", number(told.energy_j, "J")),
        Row(
            "throttled",
            ", ".join(shares) + " of the samples"
            if shares
            else "no"
            if any(gpu.throttle) or [] in gpu.throttle
            else "-",
        ),
    ]


def _training_rows(window: Window) -> list[Row]:
    told = window.training or {}
    names = {
        "it_per_s": "steps/s",
        "images_per_s": "images/s",
        "data_time": "data wait, s",
        "ranks": "ranks",
    }
    rows = [
        Row(word, f"{value:g}")
        for name, word in names.items()
        if isinstance(value := told.get(name), int | float)
    ]
    return [*rows, Row("joules/image", number(window.summary["joules_per_image"], digits=3))]


def _host_rows(window: Window) -> list[Row]:
    told = window.host.summary
    rows = [
        Row(
            "cpu",
            f"{number(told.get('cpu'), '%')} of all cores, iowait {number(told.get('iowait'), '%', digits=1)}",
        ),
        Row("ram", number(told.get("ram_used_mb"), "MiB")),
        Row(
            "swap",
            f"{number(told.get('swap_in_mb_s'), digits=2)} in, {number(told.get('swap_out_mb_s'), digits=2)} out, MB/s",
        ),
        Row(
            "disk",
            f"{number(told.get('disk_read_mb_s'), digits=1)} read, {number(told.get('disk_write_mb_s'), digits=1)} written, "
            "MB/s",
        ),
        Row("network", number(told.get("net_mb_s"), "MB/s", digits=1)),
    ]
    if told.get("tree_cpu") is not None:
        rows.append(
            Row(
                "this job",
                f"{number(told.get('tree_cpu'), '% of one core')}, {number(told.get('tree_rss_mb'), 'MiB')}",
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
