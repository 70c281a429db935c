"""What the native pool costs and gains: beside a bare loop over the same calls, and with many threads beside one (benchmarks/decode.py).

A bare loop has no queue and no other thread: what two of them side by side, in processes of their own, do not reach, the machine
does not have.
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

import numpy as np
from numpy.typing import NDArray

from benchmarks.decode_rows import Row, row_of
from benchmarks.machine import spread
from benchmarks.works import Work
from fastload._common.native import core
from fastload._decode.backend import DecodeBatch
from fastload._decode.native import NativeBackend, NativeTicket

Sample = tuple[float, float]  # seconds by the clock, seconds of processor time
Times = NDArray[np.uint32]  # nanoseconds, by sample and stage
Pair = tuple[Callable[[], object], Callable[[], object]]  # with few threads, with many
IN_FLIGHT = 4  # batches: what a loader has under way
GAIN_BAR = 1.9  # two threads over one
HANDOVER_BAR = 2.0  # percent of a bare loop's time
SHORTEST_S = 6.0  # a work's rounds together: short rounds are repeated more often
SHORTEST_RUN_S = (
    0.6  # one thread's side of a round: at its end a thread may wait for the other's last sample
)


def timed(run: Callable[[], object]) -> Sample:
    """Seconds by the clock and of processor time."""
    wall = time.perf_counter()
    cpu = time.process_time()
    run()
    return time.perf_counter() - wall, time.process_time() - cpu


def batches(work: Work) -> list[DecodeBatch]:
    """The batch, with its own output each time, as often as a loader has batches in flight."""
    return [work.batch() for _ in range(IN_FLIGHT)]


def fastload(
    work: Work, threads: int, passes: int = 1, under_way: list[DecodeBatch] | None = None
) -> Callable[[], list[Times]]:
    """The native backend with several batches under way, as the loader uses it; returns the stage times of each.

    They are added up when the clock has stopped: beside two threads on two processors, numpy's 60 us a batch are taken from them.
    """
    backend = NativeBackend(threads=threads)
    under_way = under_way or batches(work)

    def run() -> list[Times]:
        tickets: deque[NativeTicket] = deque()
        times: list[Times] = []
        for i in range(passes * IN_FLIGHT + IN_FLIGHT):
            if i >= IN_FLIGHT:
                result = backend.collect(tickets.popleft())
                result.raise_first()
                times.append(result.times_ns)
            if i < passes * IN_FLIGHT:
                tickets.append(backend.submit(under_way[i % IN_FLIGHT]))
        return times

    return run


def inside_s(times: list[Times]) -> float:
    """Seconds inside the samples of a run."""
    return sum(int(batch.sum()) for batch in times) / 1e9


def passes_of(work: Work) -> int:
    """How often to go over the batches so that a run takes a while: a loader begins and ends once an epoch."""
    batch = batches(work)[0]
    bare_loop(batch)  # its output's pages come into being: for raw pixels, half of the first time
    return max(1, round(SHORTEST_RUN_S / (IN_FLIGHT * bare_loop(batch)[0])))


def bare_loop(batch: DecodeBatch) -> tuple[float, float]:
    """Seconds of the loop, by its own clock, and of the samples in it, by theirs."""
    module = core()
    if module is None:
        raise SystemExit("the native core is not built: nothing to measure")
    pixels = batch.pixels
    seconds: tuple[float, float] = module.Pool.bare_loop(
        batch.sources,
        batch.requests,
        batch.output,
        planar=pixels.layout == "nchw",
        color=0,
        fill=(0, 0, 0),
        mean=pixels.mean_values(3),
        std=pixels.std_values(3),
    )
    return seconds


def handover(works: list[Work], *, rounds: int) -> list[Row]:
    """What submitting, queueing, waking up and collecting cost on one thread, against a bare C++ loop over the same calls.

    Both decode on the same processor. Two whole runs differ by the machine's mood, too; what a run takes beside the time
    inside its samples hardly does. A bare loop has some of that as well: reading the clock, and what a sample still writes when it
    has read it.
    """
    available = os.sched_getaffinity(0)
    one = {max(available)}
    bare_thread = ThreadPoolExecutor(1, initializer=os.sched_setaffinity, initargs=(0, one))
    print(
        f"\n{'work':24} rounds  handing over, in % of the bare loop's time (wall); of its processor time; "
        "wall time outside the samples, in % of that inside; the same of the bare loop; what the pool has more"
    )
    rows: list[Row] = []
    for work in works:
        passes = passes_of(work)
        # The same memory for both: large pages, where the system has any, would serve one of them
        under_way = batches(work)
        run = fastload(work, 1, passes, under_way)
        # The pool's thread begins with the first batch, and inherits this
        os.sched_setaffinity(0, one)
        run()
        os.sched_setaffinity(0, available)
        rows.append(
            _handed_over(work, run, partial(_loops, bare_thread, under_way * passes), rounds=rounds)
        )
    return rows


def _loops(thread: ThreadPoolExecutor, under_way: list[DecodeBatch]) -> list[Sample]:
    return list(thread.map(bare_loop, under_way))


def _handed_over(
    work: Work, pool: Callable[[], list[Times]], bare: Callable[[], list[Sample]], *, rounds: int
) -> Row:
    times: list[list[Times]] = []
    loops: list[list[Sample]] = []
    found: dict[str, list[float]] = {
        name: [] for name in ("wall", "cpu", "outside", "outside_bare", "more")
    }
    for turn in _turns(rounds):
        pool_s, bare_s = both(lambda: times.append(pool()), lambda: loops.append(bare()), turn)
        if turn:  # the first round fills caches and starts threads
            loop_s, loop_inside_s = (sum(column) for column in zip(*loops[-1], strict=True))
            outside = pool_s[0] / inside_s(times[-1]) - 1
            outside_bare = loop_s / loop_inside_s - 1
            measured = (
                pool_s[0] / loop_s - 1,
                pool_s[1] / bare_s[1] - 1,
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
) -> tuple[Sample, Sample]:
    """Times both, the second before the first in every other turn: what one leaves in the caches serves the other."""
    if turn % 2:
        late = timed(second)
        early = timed(first)
        return early, late
    return timed(first), timed(second)


def _turns(rounds: int) -> Iterator[int]:
    """The first does not count."""
    begin = time.perf_counter()
    turn = 0
    while turn <= rounds or time.perf_counter() - begin < SHORTEST_S:
        yield turn
        turn += 1


def gains(works: list[Work], *, threads: list[int], rounds: int) -> list[Row]:
    """How much faster many threads are than one; beside it bare loops in as many processes, which is what the machine gives."""
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
                found[kind].append(slow[0] / fast[0])
            if turn and kind == "pool":
                found["busy"].append(inside_s(times[-1]) / (many * fast[0]))
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
    """Runs ``loop`` over the batches in ``count`` processes, each with its share of them; yields what runs all of them once."""
    # They inherit the work, whose recipes cannot be pickled
    context = multiprocessing.get_context("fork")
    pipes = [context.Pipe() for _ in range(count)]

    def serve(connection: Connection, first: int) -> None:
        share = batches()[first::count] * passes
        while connection.recv():
            for batch in share:
                loop(batch)
            connection.send(None)

    started = [
        context.Process(target=serve, args=(theirs, first), daemon=True)
        for first, (_, theirs) in enumerate(pipes)
    ]
    for process in started:
        process.start()

    def run() -> None:
        for ours, _ in pipes:
            ours.send(True)
        for ours, _ in pipes:
            ours.recv()

    try:
        yield run
    finally:
        for (ours, _), process in zip(pipes, started, strict=True):
            ours.send(False)
            process.join()
