"""Measures packing: time, size, and the state of the output after a SIGKILL halfway."""

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
    """One peer.

    ``killed`` tells how its reader treats a killed pack, ``again`` how the same pack restarts.
    """

    peer: str
    seconds: list[float] = field(default_factory=list)
    n_bytes: int = 0
    killed: str = ""
    again: str = ""

    def as_json(self) -> dict[str, object]:
        return {
            "peer": self.peer,
            "checksum": bool(adapter(self.peer).CHECKSUM),
            "seconds": spread(self.seconds).as_json(),
            "bytes": self.n_bytes,
            "killed": self.killed,
            "again": self.again,
        }


def can_pack(peer: str) -> bool:
    """Whether the peer has its own format that no other entry measures."""
    return hasattr(adapter(peer), "pack") and peer not in ("core", "fastload-exact", "fastload-raw")


def prepare(
    peers: Sequence[str], works: Sequence[str], data: Path, packed: Path, workers: int
) -> dict[str, str]:
    """Packs the datasets for loading, two at a time and untimed; returns the failures by peer."""
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
    """Packs in turn, then kills one pack of each peer."""
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
    fastload = next((row for row in rows if row.peer == "fastload"), None)
    found = Table(
        f"Packing {n} images; then a pack is killed (SIGKILL) halfway, opened, and started again",
        ("loader", "images/s", "fastload is", "MB", "checksum", "after SIGKILL", "started again"),
    )
    for row in sorted(rows, key=lambda row: spread(row.seconds).middle):
        each = spread(row.seconds)
        per_s = Spread(n / each.high, n / each.middle, n / each.low, each.n)
        ratio = (
            f"{each.middle / spread(fastload.seconds).middle:.2f} x"
            if fastload and row is not fastload
            else ""
        )
        found.rows.append(
            (
                PEERS[row.peer].title,
                str(per_s),
                ratio,
                number(row.n_bytes / 1e6),
                "yes" if adapter(row.peer).CHECKSUM else "no",
                row.killed,
                row.again,
            )
        )
    return found


def _kill(row: Packed, dest: Path, data: Path, work: str, workers: int) -> None:
    """Kills a pack after half of its bytes or half of its time, whichever is first."""
    process = _start("pack", row.peer, work, data, dest, workers)
    begin = time.perf_counter()
    half_s = spread(row.seconds).middle / 2
    first_write: float | None = None
    while process.poll() is None:
        written = _bytes(dest)
        now = time.perf_counter()
        first_write = first_write or (now if written else None)
        if (
            written >= row.n_bytes / 2
            or (first_write and now - first_write > half_s)
            or now - begin > TIMEOUT_S
        ):
            break
        time.sleep(0.005)
    _kill_all(process)
    n = len(Job.of(work, data, dest, 1).samples)
    written = _bytes(dest)
    code, words, _ = _run("count", row.peer, work, data, dest, workers)
    if code:
        row.killed = f"refused ({_short(words)})"
    else:
        row.killed = f"opens without an error with {words.split()[-1]} of {n}"
    row.killed += f", {written / 1e6:.1f} MB written"
    code, words, _ = _run("pack", row.peer, work, data, dest, workers)
    if code:
        row.again = f"fails ({_short(words)})"
        return
    code, words, _ = _run("count", row.peer, work, data, dest, workers)
    row.again = (
        f"complete ({words.split()[-1]})"
        if not code and words.split()[-1] == str(n)
        else f"wrong ({_short(words)})"
    )


def _kill_all(process: subprocess.Popen[str]) -> None:
    """Kills the process and its workers by their ids at once, like a machine that loses power."""
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
    """Exit code, last line of output, and the seconds that the task itself took."""
    process = _start(task, peer, work, data, dest, workers)
    try:
        out, errors = process.communicate(timeout=TIMEOUT_S)
    except subprocess.TimeoutExpired:
        _kill_all(process)
        return 1, f"still running after {TIMEOUT_S} s", 0.0
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
