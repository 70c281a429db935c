"""An ordered, bounded map over threads: results come in the order of the items, and few items are in flight."""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Callable, Generator, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

Item = TypeVar("Item")
Result = TypeVar("Result")


def ordered_map(
    function: Callable[[Item], Result],
    items: Iterable[Item],
    *,
    jobs: int,
    together: Callable[[], int] = lambda: 1,
) -> Generator[Result, None, None]:
    """``map(function, items)`` on ``jobs`` threads; at most 2 * jobs + 2 items are under way or waiting to be taken.

    What ``function`` raises is raised here, in its turn; the items behind it are dropped. Closing the iterator early
    waits for the calls that have begun, and starts no other. ``together`` says how many items a thread takes at a time
    (the bound is then on these): handing over costs as much for one as for eight.
    """
    pool = ThreadPoolExecutor(jobs, thread_name_prefix="fastload-pack")
    pending: deque[tuple[Future[None], list[Result]]] = deque()
    left = iter(items)

    def taken() -> Generator[Result, None, None]:
        future, results = pending.popleft()
        future.exception()  # waits
        yield from results
        future.result()  # raises

    try:
        while chunk := list(itertools.islice(left, together())):
            results: list[Result] = []
            pending.append((pool.submit(_each, function, chunk, results), results))
            if len(pending) > 2 * jobs + 1:
                yield from taken()
        while pending:
            yield from taken()
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


def _each(function: Callable[[Item], Result], items: Sequence[Item], results: list[Result]) -> None:
    for item in items:
        results.append(function(item))
