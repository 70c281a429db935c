"""Runs benchmark candidates in child processes: started once, then measured one round at a time.

While one child runs a round, the others wait for input. The child calls ``serve``. The parent uses
``Child``, which adds what the child cannot measure itself: wall time, CPU time and peak memory of
the child and all of its workers.

Run as a program, this module is the child of `fastload bench load`: one loader, and a consumer that
computes for a given time per batch.

    python -m fastload._tools.bench.children '{"kind": "fastload", "dataset": "packed", ...}'
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
from collections.abc import Callable, Iterator, Mapping, Sequence
from io import TextIOWrapper
from pathlib import Path
from typing import IO, Any, NamedTuple, cast

import psutil
import torch

from fastload.errors import WorkerDied

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

    def wait(self) -> dict[str, Any]:
        """Waits until the child is ready and returns the facts that it reported."""
        return self._receive()

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
    # In time, so that the last line of stderr is the error and not what was printed before it.
    cast("TextIOWrapper", sys.stdout).reconfigure(line_buffering=True)
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
    total = 0.0
    for process in _process_tree(root):
        with contextlib.suppress(psutil.NoSuchProcess):
            times = process.cpu_times()
            total += times.user + times.system + times.children_user + times.children_system
    return total


def main() -> None:
    spec = json.loads(sys.argv[1])
    torch.set_num_threads(1)

    def make() -> tuple[dict[str, Any], Callable[[str], dict[str, Any]]]:
        batches = endless(make_loader(spec))
        return {"kind": spec["kind"]}, lambda _: consume(batches, spec)

    serve(make)


def make_loader(spec: dict[str, Any]) -> Any:
    """Makes a fastload loader of the packed dataset, or a torch DataLoader of image files."""
    size = tuple(spec["size"])
    if spec["kind"] == "fastload":
        import fastload
        from fastload import transforms as T

        return fastload.DataLoader(
            spec["dataset"],
            split=spec["split"],
            batch_size=spec["batch_size"],
            shuffle=True,
            drop_last=True,
            transform=[T.RandomResizedCrop(size), T.HorizontalFlip(), T.Normalize(0.45, 0.225)],
            fields=(spec["field"],),
            num_workers=spec["workers"],
            backend=spec["backend"],
        )
    from fastload._tools.bench.load import FolderImages, image_files

    return torch.utils.data.DataLoader(
        FolderImages(image_files(Path(spec["folder"])), size),
        spec["batch_size"],
        shuffle=True,
        num_workers=spec["workers"],
        drop_last=True,
        persistent_workers=spec["workers"] > 0,
    )


def endless(loader: Any) -> Iterator[Any]:
    """Batches of one epoch after the other.

    The start of an epoch, including the start of its workers, counts as waiting time.
    """
    while len(loader):
        yield from loader
    raise SystemExit("the dataset has less than one batch: pass a smaller --batch-size")


def consume(batches: Iterator[Any], spec: dict[str, Any]) -> dict[str, Any]:
    """Runs one round of up to ``batches`` batches, after ``warm`` batches that do not count.

    Returns the seconds that each batch took to arrive (``waits_s``) and each step (``steps_s``).
    """
    for _ in range(spec["warm"]):
        next(batches)
    waits: list[float] = []
    steps: list[float] = []
    n = 0
    family = psutil.Process()
    cpu = cpu_s(family)
    begin = last = time.perf_counter()
    for _ in range(spec["batches"]):
        requested = time.perf_counter()
        batch = next(batches)
        waits.append(time.perf_counter() - requested)
        images = batch if isinstance(batch, torch.Tensor) else next(iter(batch.values()))
        n += len(images) * (images.shape[1] if images.dim() == 5 else 1)
        compute(spec["compute_ms"] / 1e3, busy=spec["busy"])
        now = time.perf_counter()
        steps.append(now - last)
        last = now
        del batch, images
        if now - begin > spec["seconds"] and len(steps) >= 3:
            break
    return {
        "waits_s": waits,
        "steps_s": steps,
        "n": n,
        "seconds": last - begin,
        "cpu_s": cpu_s(family) - cpu,
    }


def compute(seconds: float, *, busy: bool) -> None:
    """Spends ``seconds``: sleeping, as if a GPU computed, or ``busy`` on the CPU."""
    if not busy:
        time.sleep(seconds)
        return
    end = time.perf_counter() + seconds
    square = torch.ones(64, 64)
    while time.perf_counter() < end:
        torch.mm(square, square)


if __name__ == "__main__":
    main()
