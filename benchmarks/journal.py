"""CPU time of the journal that lets an interrupted pack continue with the next sample.

    python -m benchmarks.journal [--samples 20000] [--rounds 5]

Packs JPEGs of 1 kB from one tar file, alternately as one process that packs alone, which keeps a
journal, and as ``part=(0, 1)``, which packs and publishes the same dataset without one. Prints the
CPU time per sample of both and the difference, median and quartiles of interleaved rounds. A part
also checks for other workers, once per pack.
"""

from __future__ import annotations

import argparse
import io
import shutil
import tarfile
import tempfile
import time
from pathlib import Path

import fastload
from benchmarks.machine import describe, spread
from tests.jpeg_samples import encode, sample_image

N_IMAGES = 200  # different images
WAYS: dict[str, tuple[int, int] | None] = {"journal": None, "no journal": (0, 1)}


def make_tar(path: Path, count: int) -> None:
    images = [encode(sample_image(36, 36, number), "420") for number in range(N_IMAGES)]
    with tarfile.open(path, "w") as tar:
        for i in range(count):
            info = tarfile.TarInfo(f"{i:08}.jpg")
            info.size = len(images[i % N_IMAGES])
            tar.addfile(info, io.BytesIO(images[i % N_IMAGES]))


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--samples", type=int, default=20_000)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    costs: dict[str, list[float]] = {way: [] for way in WAYS}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        make_tar(folder / "tiny.tar", options.samples)
        for number in range(options.rounds + 1):
            for way, part in WAYS.items():
                started = time.process_time()
                fastload.pack(folder / "tiny.tar", folder / "packed", part=part)
                used = time.process_time() - started
                shutil.rmtree(folder / "packed")
                if number:  # the first round imports modules
                    costs[way].append(1e6 * used / options.samples)
    for key, value in describe().items():
        print(f"{key}: {value}")
    for way, each in costs.items():
        print(f"{way}: {spread(each)} us of CPU time per sample")
    differences = [a - b for a, b in zip(costs["journal"], costs["no journal"], strict=True)]
    print(f"difference: {spread(differences)} us")


if __name__ == "__main__":
    main()
