"""The sections of docs/benchmarks.md about fastload's own parts: the core, the loader, the packer; and of any other record."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from benchmarks.decode_rows import misses
from fastload._common.tables import markdown
from fastload._tools.bench.measure import number

Found = Mapping[str, Any]
Section = tuple[list[str], dict[str, str]]  # paragraphs, plots by file name
ABOUT = ("machine", "versions", "commit", "source", "workers", "dataset")
GAINS = """Threads of the pool beside one, and beside that bare loops over the same samples in as many processes, which share nothing: much
more than those reach, the machine does not have. *Busy* is the share of their time that the pool's threads spend inside samples."""
STAGES = """Where a sample's time goes on one thread, in microseconds, at each level of vector code that the processor has; the levels
take turns. The bar is on what the resize takes of the decode's time."""
HANDOVER = """What handing over costs on one thread: time outside the samples in percent of the time inside them, of the pool (submitting,
queueing, waking up, collecting) and of a bare C++ loop over the same calls. The bar is on what the pool has more."""
EVENNESS = """*Batches of ...: p99 / p50* is the time between batches for a consumer that only takes them: the 99th percentile of all
rounds' gaps, each over the median of its own epoch; *low* and *high* are the quartiles of what other epochs of the same kind would give.
The bare core shows what is not the loader's: batches of different photographs are different work. With one batch again and again it
always does the same work, and what varies is the machine. Gaps in which the host of this virtual machine took more than a twentieth of the
processors' time are left out, and counted. The bar is for batches of 256. In those of 64 photographs do not even out, and slow moments of
a virtual machine last as long as a batch does: the bare core shows both."""


def decode(found: Found) -> Section:
    """The native core beside the recipe, what threads gain, where the time goes, and what handing over costs."""
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
                ("work", "vector code", *names, "resize / decode", "rounds", "bar"), rows, named=2
            ),
        ]
    if handover := found.get("handover"):
        paragraphs += [
            HANDOVER,
            _spreads(
                handover,
                {
                    "pool, outside the samples": "outside",
                    "bare loop, outside the samples": "outside_bare",
                    "the pool has more": "more",
                },
            ),
        ]
    missed = list(misses(found))
    return [
        *paragraphs,
        f"Bars missed: {'; '.join(missed)}." if missed else "All bars are reached.",
    ], {}


def _times(rows: Sequence[Found]) -> str:
    headings = (
        "work",
        "threads",
        "images",
        "recipe, images/s",
        "fastload, images/s",
        "fastload is",
        "by processor time",
        "rounds",
        "bar",
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
    """A table of figures (by heading) with their quartiles, a row a work."""
    ends = ("rounds", "bar")
    cells = [
        (
            row["work"],
            *(_spread(row, name) for name in figures.values()),
            *(str(row[end]) for end in ends),
        )
        for row in rows
    ]
    return markdown(("work", *figures, *ends), cells)


def _spread(row: Found, kind: str, digits: int = 2) -> str:
    return (
        f"{row[kind]:.{digits}f} [{row[f'{kind}_low']:.{digits}f}-{row[f'{kind}_high']:.{digits}f}]"
    )


def load(found: Found) -> Section:
    """The loader's own limits, and what its evenness is measured by."""
    paragraphs, plots = plain(found)
    return [
        *(
            [EVENNESS]
            if any(row["name"].startswith("batches of ") for row in found["rows"])
            else []
        ),
        *paragraphs,
    ], plots


def pack(found: Found) -> Section:
    """The packer alone, over more images, against those that do as much work."""
    n = found["n"]
    seconds = found["seconds"]
    ours = statistics.median(seconds["fastload pack"])
    rows = [
        (
            name,
            f"{number(n / statistics.median(times))} [{number(n / max(times))}-{number(n / min(times))}]",
            f"{statistics.median(times) / ours:.2f} x" if name != "fastload pack" else "",
        )
        for name, times in seconds.items()
    ]
    return [
        f"{n:,} JPEGs, rounds: {len(seconds['fastload pack'])}, interleaved, median and extremes. FFCV's writer and Pillow decode and "
        "encode anew with quality 90, and neither checks nor syncs anything; jpegtran does nothing but the lossless rewrite.",
        markdown(("packer", "images/s", "fastload is"), rows),
        f"fastload's peak anonymous memory: {found['peak_mb']:.0f} MB.",
    ], {}


def plain(found: Found) -> Section:
    """Any other record: its rows, or its figures by name."""
    rows = found.get("rows")
    if isinstance(rows, list) and rows and isinstance(rows[0], Mapping):
        keys = [key for key, value in rows[0].items() if isinstance(value, str | int | float)]
        return [markdown(keys, [[_cell(row.get(key, "")) for key in keys] for row in rows])], {}
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
