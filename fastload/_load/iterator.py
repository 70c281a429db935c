"""One pass over the data: what ``iter(loader)`` returns."""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import lmdb
import numpy as np
from numpy.typing import NDArray

from fastload._load.builder import BatchMaker, Begun
from fastload._load.prefetch import Feeder
from fastload._load.read_ahead import ReadAhead
from fastload._load.ready_queue import Failed
from fastload._load.together import Together
from fastload._load.torch_compat.dataset_view import samples_of
from fastload._load.transfer import Transfer
from fastload._store.dataset import Dataset
from fastload.errors import FastloadError, WorkerDied

if TYPE_CHECKING:
    from fastload._load.loader import DataLoader

Ids = NDArray[np.int64]
Shape = Callable[[dict[str, Any]], Any]
PassT = TypeVar("PassT")
_NAMED = 8  # samples that a timeout names
_NAMING_S = 1.0  # what it waits for the names of their files


class Order(Protocol[PassT]):
    """Which batches come: the loader's own order, or a user's sampler."""

    @property
    def draws_here(self) -> bool:
        """Ids are to be drawn in the trainer's thread."""

    @property
    def horizon(self) -> int:
        """Samples to read ahead of the order."""

    @property
    def withdrawn(self) -> PassT | None:
        """An iteration whose epoch was named anew before its first batch."""

    def begin(self) -> PassT:
        """The next iteration."""

    def batches(self, current: PassT, /) -> Iterator[Ids]:
        """Its batches."""

    def n_batches(self, current: PassT, /) -> float:
        """How many there are, those before a resume included; infinite where nobody knows."""

    def delivered(self, current: PassT, done: int, /) -> None:
        """So many batches went to the trainer."""

    def ended(self, current: PassT, /) -> None:
        """The trainer has seen the end."""


class LoaderIterator:
    """Dropping it (an early ``break``) ends its work; several of one loader may run at once."""

    def __init__(self, loader: DataLoader) -> None:
        self._loader, self._pid = loader, os.getpid()
        loader.stats_collector.asked()
        loader.depth_keeper.started()
        self._order = _order_of(loader)
        self._feeder = self._started(self._order.begin())

    def _started(self, current: Any) -> Feeder[Begun, tuple[Any, int]]:
        loader, order = self._loader, self._order
        self._pass, self._done = current, current.start
        reader = ReadAhead(loader.packed, block=loader.block_samples)
        self._maker = EpochMaker(loader.maker, self._pass.epoch, loader.transfer, loader.collating)
        batches, together = order.batches(self._pass), self._maker.together
        if order.draws_here:
            batches = reader.before(batches, order.horizon)
        else:
            batches = together.passing(reader.before(batches, order.horizon, together.at_once))
        return Feeder(self._maker, batches, ahead=loader.ahead, draw_here=order.draws_here)

    def _start_again(self) -> None:
        """In the epoch that was named after iter()."""
        before, current = self._pass, self._order.begin()
        if current == before:
            self._pass = current
        else:
            self._feeder.stop()
            self._feeder = self._started(current)

    def __iter__(self) -> LoaderIterator:
        return self

    def __next__(self) -> Any:
        if os.getpid() != self._pid:
            raise WorkerDied(
                "this iterator belongs to the process that made it, before the fork: call iter(loader) in this one"
            )
        started, loader = time.perf_counter(), self._loader
        if self._order.withdrawn is self._pass and not self._feeder.stopped:
            self._start_again()
        ready = self._feeder.n_ready
        try:
            item = self._feeder.next(loader.timeout_s)
        except TimeoutError:
            raise self._late() from None
        if item is None:
            if not self._feeder.stopped:  # else it was closed on the way, or has ended before
                self._order.ended(self._pass)
            self._feeder.stop()
            raise StopIteration
        if isinstance(item, Failed):
            self._took()  # it stands in the place of a batch: who goes on gets the next one
            error, item = item.error, None
            try:
                if isinstance(
                    error, StopIteration
                ):  # a `for` would take it for the end of the epoch
                    raise RuntimeError(
                        "a batch was not made: StopIteration was raised, as by next() in collate_fn"
                    ) from error
                raise error
            finally:
                del error  # its traceback holds this frame: only the collector would part them, and end this pass
        batch, n_samples = item
        received = loader.transfer.receive(batch)
        loader.thread_keeper.delivered(waited=ready == 0)
        if not self._order.draws_here and loader.depth_keeper.delivered(
            ready
        ):  # a user's sampler must not be asked earlier
            self._feeder.deepen()
        loader.stats_collector.delivered(
            n_samples, n_samples * loader.images_per_sample, time.perf_counter() - started, ready
        )
        self._took()  # last: a Ctrl-C before this neither counts the batch nor loses it
        return received

    def __len__(self) -> int:
        return len(self._loader)  # of a whole epoch, as torch's iterators say

    @property
    def at_end(self) -> bool:
        """The batch that came last is the last one, as far as can be known."""
        return bool(self._done >= self._order.n_batches(self._pass))

    def close(self) -> None:
        """Ends the pass; also done when the iterator is dropped."""
        self._feeder.stop()

    def _took(self) -> None:
        self._feeder.took(self._count)

    def _count(self) -> None:
        self._order.delivered(
            self._pass, self._done + 1
        )  # Ctrl-C is raised where a call begins: here nothing has changed yet
        self._done += 1

    def _late(self) -> RuntimeError:
        """Says which samples the loader is waiting for."""
        loader, begun, preparing = (
            self._loader,
            self._maker.waiting_for,
            self._maker.together.preparing,
        )
        found = (
            loader.maker.unfinished(begun)
            if begun is not None
            else np.concatenate(preparing)
            if preparing
            else self._feeder.oldest
        )
        ids, whole = found.tolist(), "these batches" if preparing else "this batch"
        names = ", ".join(_named(loader.packed, ids[:_NAMED]))
        return RuntimeError(
            f"no batch within timeout={loader.timeout_s} s; being loaded: sample{'s' * (len(ids) != 1)} {names}"
            + (f" and {len(ids) - _NAMED} more of {whole}" if len(ids) > _NAMED else "")
        )


def _named(dataset: Dataset, ids: list[int]) -> list[str]:
    """Samples with shard and original file. That name is in the record: if the disk is what hangs, whoever reads it hangs, too."""
    sources: dict[int, str] = {}

    def read() -> None:
        for i in ids:
            with contextlib.suppress(
                FastloadError, OSError, lmdb.Error
            ):  # a damaged record is told when its batch comes
                sources[i] = f", {dataset.source(i)}"

    thread = threading.Thread(target=read, name="fastload-naming", daemon=True)
    thread.start()
    thread.join(_NAMING_S)
    return [f"{i} ({dataset.reader(i).shard.name}{sources.get(i, '')})" for i in ids]


def _order_of(loader: DataLoader) -> Order[Any]:
    return loader.order


class EpochMaker:
    """What the feeder needs of the loader, with the epoch fixed; it knows neither loader nor iterator."""

    def __init__(
        self, maker: BatchMaker, epoch: int, transfer: Transfer, collating: Collating
    ) -> None:
        self._maker, self._epoch, self._transfer, self._collating = (
            maker,
            epoch,
            transfer,
            collating,
        )
        self.together = Together(maker, epoch)
        self.waiting_for: Begun | None = None

    def begin(self, ids: Ids) -> Begun:
        """Starts work on a batch."""
        return self._maker.begin(ids, self._epoch, self.together.take(ids))

    def done(self, begun: Begun) -> bool:
        """All its images are decoded."""
        return self._maker.done(begun)

    def finish(self, begun: Begun) -> tuple[Any, int]:
        """The batch as the user gets it, on its device, and how many samples it has."""
        n = len(begun.ids)
        self.waiting_for = begun
        try:
            batch = self._maker.finish(begun, lambda values: self._collating(values, n))
        finally:
            self.waiting_for = None
        started = time.perf_counter()
        sent = self._transfer.send(batch)
        self._maker.stats.took("copy", time.perf_counter() - started)
        return sent, n


class Collating:
    """From the values of a batch to what the user gets: a dict or tuple, what his collate_fn makes of the samples, or one sample."""

    def __init__(
        self, maker: BatchMaker, collate_fn: Callable[[Any], Any] | None, *, batched: bool
    ) -> None:
        self._spec, self._collate, self._batched = maker.spec, collate_fn, batched

    def __call__(self, values: dict[str, Any], n: int) -> Any:
        """What the user gets."""
        if not self._batched:
            sample = samples_of(values, n, self._spec)[0]
            return sample if self._collate is None else self._collate(sample)
        if self._collate is not None:
            return self._collate(samples_of(values, n, self._spec))
        return tuple(values.values()) if self._spec.as_tuple else values
