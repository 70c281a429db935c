"""Writes docs/benchmarks.md and its plots from the recorded runs in benchmarks/results/*.json.

python -m benchmarks.document            writes the page
python -m benchmarks.document --check    exits with 1 if the page is not up to date
"""

from __future__ import annotations

import argparse
import functools
import json
import statistics
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks import accuracy
from benchmarks.core_page import Found, Section, decode, load, pack, plain
from benchmarks.page_parts import bar_plot, markdown
from benchmarks.peers.pack_speed import photos_table
from benchmarks.trainers_page import trainers
from fastload._tools.bench.charts import Curve, line_plot
from fastload._tools.bench.measure import number
from fastload._tools.charts import svg_file

if TYPE_CHECKING:
    from benchmarks.peers.peers import Entry

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "benchmarks" / "results"
DOCS = ROOT / "docs"
PLOTS = "plots"

HEAD = """# Benchmarks

After this page you know how fast fastload loads, decodes and packs compared with other data
loaders, and how to measure it on your machine.

`python -m benchmarks.document` generates this page from the recorded runs in `benchmarks/results/`.
No figure was typed by hand. Each run states its machine, versions, number of rounds and spread
(quartiles in brackets). **None of these runs used a GPU.** To measure on your machine:

```sh
fastload bench decode DATASET --size 256 --plot scaling.html  # every backend, by thread count
fastload bench load DATASET --split train --against torch FOLDER  # compare with a torch DataLoader
fastload bench io DATASET                                     # read orders, cold and warm
make peers                                                       # other loaders
```

*CPU ms* is the CPU time of all threads and processes per image. *Waiting* is the share of the
consumer's time that is spent waiting for data. *p50* and *p99* are percentiles of the time between
batches. *RRC 224* is a random resized crop to 224 x 224 pixels."""


def peers(found: Found, *, plot: str = "peers") -> Section:
    """The comparison with other loaders. ``plot`` is the start of the names of its plots."""
    has_exact = any(
        line["peer"] == "fastload-exact" for work in found["works"] for line in work["lines"]
    )
    paragraphs = [
        f"Each loader has {found['workers']} workers or threads and runs in its own process, with "
        f"the settings that its documentation recommends. {found['rounds']} interleaved rounds of "
        f"at least {found['seconds']:g} s; `uint8` batches. Memory is the private and shared "
        "memory of all processes of a loader. *fastload is* gives the speed of fastload relative "
        "to the loader.",
        "fastload decodes at 1/2, 1/4 or 1/8 of the resolution where a crop has at least twice the "
        "size of the output; the last column says so. All other loaders here decode at full "
        "resolution. *fastload, exact=True* does the same work as they do."
        + (
            ""
            if has_exact
            else " This run does not contain it, so part of the difference to fastload may come "
            "from the reduced scale, except for the gray images, which are not resized."
        ),
    ]
    plots = {}
    entries = _peers()
    titles = {name: entry.title for name, entry in entries.items()}
    reduced = {name for name, entry in entries.items() if entry.reduced}
    for work in found["works"]:
        lines = sorted(work["lines"], key=lambda line: -line["images_per_s"]["median"])
        fastload_per_s = next(
            (line["images_per_s"]["median"] for line in lines if line["peer"] == "fastload"), None
        )
        rows = [
            (
                titles.get(line["peer"], line["peer"]),
                _spread(line["images_per_s"]),
                f"{fastload_per_s / line['images_per_s']['median']:.2f} x"
                if fastload_per_s and line["peer"] != "fastload"
                else "",
                number(line["cpu_ms"]["median"]),
                number(line["peak_mb"]),
                "reduced" if line["peer"] in reduced else "full",
            )
            for line in lines
        ]
        name = f"{plot}-{work['work']}.svg"
        if lines:
            values = {
                titles.get(line["peer"], line["peer"]): _triple(line["images_per_s"])
                for line in lines
            }
            bars = bar_plot(f"{work['title']}: images/s", values, unit="", marked="fastload")
            plots[name] = svg_file(bars)
            paragraphs += [f"### {work['title']}", f"![{work['title']}]({PLOTS}/{name})"]
            paragraphs.append(
                markdown(
                    ("loader", "images/s", "fastload is", "CPU ms/image", "memory MB", "decoded"),
                    rows,
                )
            )
        paragraphs += [
            f"{titles.get(peer, peer)}: {why}" for peer, why in work["absent"].items()
        ] + list(work.get("doubts", []))
    if found.get("packing"):
        paragraphs += _packing(found["packing"], titles)
    return [*paragraphs, "### Summary", *(f"- {line}" for line in found.get("reach", []))], plots


def _packing(packing: Found, titles: Mapping[str, str]) -> list[str]:
    n = packing["n"]
    rows = [
        (
            titles.get(row["peer"], row["peer"]),
            number(n / row["seconds"]["median"]),
            number(row["bytes"] / 1e6),
            "yes" if row["checksum"] else "no",
            row["killed"],
            row["again"],
        )
        for row in sorted(packing["rows"], key=lambda row: row["seconds"]["median"])
    ]
    return [
        "### Packing",
        f"{n} images. A second pack is killed (SIGKILL) halfway, its output is opened, and the "
        "pack is started again.",
        markdown(
            ("loader", "images/s", "MB", "checksum", "after SIGKILL", "when started again"),
            rows,
            named=1,
        ),
    ]


def train(found: Found) -> Section:
    """Accuracy and time of a small training run."""
    accuracies = {name: [run["accuracy"] for run in runs] for name, runs in found["runs"].items()}
    seeds = len(next(iter(accuracies.values())))
    enough = seeds >= accuracy.ENOUGH
    rows = [
        (
            name,
            *([_accuracy(accuracies[name])] if enough else []),
            number(statistics.median(run["epoch_s"] for run in runs)),
            f"{statistics.mean(run['waiting'] for run in runs):.0%}",
        )
        for name, runs in found["runs"].items()
    ]
    return [
        f"{found['images']} generated images, {found['epochs']} epochs, {seeds} seeds."
        + (" Accuracy on validation images: mean ± standard deviation, range." if enough else ""),
        markdown(("loader", *(["accuracy"] if enough else []), "s/epoch", "waiting"), rows),
        accuracy.verdict(accuracies),
    ], {}


def _accuracy(values: Sequence[float]) -> str:
    return (
        f"{statistics.mean(values):.1%} ± {statistics.stdev(values):.1%} "
        f"[{min(values):.1%}-{max(values):.1%}]"
    )


def bench_decode(found: Found) -> Section:
    rows = [
        (
            row["work"],
            row["backend"],
            str(row["threads"]),
            _spread(row["images_per_s"]),
            number(row["cpu_ms"]["median"]),
            number(row["gb_in_per_s"]),
            number(row["gb_out_per_s"]),
        )
        for row in found["rows"]
    ]
    plots = {}
    works = list(dict.fromkeys(row["work"] for row in found["rows"]))
    for work in [name for name in works if name.startswith("RRC")][:1]:
        curves = [
            Curve(
                name,
                [
                    (row["threads"], *_triple(row["images_per_s"]))
                    for row in found["rows"]
                    if (row["work"], row["backend"]) == (work, name)
                ],
            )
            for name in dict.fromkeys(row["backend"] for row in found["rows"])
        ]
        plot = line_plot(f"{work}: images/s", curves, x_name="threads", y_name="images/s")
        plots["bench-decode.svg"] = svg_file(plot)
    shown = [f"![scaling]({PLOTS}/{name})" for name in plots]
    return [
        f"{found['n_images']} images.",
        *shown,
        markdown(
            ("work", "backend", "threads", "images/s", "CPU ms", "GB/s in", "GB/s out"),
            rows,
            named=2,
        ),
        found["limit"],
    ], plots


def bench_io(found: Found) -> Section:
    rows = [
        (
            row["order"],
            "cold" if row["cold"] else "warm",
            str(row["readers"]),
            _spread(row["bytes_per_s"], 1e-6),
        )
        for row in found["rows"]
    ]
    raw = (
        [f"Raw disk, sequential, without the page cache: {_spread(found['raw'], 1e-6)} MB/s."]
        if found.get("raw")
        else []
    )
    return [
        f"{found['n_bytes'] / 1e6:,.0f} MB in {found['n_images']} records.",
        markdown(("order", "cache", "readers", "MB/s"), rows, named=2),
        *raw,
        *found["notes"],
        found["verdict"],
    ], {}


def bench_load(found: Found) -> Section:
    rows = [
        (
            row["loader"],
            _spread(row["images_per_s"]),
            number(row["wait_ms"]),
            f"{row['waiting']:.0%}",
            number(row["p50_ms"]),
            number(row["p99_ms"]),
            number(row["cpu_ms"]),
            number(row["peak_mb"]),
        )
        for row in found["rows"]
    ]
    headings = (
        "loader",
        "images/s",
        "wait ms/batch",
        "waiting",
        "p50 ms",
        "p99 ms",
        "CPU ms/image",
        "memory MB",
    )
    return [
        f"Batches of {found['batch_size']}, random crops, {found['compute_ms']:g} ms of compute "
        "per batch.",
        markdown(headings, rows),
        found["verdict"],
    ], {}


def pack_speed(found: Found) -> Section:
    table = photos_table(found["seconds"], found["n"])
    rounds = len(next(iter(found["seconds"].values())))
    tiny = (
        [
            f"{found['tiny']:,} JPEGs of 1 KB from one tar file, packed once: "
            f"{found['tiny'] / found['tiny_seconds']:,.0f} samples/s."
        ]
        if "tiny" in found
        else []
    )
    return [
        f"{found['n']:,} photos (the corpus, repeated), {rounds} interleaved rounds. The last two "
        "columns say how many times as fast as this writer fastload is, with its defaults and "
        "with `--encode copy`. fastload syncs what it writes; the others only where it says so. "
        "The script uses and frees memory before each task, so that no writer waits for the host "
        "of the virtual machine to provide it.",
        markdown(table.headings, table.rows),
        *tiny,
    ], {}


# File, title, command that records it, and function that renders it, in the order of the page.
SECTIONS: tuple[tuple[str, str, str, Callable[[Found], Section]], ...] = (
    ("peers", "fastload and other loaders", "make peers", peers),
    (
        "peers_exact",
        "fastload at full resolution",
        "python -m benchmarks.peers --peers fastload,fastload-exact,torch-pil,torch-cv2 "
        "--no-packing --json benchmarks/results/peers_exact.json",
        functools.partial(peers, plot="exact"),
    ),
    (
        "train",
        "Training a small model",
        "python -m benchmarks.train --json benchmarks/results/train.json",
        train,
    ),
    (
        "trainers",
        "Trainers",
        "python -m benchmarks.trainers --json benchmarks/results/trainers.json",
        trainers,
    ),
    (
        "bench_load",
        "The whole loader with a consumer",
        "fastload bench load DATASET --against torch --json",
        bench_load,
    ),
    (
        "bench_decode",
        "Decoding by number of threads",
        "fastload bench decode DATASET --json",
        bench_decode,
    ),
    ("bench_io", "Read orders", "fastload bench io DATASET --json", bench_io),
    ("load", "Overhead of the loader", "python -m benchmarks.load --record", load),
    (
        "load_epyc",
        "Overhead of the loader on an AMD EPYC, with newer code",
        "python -m benchmarks.load --record benchmarks/results/load_epyc.json",
        load,
    ),
    (
        "decode",
        "The native core compared with simplejpeg and OpenCV",
        "python -m benchmarks.decode --json benchmarks/results/decode.json",
        decode,
    ),
    (
        "decode_xeon",
        "The native core on an Intel Xeon, one day earlier",
        "python -m benchmarks.decode --json benchmarks/results/decode.json",
        decode,
    ),
    (
        "decode_instructions",
        "Instructions of the native core",
        "python -m benchmarks.decode --instructions --record",
        plain,
    ),
    (
        "pack",
        "Packing compared with FFCV's writer, Pillow and jpegtran",
        "python -m benchmarks.pack --json benchmarks/results/pack.json",
        pack,
    ),
    (
        "pack_speed",
        "Packing compared with other writers, on a disk",
        ".venv-peers/bin/python -m benchmarks.peers.pack_speed --tiny 1000000 "
        "--json benchmarks/results/pack_speed.json",
        pack_speed,
    ),
    (
        "pack_speed_memory",
        "Packing compared with other writers, in memory",
        "TMPDIR=/dev/shm .venv-peers/bin/python -m benchmarks.peers.pack_speed --rounds 7 "
        "--json benchmarks/results/pack_speed_memory.json",
        pack_speed,
    ),
)
ELSEWHERE = ("engines", "plan_scale")  # runs that other pages show


def render(results: Path = RESULTS) -> dict[str, str]:
    """All files of the page, by their path below docs/."""
    page = [HEAD]
    files = dict[str, str]()
    known = {*ELSEWHERE, *(name for name, *_ in SECTIONS)}
    others = sorted(path.stem for path in results.glob("*.json") if path.stem not in known)
    for name, title, command, shown in (
        *SECTIONS,
        *((name, name.replace("_", " "), "", plain) for name in others),
    ):
        path = results / f"{name}.json"
        if not path.exists():
            continue
        found = json.loads(path.read_text())
        paragraphs, plots = shown(found)
        page += [
            f"## {title}",
            *([f"Recorded with `{command}`."] if command else []),
            _about(found),
            *paragraphs,
        ]
        files |= {f"{PLOTS}/{file}": text + "\n" for file, text in plots.items()}
    missing = [
        f"{title} (`{command}`)"
        for name, title, command, _ in SECTIONS
        if not (results / f"{name}.json").exists()
    ]
    if missing:
        page += ["## Not recorded yet", *(f"- {each}" for each in missing)]
    return {"benchmarks.md": _join(page), **files}


def _join(paragraphs: Sequence[str]) -> str:
    text = ""
    for each in paragraphs:
        if text:
            both_items = each.startswith("- ") and text.splitlines()[-1].startswith("- ")
            text += "\n" if both_items else "\n\n"
        text += each
    return text + "\n"


def _about(found: Found) -> str:
    machine = found.get("machine", {})
    hardware = ("processor", "cpus", "memory", "load", "system", "gpu")
    facts = {name: machine[name] for name in machine if name in hardware}
    facts |= {**machine, **found.get("versions", {})}
    if found.get("commit"):
        facts["commit"] = found["commit"]
    phrases = [
        f"{name} {value}".replace("core native core: present", "native core")
        for name, value in facts.items()
        if value != "not installed"
    ]
    return f"*Machine and versions:* {', '.join(phrases)}."


def _spread(value: Found, scale: float = 1.0) -> str:
    median, low, high = (number(each * scale) for each in _triple(value))
    return f"{median} [{low}-{high}]"


def _triple(value: Found) -> tuple[float, float, float]:
    return value["median"], value["low"], value["high"]


def _peers() -> Mapping[str, Entry]:
    from benchmarks.peers.peers import PEERS

    return PEERS


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--results", type=Path, default=RESULTS)
    parser.add_argument("--docs", type=Path, default=DOCS)
    options = parser.parse_args(argv)
    files = render(options.results)
    old = [
        name
        for name, text in files.items()
        if not (options.docs / name).exists() or (options.docs / name).read_text() != text
    ]
    if options.check:
        for name in old:
            print(
                f"{options.docs / name} does not match the results: run "
                "python -m benchmarks.document",
                file=sys.stderr,
            )
        return 1 if old else 0
    for name, text in files.items():
        (options.docs / name).parent.mkdir(parents=True, exist_ok=True)
        (options.docs / name).write_text(text)
    print(f"{len(files)} files in {options.docs}, {len(old)} changed")
    return 0


if __name__ == "__main__":
    sys.exit(main())
