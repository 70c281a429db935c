"""An ordered, bounded map over threads: results come in the order of the items, and few items are in flight."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

Item = TypeVar("Item")
Result = TypeVar("Result")


def ordered_map(function: Callable[[Item], Result], items: Iterable[Item], *, jobs: int) -> Generator[Result, None, None]:
    """``map(function, items)`` on ``jobs`` threads; at most 2 * jobs + 2 items are under way or waiting to be taken.

    What ``function`` raises is raised here, in its turn; the items behind it are dropped. Closing the iterator early
    waits for the calls that have begun, and starts no other.
    """
    pool = ThreadPoolExecutor(jobs, thread_name_prefix="fastload-pack")
    pending: deque[Future[Result]] = deque()
    try:
        for item in items:
            pending.append(pool.submit(function, item))
            if len(pending) > 2 * jobs + 1:
                yield pending.popleft().result()
        while pending:
            yield pending.popleft().result()
    finally:
        pool.shutdown(wait=True, cancel_futures=True)
