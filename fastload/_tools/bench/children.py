"""Runs benchmark candidates in child processes: started once, then measured one round at a time.

While one child runs a round, the others wait for input. The child calls ``serve``. The parent uses
``Child``, which adds what the child cannot measure itself: wall time, CPU time and peak memory of
the child and all of its workers.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import IO, Any, NamedTuple, cast

import psutil

from fastload.errors import WorkerDied

_CLOCK_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
# Reading the memory of a process holds its map lock for about a millisecond.
_MEMORY_INTERVAL_S = 0.1


class Round(NamedTuple):
    """One round of a child: the figures that it reported, and the parent's measurements."""

    figures: dict[str, Any]
    wall_s: float
    cpu_s: float
    # Private and shared memory of the child and its workers; a shared page counts once.
    peak_mb: float


class Child:
    """A child process whose ``command`` calls ``serve``.

    Raises WorkerDied with the last line of the child's stderr if the process ends early.
    """

    def __init__(
        self, name: str, command: Sequence[str], *, env: Mapping[str, str] | None = None
    ) -> None:
        self.name = name
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 - closed with the child
        self._process = subprocess.Popen(  # noqa: S603
            list(command),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
            env=None if env is None else {**os.environ, **env},
        )
        self._stdin = cast("IO[str]", self._process.stdin)
        self._stdout = cast("IO[str]", self._process.stdout)
        self._tree = psutil.Process(self._process.pid)
        self.ready: dict[str, Any] = {}

    def wait(self) -> dict[str, Any]:
        """Waits until the child is ready and returns the facts that it reported."""
        self.ready = self._receive()
        return self.ready

    def round(self, command: str = "go") -> Round:
        """Runs one round and waits for its end."""
        peak = _PeakMemory(self._tree)
        cpu = cpu_s(self._tree)
        wall = time.perf_counter()
        with peak:
            self._send(command)
            figures = self._receive()
        return Round(figures, time.perf_counter() - wall, cpu_s(self._tree) - cpu, peak.mb)

    def close(self) -> None:
        """Ends the child and its workers."""
        workers = _process_tree(self._tree)[1:] if self._process.poll() is None else []
        with contextlib.suppress(BrokenPipeError):
            self._stdin.close()  # the loop in serve() ends with its input
        try:
            self._process.wait(5)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        for worker in workers:
            with contextlib.suppress(psutil.NoSuchProcess):
                worker.kill()  # psutil checks that the pid still belongs to the same process
        self._stdout.close()
        self._errors.close()

    def _send(self, command: str) -> None:
        try:
            self._stdin.write(command + "\n")
            self._stdin.flush()
        except BrokenPipeError:
            self._raise_died()

    def _receive(self) -> dict[str, Any]:
        line = self._stdout.readline()
        if not line:
            self._raise_died()
        return cast("dict[str, Any]", json.loads(line))

    def _raise_died(self) -> None:
        code = self._process.wait()
        self._errors.seek(0)
        lines = self._errors.read().decode("utf-8", "replace").split("\n")
        last_line = next((line.strip() for line in reversed(lines) if line.strip()), "no output")
        how = f"signal {-code}" if code < 0 else f"exit code {code}"
        raise WorkerDied(f"{self.name}: the process ended with {how}: {last_line}", how=how)

    def __enter__(self) -> Child:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def serve(make: Callable[[], tuple[dict[str, Any], Callable[[str], dict[str, Any]]]]) -> None:
    """Runs the loop of a child process.

    ``make`` returns facts about the candidate and a function that runs one round. Anything that a
    library prints to stdout goes to stderr.
    """
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    facts, run = make()
    print(json.dumps(facts), file=answers, flush=True)
    for line in sys.stdin:
        print(json.dumps(run(line.strip())), file=answers, flush=True)


class _PeakMemory:
    """Samples the memory of a process and its descendants ten times per second."""

    def __init__(self, tree: psutil.Process) -> None:
        self._tree = tree
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self.mb = 0.0

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(self, *_: object) -> None:
        self._done.set()
        self._thread.join()

    def _watch(self) -> None:
        while True:
            kb = sum(_memory_kb(process.pid) for process in _process_tree(self._tree))
            self.mb = max(self.mb, kb / 1024)
            if self._done.wait(_MEMORY_INTERVAL_S):
                return


def _process_tree(root: psutil.Process) -> list[psutil.Process]:
    try:
        return [root, *root.children(recursive=True)]
    except psutil.NoSuchProcess:
        return []


def _memory_kb(pid: int) -> int:
    """The proportional share of anonymous and shared memory, without mapped files.

    A page that forked workers share counts once in the sum over all of them.
    """
    try:
        text = Path(f"/proc/{pid}/smaps_rollup").read_text()
    except OSError:
        return 0
    return sum(
        int(line.split()[1])
        for line in text.splitlines()
        if line.startswith(("Pss_Anon:", "Pss_Shmem:"))
    )


def cpu_s(root: psutil.Process) -> float:
    """CPU seconds of a process, its living descendants, and the children that it has reaped."""
    ticks = 0
    for process in _process_tree(root):
        try:
            fields = Path(f"/proc/{process.pid}/stat").read_text().rpartition(") ")[2].split()
        except OSError:
            continue
        ticks += sum(int(value) for value in fields[11:15])
    return ticks / _CLOCK_TICKS_PER_S
