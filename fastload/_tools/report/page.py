"""The page: verdict, figures, plots, findings, machine. One file, nothing from the network, no script."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from html import escape
from itertools import zip_longest

from fastload._common import formatting as fmt
from fastload._tools.charts import Plot, css_variables, svg
from fastload._tools.doctor.examine import Study
from fastload._tools.doctor.finding import Diagnosis, Finding, RecordedRuns, RunFigures
from fastload._tools.doctor.runs import Run, n_cores
from fastload._tools.monitor.window import Window
from fastload._tools.report.plots_across import histogram, utilization
from fastload._tools.report.plots_along import data_wait, rank_lanes, step_parts
from fastload._version import __version__

STYLE = """
* { box-sizing: border-box; margin: 0; }
body { background: var(--page); color: var(--text); -webkit-text-size-adjust: 100%;
  font: 16px/1.5 system-ui, -apple-system, 'Segoe UI', Roboto, 'Helvetica Neue', Arial, sans-serif; }
main { max-width: 1120px; margin: 0 auto; padding: 24px 20px 48px; display: grid; gap: 20px; }
main > * { min-width: 0; }
.verdict { border-left: 6px solid var(--good); background: var(--card); border-radius: 10px; padding: 20px 24px; }
.verdict.warn { border-color: var(--warn); } .verdict.bad { border-color: var(--bad); }
.brand { color: var(--muted); font-size: 13px; letter-spacing: .02em; }
h1 { font-size: 30px; line-height: 1.2; margin: 2px 0 6px; color: var(--good); }
.warn h1 { color: var(--warn); } .bad h1 { color: var(--bad); }
.says { font-size: 18px; max-width: 62em; overflow-wrap: anywhere; }
h2 { font-size: 17px; line-height: 1.3; } h2.run { margin-top: 12px; font-size: 20px; overflow-wrap: anywhere; }
.figures { display: grid; grid-template-columns: repeat(auto-fit, minmax(150px, 1fr)); gap: 1px;
  background: var(--grid); border-radius: 10px; overflow: hidden; }
.figures div { background: var(--card); padding: 14px 18px; }
.figures dt, .figures p { color: var(--muted); font-size: 13px; line-height: 1.4; }
.figures dd { margin: 0; font-size: 24px; line-height: 1.3; font-weight: 600; font-variant-numeric: tabular-nums; }
figure, .card { background: var(--card); border-radius: 10px; padding: 18px 20px; }
figcaption p { color: var(--muted); font-size: 14px; margin-bottom: 10px; }
.plot { display: block; width: 100%; height: auto; font-family: inherit; }
.plot text { font-variant-numeric: tabular-nums; }
.phone { display: none; }
table { width: 100%; border-collapse: collapse; margin-top: 8px; font-size: 15px; line-height: 1.45; }
th { text-align: left; color: var(--muted); font-weight: 500; font-size: 13px; padding: 4px 16px 4px 0;
  border-bottom: 1px solid var(--grid); }
td { vertical-align: top; padding: 12px 16px 12px 0; border-bottom: 1px solid var(--grid); overflow-wrap: anywhere; }
tr:last-child td { border-bottom: 0; padding-bottom: 2px; }
td:nth-child(1) { width: 24%; } td:nth-child(2) { width: 17%; } td:nth-child(3) { width: 30%; }
.kind { font-weight: 600; } .bad .kind { color: var(--bad); } .warn .kind { color: var(--warn); } .info .kind { color: var(--muted); }
.where, .none { color: var(--muted); font-size: 13px; }
.share { font-size: 20px; font-weight: 600; line-height: 1.2; font-variant-numeric: tabular-nums; }
.share ~ p { color: var(--muted); font-size: 13px; }
.bar { background: var(--grid); border-radius: 3px; height: 6px; margin: 5px 0; max-width: 130px; }
.bar i { display: block; height: 6px; border-radius: 3px; background: var(--wait); }
td ul { list-style: none; padding: 0; } td li + li { margin-top: 5px; }
.ceiling { font-weight: 600; margin-top: 6px; }
.clean { color: var(--good); margin-top: 4px; }
.machine { display: grid; grid-template-columns: max-content 1fr; gap: 3px 18px; margin-top: 8px; font-size: 14px; }
.machine dt { color: var(--muted); } .machine dd { margin: 0; overflow-wrap: anywhere; }
footer { color: var(--muted); font-size: 13px; display: grid; gap: 4px; padding: 0 4px; overflow-wrap: anywhere; }
@media (max-width: 640px) {
  main { padding: 12px 8px 32px; gap: 12px; }
  .verdict, figure, .card { padding: 14px 16px; } figure { padding: 14px 8px; } figcaption { padding: 0 8px; }
  h1 { font-size: 25px; } .says { font-size: 16px; }
  .figures { grid-template-columns: 1fr 1fr; } .figures div { padding: 10px 16px; } .figures dd { font-size: 21px; }
  .figures div:last-child:nth-child(odd) { grid-column: 1 / -1; }
  .wide { display: none; } .phone { display: block; }
  thead { display: none; } table, tbody, tr, td { display: block; width: auto !important; }
  td { border: 0; padding: 4px 0; } tr { border-bottom: 1px solid var(--grid); padding: 10px 0; } tr:last-child { border: 0; }
  td:not(:first-child)::before { content: attr(data-label); display: block; color: var(--muted); font-size: 12px; }
}
@media print {
  body { background: #fff; } main { padding: 0; max-width: none; gap: 12px; }
  .verdict, figure, .card, .figures { break-inside: avoid; border: 1px solid var(--grid); }
  .wide { display: block; } .phone { display: none; }
  * { -webkit-print-color-adjust: exact; print-color-adjust: exact; }
}
"""


WIDE = 1040.0
PHONE = 352.0
Draw = Callable[[float], Plot | None]


def plots_of(study: Study | None, window: Window | None) -> list[tuple[str, str, Draw]]:
    """(title, how to read it, drawing) of every plot there is data for."""
    found: list[tuple[str, str, Draw]] = []
    if study is not None:
        found += [
            (
                "Where a step's time goes",
                "Mean time a step, along the run. Orange is waiting for data. Pauses are marks on top.",
                lambda width: step_parts(study, width),
            ),
            (
                "Waiting for data",
                "Mean and longest wait for the next batch; the axis is logarithmic.",
                lambda width: data_wait(study, width),
            ),
            (
                "How long steps take",
                "Both axes are logarithmic, so that a few slow steps are seen beside many.",
                lambda width: histogram(study, width),
            ),
            (
                "Ranks",
                "Time a rank needs for itself: data, copy, forward, loss, optimizer. Orange: more than the others, who wait.",
                lambda width: rank_lanes(study.case, width),
            ),
        ]
    if window is not None:
        found.append(
            (
                "What the GPUs did",
                "Utilization. Orange: idle. Purple ticks: held back by heat or power.",
                lambda width: utilization(window, width),
            )
        )
    return [each for each in found if each[2](PHONE) is not None]


def page(
    diagnosis: Diagnosis[RecordedRuns], studies: Sequence[Study], windows: Sequence[Window]
) -> str:
    """The whole HTML."""
    parts = [_top(diagnosis)]
    for place, (study, window) in enumerate(zip_longest(studies, windows)):
        if study is not None and len(studies) > 1:
            parts.append(f"<h2 class='run'>{escape(study.case.run.name)}</h2>")
        if study is not None:
            parts.append(_figures(diagnosis.numbers.runs[place]))
        parts += [_figure(title, text, draw) for title, text, draw in plots_of(study, window)]
    parts.insert(2 if len(studies) == 1 else 1, _findings(diagnosis))
    parts += [_machine([study.case.run for study in studies], windows), _small_print(diagnosis)]
    title = escape(
        f"fastload report: {', '.join(study.case.run.name for study in studies) or 'window'}"
    )
    return (
        "<!doctype html>\n<html lang='en'><head><meta charset='utf-8'>"
        "<meta name='viewport' content='width=device-width, initial-scale=1'>"
        f"<meta name='color-scheme' content='light dark'><title>{title}</title><style>:root {{ {css_variables(False)} }}\n"
        f"@media screen and (prefers-color-scheme: dark) {{ :root {{ {css_variables(True)} }} }}\n{STYLE}</style></head>"
        f"<body><main>{''.join(parts)}</main></body></html>\n"
    )


def _top(diagnosis: Diagnosis[RecordedRuns]) -> str:
    worst = "good"
    if not diagnosis.healthy:
        worst = "bad" if any(each.severity == "bad" for each in diagnosis.findings) else "warn"
    state, _, rest = diagnosis.verdict.partition(": ")
    return (
        f"<header class='verdict {worst}'><p class='brand'>fastload report</p><h1>{escape(state)}</h1>"
        f"<p class='says'>{_sentence(rest)}</p></header>"
    )


def _figures(run: RunFigures) -> str:
    figures = [
        (
            "steps a second",
            fmt.rate(run.it_s),
            f"{fmt.count(run.steps, 'step')} in {_together(fmt.seconds(run.seconds))}",
        ),
        (
            "samples a second",
            "?" if run.samples_s is None else fmt.rate(run.samples_s),
            "batch size not recorded"
            if run.batch_size is None
            else f"batch {run.batch_size:.4g}"
            + (f" on {run.ranks} ranks" if run.ranks > 1 else ""),
        ),
        (
            "a step",
            fmt.seconds(run.typical_step_s),
            f"median; ordinary steps vary by {fmt.percent(run.spread)}",
        ),
        (
            "waiting for data",
            "?" if run.data_share is None else fmt.percent(run.data_share),
            "not recorded" if run.data_s is None else f"{fmt.seconds(run.data_s)} a step",
        ),
        ("warm-up", fmt.count(run.warm_steps, "step"), f"{fmt.seconds(run.warm_s)}, left out"),
    ]
    return (
        "<dl class='figures'>"
        + "".join(
            f"<div><dt>{escape(name)}</dt><dd>{escape(value)}</dd><p>{escape(more)}</p></div>"
            for name, value, more in figures
        )
        + "</dl>"
    )


def _together(text: str) -> str:
    """Kept on one line."""
    return text.replace(" ", "\u00a0")


def _figure(title: str, text: str, draw: Draw) -> str:
    wide, phone = draw(WIDE), draw(PHONE)
    if wide is None or phone is None:
        return ""
    return (
        f"<figure><figcaption><h2>{escape(title)}</h2><p>{escape(text)}</p></figcaption>"
        f"{svg(wide, css='wide')}{svg(phone, css='phone')}</figure>"
    )


def _findings(diagnosis: Diagnosis[RecordedRuns]) -> str:
    if not diagnosis.findings:
        return (
            "<section class='card'><h2>Findings</h2><p class='clean'>None. Checked: "
            f"{escape(', '.join(diagnosis.checked))}.</p></section>"
        )
    rows = "".join(_row(finding) for finding in diagnosis.findings)
    return (
        "<section class='card'><h2>Findings</h2><table class='findings'><thead><tr><th>What</th><th>Lost</th><th>Evidence</th>"
        f"<th>What to do</th></tr></thead><tbody>{rows}</tbody></table></section>"
    )


def _row(finding: Finding) -> str:
    where = f"<p class='where'>{escape(finding.run)}</p>" if finding.run else ""
    lost = "<p class='none'>no time</p>"
    if finding.lost_s:
        bar = f"<div class='bar'><i style='width:{100 * min(finding.share, 1):.1f}%'></i></div>"
        lost = (
            f"<p class='share'>{fmt.percent(finding.share)}</p>{bar}"
            f"<p>{fmt.seconds(finding.lost_s)}; {fmt.percent(finding.of_lost)} of what is lost</p>"
        )
    ceiling = (
        f"<p class='ceiling'>Without it: {escape(str(finding.ceiling))}</p>"
        if finding.ceiling
        else ""
    )
    evidence = "".join(f"<li>{escape(text)}</li>" for text in finding.evidence)
    return (
        f"<tr class='{escape(finding.severity)}'><td data-label='What'><p class='kind'>{escape(finding.state)}</p>"
        f"<p>{_sentence(finding.title)}</p>{where}</td><td data-label='Lost'>{lost}</td>"
        f"<td data-label='Evidence'><ul>{evidence}</ul></td><td data-label='What to do'>{_sentence(finding.fix)}{ceiling}</td></tr>"
    )


def _sentence(text: str) -> str:
    return escape(text if text.startswith("fastload") else text[:1].upper() + text[1:])


def _machine(runs: Sequence[Run], windows: Sequence[Window]) -> str:
    rows: list[tuple[str, str]] = []
    for run in runs:
        rows.append(("file", run.name + (" (rows of another tool)" if run.foreign else "")))
        for name, value in run.header.items():
            shown = (
                time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(value))
                if name == "time" and isinstance(value, float)
                else str(value)
            )
            rows.append(
                (
                    {"time": "started", "batch_size": "batch size", "world": "ranks"}.get(
                        name, name
                    ),
                    shown,
                )
            )
    for window in windows:
        gpus = ", ".join(f"{gpu.index}: {gpu.name}" for gpu in window.gpus) or "no GPU"
        length = f"{window.seconds:.0f} s" if math.isfinite(window.seconds) else "?"
        rows.append(
            (
                "window",
                f"{length}, {gpus}" + (f", {n_cores(window)} cores" if n_cores(window) else ""),
            )
        )
    rows.append(("report by", f"fastload {__version__}"))
    return (
        "<section class='card'><h2>Machine and versions</h2><dl class='machine'>"
        + "".join(f"<dt>{escape(name)}</dt><dd>{escape(value)}</dd>" for name, value in rows)
        + "</dl></section>"
    )


def _small_print(diagnosis: Diagnosis[RecordedRuns]) -> str:
    lines = [f"Checked: {', '.join(diagnosis.checked)}."]
    lines += [f"Not checked: {'; '.join(diagnosis.not_checked)}."] if diagnosis.not_checked else []
    return (
        "<footer>"
        + "".join(f"<p>{escape(line)}</p>" for line in [*lines, *diagnosis.notes])
        + "</footer>"
    )
