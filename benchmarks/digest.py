"""Speed of the digest of a shard: BLAKE3 and SHA-256, by the size of the pieces.

    python -m benchmarks.digest [--mib 16] [--rounds 7]

The packer hashes records and tree pages before it writes them. "joined" copies pieces to buffers of
1 MiB first, as fastload/_store/writer.py does with small pieces. Prints GB/s of CPU time, median
and quartiles of interleaved rounds.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import time
from collections.abc import Callable, Iterable
from typing import Protocol

from blake3 import blake3

from benchmarks.machine import describe, quartiles

BUFFER = 1 << 20
SIZES = (1 << 10, 4 << 10, 16 << 10, 128 << 10, 256 << 10, 1 << 20)


class Digest(Protocol):
    def update(self, data: bytes, /) -> object: ...


def hashed(digest: Digest, pieces: Iterable[bytes]) -> float:
    """Returns the CPU seconds of hashing the pieces."""
    started = time.process_time()
    for piece in pieces:
        digest.update(piece)
    return time.process_time() - started


def joined(pieces: list[bytes]) -> Iterable[bytes]:
    count = max(1, BUFFER // len(pieces[0]))
    return (b"".join(pieces[i : i + count]) for i in range(0, len(pieces), count))


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--mib", type=int, default=16, help="MiB to hash per round")
    parser.add_argument("--rounds", type=int, default=7)
    options = parser.parse_args()
    data = os.urandom(options.mib << 20)
    for key, value in describe("blake3").items():
        print(f"{key}: {value}")
    for size in SIZES:
        pieces = [data[i : i + size] for i in range(0, len(data), size)]
        ways: dict[str, Callable[[], float]] = {
            "BLAKE3": lambda pieces=pieces: hashed(blake3(), pieces),  # type: ignore[misc]
            "BLAKE3, joined": lambda pieces=pieces: hashed(blake3(), joined(pieces)),  # type: ignore[misc]
            "SHA-256": lambda pieces=pieces: hashed(hashlib.sha256(), pieces),  # type: ignore[misc]
        }
        seconds: dict[str, list[float]] = {name: [] for name in ways}
        for _ in range(options.rounds):
            for name, way in ways.items():
                seconds[name].append(way())
        for name, times in seconds.items():
            low, middle, high = (len(data) / 1e9 / each for each in reversed(quartiles(times)))
            print(f"{size >> 10:5} KiB {name:15} {middle:.2f} GB/s [{low:.2f}-{high:.2f}]")


if __name__ == "__main__":
    main()
