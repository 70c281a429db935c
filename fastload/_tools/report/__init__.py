"""A recorded run as one HTML page with plots, and the plots as PNGs where asked for."""

from __future__ import annotations

import os
from collections.abc import Sequence
from itertools import zip_longest
from pathlib import Path

from fastload._tools.doctor.examine import cases_of, examine_runs, study
from fastload._tools.doctor.finding import Diagnosis, RecordedRuns
from fastload._tools.doctor.runs import read_files
from fastload._tools.report.page import WIDE, page, plots_of
from fastload.errors import ConfigError

__all__ = ["write_report"]


def write_report(
    paths: Sequence[str | os.PathLike[str]],
    out: str | os.PathLike[str],
    *,
    png: str | os.PathLike[str] | None = None,
) -> tuple[Diagnosis[RecordedRuns], list[Path]]:
    """Writes the page to ``out`` and, with ``png``, each plot into that folder. Returns the diagnosis and the files written."""
    runs, windows = read_files(paths)
    diagnosis = examine_runs(runs, windows)
    studies = [study(case) for case in cases_of(runs, windows)]
    written = [Path(out)]
    try:
        written[0].write_text(page(diagnosis, studies, windows), encoding="utf-8")
    except OSError as error:
        raise ConfigError(
            f"writing the report {out}: {error.strerror or error}; give -o a file that can be written"
        ) from error
    if png is not None:
        from fastload._tools.charts import write_png

        folder = Path(png)
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ConfigError(
                f"making the folder {folder}: {error.strerror or error}; give --png another one"
            ) from error
        for place, (each, window) in enumerate(zip_longest(studies, windows)):
            for title, _, draw in plots_of(each, window):
                plot = draw(WIDE)
                if plot is not None:
                    written.append(
                        folder / f"{plot.name}{f'-{place + 1}' if len(studies) > 1 else ''}.png"
                    )
                    write_png(plot, written[-1], title=title)
    return diagnosis, written
