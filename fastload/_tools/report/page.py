"""The page: verdict, figures, plots, findings, machine. One file, nothing from the network, no script."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from html import escape

from fastload._common import formatting as words
from fastload._tools.charts import Plot, css_variables, svg
from fastload._tools.doctor.diagnosis import Diagnosis, Finding, RunFacts
from fastload._tools.doctor.examine import Study
from fastload._tools.doctor.runs import Run, Window
from fastload._tools.report.spread import histogram, utilisation
from fastload._tools.report.style import STYLE
from fastload._tools.report.timeline import data_wait, rank_lanes, step_parts
from fastload._version import __version__

WIDE, PHONE = 1040.0, 352.0
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
                f"Utilisation in {window.name}. Orange: idle. Purple ticks: held back by heat or power.",
                lambda width: utilisation(window, width),
            )
        )
    return [each for each in found if each[2](PHONE) is not None]


def page(diagnosis: Diagnosis, studies: Sequence[Study], windows: Sequence[Window]) -> str:
    """The whole HTML."""
    parts = [_top(diagnosis)]
    for place in range(max(len(studies), len(windows))):
        study = studies[place] if place < len(studies) else None
        window = windows[place] if place < len(windows) else None
        if study is not None and len(studies) > 1:
            parts.append(f"<h2 class='run'>{escape(study.case.run.name)}</h2>")
        if study is not None:
            parts.append(_figures(diagnosis.runs[place]))
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


def _top(diagnosis: Diagnosis) -> str:
    worst = (
        "good"
        if diagnosis.healthy
        else "bad"
        if any(each.severity == "bad" for each in diagnosis.findings)
        else "look"
    )
    state, _, rest = diagnosis.verdict.partition(": ")
    return (
        f"<header class='verdict {worst}'><p class='brand'>fastload report</p><h1>{escape(state)}</h1>"
        f"<p class='says'>{_sentence(rest)}</p></header>"
    )


def _figures(run: RunFacts) -> str:
    told = [
        (
            "steps a second",
            words.rate(run.it_s),
            f"{words.count(run.steps, 'step')} in {_together(words.seconds(run.seconds))}",
        ),
        (
            "samples a second",
            "?" if run.samples_s is None else words.rate(run.samples_s),
            "batch size not recorded"
            if run.batch_size is None
            else f"batch {run.batch_size:.4g}"
            + (f" on {run.ranks} ranks" if run.ranks > 1 else ""),
        ),
        (
            "a step",
            words.seconds(run.typical_step_s),
            f"median; ordinary steps vary by {words.percent(run.spread)}",
        ),
        (
            "waiting for data",
            "?" if run.data_share is None else words.percent(run.data_share),
            "not recorded" if run.data_s is None else f"{words.seconds(run.data_s)} a step",
        ),
        ("warm-up", words.count(run.warm_steps, "step"), f"{words.seconds(run.warm_s)}, left out"),
    ]
    return (
        "<dl class='figures'>"
        + "".join(
            f"<div><dt>{escape(name)}</dt><dd>{escape(value)}</dd><p>{escape(more)}</p></div>"
            for name, value, more in told
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


def _findings(diagnosis: Diagnosis) -> str:
    if not diagnosis.findings:
        return (
            "<section class='card'><h2>Findings</h2><p class='clean'>None. Looked for: "
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
            f"<p class='share'>{words.percent(finding.share)}</p>{bar}"
            f"<p>{words.seconds(finding.lost_s)}; {words.percent(finding.of_lost)} of what is lost</p>"
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
                f"{window.name}: {length}, {gpus}"
                + (f", {window.cores} cores" if window.cores else ""),
            )
        )
    rows.append(("report by", f"fastload {__version__}"))
    return (
        "<section class='card'><h2>Machine and versions</h2><dl class='machine'>"
        + "".join(f"<dt>{escape(name)}</dt><dd>{escape(value)}</dd>" for name, value in rows)
        + "</dl></section>"
    )


def _small_print(diagnosis: Diagnosis) -> str:
    lines = [f"Looked for: {', '.join(diagnosis.checked)}."]
    lines += (
        [f"Not looked for: {'; '.join(diagnosis.not_checked)}."] if diagnosis.not_checked else []
    )
    return (
        "<footer>"
        + "".join(f"<p>{escape(line)}</p>" for line in [*lines, *diagnosis.notes])
        + "</footer>"
    )
