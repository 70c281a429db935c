"""Overhead and speedup of the native thread pool (part of benchmarks/decode.py).

The overhead is measured against a bare loop over the same calls, which has no queue and no other
thread. Two bare loops in separate processes show the speedup that the machine can deliver.
"""

from __future__ import annotations

import multiprocessing
import os
import time
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from multiprocessing.connection import Connection
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from benchmarks.decode_rows import Row, row_of
from benchmarks.machine import spread
from benchmarks.works import Work
from fastload._common.native import core
from fastload._decode.backend import DecodeBatch
from fastload._decode.native import NativeBackend, NativeTicket

Times = NDArray[np.uint32]  # nanoseconds by sample and stage
Pair = tuple[Callable[[], object], Callable[[], object]]  # with few threads, with many
IN_FLIGHT = 4  # batches, as in a loader
GAIN_BAR = 1.9  # speedup of two threads over one
HANDOVER_BAR = 2.0  # percent of the time of a bare loop
SHORTEST_S = 6.0  # all rounds of a work: short rounds are repeated more often
# One thread's part of a round. At its end it may wait for the last sample of another thread.
SHORTEST_RUN_S = 0.6


class Elapsed(NamedTuple):
    wall_s: float
    cpu_s: float


class BareLoop(NamedTuple):
    """Seconds of a bare loop, and the part of them inside samples."""

    total_s: float
    inside_s: float


def timed(run: Callable[[], object]) -> Elapsed:
    wall = time.perf_counter()
    cpu = time.process_time()
    run()
    return Elapsed(time.perf_counter() - wall, time.process_time() - cpu)


def batches(work: Work) -> list[DecodeBatch]:
    """As many batches as a loader has in flight, each with its own output."""
    return [work.batch() for _ in range(IN_FLIGHT)]


def fastload(
    work: Work, threads: int, passes: int = 1, in_flight: list[DecodeBatch] | None = None
) -> Callable[[], list[Times]]:
    """Runs the native backend with several batches in flight, like the loader.

    Returns the stage times per batch. The caller sums them after the clock has stopped, because
    NumPy takes 60 us per batch, which would be missing on two CPUs with two decode threads.
    """
    backend = NativeBackend(threads=threads)
    in_flight = in_flight or batches(work)

    def run() -> list[Times]:
        tickets: deque[NativeTicket] = deque()
        times: list[Times] = []
        for i in range(passes * IN_FLIGHT + IN_FLIGHT):
            if i >= IN_FLIGHT:
                result = backend.collect(tickets.popleft())
                result.raise_first()
                times.append(result.times_ns)
            if i < passes * IN_FLIGHT:
                tickets.append(backend.submit(in_flight[i % IN_FLIGHT]))
        return times

    return run


def inside_s(times: list[Times]) -> float:
    """Seconds that a run spends inside samples."""
    return sum(int(batch.sum()) for batch in times) / 1e9


def passes_of(work: Work) -> int:
    """The number of passes over the batches that takes about SHORTEST_RUN_S."""
    batch = batches(work)[0]
    bare_loop(batch)  # faults in the pages of the output: half of the time for raw pixels
    return max(1, round(SHORTEST_RUN_S / (IN_FLIGHT * bare_loop(batch).total_s)))


def bare_loop(batch: DecodeBatch) -> BareLoop:
    module = core()
    if module is None:
        raise SystemExit("the native core is not built, so there is nothing to measure")
    pixels = batch.pixels
    seconds = module.Pool.bare_loop(
        batch.sources,
        batch.requests,
        batch.output,
        planar=pixels.layout == "nchw",
        color=0,
        fill=(0, 0, 0),
        mean=pixels.mean_values(3),
        std=pixels.std_values(3),
        bits=8,
    )
    return BareLoop(*seconds)


def handover(works: list[Work], *, rounds: int) -> list[Row]:
    """Overhead of the pool on one thread (submit, queue, wake up, collect) over a bare C++ loop.

    Both decode on the same CPU. Whole runs also differ because the speed of the machine changes,
    but the time outside of samples hardly does. A bare loop has some of it, too: it reads the
    clock, and a sample may still write after its clock was read.
    """
    available = os.sched_getaffinity(0)
    one = {max(available)}
    bare_thread = ThreadPoolExecutor(1, initializer=os.sched_setaffinity, initargs=(0, one))
    print(
        f"\n{'work':24} rounds  overhead in % of the bare loop (wall time); in % of its CPU time; "
        "time outside of samples in % of the time inside; the same of the bare loop; difference"
    )
    rows: list[Row] = []
    for work in works:
        passes = passes_of(work)
        # Both use the same memory, because huge pages could otherwise serve only one of them.
        in_flight = batches(work)
        run = fastload(work, 1, passes, in_flight)
        # The thread of the pool starts with the first batch and inherits the affinity.
        os.sched_setaffinity(0, one)
        run()
        os.sched_setaffinity(0, available)
        rows.append(
            _overhead(work, run, partial(_loops, bare_thread, in_flight * passes), rounds=rounds)
        )
    return rows


def _loops(thread: ThreadPoolExecutor, in_flight: list[DecodeBatch]) -> list[BareLoop]:
    return list(thread.map(bare_loop, in_flight))


def _overhead(
    work: Work, pool: Callable[[], list[Times]], bare: Callable[[], list[BareLoop]], *, rounds: int
) -> Row:
    times: list[list[Times]] = []
    loops: list[list[BareLoop]] = []
    found: dict[str, list[float]] = {
        name: [] for name in ("wall", "cpu", "outside", "outside_bare", "more")
    }
    for turn in _turns(rounds):
        pool_s, bare_s = both(lambda: times.append(pool()), lambda: loops.append(bare()), turn)
        if turn:  # the first round fills caches and starts threads
            loop_s = sum(loop.total_s for loop in loops[-1])
            outside = pool_s.wall_s / inside_s(times[-1]) - 1
            outside_bare = loop_s / sum(loop.inside_s for loop in loops[-1]) - 1
            measured = (
                pool_s.wall_s / loop_s - 1,
                pool_s.cpu_s / bare_s.cpu_s - 1,
                outside,
                outside_bare,
                outside - outside_bare,
            )
            for values, value in zip(found.values(), measured, strict=True):
                values.append(100 * value)
    print(
        f"{work.name:24} {len(found['wall']):6}  " + "; ".join(map(spread, found.values())),
        flush=True,
    )
    return row_of(work.name, found, bar=HANDOVER_BAR)


def both(
    first: Callable[[], object], second: Callable[[], object], turn: int
) -> tuple[Elapsed, Elapsed]:
    """Times both, in reverse order in every other turn, because one warms caches for the other."""
    if turn % 2:
        late = timed(second)
        return timed(first), late
    return timed(first), timed(second)


def _turns(rounds: int) -> Iterator[int]:
    """Turn 0 is a warm-up and does not count."""
    begin = time.perf_counter()
    turn = 0
    while turn <= rounds or time.perf_counter() - begin < SHORTEST_S:
        yield turn
        turn += 1


def gains(works: list[Work], *, threads: list[int], rounds: int) -> list[Row]:
    """Speedup of many threads, next to that of bare loops in as many processes."""
    few, many = threads[0], threads[-1]
    heads = (
        f"{many} threads / {few}",
        f"{many} processes / {few}",
        "pool / processes",
        "threads busy",
    )
    print(f"\n{'work':24} rounds  " + "  ".join(f"{head:16}" for head in heads))
    rows: list[Row] = []
    for work in works:
        passes = passes_of(work)
        begin = partial(processes, bare_loop, partial(batches, work), passes=passes)
        with begin(count=few) as few_processes, begin(count=many) as many_processes:
            rows.append(
                _gain(
                    work, (few, many), (few_processes, many_processes), passes=passes, rounds=rounds
                )
            )
    return rows


def _gain(work: Work, threads: tuple[int, int], alone: Pair, *, passes: int, rounds: int) -> Row:
    few, many = threads
    one = fastload(work, few, passes)
    pool = fastload(work, many, passes)
    times: list[list[Times]] = []
    sides: dict[str, Pair] = {"pool": (one, lambda: times.append(pool())), "processes": alone}
    found: dict[str, list[float]] = {"pool": [], "processes": [], "of_processes": [], "busy": []}
    for turn in _turns(rounds):
        for kind, pair in sides.items():
            slow, fast = both(*pair, turn)
            if turn:  # the first round fills caches and starts threads
                found[kind].append(slow.wall_s / fast.wall_s)
            if turn and kind == "pool":
                found["busy"].append(inside_s(times[-1]) / (many * fast.wall_s))
    found["of_processes"] = [
        pool / best for pool, best in zip(found["pool"], found["processes"], strict=True)
    ]
    print(
        f"{work.name:24} {len(found['pool']):6}  "
        + "  ".join(f"{spread(values):16}" for values in found.values()),
        flush=True,
    )
    return row_of(work.name, found, threads=many, beside=few, bar=GAIN_BAR)


@contextmanager
def processes(
    loop: Callable[[DecodeBatch], object],
    batches: Callable[[], list[DecodeBatch]],
    *,
    count: int,
    passes: int,
) -> Iterator[Callable[[], None]]:
    """Starts ``count`` processes, each with its share of the batches.

    Yields a function that runs ``loop`` over all batches once.
    """
    # fork, because the recipes of a work cannot be pickled.
    context = multiprocessing.get_context("fork")
    pipes = [context.Pipe() for _ in range(count)]

    def serve(connection: Connection, first: int) -> None:
        share = batches()[first::count] * passes
        while connection.recv():
            for batch in share:
                loop(batch)
            connection.send(None)

    started = [
        context.Process(target=serve, args=(child, first), daemon=True)
        for first, (_, child) in enumerate(pipes)
    ]
    for process in started:
        process.start()

    def run() -> None:
        for parent, _ in pipes:
            parent.send(True)
        for parent, _ in pipes:
            parent.recv()

    try:
        yield run
    finally:
        for (parent, _), process in zip(pipes, started, strict=True):
            parent.send(False)
            process.join()
