"""The load path: plans batches, submits their images to the decode threads, finishes them.

    for planned in plan_batches(planner, batches, epoch):   # plans several batches per NumPy call
        pending = pipeline.submit(planned)                  # starts the decode threads
        batch = pipeline.finish(pending, collate)           # waits, adds labels, collates

``Driver`` runs these stages with several batches in flight. It serves the background thread of the
iterator (prefetch.py), ``loader.dataset[i]`` and the measurement of backends.
"""

from __future__ import annotations

import copy
import itertools
import time
from collections import deque
from collections.abc import Callable, Iterator

import numpy as np
import torch
from numpy.typing import NDArray

from fastload._decode.backend import STAGES, DecodeResult, Status
from fastload._load.batch import (
    Batch,
    Failed,
    Ids,
    PendingBatch,
    PendingField,
    PlannedBatch,
    Progress,
    Values,
)
from fastload._load.buffers import BufferPool
from fastload._load.chunk_cache import RecordCache
from fastload._load.collator import Uncollated
from fastload._load.decoder import Decoder
from fastload._load.faults import FaultPolicy, Faults, bad_sample, substitutes
from fastload._load.images import ImageDecoder
from fastload._load.labels import collate_field, keep_rows, move_labels, read_labels
from fastload._load.planning import MAX_REPLACEMENTS, Planner
from fastload._load.records import damaged
from fastload._load.spec import LoadedField, LoadSpec
from fastload._load.stats import StatsCollector
from fastload._load.transfer import Stay, Transfer
from fastload._plan.draw_ids import sample_ids
from fastload._store.dataset import Dataset
from fastload._store.fields import Field, misaligned
from fastload.errors import BadImage, FastloadError, RecordError

N_SINGLE = 64  # batches that are planned one by one after a group could not be planned together
Collate = Callable[[Values, PlannedBatch], object]  # makes the user's batch


def plan_batches(
    planner: Planner, batches: Iterator[Ids], epoch: int, progress: Progress
) -> Iterator[PlannedBatch | Failed]:
    """Plans the batches of an epoch in order and in groups.

    The first groups are small, because the trainer waits for the first batch. Yielded values are
    not assigned to a variable: the suspended generator would keep the batch alive.
    """
    group_size = 1
    n_single = 0
    while group := list(itertools.islice(batches, 1 if n_single else group_size)):
        n_single = max(0, n_single - 1)
        planned: deque[PlannedBatch] = deque()
        if len(group) > 1:
            progress.working_on = group
            planned = planner.plan_group(group, epoch)
            n_single = 0 if planned else N_SINGLE
        group_size = min(2 * group_size, planner.group_size(len(group[0])))
        for ids in group:
            yield planned.popleft() if planned else _plan_one(planner, ids, epoch, progress)


def _plan_one(planner: Planner, ids: Ids, epoch: int, progress: Progress) -> PlannedBatch | Failed:
    progress.working_on = (ids,)
    try:
        return planner.plan(ids, epoch, in_order=True)
    except Exception as error:  # noqa: BLE001 - delivered in place of the batch
        return Failed.of(error)


class Pipeline:
    """The stages of one loader. ``seed`` and the epoch determine all random numbers."""

    def __init__(
        self,
        dataset: Dataset,
        spec: LoadSpec,
        backend: Decoder,
        *,
        seed: int,
        buffers: BufferPool,
        stats: StatsCollector,
        faults: FaultPolicy,
        transfer: Transfer,
        cache: RecordCache | None = None,
    ) -> None:
        self.dataset = dataset
        self.spec = spec
        self.backend = backend
        self.seed = seed
        self.stats = stats
        self.faults = faults
        self.transfer = transfer
        self.images = ImageDecoder(spec, backend, buffers, transfer)
        self._image_fields = {each.name: each for each in spec.image_fields}
        read = {each.name: each for each in (*spec.fields, *spec.rows)}.values()
        # The fields that Python decodes, also boxes that only decide which labels are delivered.
        self._labels = [each for each in read if not each.decoded_by_pool and not each.in_column]
        # Backends verify the checksum of each record in the decode threads. If Python code uses the
        # bytes of a record, they must be verified before.
        in_python = spec.reads_records or not spec.images or not backend.backend.checks_crc
        self.planner = Planner(
            dataset,
            spec,
            seed=seed,
            policy=faults,
            check_crc=in_python,
            cache=cache or RecordCache(None, dataset),
        )

    def on_cpu(self) -> Pipeline:
        """Returns a pipeline that yields CPU tensors and runs in any thread without a stream."""
        if self.transfer.device.type == "cpu":
            return self
        return Pipeline(
            self.dataset,
            self.spec,
            self.backend.on_cpu(),
            seed=self.seed,
            buffers=BufferPool(2),
            stats=StatsCollector(),
            faults=self.faults,
            transfer=Stay(pin=False),
        )

    def submit(self, planned: PlannedBatch) -> PendingBatch:
        """Submits the images and masks to the decode threads without waiting."""
        started = time.perf_counter()
        with self.transfer.stream():  # pixel memory belongs to the stream that allocates it
            fields = tuple(
                self.images.submit(
                    chosen, planned.records, planned.rows[chosen.image or chosen.name]
                )
                for chosen in self.spec.fields
                if chosen.decoded_by_pool
            )
        self.stats.add_time("plan", planned.plan_s + time.perf_counter() - started)
        return PendingBatch(planned, fields)

    def is_decoded(self, pending: PendingBatch) -> bool:
        """Returns whether ``finish`` would return without waiting."""
        return all(self.backend.done(field.ticket) for field in pending.fields)

    def undecoded(self, pending: PendingBatch) -> Ids:
        """Returns the samples that are not decoded yet; all ids if the backend cannot tell."""
        places = {
            slot // field.chosen.items
            for field in pending.fields
            for slot in self.backend.unfinished(field.ticket)
        }
        ids = pending.planned.records.ids
        return ids[sorted(places)] if places else ids

    def finish(self, pending: PendingBatch, collate: Collate | None = None) -> object:
        """Waits for the pixels, adds the labels and collates the batch.

        If all samples of the batch are bad, another batch is planned and decoded in its place.
        """
        requested = pending.planned
        n = len(requested.ids)
        # All of it runs on the stream, because a collate_fn may use pixels that are still queued.
        with self.transfer.stream():
            for n_tries in range(MAX_REPLACEMENTS, -1, -1):
                planned = pending.planned
                faults = dict(planned.faults)
                times_ns = self._collect(pending, faults)
                started = time.perf_counter()
                labels = self._read_labels(planned, faults)
                if len(faults) < n:
                    break
                pending = self.submit(
                    self.planner.replacement(planned.ids, planned.epoch, faults, n_tries)
                )
            if faults:
                self.faults.check(faults, sample_ids(planned.ids))
            values = self._assemble(pending, labels, substitutes(faults, n) if faults else None)
            data = values if collate is None else collate(values, requested)
            self.stats.decoded(times_ns, pending.n_bytes, time.perf_counter() - started)
        return data

    def send(self, data: object) -> object:
        """Starts moving a batch to its device."""
        started = time.perf_counter()
        sent: object = self.transfer.send(data)
        self.stats.add_time("copy", time.perf_counter() - started)
        return sent

    def _collect(self, pending: PendingBatch, faults: Faults) -> NDArray[np.uint32]:
        """Waits for the pixels and returns the stage times; adds failed samples to ``faults``."""
        planned = pending.planned
        times_ns = [np.empty((0, len(STAGES)), np.uint32)]
        for field in pending.fields:
            result = self.backend.collect(field.ticket)
            times_ns.append(result.times_ns)
            if result.reasons or field.faults:
                self._add_faults(planned, field, result, faults)
        # This includes images that are not delivered and only move labels.
        for name, rows in planned.rows.items():
            for slot, why in rows.bad.items():
                place = slot // self._image_fields[name].items
                if place not in faults:
                    faults[place] = bad_sample(self.dataset, planned.records, place, name, why)
        return np.concatenate(times_ns)

    def _add_faults(
        self, planned: PlannedBatch, field: PendingField, result: DecodeResult, faults: Faults
    ) -> None:
        records = planned.records
        items = field.chosen.items
        corrupt: dict[int, object] = {}
        for slot, reason in result.reasons.items():
            status = result.status[slot]
            if status == Status.NO_MEMORY:  # the sample is not bad and must not be substituted
                raise MemoryError(f"decoding sample {records.ids[slot // items]}: {reason}")
            if status == Status.CORRUPT:
                corrupt[slot] = reason
        for slot, why in {**result.reasons, **field.faults, **corrupt}.items():
            place = slot // items
            if place in faults:
                continue
            if slot in corrupt or isinstance(why, RecordError):
                faults[place] = self._damaged(planned, place, str(why))
            else:
                text = why.why if isinstance(why, BadImage) else str(why)
                name = field.chosen.name
                faults[place] = bad_sample(self.dataset, records, place, name, text)

    def _damaged(self, planned: PlannedBatch, place: int, why: str) -> FastloadError:
        self.planner.cache.damaged = True
        records = planned.records
        return damaged(self.dataset, int(records.ids[place]), records.views[place], why)

    def _read_labels(self, planned: PlannedBatch, faults: Faults) -> dict[str, list[object]]:
        """Returns the values that Python decodes; adds samples with bad values to ``faults``."""
        labels: dict[str, list[object]] = {}
        for chosen in self._labels:
            found = read_labels(chosen, planned.records)
            labels[chosen.name] = found.values
            for place, why in found.faults.items():
                if place in faults:
                    continue
                if isinstance(why, BadImage):
                    faults[place] = bad_sample(
                        self.dataset, planned.records, place, chosen.name, why.why
                    )
                else:
                    faults[place] = self._damaged(planned, place, f"field {chosen.name!r}: {why}")
        for rows in self.spec.rows:
            for chosen in self._labels:
                if chosen.field.along == rows.name:
                    self._check_along(planned, chosen.field, rows.field, labels, faults)
        return labels

    def _check_along(
        self,
        planned: PlannedBatch,
        field: Field,
        rows: Field,
        labels: dict[str, list[object]],
        faults: Faults,
    ) -> None:
        """Adds samples to ``faults`` whose values do not have one entry per box."""
        for place, (value, of) in enumerate(
            zip(labels[field.name], labels[rows.name], strict=True)
        ):
            if place not in faults and (why := misaligned(field, value, rows, of)):
                faults[place] = self._damaged(planned, place, f"field {field.name!r}: {why}")

    def _assemble(
        self,
        pending: PendingBatch,
        labels: dict[str, list[object]],
        take: NDArray[np.intp] | None,
    ) -> Values:
        """Returns the values of the batch.

        ``take`` says which sample fills each place; None if no sample was substituted.
        """
        planned = pending.planned
        ids = planned.records.ids
        rows = planned.rows
        places = list(range(len(ids)))
        if take is not None:
            ids = ids[take]
            places = take.tolist()
            rows = {
                name: each.take(_slots(take, self._image_fields[name].items))
                for name, each in rows.items()
            }

        def moved(chosen: LoadedField) -> Values:
            own = [labels[chosen.name][place] for place in places]
            if take is not None:  # two places must not share one mutable object
                own = [copy.deepcopy(each) for each in own]
            image = self._image_fields.get(chosen.image)
            return move_labels(chosen, own, rows.get(chosen.image), image)

        boxes = {each.name: moved(each) for each in self.spec.rows}
        values = Values()
        pixels = iter(pending.fields)
        for chosen in self.spec.fields:
            if chosen.decoded_by_pool:
                values[chosen.name] = self.images.finish(
                    next(pixels), rows[chosen.image or chosen.name], take
                )
            elif chosen.in_column:
                values[chosen.name] = torch.from_numpy(self.dataset.column_rows(chosen.name)[ids])
            else:
                along = chosen.field.along
                own = boxes.get(chosen.name) or moved(chosen)
                if kept := boxes.get(along, {}).get(f"{along}.kept"):
                    own = keep_rows(own, kept)
                values |= collate_field(chosen, own, ids)
        if "id" in self.spec.implicit:
            values["id"] = torch.from_numpy(ids.copy())  # the user may write to it
        if "source" in self.spec.implicit:
            values["source"] = [planned.records.source(place) for place in places]
        if self.spec.return_matrix:
            for name, each in rows.items():
                matrices = each.matrices.astype(np.float32)
                if self._image_fields[name].field.list:
                    matrices = matrices.reshape(len(ids), -1, 3, 3)
                values[f"{name}.matrix"] = torch.from_numpy(matrices)
        return values


def _slots(take: NDArray[np.intp], items: int) -> NDArray[np.intp]:
    slots: NDArray[np.intp] = (take[:, None] * items + np.arange(items)).ravel()
    return slots


class Driver:
    """Keeps batches in flight: starts them in order and finishes the oldest one.

    An error replaces the batch that it belongs to; later batches are still delivered.

    Args:
        pipeline: The stages to run.
        plans: Planned batches for ``start_next``. ``start`` takes ids instead.
        epoch: Default epoch of ``start``.
        collate: Makes the user's batch; None to return the values of the fields.
        send: Move finished batches to their device.
        progress: Receives the ids that are being worked on.
    """

    def __init__(
        self,
        pipeline: Pipeline,
        plans: Iterator[PlannedBatch | Failed] | None = None,
        *,
        epoch: int = 0,
        collate: Collate | None = None,
        send: bool = True,
        progress: Progress | None = None,
    ) -> None:
        self.in_flight: deque[PendingBatch | Failed] = deque()  # oldest first
        self._pipeline = pipeline
        self._plans = iter(()) if plans is None else plans
        self._epoch = epoch
        self._collate = collate
        self._send = send
        self._progress = Progress() if progress is None else progress

    def start_next(self) -> bool:
        """Submits the next of ``plans``; returns False after the last one."""
        try:
            planned = next(self._plans, None)
        except BaseException as error:  # noqa: BLE001 - the order failed and has no next batch
            self.in_flight.append(Failed.of(error))
            return False
        if planned is not None:
            self._submit(planned)
        return planned is not None

    def start(self, ids: Ids, epoch: int | None = None) -> None:
        """Plans and submits the batch with these ids."""
        epoch = self._epoch if epoch is None else epoch
        self._submit(_plan_one(self._pipeline.planner, ids, epoch, self._progress))

    def _submit(self, planned: PlannedBatch | Failed) -> None:
        if isinstance(planned, Failed):
            self.in_flight.append(planned)
            return
        self._progress.working_on = (planned.ids,)
        try:
            self.in_flight.append(self._pipeline.submit(planned))
        except Exception as error:  # noqa: BLE001 - delivered in place of the batch
            self.in_flight.append(Failed.of(error))

    @property
    def is_due(self) -> bool:
        """Whether to finish the oldest batch before another one is started, which may take long.

        True if the oldest batch is decoded and the decode threads have another batch to work on.
        """
        if len(self.in_flight) < 2:
            return False
        oldest = self.in_flight[0]
        return isinstance(oldest, Failed) or self._pipeline.is_decoded(oldest)

    def finish_oldest(self) -> Batch | Failed:
        """Waits for the oldest batch and returns it.

        No reference to the batch may remain here, because its memory is reused.
        """
        pending = self.in_flight.popleft()
        if isinstance(pending, Failed):
            return pending
        self._progress.working_on = pending
        try:
            return self._finish(pending)
        except BaseException as error:  # noqa: BLE001 - the consumer raises it
            return Failed.of(error)
        finally:
            self._progress.working_on = ()

    def _finish(self, pending: PendingBatch) -> Batch:
        pipeline = self._pipeline
        data = pipeline.finish(pending, self._collate)
        if self._send and not isinstance(data, Uncollated):
            data = pipeline.send(data)
        return Batch(data, len(pending.planned.ids))
