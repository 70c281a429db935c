"""How much of the native core's speed the loader delivers, how evenly, and how a cold disk streams.

    python benchmarks/load.py [--only NAME] [--record]      each round runs every contestant once; --record keeps the figures

Every figure has its bar beside it. Ratios are taken round by round, so that both sides saw the same mood of the machine.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))     # so that it also runs as a script

import fastload
from benchmarks.evenness import step_to_step, tail_spread
from benchmarks.loads import (
    RRC,
    Epoch,
    core_epochs,
    core_gaps,
    evict,
    loader_epochs,
    loader_gaps,
    pack_blobs,
    pack_photos,
    torch_epochs,
    write_gray,
)
from benchmarks.machine import describe, quartiles, spread

RECORD = Path(__file__).resolve().parent / "results" / "load.json"
PACKAGES = ("torch", "opencv-python-headless", "lmdb")


@dataclass(frozen=True, slots=True)
class Row:
    """One figure and its bar."""

    name: str
    figure: float
    low: float
    high: float
    bar: str                    # ">= 0.95"
    note: str = ""

    @property
    def reached(self) -> bool:
        sign, _, limit = self.bar.partition(" ")
        return not self.bar or (self.figure >= float(limit) if sign == ">=" else self.figure <= float(limit))

    def __str__(self) -> str:
        missed = "" if self.reached else "MISSED"
        return f"{self.name:44} {self.figure:9.3f} [{self.low:.3f}-{self.high:.3f}] {self.bar:>9} {missed}  {self.note}"


def main() -> int:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--rounds", type=int, default=11)
    options.add_argument("--copies", type=int, default=8, help="of the corpus's photographs")
    options.add_argument("--gray", type=int, default=16384, help="128x128 images")
    options.add_argument("--threads", type=int, default=2)
    options.add_argument("--cold-mb", type=int, default=2048, help="of the cold epoch: several shuffle windows of 512 MB")
    options.add_argument("--folder", type=Path, help="where datasets are made: on the disk to be measured")
    options.add_argument("--only", default="", help="parts whose name contains this: core, gray, raw, even, data_time, cold, order")
    options.add_argument("--record", action="store_true", help=f"write {RECORD.name}")
    args = options.parse_args()
    for key, value in describe(*PACKAGES).items():
        print(f"{key:>24}: {value}")
    rows: list[Row] = []
    with tempfile.TemporaryDirectory(dir=args.folder) as name:
        for part, measure in PARTS.items():
            if args.only in part:
                for row in measure(Path(name), args):
                    rows.append(row)
                    print(row, flush=True)
    if args.record:
        RECORD.write_text(json.dumps({"machine": describe(*PACKAGES), "options": {key: str(value) for key, value in vars(args).items()},
                                      "rows": [asdict(row) for row in rows]}, indent=1) + "\n")
    return 0 if all(row.reached for row in rows) else 1


def core_share(folder: Path, args: Any) -> list[Row]:
    """RandomResizedCrop 224 of photographs: the loader against the bare core on the same plans."""
    packed = _once(folder / "photos.packed", lambda: pack_photos(folder, args.copies))
    return _against("RRC 224: loader / bare core", loader_epochs(packed, RRC, 64, args.threads), core_epochs(packed, RRC, 64, args.threads),
                    args.rounds, ">= 0.95")


def gray_share(folder: Path, args: Any) -> list[Row]:
    """128x128 gray JPEGs, so short that whatever is done in Python shows."""
    packed = _gray(folder, args, "keep")
    return _against("128x128 gray JPEG: loader / bare core", loader_epochs(packed, None, 256, args.threads),
                    core_epochs(packed, None, 256, args.threads), args.rounds, ">= 0.9")


def raw_gain(folder: Path, args: Any) -> list[Row]:
    """The same stored as pixels, against what everybody has: torch's DataLoader and cv2 over files."""
    packed = _gray(folder, args, "raw")
    return _against("128x128 gray raw: loader / torch + cv2", loader_epochs(packed, None, 256, args.threads),
                    torch_epochs(folder / "gray", 256, args.threads), args.rounds, ">= 4")


def evenness(folder: Path, args: Any) -> list[Row]:
    """Time between batches of a consumer that only takes them: p99 / p50 of all rounds' gaps, each over the median of its own epoch.

    Beside it what the loader cannot help. The bare core on the same plans: batches of different photographs are different work. And the
    bare core with one batch again and again, always the same work: what varies there is the machine. In batches of 256 the photographs
    even out.
    """
    packed = _once(folder / "photos.packed", lambda: pack_photos(folder, args.copies))
    core, same = core_gaps(packed, 64, args.threads), core_gaps(packed, 64, args.threads, same=True)
    small = {"64": loader_gaps(packed, 64, args.threads), "64, bare core": core, "64, bare core, one batch again and again": same}
    return _even(small, 3 * args.rounds) + _even({"256": loader_gaps(packed, 256, args.threads)}, 6 * args.rounds)


def _even(takers: dict[str, Callable[[], list[float]]], epochs: int) -> list[Row]:
    """Who takes batches → the gaps of one epoch; the first is the loader, whose figure has a bar."""
    found: dict[str, list[list[float]]] = {name: [] for name in takers}
    for turn in range(epochs + 1):
        for name in list(takers) if turn % 2 else reversed(list(takers)):
            gaps = takers[name]()
            if turn:                            # the first round fills caches and starts threads
                found[name].append(gaps)
    rows: list[Row] = []
    for name, each in found.items():
        note = f"{sum(map(len, each))} gaps; from one to the next they vary by {spread([100 * step_to_step(gaps) for gaps in each])} %"
        rows.append(Row(f"batches of {name}: p99 / p50", *tail_spread(each), "" if rows else "<= 1.3", note))
    return rows


def data_time(folder: Path, args: Any) -> list[Row]:
    """What a trainer waits whose step takes 1.2 times as long as loading a batch (asleep: a GPU does the work)."""
    packed = _once(folder / "photos.packed", lambda: pack_photos(folder, args.copies))
    run = loader_epochs(packed, RRC, 64, args.threads)
    run()
    step = 1.2 * 64 / _timed(run)[0]
    found = []
    for _ in range(max(3, args.rounds // 3)):
        waits = []
        iterator = iter(fastload.DataLoader(packed, 64, shuffle=True, drop_last=True, transform=RRC, num_workers=args.threads))
        while True:
            asked = time.perf_counter()
            if next(iterator, None) is None:
                break
            waits.append(1e3 * (time.perf_counter() - asked))
            time.sleep(step)
        found += waits[1:]
    low, middle, high = quartiles(found)
    return [Row("data_time in ms, median of all steps", middle, low, high, "<= 1", f"{len(found)} steps of {1e3 * step:.0f} ms")]


def cold(folder: Path, args: Any) -> list[Row]:
    """MB/s out of a cold cache. An epoch of one shuffle window (64 blocks of 8 MiB) is its own start: the first batch needs records
    out of half of it. Training reads many windows, so the bar is for several, and the one is shown beside it."""
    rows = []
    for megabytes, kind, bar in ((args.cold_mb, "cold", ">= 0.9"), (512, "cold, an epoch of one window", "")):
        speeds, left = _cold_speeds(folder / str(megabytes), megabytes, args)
        note = f"{megabytes} MB; {left:.1%} of the pages were still cached"
        rows += [Row(f"{kind}: {name}, MB/s", *_middle(found), "", note) for name, found in speeds.items()]
        for name in ("block-shuffled", "random"):
            ratios = [one / other for one, other in zip(speeds[name], speeds["sequential"], strict=True)]
            rows.append(Row(f"{kind}: {name} / sequential", *_middle(ratios), bar if name == "block-shuffled" else ""))
    return rows


def _cold_speeds(folder: Path, megabytes: int, args: Any) -> tuple[dict[str, list[float]], float]:
    """By order; and the share of pages that could not be thrown out. Each epoch in a child of its own: mapped pages stay."""
    folder.mkdir()
    shuffled, plain = pack_blobs(folder, megabytes, "shuffle"), pack_blobs(folder, megabytes, "source")
    ways = {"sequential": (plain, "False"), "block-shuffled": (shuffled, "True"), "random": (shuffled, "'full'")}
    speeds: dict[str, list[float]] = {name: [] for name in ways}
    left = []
    for turn in range(max(3, args.rounds // 2)):
        for name in list(ways) if turn % 2 else reversed(list(ways)):
            packed, shuffle = ways[name]
            left.append(evict(packed))
            program = ("import fastload, sys, time\n"
                       f"loader = fastload.DataLoader(sys.argv[1], 32, shuffle={shuffle}, seed={turn}, num_workers={args.threads})\n"
                       "began = time.perf_counter()\nn = sum(sum(map(len, batch['data'])) for batch in loader)\n"
                       "print(n / (time.perf_counter() - began) / 1e6)")
            speeds[name].append(float(subprocess.run([sys.executable, "-c", program, str(packed)], check=True, capture_output=True,
                                                     text=True).stdout))
    return speeds, max(left)


def order(_: Path, args: Any) -> list[Row]:
    """The first batch of a billion samples: milliseconds, and anonymous memory."""
    program = ("import time\nfrom fastload.loader.epochs import Epochs, OrderOptions\n"
               "def anonymous():\n    return int(open('/proc/self/status').read().split('RssAnon:')[1].split()[0]) / 1024\n"
               "before, began = anonymous(), time.perf_counter()\n"
               "options = OrderOptions(n_samples=10**9, shuffle={}, seed=0, block=80, window=64)\n"
               "epochs = Epochs(options, batch_size=256, rank=3, world=8, ending='pad', source_order=lambda: None)\n"
               "next(epochs.batches(epochs.begin()))\nprint(1e3 * (time.perf_counter() - began), anonymous() - before)")
    rows = []
    for shuffle in ("True", "'full'"):
        found = [[float(x) for x in subprocess.run([sys.executable, "-c", program.format(shuffle)], check=True, capture_output=True,
                                                   text=True).stdout.split()] for _ in range(max(3, args.rounds // 2))]
        rows.append(Row(f"10^9 samples, shuffle={shuffle}: first batch, ms", *_middle([each[0] for each in found]), "<= 100"))
        rows.append(Row(f"10^9 samples, shuffle={shuffle}: MB", *_middle([each[1] for each in found]), "<= 100"))
    return rows


PARTS: dict[str, Callable[[Path, Any], list[Row]]] = {
    "core": core_share, "gray": gray_share, "raw": raw_gain, "even": evenness, "data_time": data_time, "cold": cold, "order": order}


def _against(name: str, ours: Epoch, theirs: Epoch, rounds: int, bar: str) -> list[Row]:
    """Speed of one over speed of the other, by the clock and by processor time (of this process: not of torch's workers)."""
    walls: list[float] = []
    cpus: list[float] = []
    speeds: list[tuple[float, float]] = []
    for turn in range(rounds + 1):
        found = {which: _timed((ours, theirs)[which]) for which in ((0, 1), (1, 0))[turn % 2]}
        if turn:                                # the first round fills caches and starts threads
            speeds.append((found[0][0], found[1][0]))
            walls.append(found[0][0] / found[1][0])
            cpus.append(found[0][1] / found[1][1] if found[1][1] else 0.0)
    one, other = (quartiles([each[which] for each in speeds])[1] for which in (0, 1))
    return [Row(name, *_middle(walls), bar, f"{one:.0f} and {other:.0f} images/s; by processor time {spread(cpus)}")]


def _timed(run: Epoch) -> tuple[float, float]:
    wall, cpu = time.perf_counter(), time.process_time()
    n = run()
    return n / (time.perf_counter() - wall), n / max(1e-9, time.process_time() - cpu)


def _middle(values: list[float]) -> tuple[float, float, float]:
    low, middle, high = quartiles(values)
    return middle, low, high


def _gray(folder: Path, args: Any, encode: str) -> Path:
    source = _once(folder / "gray", lambda: write_gray(folder, args.gray))
    packed = folder / f"gray-{encode}"
    return _once(packed, lambda: fastload.pack(source, packed, encode=encode))


def _once(path: Path, make: Callable[[], object]) -> Path:
    if not path.exists():
        make()
    return path


if __name__ == "__main__":
    sys.exit(main())
