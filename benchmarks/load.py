"""Speed of the loader relative to the bare native core, variation between batches, cold reads.

    python benchmarks/load.py [--only NAME] [--record [FILE]]    --record keeps the figures

Rounds are interleaved. Ratios are taken per round, so that a slow machine affects both sides. Each
figure is printed with its target.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # so that it also runs as a script

import fastload
from benchmarks.evenness import step_to_step, tail_spread
from benchmarks.load_children import cold, order
from benchmarks.load_rows import Row, middle, record
from benchmarks.loads import (
    RRC,
    Epoch,
    Gaps,
    core_epochs,
    core_gaps,
    loader_epochs,
    loader_gaps,
    pack_photos,
    torch_epochs,
    write_gray,
)
from benchmarks.machine import describe, quartiles, spread
from fastload._tools.bench.measure import commit

RECORD = Path(__file__).resolve().parent / "results" / "load.json"
PACKAGES = ("torch", "opencv-python-headless", "lmdb")


def main() -> int:
    options = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    options.add_argument("--rounds", type=int, default=11)
    options.add_argument(
        "--copies", type=int, default=16, help="copies of each photograph of the corpus"
    )
    options.add_argument("--gray", type=int, default=16384, help="128x128 images")
    options.add_argument("--threads", type=int, default=2)
    options.add_argument("--cold-mb", type=int, default=2048, help="size of the cold epoch")
    options.add_argument(
        "--folder", type=Path, help="where datasets are created, on the disk to measure"
    )
    options.add_argument(
        "--only",
        default="",
        help="parts whose name contains this: core, gray, raw, even, data_time, cold, order",
    )
    options.add_argument(
        "--record",
        type=Path,
        nargs="?",
        const=RECORD,
        metavar="FILE",
        help=f"write the rows to FILE, or {RECORD.name}",
    )
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
        record(
            args.record,
            rows,
            machine=describe(*PACKAGES),
            options={key: str(value) for key, value in vars(args).items()},
            commit=commit(RECORD.parent),
        )
    return 0 if all(row.reached for row in rows) else 1


def core_share(folder: Path, args: Any) -> list[Row]:
    """RandomResizedCrop 224 of photographs: the loader and the bare core with the same plans.

    Three times the rounds, because the target is close and epochs vary by 10 % on this machine.
    """
    packed = _once(folder / "photos.packed", lambda: pack_photos(folder, args.copies))
    return _against(
        "RRC 224: loader / bare core",
        loader_epochs(packed, RRC, 64, args.threads),
        core_epochs(packed, RRC, 64, args.threads),
        3 * args.rounds,
        ">= 0.95",
    )


def gray_share(folder: Path, args: Any) -> list[Row]:
    """128x128 gray JPEGs, which are so short that time spent in Python matters.

    Also measures other orders, in which each record is read separately.
    """
    packed = _gray(folder, args, "keep")
    loader = partial(loader_epochs, packed, None, 256, args.threads)
    rows = _against(
        "128x128 gray JPEG: loader / bare core",
        loader(),
        core_epochs(packed, None, 256, args.threads),
        args.rounds,
        ">= 0.9",
    )
    for shuffle in ("full", False):
        rows += _against(
            f"128x128 gray JPEG: shuffle={shuffle!r} / shuffle=True",
            loader(shuffle=shuffle),
            loader(),
            args.rounds,
            "",
        )
    return rows


def raw_gain(folder: Path, args: Any) -> list[Row]:
    """The same images as raw pixels, compared with torch's DataLoader and cv2 on files."""
    packed = _gray(folder, args, "raw")
    return _against(
        "128x128 gray raw: loader / torch + cv2",
        loader_epochs(packed, None, 256, args.threads),
        torch_epochs(folder / "gray", 256, args.threads),
        args.rounds,
        ">= 4",
    )


def evenness(folder: Path, args: Any) -> list[Row]:
    """Variation of the time between batches of a consumer that does nothing else.

    The figure is p99 / p50 over all rounds, relative to the median of each epoch. The bare core
    with one repeated batch shows the variation of the machine. The target applies to batches of
    256: batches of 64 photographs differ more, and slow moments of a virtual machine last as long
    as such a batch, so the bare core with the same plans is shown, too. Intervals in which the
    host took more than 5 % of the CPU time are excluded and counted.
    """
    packed = _once(folder / "photos.packed", lambda: pack_photos(folder, args.copies))
    loader = partial(loader_gaps, packed, threads=args.threads)
    core = partial(core_gaps, packed, threads=args.threads)
    large = {"256": loader(256), "256, bare core, one batch repeated": core(256, same=True)}
    small = {
        "64": loader(64),
        "64, bare core": core(64),
        "64, bare core, one batch repeated": core(64, same=True),
    }
    return _even(large, 3 * args.rounds, "<= 1.3") + _even(small, args.rounds)


def _even(takers: dict[str, Callable[[], Gaps]], epochs: int, bar: str = "") -> list[Row]:
    """``takers`` measure the intervals of one epoch. The target applies to the first."""
    found: dict[str, list[Gaps]] = {name: [] for name in takers}
    for turn in range(epochs + 1):
        for name in list(takers) if turn % 2 else reversed(list(takers)):
            gaps = takers[name]()
            if turn:  # the first round fills caches and starts threads
                found[name].append(gaps)
    rows: list[Row] = []
    for name, each in found.items():
        times = [gaps.seconds for gaps in each]
        length = 1e3 * statistics.median(map(statistics.median, times))
        varying = spread([100 * step_to_step(gaps) for gaps in times])
        note = (
            f"{sum(map(len, times))} intervals of {length:.0f} ms, "
            f"{sum(gaps.disturbed for gaps in each)} excluded; variation from one to the next "
            f"{varying} %"
        )
        rows.append(
            Row(f"batches of {name}: p99 / p50", *tail_spread(times), "" if rows else bar, note)
        )
    return rows


def data_time(folder: Path, args: Any) -> list[Row]:
    """How long a trainer waits if its step takes 1.2 times as long as loading a batch.

    The step sleeps, as if a GPU computed.
    """
    packed = _once(folder / "photos.packed", lambda: pack_photos(folder, args.copies))
    run = loader_epochs(packed, RRC, 64, args.threads)
    run()
    step = 1.2 * 64 / _timed(run)[0]
    found = []
    for _ in range(max(3, args.rounds // 3)):
        waits = []
        iterator = iter(
            fastload.DataLoader(
                packed, 64, shuffle=True, drop_last=True, transform=RRC, num_workers=args.threads
            )
        )
        while True:
            started = time.perf_counter()
            if next(iterator, None) is None:
                break
            waits.append(1e3 * (time.perf_counter() - started))
            time.sleep(step)
        found += waits[1:]
    low, middle, high = quartiles(found)
    return [
        Row(
            "data_time in ms, median of all steps",
            middle,
            low,
            high,
            "<= 1",
            f"{len(found)} steps of {1e3 * step:.0f} ms",
        )
    ]


PARTS: dict[str, Callable[[Path, Any], list[Row]]] = {
    "core": core_share,
    "gray": gray_share,
    "raw": raw_gain,
    "even": evenness,
    "data_time": data_time,
    "cold": cold,
    "order": order,
}


def _against(name: str, first: Epoch, second: Epoch, rounds: int, bar: str) -> list[Row]:
    """Speed of the first relative to the second, by wall time and CPU time.

    The CPU time is that of this process, without the workers of torch.
    """
    walls: list[float] = []
    cpus: list[float] = []
    speeds: list[tuple[float, float]] = []
    for turn in range(rounds + 1):
        found = {which: _timed((first, second)[which]) for which in ((0, 1), (1, 0))[turn % 2]}
        if turn:  # the first round fills caches and starts threads
            speeds.append((found[0][0], found[1][0]))
            walls.append(found[0][0] / found[1][0])
            cpus.append(found[0][1] / found[1][1] if found[1][1] else 0.0)
    one, other = (quartiles([each[which] for each in speeds])[1] for which in (0, 1))
    return [
        Row(
            name,
            *middle(walls),
            bar,
            f"{one:.0f} and {other:.0f} images/s; by CPU time {spread(cpus)}",
        )
    ]


def _timed(run: Epoch) -> tuple[float, float]:
    wall = time.perf_counter()
    cpu = time.process_time()
    n = run()
    return n / (time.perf_counter() - wall), n / max(1e-9, time.process_time() - cpu)


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
