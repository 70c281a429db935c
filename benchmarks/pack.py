"""Speed of `fastload pack`, compared with FFCV's writer, re-encoding with Pillow, and jpegtran.

    python -m benchmarks.pack [--copies 10] [--rounds 3] [--json out.json]

Packs `copies` copies of each photograph of the corpus, in interleaved rounds. Every tool gets as
many threads or processes as there are cores. Prints medians, spread, ratios and the peak anonymous
memory of the packer. FFCV's writer (write_mode="jpg", quality 90, because it cannot keep the bytes)
is measured if `python -m benchmarks.peers.setup .venv-peers` has built it, and
`jpegtran -optimize` if it is installed (tools/jpeg_tools.sh).
"""

from __future__ import annotations

import argparse
import io
import json
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

from PIL import Image

from benchmarks.machine import describe, photo_paths, spread
from fastload._common.cpus import available_cpus

ROOT = Path(__file__).resolve().parents[1]
PEERS_PYTHON = ROOT / ".venv-peers" / "bin" / "python"


def reencode(path: str) -> int:
    """Decodes and re-encodes one image, like packers without a lossless path."""
    file = io.BytesIO()
    with Image.open(path) as image:
        image.convert("RGB").save(file, "JPEG", quality=90)
    return len(file.getvalue())


def run_pillow(folder: Path, out: Path, jobs: int) -> None:
    """Decodes and encodes all images and appends them to one file."""
    paths = [str(path) for path in sorted(folder.iterdir())]
    with out.open("wb") as file, ProcessPoolExecutor(jobs) as pool:
        for size in pool.map(reencode, paths, chunksize=16):
            file.write(b"\0" * size)


def jpegtran(paths: list[str]) -> None:
    for path in paths:
        subprocess.run(
            ["jpegtran", "-optimize", "-copy", "none", "-outfile", "/dev/null", path], check=True
        )


def run_jpegtran(folder: Path, jobs: int) -> None:
    """Only the lossless rewrite, one process per file, `jobs` at a time."""
    paths = [str(path) for path in sorted(folder.iterdir())]
    threads = [threading.Thread(target=jpegtran, args=(paths[i::jobs],)) for i in range(jobs)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def run_fastload(folder: Path, dest: Path) -> tuple[float, float]:
    """Packs in a child process; returns the seconds of pack() and the peak anonymous MB."""
    program = (
        "import sys, threading, time\nfrom fastload._pack.packer import pack\n"
        "peak = 0\ndone = threading.Event()\n"
        "def watch():\n    global peak\n    while not done.wait(0.01):\n"
        "        text = open('/proc/self/status').read()\n"
        "        peak = max(peak, int(text.split('RssAnon:')[1].split()[0]))\n"
        "threading.Thread(target=watch, daemon=True).start()\n"
        "begin = time.perf_counter()\npack(sys.argv[1], sys.argv[2])\n"
        "print(time.perf_counter() - begin, peak)\ndone.set()"
    )
    result = subprocess.run(
        [sys.executable, "-c", program, str(folder), str(dest)],
        check=True,
        capture_output=True,
        text=True,
    )
    seconds, peak = result.stdout.split()
    return float(seconds), int(peak) / 1024


def run_ffcv(folder: Path, dest: Path, jobs: int) -> float:
    """Seconds of FFCV's writer, without the start of Python and the import."""
    command = [
        str(PEERS_PYTHON),
        "-m",
        "benchmarks.peers.serve",
        "pack",
        "ffcv",
        "rrc",
        str(folder.parent),
        str(dest),
        str(jobs),
    ]
    result = subprocess.run(command, check=True, capture_output=True, text=True, cwd=ROOT)
    return float(result.stdout.split()[-1])


def ffcv_version() -> dict[str, str]:
    if not PEERS_PYTHON.exists():
        return {}
    command = [
        str(PEERS_PYTHON),
        "-c",
        "from importlib.metadata import version; print(version('ffcv'))",
    ]
    return {
        "ffcv": subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()
    }


def timed(call: Callable[[], None]) -> float:
    started = time.perf_counter()
    call()
    return time.perf_counter() - started


def measure(folder: Path, rounds: int, work: Path) -> tuple[dict[str, list[float]], float]:
    """Seconds of each tool in each interleaved round, and the peak memory of the packer."""
    jobs = available_cpus()
    dest = work / "packed"
    peaks = [0.0]

    def fastload() -> float:
        seconds, peak = run_fastload(folder, dest)
        peaks.append(peak)
        return seconds

    runs: dict[str, Callable[[], float]] = {
        "fastload pack": fastload,
        "pillow re-encode": lambda: timed(lambda: run_pillow(folder, work / "reencoded", jobs)),
    }
    if PEERS_PYTHON.exists():
        runs["FFCV's writer"] = lambda: run_ffcv(folder, dest, jobs)
    if shutil.which("jpegtran"):
        runs["jpegtran -optimize"] = lambda: timed(lambda: run_jpegtran(folder, jobs))
    seconds: dict[str, list[float]] = {name: [] for name in runs}
    for _ in range(rounds):
        for name, run in runs.items():
            seconds[name].append(run())
            shutil.rmtree(dest, ignore_errors=True)
    return seconds, max(peaks)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--copies", type=int, default=10)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    photos = photo_paths()
    with tempfile.TemporaryDirectory() as name:
        work = Path(name)
        folder = work / "photos"
        folder.mkdir()
        for copy in range(options.copies):
            for path in photos:
                shutil.copyfile(path, folder / f"{copy:02}-{path.stem}.jpg")
        seconds, peak = measure(folder, options.rounds, work)
    n = len(photos) * options.copies
    machine = {**describe("pillow"), **ffcv_version()}
    for key, value in machine.items():
        print(f"{key:>12}: {value}")
    print(
        f"{n} JPEGs ({len(photos)} photos x {options.copies}), {options.rounds} interleaved "
        f"rounds, {available_cpus()} jobs"
    )
    fastload_s = statistics.median(seconds["fastload pack"])
    for name, times in seconds.items():
        middle = statistics.median(times)
        print(
            f"{name:20} {n / middle:7.0f} images/s, {spread(times)} s per round; "
            f"fastload pack is {middle / fastload_s:.2f} times as fast"
        )
    print(f"peak anonymous memory of fastload pack: {peak:.0f} MB")
    if options.json:
        found = {"machine": machine, "n": n, "seconds": seconds, "peak_mb": peak}
        options.json.write_text(json.dumps(found, indent=1))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
