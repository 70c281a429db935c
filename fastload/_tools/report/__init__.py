"""Writes one HTML page about a recorded run and, optionally, its plots as PNG files."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from html import escape
from itertools import zip_longest
from pathlib import Path
from typing import NamedTuple

from fastload._common import formatting as fmt
from fastload._tools.charts import Plot, css_variables, svg, write_png
from fastload._tools.doctor.examine import Study, examine_runs, study_runs
from fastload._tools.doctor.finding import Diagnosis, Finding, RecordedRuns, RunFigures
from fastload._tools.doctor.runs import Run, n_cores, read_files
from fastload._tools.monitor.window import Window
from fastload._tools.report.plots_across import histogram, utilization
from fastload._tools.report.plots_along import data_wait, rank_lanes, step_parts
from fastload._version import __version__
from fastload.errors import ConfigError

WIDE = 1040.0
PHONE = 352.0
_HEADER_LABELS = {"time": "started", "batch_size": "batch size", "world": "ranks"}
STYLE = """
* { box-sizing: border-box; margin: 0; }
body { background: var(--page); color: var(--text); -webkit-text-size-adjust: 100%;
  font: 16px/1.5 system-ui, -apple-system, 'Segoe UI', Roboto, 'Helvetica Neue', Arial,
    sans-serif; }
main { max-width: 1120px; margin: 0 auto; padding: 24px 20px 48px; display: grid; gap: 20px; }
main > * { min-width: 0; }
.verdict { border-left: 6px solid var(--good); background: var(--card); border-radius: 10px;
  padding: 20px 24px; }
.verdict.warn { border-color: var(--warn); } .verdict.bad { border-color: var(--bad); }
.brand { color: var(--muted); font-size: 13px; letter-spacing: .02em; }
h1 { font-size: 30px; line-height: 1.2; margin: 2px 0 6px; color: var(--good); }
.warn h1 { color: var(--warn); } .bad h1 { color: var(--bad); }
.says { font-size: 18px; max-width: 62em; overflow-wrap: anywhere; }
h2 { font-size: 17px; line-height: 1.3; } h2.run { margin-top: 12px; font-size: 20px;
  overflow-wrap: anywhere; }
.figures { display: grid; grid-template-columns: repeat(auto-fit, minmax(150px, 1fr)); gap: 1px;
  background: var(--grid); border-radius: 10px; overflow: hidden; }
.figures div { background: var(--card); padding: 14px 18px; }
.figures dt, .figures p { color: var(--muted); font-size: 13px; line-height: 1.4; }
.figures dd { margin: 0; font-size: 24px; line-height: 1.3; font-weight: 600;
  font-variant-numeric: tabular-nums; }
figure, .card { background: var(--card); border-radius: 10px; padding: 18px 20px; }
figcaption p { color: var(--muted); font-size: 14px; margin-bottom: 10px; }
.plot { display: block; width: 100%; height: auto; font-family: inherit; }
.plot text { font-variant-numeric: tabular-nums; }
.phone { display: none; }
table { width: 100%; border-collapse: collapse; margin-top: 8px; font-size: 15px; line-height:
  1.45; }
th { text-align: left; color: var(--muted); font-weight: 500; font-size: 13px; padding: 4px 16px
  4px 0;
  border-bottom: 1px solid var(--grid); }
td { vertical-align: top; padding: 12px 16px 12px 0; border-bottom: 1px solid var(--grid);
  overflow-wrap: anywhere; }
tr:last-child td { border-bottom: 0; padding-bottom: 2px; }
td:nth-child(1) { width: 24%; } td:nth-child(2) { width: 17%; } td:nth-child(3) { width: 30%; }
.kind { font-weight: 600; } .bad .kind { color: var(--bad); } .warn .kind { color: var(--warn);
  } .info .kind { color: var(--muted); }
.where, .none { color: var(--muted); font-size: 13px; }
.share { font-size: 20px; font-weight: 600; line-height: 1.2; font-variant-numeric:
  tabular-nums; }
.share ~ p { color: var(--muted); font-size: 13px; }
.bar { background: var(--grid); border-radius: 3px; height: 6px; margin: 5px 0; max-width:
  130px; }
.bar i { display: block; height: 6px; border-radius: 3px; background: var(--wait); }
td ul { list-style: none; padding: 0; } td li + li { margin-top: 5px; }
.ceiling { font-weight: 600; margin-top: 6px; }
.clean { color: var(--good); margin-top: 4px; }
.machine { display: grid; grid-template-columns: max-content 1fr; gap: 3px 18px; margin-top:
  8px; font-size: 14px; }
.machine dt { color: var(--muted); } .machine dd { margin: 0; overflow-wrap: anywhere; }
footer { color: var(--muted); font-size: 13px; display: grid; gap: 4px; padding: 0 4px;
  overflow-wrap: anywhere; }
@media (max-width: 640px) {
  main { padding: 12px 8px 32px; gap: 12px; }
  .verdict, figure, .card { padding: 14px 16px; } figure { padding: 14px 8px; } figcaption {
    padding: 0 8px; }
  h1 { font-size: 25px; } .says { font-size: 16px; }
  .figures { grid-template-columns: 1fr 1fr; } .figures div { padding: 10px 16px; } .figures dd
    { font-size: 21px; }
  .figures div:last-child:nth-child(odd) { grid-column: 1 / -1; }
  .wide { display: none; } .phone { display: block; }
  thead { display: none; } table, tbody, tr, td { display: block; width: auto !important; }
  td { border: 0; padding: 4px 0; } tr { border-bottom: 1px solid var(--grid); padding: 10px 0;
    } tr:last-child { border: 0; }
  td:not(:first-child, :empty)::before { content: attr(data-label); display: block;
    color: var(--muted); font-size: 12px; }
}
@media print {
  body { background: #fff; } main { padding: 0; max-width: none; gap: 12px; }
  .verdict, figure, .card, .figures { break-inside: avoid; border: 1px solid var(--grid); }
  .wide { display: block; } .phone { display: none; }
  * { -webkit-print-color-adjust: exact; print-color-adjust: exact; }
}
"""
__all__ = ["write_report"]


class Figure(NamedTuple):
    """One plot in two widths, with its title and an explanation."""

    title: str
    caption: str
    wide: Plot
    phone: Plot


class RunSection(NamedTuple):
    """One run, its window, or both, and their plots."""

    study: Study | None
    window: Window | None
    figures: list[Figure]


def draw_figures(study: Study | None, window: Window | None) -> list[Figure]:
    """Draws every plot for which there is data."""
    drawings: list[tuple[str, str, Callable[[float], Plot | None]]] = []
    if study is not None:
        drawings += [
            (
                "Time per step",
                "Mean time of each stage along the run. Orange is waiting for data. "
                "The marks above the plot are pauses.",
                lambda width: step_parts(study, width),
            ),
            (
                "Data wait",
                "Mean and longest wait for the next batch, on a logarithmic axis.",
                lambda width: data_wait(study, width),
            ),
            (
                "Distribution of step times",
                "Both axes are logarithmic, so that rare slow steps remain visible.",
                lambda width: histogram(study, width),
            ),
            (
                "Ranks",
                "Time each rank needs for its own work: data, copy, forward, loss, optimizer. "
                "Orange marks a rank that needs more than the others, so that they wait for it.",
                lambda width: rank_lanes(study.case, width),
            ),
        ]
    if window is not None:
        drawings.append(
            (
                "GPU utilization",
                "Orange marks idle time. Purple marks above the plot show throttling by heat or "
                "power.",
                lambda width: utilization(window, width),
            )
        )
    drawn = ((title, text, draw(WIDE), draw(PHONE)) for title, text, draw in drawings)
    return [
        Figure(title, text, wide, phone)
        for title, text, wide, phone in drawn
        if wide is not None and phone is not None
    ]


def page(diagnosis: Diagnosis[RecordedRuns], sections: Sequence[RunSection]) -> str:
    """Returns the HTML."""
    runs = [section.study.case.run for section in sections if section.study is not None]
    parts = [_verdict(diagnosis)]
    for place, section in enumerate(sections):
        if section.study is not None and len(runs) > 1:
            parts.append(f"<h2 class='run'>{escape(section.study.case.run.name)}</h2>")
        if section.study is not None:
            parts.append(_run_figures(diagnosis.numbers.runs[place]))
        parts += [
            f"<figure><figcaption><h2>{escape(each.title)}</h2><p>{escape(each.caption)}</p>"
            f"</figcaption>{svg(each.wide, css='wide')}{svg(each.phone, css='phone')}</figure>"
            for each in section.figures
        ]
    parts.insert(2 if len(runs) == 1 else 1, _findings(diagnosis))
    windows = [section.window for section in sections if section.window is not None]
    parts += [_machine(runs, windows), _footer(diagnosis)]
    title = escape(f"fastload report: {', '.join(run.name for run in runs) or 'window'}")
    return (
        "<!doctype html>\n<html lang='en'><head><meta charset='utf-8'>"
        "<meta name='viewport' content='width=device-width, initial-scale=1'>"
        f"<meta name='color-scheme' content='light dark'><title>{title}</title>"
        f"<style>:root {{ {css_variables(False)} }}\n"
        "@media screen and (prefers-color-scheme: dark) "
        f"{{ :root {{ {css_variables(True)} }} }}\n{STYLE}</style></head>"
        f"<body><main>{''.join(parts)}</main></body></html>\n"
    )


def _verdict(diagnosis: Diagnosis[RecordedRuns]) -> str:
    worst = "good"
    if not diagnosis.healthy:
        worst = "bad" if any(each.severity == "bad" for each in diagnosis.findings) else "warn"
    state, _, rest = diagnosis.verdict.partition(": ")
    return (
        f"<header class='verdict {worst}'><p class='brand'>fastload report</p>"
        f"<h1>{escape(state)}</h1><p class='says'>{_sentence(rest)}</p></header>"
    )


def _run_figures(run: RunFigures) -> str:
    batch = "batch size unknown"
    if run.batch_size is not None:
        batch = f"batch {run.batch_size:.4g}" + (f" on {run.ranks} ranks" if run.ranks > 1 else "")
    # A no-break space keeps the number and its unit on one line.
    duration = fmt.seconds(run.seconds).replace(" ", "\u00a0")
    figures = [
        ("steps/s", fmt.rate(run.it_s), f"{fmt.count(run.steps, 'step')} in {duration}"),
        ("samples/s", "?" if run.samples_s is None else fmt.rate(run.samples_s), batch),
        (
            "median step",
            fmt.seconds(run.typical_step_s),
            f"p95 - p5 of ordinary steps: {fmt.percent(run.spread)}",
        ),
        (
            "data wait",
            "?" if run.data_share is None else fmt.percent(run.data_share),
            "not recorded" if run.data_s is None else f"{fmt.seconds(run.data_s)} per step",
        ),
        ("warm-up", fmt.count(run.warm_steps, "step"), f"{fmt.seconds(run.warm_s)}, excluded"),
    ]
    cells = "".join(
        f"<div><dt>{escape(name)}</dt><dd>{escape(value)}</dd><p>{escape(more)}</p></div>"
        for name, value, more in figures
    )
    return f"<dl class='figures'>{cells}</dl>"


def _findings(diagnosis: Diagnosis[RecordedRuns]) -> str:
    if not diagnosis.findings:
        return (
            "<section class='card'><h2>Findings</h2><p class='clean'>None. Checked: "
            f"{escape(', '.join(diagnosis.checked))}.</p></section>"
        )
    rows = "".join(_row(finding) for finding in diagnosis.findings)
    return (
        "<section class='card'><h2>Findings</h2><table class='findings'><thead><tr>"
        "<th>Cause</th><th>Lost time</th><th>Evidence</th><th>Fix</th></tr></thead>"
        f"<tbody>{rows}</tbody></table></section>"
    )


def _row(finding: Finding) -> str:
    where = f"<p class='where'>{escape(finding.run)}</p>" if finding.run else ""
    lost = "<p class='none'>none</p>"
    if finding.lost_s:
        lost = (
            f"<p class='share'>{fmt.percent(finding.share)}</p>"
            f"<div class='bar'><i style='width:{100 * min(finding.share, 1):.1f}%'></i></div>"
            f"<p>{fmt.seconds(finding.lost_s)}; {fmt.percent(finding.of_lost)} of all lost time</p>"
        )
    ceiling = ""
    if finding.ceiling:
        ceiling = f"<p class='ceiling'>Without it: {escape(str(finding.ceiling))}</p>"
    evidence = "".join(f"<li>{escape(text)}</li>" for text in finding.evidence)
    return (
        f"<tr class='{escape(finding.severity)}'><td data-label='Cause'>"
        f"<p class='kind'>{escape(finding.state)}</p><p>{_sentence(finding.title)}</p>{where}</td>"
        f"<td data-label='Lost time'>{lost}</td><td data-label='Evidence'><ul>{evidence}</ul></td>"
        f"<td data-label='Fix'>{_sentence(finding.fix)}{ceiling}</td></tr>"
    )


def _sentence(text: str) -> str:
    return escape(text if text.startswith("fastload") else text[:1].upper() + text[1:])


def _machine(runs: Sequence[Run], windows: Sequence[Window]) -> str:
    rows: list[tuple[str, str]] = []
    for run in runs:
        rows.append(("file", run.name + (" (written by another tool)" if run.foreign else "")))
        header = dict(run.header)
        if isinstance(started := header.get("time"), float):
            header["time"] = time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(started))
        rows += [(_HEADER_LABELS.get(name, name), str(value)) for name, value in header.items()]
    for window in windows:
        gpus = ", ".join(f"{gpu.index}: {gpu.name}" for gpu in window.gpus) or "no GPU"
        cores = f", {n_cores(window)} cores" if n_cores(window) else ""
        rows.append(("window", f"{window.seconds:.0f} s, {gpus}{cores}"))
    rows.append(("report by", f"fastload {__version__}"))
    cells = "".join(f"<dt>{escape(name)}</dt><dd>{escape(value)}</dd>" for name, value in rows)
    return (
        "<section class='card'><h2>Machine and versions</h2>"
        f"<dl class='machine'>{cells}</dl></section>"
    )


def _footer(diagnosis: Diagnosis[RecordedRuns]) -> str:
    lines = [f"Checked: {', '.join(diagnosis.checked)}.", *diagnosis.notes]
    if diagnosis.not_checked:
        lines.insert(1, f"Not checked: {'; '.join(diagnosis.not_checked)}.")
    return "<footer>" + "".join(f"<p>{escape(line)}</p>" for line in lines) + "</footer>"


def write_report(
    paths: Sequence[str | os.PathLike[str]],
    out: str | os.PathLike[str],
    *,
    png: str | os.PathLike[str] | None = None,
    on_progress: Callable[[int, int], object] = lambda _done, _total: None,
) -> tuple[Diagnosis[RecordedRuns], list[Path]]:
    """Writes the page to ``out`` and, with ``png``, each plot to that folder.

    ``on_progress`` receives the number of files written and their total.

    Returns the diagnosis and the written files.
    """
    runs, windows = read_files(paths)
    studies = study_runs(runs, windows)
    diagnosis = examine_runs(runs, windows, studies)
    sections = [
        RunSection(study, window, draw_figures(study, window))
        for study, window in zip_longest(studies, windows)
    ]
    written = [Path(out)]
    try:
        written[0].write_text(page(diagnosis, sections), encoding="utf-8")
    except OSError as error:
        raise ConfigError(
            f"cannot write report {out}: {error.strerror or error}. Choose a writable file with -o."
        ) from error
    if png is not None:
        folder = Path(png)
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ConfigError(
                f"cannot create folder {folder}: {error.strerror or error}. "
                "Choose another one with --png."
            ) from error
        total = 1 + sum(len(section.figures) for section in sections)
        for number, section in enumerate(sections, start=1):
            suffix = f"-{number}" if len(studies) > 1 else ""
            for figure in section.figures:
                on_progress(len(written), total)
                written.append(folder / f"{figure.wide.name}{suffix}.png")
                write_png(figure.wide, written[-1], title=figure.title)
    return diagnosis, written
