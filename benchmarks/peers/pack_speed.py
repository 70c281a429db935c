"""Compares the speed of packing with other writers and with `cp -r`, in interleaved rounds.

    .venv-peers/bin/python -m benchmarks.peers.pack_speed [--rounds 5] [--n 3000]
        [--tiny 1000000] [--json OUT]

The input is the photos of the corpus, repeated. fastload packs with its defaults and with
`--encode copy`, Streaming writes MDS with xxh64 hashes, FFCV re-encodes. fastload syncs its output.
The others are measured without and with a sync at the end. `--tiny N` also packs N JPEGs of about
1 KB from one tar, once. Times do not include the start of Python and imports.

Before each task, the script uses and frees four times the memory of the photos: some hosts take
free memory from a virtual machine, and the next writer would wait for it.
"""

from __future__ import annotations

import argparse
import io
import json
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
from PIL import Image

from benchmarks.machine import photo_paths
from benchmarks.peers import packing
from benchmarks.peers.peers import PEERS, missing
from fastload._common.cpus import available_cpus
from fastload._common.tables import Table
from fastload._tools.bench.measure import (
    Spread,
    in_one_line,
    machine,
    package_version,
    spread,
    versions,
)

WRITERS = ("fastload", "streaming", "ffcv")
_PACK = """import sys, time
from fastload import pack
start = time.perf_counter()
pack(sys.argv[1], sys.argv[2], encode=sys.argv[3])
print(time.perf_counter() - start)"""


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--n", type=int, default=3000, help="photos (default: %(default)s)")
    parser.add_argument("--tiny", type=int, default=0, metavar="N", help="samples of 1 KB")
    parser.add_argument("--json", type=Path, metavar="OUT")
    options = parser.parse_args()
    here = machine()
    found = {**versions(), "mosaicml-streaming": package_version("mosaicml-streaming")}
    print(in_one_line(here))
    print(", ".join(f"{name} {each}" for name, each in found.items()))
    report: dict[str, object] = {"machine": here, "versions": found, "n": options.n}
    with tempfile.TemporaryDirectory(prefix="fastload-pack-speed-") as name:
        folder = Path(name)
        seconds = measure_photos(folder, options.n, options.rounds)
        photos_table(seconds, options.n).show()
        report["seconds"] = seconds
        if options.tiny:
            took = measure_tiny(folder, options.tiny)
            print(f"{options.tiny} JPEGs of 1 KB from a tar: {options.tiny / took:.0f} samples/s")
            report |= {"tiny": options.tiny, "tiny_seconds": took}
    if options.json:
        options.json.write_text(json.dumps(report, indent=1) + "\n")
    return 0


def measure_photos(folder: Path, n: int, rounds: int) -> dict[str, list[float]]:
    """Returns the seconds of each round by writer."""
    photos = folder / "data" / "photos"
    photos.mkdir(parents=True)
    paths = photo_paths()
    n_bytes = 0
    for i in range(n):
        shutil.copyfile(paths[i % len(paths)], photos / f"{i:06}-0.jpg")
        n_bytes += paths[i % len(paths)].stat().st_size
    tasks: dict[str, Callable[[Path], float]] = {
        PEERS[peer].title: lambda dest, peer=peer: _by_peer(peer, folder / "data", dest)  # type: ignore[misc]
        for peer in WRITERS
        if not missing(peer)
    }
    tasks["fastload --encode copy"] = lambda dest: _by_fastload(photos, dest, "copy")
    tasks["cp -r"] = lambda dest: _by_cp(photos, dest)
    for name in list(tasks):
        if not name.startswith("fastload"):
            tasks[f"{name}, synced"] = _synced(tasks[name])
    seconds: dict[str, list[float]] = {name: [] for name in tasks}
    for _ in range(rounds):
        for name, task in tasks.items():
            dest = folder / "out"
            np.ones(4 * n_bytes, np.uint8)  # makes the host provide the memory
            seconds[name].append(task(dest))
            shutil.rmtree(dest)
            os.sync()  # one writer does not wait for the data of another one
    return seconds


def photos_table(seconds: dict[str, list[float]], n: int) -> Table:
    table = Table(f"Packing {n} photos", ("writer", "images/s", "default is", "copy is"))
    middle = {name: spread(times).middle for name, times in seconds.items()}
    for name in sorted(middle, key=lambda name: middle[name]):
        each = spread(seconds[name])
        table.rows.append(
            (
                name,
                str(Spread(n / each.high, n / each.middle, n / each.low, each.n)),
                f"{each.middle / middle['fastload']:.2f} x",
                f"{each.middle / middle['fastload --encode copy']:.2f} x",
            )
        )
    return table


def measure_tiny(folder: Path, n: int) -> float:
    """Returns the seconds of one pack of ``n`` samples."""
    rng = np.random.default_rng(0)
    images = []
    for _ in range(200):
        small = Image.fromarray(rng.integers(0, 255, (6, 6, 3), dtype=np.uint8))
        file = io.BytesIO()
        small.resize((40, 40), Image.Resampling.BICUBIC).save(file, "JPEG", quality=85)
        images.append(file.getvalue())
    with tarfile.open(folder / "tiny.tar", "w") as tar:
        for i in range(n):
            info = tarfile.TarInfo(f"{i:08}.jpg")
            info.size = len(images[i % 200])
            tar.addfile(info, io.BytesIO(images[i % 200]))
    return _by_fastload(folder / "tiny.tar", folder / "tiny", "keep")


def _by_peer(peer: str, data: Path, dest: Path) -> float:
    code, words, seconds = packing._run("pack", peer, "rrc", data, dest, available_cpus())
    if code:
        raise SystemExit(f"{peer}: {words}")
    return seconds


def _by_fastload(source: Path, dest: Path, encode: str) -> float:
    command = [sys.executable, "-c", _PACK, str(source), str(dest), encode]
    result = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    return float(result.stdout.split()[-1])


def _by_cp(source: Path, dest: Path) -> float:
    start = time.perf_counter()
    subprocess.run(["cp", "-r", str(source), str(dest)], check=True)
    return time.perf_counter() - start


def _synced(task: Callable[[Path], float]) -> Callable[[Path], float]:
    """Adds the time until the output is on the disk."""

    def run(dest: Path) -> float:
        seconds = task(dest)
        start = time.perf_counter()
        subprocess.run(["sync", "-f", str(dest)], check=True)
        return seconds + time.perf_counter() - start

    return run


if __name__ == "__main__":
    sys.exit(main())
