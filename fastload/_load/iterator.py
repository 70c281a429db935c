"""The iterator of a loader, which delivers the batches of one epoch to the trainer."""

from __future__ import annotations

import contextlib
import os
import threading
import time
from typing import TYPE_CHECKING, Any

from fastload._load.batch import Batch, Failed, PendingBatch, Progress
from fastload._load.collator import Uncollated
from fastload._load.pipeline import Driver, plan_batches
from fastload._load.prefetch import Prefetcher
from fastload._load.read_ahead import ReadAhead
from fastload._order.epoch_state import EpochState
from fastload._plan.draw_ids import sample_ids
from fastload._store.dataset import Dataset
from fastload.errors import FastloadError, WorkerDied

if TYPE_CHECKING:
    from fastload._load.loader import DataLoader

_MAX_NAMED = 8  # samples in the message of a timeout
_NAMING_S = 1.0  # maximum time to find the names of their files


class LoaderIterator:
    """Delivers batches. Dropping it (an early ``break``) stops its background work.

    A loader may have several iterators at once.
    """

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
        planner.cache.begin()
        self._pass = current
        self._done = current.start
        self._progress = Progress()
        reader = ReadAhead(loader.selected, blocks=loader.blocks)
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
        """Starts again with the epoch that was set after iter()."""
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
                "the iterator was created in another process, before a fork: "
                "call iter(loader) in this process"
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
            if not self._prefetcher.stopped:  # otherwise it was closed, or has already ended
                self._order.ended(self._pass)
            self._prefetcher.stop()
            raise StopIteration
        if isinstance(item, Batch) and isinstance(item.data, Uncollated):
            item = self._collated(item.data, item.n_samples)
        if isinstance(item, Failed):
            self._commit()  # the error replaces a batch; the next call returns the next batch
            error, item = item.error, None
            try:
                if isinstance(error, StopIteration):  # a `for` loop would end without an error
                    raise RuntimeError(
                        "building a batch raised StopIteration. Check next() calls in collate_fn"
                    ) from error
                raise error
            finally:
                # Breaks the cycle error -> traceback -> this frame -> error. Otherwise the pass
                # would not end before the next garbage collection.
                del error
        batch = loader.pipeline.transfer.receive(item.data)
        n_samples = item.n_samples
        loader.thread_scaler.delivered(waited=n_ready == 0)
        # A user's sampler must not be drawn earlier than torch would.
        if not self._order.draws_in_trainer and loader.depth_scaler.delivered(n_ready):
            self._prefetcher.request_next()
        loader.stats_collector.delivered(
            n_samples,
            n_samples * loader.images_per_sample,
            waited_s=time.perf_counter() - started,
            n_ready=n_ready,
        )
        self._commit()  # last, so that a Ctrl-C before it neither counts nor loses the batch
        return batch

    def _collated(self, data: Uncollated, n_samples: int) -> Batch | Failed:
        """Runs the collate_fn. After Ctrl-C, the next call of ``next`` runs it again."""
        pipeline = self._loader.pipeline
        try:
            with pipeline.transfer.stream():  # it may use pixels that are still queued
                collated = data.collate()
            return Batch(pipeline.send(collated), n_samples)
        except Exception as error:  # noqa: BLE001 - raised in place of the batch
            return Failed.of(error)

    def __len__(self) -> int:
        return len(self._loader)  # of a complete epoch, as for torch's iterators

    @property
    def at_end(self) -> bool:
        """Whether the newest batch is the last one of the pass. False if the length is unknown."""
        return bool(self._done >= self._order.n_batches(self._pass))

    def close(self) -> None:
        """Stops the background work."""
        self._prefetcher.stop()

    def _commit(self) -> None:
        self._prefetcher.commit(self._count)

    def _count(self) -> None:
        # Ctrl-C is raised when a call starts. Nothing has changed before this call returns.
        self._order.delivered(self._pass, self._done + 1)
        self._done += 1

    def _timeout(self) -> RuntimeError:
        """Returns an error that names the samples that the loader is waiting for."""
        loader = self._loader
        working_on = self._progress.working_on
        found: list[int]
        where = "this batch"
        if isinstance(working_on, PendingBatch):
            found = loader.pipeline.undecoded(working_on).tolist()
        else:
            found = [i for ids in working_on for i in sample_ids(ids).tolist()]
            where = "these batches" if len(working_on) > 1 else where
        names = ", ".join(_named(loader.packed, found[:_MAX_NAMED]))
        more = len(found) - _MAX_NAMED
        return RuntimeError(
            f"no batch within timeout={loader.timeout_s} s. "
            f"Waiting for sample{'s' * (len(found) != 1)} {names}"
            + (f" and {more} more of {where}" if more > 0 else "")
        )


def _named(dataset: Dataset, ids: list[int]) -> list[str]:
    """Returns the names of samples with their shard and original file.

    The file name is in the record. If the disk hangs, reading the name hangs as well, so a thread
    reads it.
    """
    sources: dict[int, str] = {}

    def read() -> None:
        for i in ids:
            # Damaged records are reported when their batch is delivered.
            with contextlib.suppress(FastloadError, OSError):
                sources[i] = f", {dataset.source(i)}"

    thread = threading.Thread(target=read, name="fastload-naming", daemon=True)
    thread.start()
    thread.join(_NAMING_S)
    return [f"{i} ({dataset.reader(i).shard.name}{sources.get(i, '')})" for i in ids]
