"""What the machine can give at best: the decode works as bare loops in processes of their own, which share nothing."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection

from fastload._decode.backend import DecodeBatch


@contextmanager
def processes(
    loop: Callable[[DecodeBatch], object],
    batches: Callable[[], list[DecodeBatch]],
    *,
    count: int,
    passes: int,
) -> Iterator[Callable[[], None]]:
    """Runs ``loop`` over the batches in ``count`` processes, each with its share of them; yields what runs all of them once."""
    context = multiprocessing.get_context(
        "fork"
    )  # they inherit the work, whose recipes cannot be pickled
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
