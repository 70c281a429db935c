"""Speed of the native core, compared with simplejpeg + cv2.resize (INTER_LINEAR).

    python benchmarks/decode.py [--json out.json]           all of the next four parts
    python benchmarks/decode.py --times                     images/s, in interleaved rounds
    python benchmarks/decode.py --gains                     speedup of two threads over one
    python benchmarks/decode.py --stages [--simd avx2]      time per stage, by kind of vector code
    python benchmarks/decode.py --handover                  overhead of the pool over a bare loop
    python benchmarks/decode.py --instructions [--record]   callgrind counts against the record

The recipe decodes whole images in as many threads. Both sides write into one array: uint8 NHWC, or
normalized float32 NCHW. The recipe does not antialias; fastload does.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import cv2
import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # so that it also runs as a script

from benchmarks.decode_pool import IN_FLIGHT, Elapsed, fastload, gains, handover, timed
from benchmarks.decode_rows import Row, misses, row_of
from benchmarks.decode_stages import SIMD, stages
from benchmarks.machine import describe, quartiles, spread
from benchmarks.works import Work, all_works, write_job
from fastload._common.native import core
from fastload._tools.bench.measure import commit

ROOT = Path(__file__).resolve().parents[1]
RECORD = ROOT / "benchmarks" / "results" / "decode_instructions.json"
MAX_GROWTH = 0.03
GAIN_ROUNDS = (
    3  # per round of the others: one thread and two run on different CPUs, so they vary more
)
PACKAGES = ("simplejpeg", "opencv-python-headless", "pillow")


def main() -> int:
    options = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    options.add_argument("--photos", type=int, default=96)
    options.add_argument("--rounds", type=int, default=11)
    options.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    options.add_argument("--only", default="", help="works whose name contains this")
    options.add_argument("--json", type=Path)
    options.add_argument(
        "--simd",
        choices=SIMD,
        default=SIMD[-1],
        help="use vector code up to this kind, if the CPU supports it",
    )
    for part in PARTS:
        options.add_argument(f"--{part}", action="store_true", help="run only this part")
    options.add_argument("--instructions", action="store_true", help="count instructions instead")
    options.add_argument(
        "--record",
        action="store_true",
        help="with --instructions: write these counts to the record",
    )
    args = options.parse_args()
    module = core()
    if module is not None:
        module.set_simd(args.simd)
    for key, value in describe(*PACKAGES).items():
        print(f"{key:>24}: {value}")
    if args.instructions:
        return instructions(record=args.record)
    works = [work for work in all_works(args.photos) if args.only in work.name]
    chosen = [part for part in PARTS if getattr(args, part)] or list(PARTS)
    found = {part: PARTS[part](works, args) for part in chosen}
    if args.json:
        names = (
            "decode.py",
            "decode_pool.py",
            "decode_rows.py",
            "decode_stages.py",
            "works.py",
        )
        source = {name: Path(__file__).with_name(name).read_text() for name in names}
        report = {"machine": describe(*PACKAGES), "commit": commit(ROOT), **found, "source": source}
        args.json.write_text(json.dumps(report, indent=1) + "\n")
    missed = list(misses(found))
    print("\nmissed: " + "; ".join(missed) if missed else "\nall targets met")
    return int(bool(missed))


def times(works: list[Work], *, threads: list[int], rounds: int) -> list[Row]:
    """Prints the table of ratios: medians over the rounds, quartiles in brackets."""
    cv2.setNumThreads(1)
    print(
        f"\n{'work':24} threads  n x rounds   recipe img/s  fastload img/s   "
        "ratio (wall)      ratio (CPU)  target"
    )
    rows: list[Row] = []
    for work in works:
        contestants = {count: (recipe(work, count), fastload(work, count)) for count in threads}
        measured: dict[int, tuple[list[Elapsed], list[Elapsed]]] = {
            count: ([], []) for count in threads
        }
        for turn in range(rounds + 1):
            for count, pair in contestants.items():
                for which in ((0, 1), (1, 0))[turn % 2]:
                    elapsed = timed(pair[which])
                    if turn:  # the first round fills caches and starts threads
                        measured[count][which].append(elapsed)
        for count in threads:
            rows.append(summary(work, count, *measured[count]))
    return rows


def summary(work: Work, count: int, recipe: list[Elapsed], fastload: list[Elapsed]) -> Row:
    """Prints one row. Ratios are taken per round: a slow machine then affects both sides."""
    wall = [a.wall_s / b.wall_s for a, b in zip(recipe, fastload, strict=True)]
    cpu = [a.cpu_s / b.cpu_s for a, b in zip(recipe, fastload, strict=True)]
    n = IN_FLIGHT * len(work.requests)
    speed = [quartiles([n / one.wall_s for one in side])[1] for side in (recipe, fastload)]
    print(
        f"{work.name:24} {count:7}  {n:4} x {len(wall):2}   {speed[0]:12.0f}  {speed[1]:14.0f}   "
        f"{spread(wall):16}  {spread(cpu):16} {work.target:.1f}",
        flush=True,
    )
    return row_of(
        work.name,
        {"ratio": wall, "ratio_cpu": cpu},
        threads=count,
        n=len(work.requests),
        recipe_per_s=speed[0],
        fastload_per_s=speed[1],
        bar=work.target,
    )


def recipe(work: Work, threads: int) -> Callable[[], None]:
    """simplejpeg + cv2 in Python threads, each with its own share of the batches and no queue."""
    output = work.memory()
    pool = ThreadPoolExecutor(threads)

    def share(first: int) -> None:
        for _ in range(IN_FLIGHT):
            for i in range(first, len(output), threads):
                work.baseline(i, output[i])

    def run() -> None:
        for _ in pool.map(share, range(threads)):
            pass

    return run


PARTS: dict[str, Callable[[list[Work], Any], list[Row]]] = {
    "times": lambda works, args: times(works, threads=args.threads, rounds=args.rounds),
    "gains": lambda works, args: (
        gains(works, threads=args.threads, rounds=GAIN_ROUNDS * args.rounds)
        if len(args.threads) > 1
        else []
    ),
    "stages": lambda works, args: stages(works, most=args.simd, rounds=args.rounds),
    "handover": lambda works, args: handover(works, rounds=args.rounds),
}


def instructions(*, record: bool) -> int:
    """Counts instructions per sample; fails if a work exceeds the record by more than MAX_GROWTH.

    valgrind does not support AVX-512, so it counts the AVX2 path on every machine.
    """
    build = ROOT / "build" / "driver"
    for command in (
        ["-S", str(ROOT / "native" / "tests"), "-B", str(build), "-DCMAKE_BUILD_TYPE=Release"],
        ["--build", str(build)],
    ):
        subprocess.run(["cmake", *command], check=True, stdout=subprocess.DEVNULL)
    recorded = json.loads(RECORD.read_text())["per_sample"] if RECORD.exists() else {}
    counts: dict[str, int] = {}
    failed = False
    with tempfile.TemporaryDirectory() as folder:
        for work in all_works(16):
            if work.dtype is not np.uint8:
                continue
            write_job(work, Path(folder) / "job")
            counts[work.name] = count = _counted(build / "driver", Path(folder)) // len(
                work.requests
            )
            before = recorded.get(work.name)
            growth = count / before - 1 if before else 0.0
            grown = growth > MAX_GROWTH and not record
            failed |= grown
            print(
                f"{work.name:24} {count:12,} instructions per sample"
                + (f"  {growth:+.1%}" if before else "")
                + ("  GROWN" if grown else "")
            )
    if record:
        RECORD.parent.mkdir(exist_ok=True)
        RECORD.write_text(
            json.dumps({"machine": describe(*PACKAGES), "per_sample": counts}, indent=1) + "\n"
        )
    elif failed:
        print(
            f"more than {MAX_GROWTH:.0%} above {RECORD.relative_to(ROOT)}; "
            "pass --record to accept these counts",
            file=sys.stderr,
        )
    return int(failed)


def _counted(driver: Path, folder: Path) -> int:
    """Instructions of one run of the job, counted by callgrind."""
    command = [
        "valgrind",
        "--tool=callgrind",
        "--toggle-collect=measured",
        f"--callgrind-out-file={folder / 'out'}",
        str(driver),
        str(folder / "job"),
        "loop",
        "1",
    ]
    subprocess.run(command, check=True, capture_output=True)
    for line in (folder / "out").read_text().splitlines():
        if line.startswith(("summary:", "totals:")):
            return int(line.split()[1])
    raise SystemExit("callgrind wrote no totals")


if __name__ == "__main__":
    sys.exit(main())
