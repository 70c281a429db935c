"""The sections of docs/benchmarks.md about the native core, the loader and the packer."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from benchmarks.decode_rows import misses
from benchmarks.page_parts import markdown
from fastload._tools.bench.measure import number

Found = Mapping[str, Any]
Section = tuple[list[str], dict[str, str]]  # paragraphs, plots by file name
ABOUT = ("machine", "versions", "commit", "source", "workers", "dataset")
GAINS = """Speedup of the thread pool over fewer threads, next to the speedup of bare loops over the
same samples in as many processes. The processes share nothing, so they show what the machine can
deliver. *Busy* is the share of their time that the threads of the pool spend on samples."""
STAGES = """Time per sample on one thread in microseconds, by stage, for each kind of vector code
that the CPU supports. The kinds are measured in turn. The target limits the time of the resize
relative to the decode."""
HANDOVER = """Overhead of the thread pool on one thread: time outside of samples in percent of the
time inside them, for the pool (submit, queue, wake up, collect) and for a bare C++ loop over the
same calls. The target limits the difference."""
EVENNESS = """*Batches of ...: p99 / p50* describes the time between batches of a consumer that does
nothing else: the 99th percentile over all rounds, relative to the median of the same epoch. *low*
and *high* are quartiles of a bootstrap over the epochs. The rows of the bare core show how much of
the variation the loader does not cause: batches of different photographs are different work. If the
bare core repeats a single batch, only the machine varies. Intervals in which the host of this
virtual machine took more than 5 % of the CPU time are excluded and counted. The target applies to
batches of 256: batches of 64 photographs differ more from each other, and slow moments of a virtual
machine last as long as such a batch."""


def decode(found: Found) -> Section:
    """The native core: speed compared with the recipe, scaling, stages, overhead of the pool."""
    paragraphs = [_times(found["times"])]
    if gains := found.get("gains"):
        few, many = gains[0]["beside"], gains[0]["threads"]
        paragraphs += [
            GAINS,
            _spreads(
                gains,
                {
                    f"{many} threads / {few}": "pool",
                    f"{many} processes / {few}": "processes",
                    "pool / processes": "of_processes",
                    "busy": "busy",
                },
            ),
        ]
    if stages := found.get("stages"):
        names = ("cut", "decode", "resize", "finish")
        rows = [
            (
                row["work"],
                row["simd"],
                *(f"{row[name]:,.1f}" for name in names),
                _spread(row, "share", 3) if "share" in row else "",
                str(row["rounds"]),
                str(row.get("bar", "")),
            )
            for row in stages
        ]
        paragraphs += [
            STAGES,
            markdown(
                ("work", "vector code", *names, "resize / decode", "rounds", "target"),
                rows,
                named=2,
            ),
        ]
    if handover := found.get("handover"):
        paragraphs += [
            HANDOVER,
            _spreads(
                handover,
                {
                    "pool, outside of samples": "outside",
                    "bare loop, outside of samples": "outside_bare",
                    "difference": "more",
                },
            ),
        ]
    missed = list(misses(found))
    return [
        *paragraphs,
        f"Targets missed: {'; '.join(missed)}." if missed else "All targets are met.",
    ], {}


def _times(rows: Sequence[Found]) -> str:
    headings = (
        "work",
        "threads",
        "images",
        "recipe, images/s",
        "fastload, images/s",
        "fastload is",
        "by CPU time",
        "rounds",
        "target",
    )
    return markdown(
        headings,
        [
            (
                row["work"],
                str(row["threads"]),
                str(row["n"]),
                number(row["recipe_per_s"]),
                number(row["fastload_per_s"]),
                f"{_spread(row, 'ratio')} x",
                f"{row['ratio_cpu']:.2f} x",
                str(row["rounds"]),
                str(row["bar"]),
            )
            for row in rows
        ],
    )


def _spreads(rows: Sequence[Found], figures: Mapping[str, str]) -> str:
    """A table of figures (by heading) with their quartiles, one row per work."""
    cells = [
        (
            row["work"],
            *(_spread(row, name) for name in figures.values()),
            str(row["rounds"]),
            str(row["bar"]),
        )
        for row in rows
    ]
    return markdown(("work", *figures, "rounds", "target"), cells)


def _spread(row: Found, kind: str, digits: int = 2) -> str:
    return (
        f"{row[kind]:.{digits}f} [{row[f'{kind}_low']:.{digits}f}-{row[f'{kind}_high']:.{digits}f}]"
    )


def load(found: Found) -> Section:
    """The overhead of the loader, and how the variation between batches is measured."""
    paragraphs, plots = plain(found)
    has_evenness = any(row["name"].startswith("batches of ") for row in found["rows"])
    return [*([EVENNESS] if has_evenness else []), *paragraphs], plots


def pack(found: Found) -> Section:
    """The packer on more images, compared with tools that do similar work."""
    n = found["n"]
    seconds = found["seconds"]
    fastload_s = statistics.median(seconds["fastload pack"])
    rows = [
        (
            name,
            f"{number(n / statistics.median(times))} "
            f"[{number(n / max(times))}-{number(n / min(times))}]",
            f"{statistics.median(times) / fastload_s:.2f} x" if name != "fastload pack" else "",
        )
        for name, times in seconds.items()
    ]
    return [
        f"{n:,} JPEGs, {len(seconds['fastload pack'])} interleaved rounds, median and range. "
        "FFCV's writer and Pillow decode and re-encode with quality 90, and neither verifies nor "
        "syncs its output. jpegtran only does the lossless rewrite.",
        markdown(("packer", "images/s", "fastload is"), rows),
        f"Peak anonymous memory of fastload: {found['peak_mb']:.0f} MB.",
    ], {}


def plain(found: Found) -> Section:
    """Any other record: its rows, or its figures by name."""
    rows = found.get("rows")
    if isinstance(rows, list) and rows and isinstance(rows[0], Mapping):
        keys = [key for key, value in rows[0].items() if isinstance(value, str | int | float)]
        headings = ["target" if key == "bar" else key for key in keys]
        cells = [[_cell(row.get(key, "")) for key in keys] for row in rows]
        return [markdown(headings, cells)], {}
    pairs = [(name, value) for name, value in found.items() if name not in ABOUT]
    flat = [
        (f"{name}: {key}", value)
        for name, each in pairs
        if isinstance(each, Mapping)
        for key, value in each.items()
    ]
    flat += [(name, value) for name, value in pairs if not isinstance(value, Mapping)]
    return [markdown(("figure", "value"), [(name, _cell(value)) for name, value in flat])], {}


def _cell(value: object) -> str:
    if isinstance(value, bool) or not isinstance(value, int | float | list):
        return str(value)
    if isinstance(value, list):
        return ", ".join(_cell(each) for each in value)
    return f"{value:,}" if isinstance(value, int) else number(value)
