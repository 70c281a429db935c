"""One pass over the data: what ``iter(loader)`` returns."""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import lmdb

from fastload._load.batch import Failed, PendingBatch, Progress, Values, split_samples
from fastload._load.pipeline import Driver, plan_batches
from fastload._load.prefetch import Prefetcher
from fastload._load.read_ahead import ReadAhead
from fastload._load.spec import LoadSpec
from fastload._order.epoch_state import EpochState
from fastload._store.dataset import Dataset
from fastload.errors import FastloadError, WorkerDied

if TYPE_CHECKING:
    from fastload._load.loader import DataLoader

_MAX_NAMED = 8  # samples that a timeout names
_NAMING_S = 1.0  # time to find the names of their files


class LoaderIterator:
    """The consumer. Dropping it (an early ``break``) ends its work; a loader may have several at once."""

    def __init__(self, loader: DataLoader) -> None:
        self._loader = loader
        self._pid = os.getpid()
        loader.stats_collector.requested()
        loader.depth_scaler.started()
        self._order: EpochState[Any] = loader.order
        self._prefetcher = self._start(self._order.begin())

    def _start(self, current: Any) -> Prefetcher:
        loader = self._loader
        order = self._order
        planner = loader.pipeline.planner
        self._pass = current
        self._done = current.start
        self._progress = Progress()
        reader = ReadAhead(loader.packed, block=loader.block_samples)
        drawn = plans = None
        if order.draws_in_trainer:
            drawn = reader.ahead_of(order.batches(current), order.horizon)
        else:
            batches = reader.ahead_of(order.batches(current), order.horizon, planner.group_size)
            plans = plan_batches(planner, batches, current.epoch, self._progress)
        driver = Driver(
            loader.pipeline,
            plans,
            epoch=current.epoch,
            collate=loader.collator,
            progress=self._progress,
        )
        return Prefetcher(driver, depth=loader.ahead, drawn=drawn)

    def _restart(self) -> None:
        """Starts over in the epoch that was set after iter()."""
        before = self._pass
        current = self._order.begin()
        if current == before:
            self._pass = current
        else:
            self._prefetcher.stop()
            self._prefetcher = self._start(current)

    def __iter__(self) -> LoaderIterator:
        return self

    def __next__(self) -> Any:
        if os.getpid() != self._pid:
            raise WorkerDied(
                "this iterator belongs to the process that made it, before the fork: "
                "call iter(loader) in this one"
            )
        started = time.perf_counter()
        loader = self._loader
        if self._order.withdrawn is self._pass and not self._prefetcher.stopped:
            self._restart()
        n_ready = self._prefetcher.n_ready
        try:
            item = self._prefetcher.get(loader.timeout_s)
        except TimeoutError:
            raise self._timeout() from None
        if item is None:
            if not self._prefetcher.stopped:  # else it was closed early, or has ended before
                self._order.ended(self._pass)
            self._prefetcher.stop()
            raise StopIteration
        if isinstance(item, Failed):
            self._commit()  # the error takes the place of a batch: the next call returns the next
            error, item = item.error, None
            try:
                if isinstance(error, StopIteration):  # a `for` would take it for the epoch's end
                    raise RuntimeError(
                        "a batch was not made: StopIteration was raised, as by next() in collate_fn"
                    ) from error
                raise error
            finally:
                # The traceback holds this frame. Only the garbage collector could separate the two,
                # and until then this pass would not end.
                del error
        batch = loader.pipeline.transfer.receive(item.data)
        n_samples = item.n_samples
        loader.thread_scaler.delivered(waited=n_ready == 0)
        # A user's sampler must not be drawn from earlier than torch would.
        if not self._order.draws_in_trainer and loader.depth_scaler.delivered(n_ready):
            self._prefetcher.request_next()
        n_images = n_samples * loader.images_per_sample
        waited_s = time.perf_counter() - started
        loader.stats_collector.delivered(n_samples, n_images, waited_s, n_ready)
        self._commit()  # last: a Ctrl-C before this neither counts the batch nor loses it
        return batch

    def __len__(self) -> int:
        return len(self._loader)  # of a whole epoch, as torch's iterators say

    @property
    def at_end(self) -> bool:
        """The last batch that was returned is the last of the pass, as far as can be known."""
        return bool(self._done >= self._order.n_batches(self._pass))

    def close(self) -> None:
        """Ends the pass; also done when the iterator is dropped."""
        self._prefetcher.stop()

    def _commit(self) -> None:
        self._prefetcher.commit(self._count)

    def _count(self) -> None:
        # Ctrl-C is raised where a call begins: until this call returns, nothing has changed.
        self._order.delivered(self._pass, self._done + 1)
        self._done += 1

    def _timeout(self) -> RuntimeError:
        """The error that says which samples the loader is waiting for."""
        loader = self._loader
        working_on = self._progress.working_on
        found: list[int]
        where = "this batch"
        if isinstance(working_on, PendingBatch):
            found = loader.pipeline.undecoded(working_on).tolist()
        else:
            found = [i for ids in working_on for i in ids.tolist()]
            where = "these batches" if len(working_on) > 1 else where
        names = ", ".join(_named(loader.packed, found[:_MAX_NAMED]))
        more = len(found) - _MAX_NAMED
        return RuntimeError(
            f"no batch within timeout={loader.timeout_s} s; "
            f"being loaded: sample{'s' * (len(found) != 1)} {names}"
            + (f" and {more} more of {where}" if more > 0 else "")
        )


def _named(dataset: Dataset, ids: list[int]) -> list[str]:
    """Samples with shard and original file.

    The file name is in the record. If the disk hangs, reading the name hangs, too, hence the thread.
    """
    sources: dict[int, str] = {}

    def read() -> None:
        for i in ids:
            # A damaged record is reported when its batch is delivered.
            with contextlib.suppress(FastloadError, OSError, lmdb.Error):
                sources[i] = f", {dataset.source(i)}"

    thread = threading.Thread(target=read, name="fastload-naming", daemon=True)
    thread.start()
    thread.join(_NAMING_S)
    return [f"{i} ({dataset.reader(i).shard.name}{sources.get(i, '')})" for i in ids]


class Collator:
    """From the values of a batch to what the user receives.

    That is a dict or a tuple, the result of their collate_fn, or one sample.
    """

    def __init__(
        self, spec: LoadSpec, collate_fn: Callable[[Any], Any] | None, *, batched: bool
    ) -> None:
        self._as_tuple = spec.as_tuple
        self._collate_fn = collate_fn
        self._batched = batched

    def __call__(self, values: Values, n: int) -> Any:
        if self._batched and self._collate_fn is None:
            return tuple(values.values()) if self._as_tuple else values
        samples = split_samples(values, n, as_tuple=self._as_tuple)
        given = samples if self._batched else samples[0]
        return given if self._collate_fn is None else self._collate_fn(given)
