"""Packing: time, bytes, and what is left when it is killed in the middle."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from benchmarks.peers.job import WORKS, Job
from benchmarks.peers.peers import PEERS, adapter, missing
from fastload._common.tables import Table
from fastload._tools.bench.measure import Spread, number, spread

TIMEOUT_S = 300


@dataclass(slots=True)
class Packed:
    """One peer. ``left``: what its reader says to a pack that was killed; ``again``: what the same pack does then."""

    peer: str
    seconds: list[float] = field(default_factory=list)
    n_bytes: int = 0
    left: str = ""
    again: str = ""

    def as_json(self) -> dict[str, object]:
        return {
            "peer": self.peer,
            "checksum": bool(adapter(self.peer).CHECKSUM),
            "seconds": spread(self.seconds).as_json(),
            "bytes": self.n_bytes,
            "killed": self.left,
            "again": self.again,
        }


def can_pack(peer: str) -> bool:
    """It has a format of its own, and is no second line of one that was measured."""
    return hasattr(adapter(peer), "pack") and peer not in ("core", "fastload-raw")


def prepare(
    peers: Sequence[str], works: Sequence[str], data: Path, packed: Path, workers: int
) -> dict[str, str]:
    """Packs what is loaded later, two at a time (nobody is timed here); why not, by peer."""
    wanted = {
        (peer, WORKS[work].data): work
        for peer in peers
        if not missing(peer) and hasattr(adapter(peer), "pack")
        for work in works
        if not PEERS[peer].works or work in PEERS[peer].works
    }

    def one(peer: str, kind: str) -> tuple[str, str]:
        dest = packed / peer / kind
        dest.parent.mkdir(parents=True, exist_ok=True)
        code, words, _ = _run("pack", peer, wanted[peer, kind], data, dest, workers)
        return peer, words if code else ""

    with ThreadPoolExecutor(2) as pool:
        return {peer: words for peer, words in pool.map(lambda key: one(*key), wanted) if words}


def measure(
    peers: Sequence[str], data: Path, scratch: Path, *, work: str, workers: int, rounds: int
) -> tuple[list[Packed], dict[str, str]]:
    """Packs in turn, then kills one pack of each."""
    rows = {peer: Packed(peer) for peer in peers if not missing(peer) and can_pack(peer)}
    wrong: dict[str, str] = {}
    for _ in range(rounds):
        for peer, row in rows.items():
            dest = _fresh(scratch / peer)
            code, words, seconds = _run("pack", peer, work, data, dest, workers)
            if code:
                wrong[peer] = words
                continue
            row.seconds.append(seconds)
            row.n_bytes = _bytes(dest)
    for peer, row in rows.items():
        if row.seconds:
            _kill(row, _fresh(scratch / peer), data, work, workers)
    return [row for row in rows.values() if row.seconds], wrong


def table(rows: Sequence[Packed], n: int) -> Table:
    ours = next((row for row in rows if row.peer == "fastload"), None)
    told = Table(
        f"packing {n} images; killed with SIGKILL half way, then read, then packed again",
        ("loader", "images/s", "fastload is", "MB", "checksum", "after kill -9", "packed again"),
    )
    for row in sorted(rows, key=lambda row: spread(row.seconds).middle):
        each = spread(row.seconds)
        per_s = Spread(n / each.high, n / each.middle, n / each.low, each.n)
        ratio = (
            f"{each.middle / spread(ours.seconds).middle:.2f} x" if ours and row is not ours else ""
        )
        told.rows.append(
            (
                PEERS[row.peer].title,
                str(per_s),
                ratio,
                number(row.n_bytes / 1e6),
                "yes" if adapter(row.peer).CHECKSUM else "no",
                row.left,
                row.again,
            )
        )
    return told


def _kill(row: Packed, dest: Path, data: Path, work: str, workers: int) -> None:
    """Half of its bytes written, or half of its time gone, whichever is first."""
    process = _start("pack", row.peer, work, data, dest, workers)
    begin, half = time.perf_counter(), spread(row.seconds).middle / 2
    began: float | None = None
    while process.poll() is None:
        written = _bytes(dest)
        began = began or (time.perf_counter() if written else None)
        if (
            written >= row.n_bytes / 2
            or (began and time.perf_counter() - began > half)
            or time.perf_counter() - begin > TIMEOUT_S
        ):
            break
        time.sleep(0.005)
    _kill_all(process)
    n = len(Job.of(work, data, dest, 1).samples)
    left = _bytes(dest)
    code, words, _ = _run("count", row.peer, work, data, dest, workers)
    if code:
        row.left = f"refused ({_short(words)})"
    else:
        row.left = f"opens with {words.split()[-1]} of {n}, no error"
    row.left += f", {left / 1e6:.1f} MB left"
    code, words, _ = _run("pack", row.peer, work, data, dest, workers)
    if code:
        row.again = f"fails ({_short(words)})"
        return
    code, words, _ = _run("count", row.peer, work, data, dest, workers)
    row.again = (
        f"whole ({words.split()[-1]})"
        if not code and words.split()[-1] == str(n)
        else f"wrong ({_short(words)})"
    )


def _kill_all(process: subprocess.Popen[str]) -> None:
    """The process and its workers, all by their ids, at once: as a machine that goes down does."""
    try:
        family = [
            psutil.Process(process.pid),
            *psutil.Process(process.pid).children(recursive=True),
        ]
    except psutil.NoSuchProcess:
        family = []
    for each in family:
        try:
            os.kill(each.pid, signal.SIGKILL)
        except ProcessLookupError:
            continue
    process.communicate()


def _start(  # noqa: PLR0917
    task: str, peer: str, work: str, data: Path, dest: Path, workers: int
) -> subprocess.Popen[str]:
    command = [
        sys.executable,
        "-m",
        "benchmarks.peers.serve",
        task,
        peer,
        work,
        str(data),
        str(dest),
        str(workers),
    ]
    return subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def _run(  # noqa: PLR0917
    task: str, peer: str, work: str, data: Path, dest: Path, workers: int
) -> tuple[int, str, float]:
    """Exit code, last words, and the seconds that the task itself took."""
    process = _start(task, peer, work, data, dest, workers)
    try:
        out, errors = process.communicate(timeout=TIMEOUT_S)
    except subprocess.TimeoutExpired:
        _kill_all(process)
        return 1, f"not done after {TIMEOUT_S} s", 0.0
    lines = [line for line in (errors if process.returncode else out).splitlines() if line.strip()]
    words = lines[-1].strip() if lines else f"exit code {process.returncode}"
    seconds = float(words.split()[-1]) if task == "pack" and not process.returncode else 0.0
    return process.returncode, words, seconds


def _short(words: str) -> str:
    return words if len(words) <= 60 else words[:57] + "..."


def _fresh(dest: Path) -> Path:
    shutil.rmtree(dest, ignore_errors=True)
    shutil.rmtree(f"{dest}-cache", ignore_errors=True)
    return dest


def _bytes(folder: Path) -> int:
    total = 0
    for path in folder.rglob("*"):
        try:
            total += path.stat().st_blocks * 512 if path.is_file() else 0  # LMDB files are sparse
        except FileNotFoundError:
            continue
    return total
