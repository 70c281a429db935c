"""Writes one HTML page about a recorded run and, optionally, its plots as PNG files."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from itertools import zip_longest
from pathlib import Path

from fastload._tools.doctor.examine import examine_runs, study_runs
from fastload._tools.doctor.finding import Diagnosis, RecordedRuns
from fastload._tools.doctor.runs import read_files
from fastload._tools.report.page import RunSection, draw_figures, page
from fastload.errors import ConfigError

__all__ = ["write_report"]


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
        from fastload._tools.charts import write_png

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
