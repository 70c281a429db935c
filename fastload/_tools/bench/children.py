"""Contestants in processes of their own: started once, then told to go, round by round, while the others lie still.

The child's side is ``serve(make)``: ``make`` builds the loader and returns what runs one round and tells figures of it. The parent's is
``Child``: it adds wall time, processor time and peak memory of the child with all its workers, which the child cannot see itself.
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
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

import psutil

from fastload.errors import WorkerDied

_TICKS = os.sysconf("SC_CLK_TCK")
_EVERY_S = 0.1  # reading a process's memory takes its map lock for about a millisecond


@dataclass(frozen=True, slots=True)
class Round:
    """One round of a child: what it told, and what was seen from outside."""

    figures: dict[str, Any]
    wall_s: float
    cpu_s: float
    peak_mb: (
        float  # private and shared memory of the child and its workers, shared pages counted once
    )


class Child:
    """``command`` must end up in ``serve``. Raises WorkerDied with the child's last words where it ends."""

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
        self._tree = psutil.Process(self._process.pid)
        self.ready: dict[str, Any] = {}

    def wait(self) -> dict[str, Any]:
        """Until it is ready to go; what it told about itself."""
        self.ready = self._receive()
        return self.ready

    def round(self, command: str = "go") -> Round:
        """Runs one round and waits for its end."""
        peak = _Peak(self._tree)
        cpu = cpu_s(self._tree)
        wall = time.perf_counter()
        with peak:
            self._send(command)
            figures = self._receive()
        return Round(figures, time.perf_counter() - wall, cpu_s(self._tree) - cpu, peak.mb)

    def close(self) -> None:
        """Ends it and its workers."""
        family = _family(self._tree)[1:] if self._process.poll() is None else []
        if self._process.stdin is not None:
            with contextlib.suppress(BrokenPipeError):
                self._process.stdin.close()  # its loop ends with its input
        try:
            self._process.wait(5)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        for each in family:
            with contextlib.suppress(psutil.NoSuchProcess):
                each.kill()  # psutil looks whether the id is still the same process
        if self._process.stdout is not None:
            self._process.stdout.close()
        self._errors.close()

    def _send(self, command: str) -> None:
        try:
            assert self._process.stdin is not None  # noqa: S101
            self._process.stdin.write(command + "\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            self._raise_died()

    def _receive(self) -> dict[str, Any]:
        assert self._process.stdout is not None  # noqa: S101
        line = self._process.stdout.readline()
        if not line:
            self._raise_died()
        found: dict[str, Any] = json.loads(line)
        return found

    def _raise_died(self) -> None:
        code = self._process.wait()
        self._errors.seek(0)
        lines = [
            line
            for line in self._errors.read().decode("utf-8", "replace").splitlines()
            if line.strip()
        ]
        how = f"signal {-code}" if code < 0 else f"exit code {code}"
        raise WorkerDied(
            f"{self.name}: ended with {how}: {lines[-1].strip() if lines else 'without a word'}",
            how=how,
        )

    def __enter__(self) -> Child:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


def serve(make: Callable[[], tuple[dict[str, Any], Callable[[str], dict[str, Any]]]]) -> None:
    """The child's loop. ``make``: facts about the contestant, and what runs a round. Libraries that print go to stderr."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    facts, run = make()
    answers.write(json.dumps(facts) + "\n")
    answers.flush()
    for line in sys.stdin:
        answers.write(json.dumps(run(line.strip())) + "\n")
        answers.flush()


class _Peak:
    """Looks at the memory of a process and its descendants every tenth of a second."""

    def __init__(self, tree: psutil.Process) -> None:
        self._tree = tree
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self.mb = 0.0

    def __enter__(self) -> _Peak:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._done.set()
        self._thread.join()

    def _watch(self) -> None:
        while True:
            self.mb = max(self.mb, sum(_memory_kb(each.pid) for each in _family(self._tree)) / 1024)
            if self._done.wait(_EVERY_S):
                return


def _family(tree: psutil.Process) -> list[psutil.Process]:
    try:
        return [tree, *tree.children(recursive=True)]
    except psutil.NoSuchProcess:
        return []


def _memory_kb(pid: int) -> int:
    """Proportional share of anonymous and shared memory: a page that forked workers share counts once; files do not count."""
    try:
        text = Path(f"/proc/{pid}/smaps_rollup").read_text()
    except OSError:
        return 0
    return sum(
        int(line.split()[1])
        for line in text.splitlines()
        if line.startswith(("Pss_Anon:", "Pss_Shmem:"))
    )


def cpu_s(tree: psutil.Process) -> float:
    """Processor seconds of a process, its living descendants and those that it has waited for."""
    ticks = 0
    for each in _family(tree):
        try:
            fields = Path(f"/proc/{each.pid}/stat").read_text().rpartition(") ")[2].split()
        except OSError:
            continue
        ticks += sum(int(value) for value in fields[11:15])
    return ticks / _TICKS
