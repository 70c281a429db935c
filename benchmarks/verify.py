"""Speed of ``fastload verify`` for tiny samples: 1 kB JPEGs with a label.

    python -m benchmarks.verify [--samples 100000] [--jobs 2] [--rounds 3]

Prints records per second, and CPU time per record, which other programs on the machine hardly
change.
"""

from __future__ import annotations

import argparse
import resource
import tempfile
import time
from pathlib import Path

import fastload
from benchmarks.machine import describe, spread
from tests.jpeg_samples import encode, sample_image

N_IMAGES = 500  # different images


def cpu_seconds() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--samples", type=int, default=100_000)
    parser.add_argument("--jobs", type=int, default=0, help="threads (default: one per core)")
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    images = [encode(sample_image(32, 32, number), "420") for number in range(N_IMAGES)]
    rates = []
    costs = []
    with tempfile.TemporaryDirectory() as folder:
        packed = Path(folder) / "packed"
        fastload.pack(
            ({"image": images[i % N_IMAGES], "label": i % 10} for i in range(options.samples)),
            packed,
            fields={"image": "image", "label": "int"},
        )
        for _ in range(options.rounds):
            wall = time.perf_counter()
            cpu = cpu_seconds()
            report = fastload.verify(packed, jobs=options.jobs)
            costs.append(1e6 * (cpu_seconds() - cpu) / options.samples)
            rates.append(options.samples / (time.perf_counter() - wall))
            if not report.ok:
                raise SystemExit(str(report))
    for key, value in describe().items():
        print(f"{key}: {value}")
    print(f"records/s: {spread(rates)}")
    print(f"CPU microseconds per record: {spread(costs)}")


if __name__ == "__main__":
    main()
