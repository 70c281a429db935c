"""Measures loading: every peer in its own process, in turn; speed, CPU time and memory."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from benchmarks.peers.job import WORKS
from benchmarks.peers.peers import PEERS, missing
from fastload._common.tables import Table
from fastload._tools.bench.children import Child, Round
from fastload._tools.bench.measure import Spread, alternating, number, spread
from fastload.errors import FastloadError

# How far the mean pixel value (of 255) of peers that do the same work may differ.
SAME = 3.0
SAME_CROPS = 12.0  # if each peer draws its own crops


@dataclass(frozen=True, slots=True)
class Line:
    """One peer in one work."""

    peer: str
    per_s: Spread
    cpu_ms: Spread  # per image
    peak_mb: float
    mean: float  # of all pixels

    def as_json(self) -> dict[str, object]:
        return {
            "peer": self.peer,
            "images_per_s": self.per_s.as_json(),
            "cpu_ms": self.cpu_ms.as_json(),
            "peak_mb": self.peak_mb,
            "mean": self.mean,
        }


@dataclass(frozen=True, slots=True)
class Compared:
    """The results of one work."""

    work: str
    n: int
    lines: list[Line]
    absent: dict[str, str]  # peer to the reason why it did not run

    def table(self) -> Table:
        table = Table(
            f"{WORKS[self.work].title}, {self.n} images; median [quartiles] of interleaved rounds",
            ("loader", "images/s", "fastload is", "CPU ms/image", "memory MB"),
        )
        fastload = next((line for line in self.lines if line.peer == "fastload"), None)
        for line in sorted(self.lines, key=lambda line: -line.per_s.middle):
            ratio = (
                f"{fastload.per_s.middle / line.per_s.middle:.2f} x"
                if fastload and line is not fastload
                else ""
            )
            table.rows.append(
                (
                    PEERS[line.peer].title,
                    str(line.per_s),
                    ratio,
                    number(line.cpu_ms.middle),
                    number(line.peak_mb),
                )
            )
        table.notes = [
            f"{PEERS[peer].title}: {why}" for peer, why in self.absent.items()
        ] + self.doubts()
        return table

    def doubts(self) -> list[str]:
        """Peers whose mean pixel value differs from the others, so that they may do other work."""
        if not self.lines:
            return []
        means = sorted(line.mean for line in self.lines)
        middle = means[len(means) // 2]
        most = SAME_CROPS if WORKS[self.work].crop else SAME
        return [
            f"{PEERS[line.peer].title}: mean pixel value {line.mean:.1f}, others {middle:.1f}: "
            "it may not do the same work"
            for line in self.lines
            if abs(line.mean - middle) > most
        ]

    def as_json(self) -> dict[str, object]:
        return {
            "work": self.work,
            "title": WORKS[self.work].title,
            "n": self.n,
            "lines": [line.as_json() for line in self.lines],
            "absent": self.absent,
            "doubts": self.doubts(),
        }


def compare(
    work: str,
    peers: Sequence[str],
    data: Path,
    packed: Path,
    *,
    workers: int,
    rounds: int,
    seconds: float,
) -> Compared:
    """Lets each peer load the same images. A peer that fails is listed with its last output."""
    absent: dict[str, str] = {}
    found: dict[str, list[Round]] = {}
    means: dict[str, float] = {}
    with ExitStack() as stack:
        children: dict[str, Child] = {}
        for peer in peers:
            entry = PEERS[peer]
            if entry.works and work not in entry.works:
                continue
            why = missing(peer)
            if why:
                absent[peer] = why
                continue
            command = [
                sys.executable,
                "-m",
                "benchmarks.peers.serve",
                "load",
                peer,
                work,
                str(data),
                str(packed / peer / WORKS[work].data),
                str(workers),
                str(seconds),
            ]
            children[peer] = stack.enter_context(Child(entry.title, command))
        for peer, child in list(children.items()):
            try:
                child.wait()
                # Warm-up: numba compiles, workers start, files are read into memory.
                means[peer] = child.round("warm").figures["mean"]
            except FastloadError as error:
                absent[peer] = str(error).partition(": ")[2]
                del children[peer]
        for turn in range(rounds):
            for peer in alternating(children, turn):
                try:
                    found.setdefault(peer, []).append(children[peer].round())
                except FastloadError as error:
                    absent[peer] = str(error).partition(": ")[2]
                    del children[peer]
        lines = [_line(peer, found[peer], means[peer]) for peer in children]
    return Compared(work, len(list((data / WORKS[work].data).glob("*.jpg"))), lines, absent)


def _line(peer: str, rounds: Sequence[Round], mean: float) -> Line:
    return Line(
        peer,
        spread([one.figures["n"] / one.figures["seconds"] for one in rounds]),
        spread([1e3 * one.cpu_s / one.figures["n"] for one in rounds]),
        max(one.peak_mb for one in rounds),
        mean,
    )
