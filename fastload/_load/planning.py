"""Reads the records of batches and plans their crops, sizes and random parameters.

The cost of NumPy is per call, and between two batches its code is evicted from the CPU cache, so
``plan_group`` plans several batches with one call. If anything in a group is unusual (a damaged
record, a missing image, different sizes, a shard that cannot be opened), its batches are planned
one by one, so that an error replaces only its own batch.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from fastload._load.batch import Ids, PlannedBatch
from fastload._load.chunk_cache import RecordCache
from fastload._load.faults import FaultPolicy, Faults, bad_sample, substitutes
from fastload._load.records import BatchRecords, read_records, shown_sizes
from fastload._load.spec import LoadSpec
from fastload._plan.draw_ids import sample_ids
from fastload._plan.rows import PlanRows
from fastload._store.dataset import Dataset
from fastload.errors import ConfigError, FastloadError

if TYPE_CHECKING:
    from fastload import _core

GROUP_SAMPLES = 512  # samples planned per call; more would keep the decode threads waiting
GROUP_BATCHES = 4  # minimum number of batches planned per call
# With checksums verified here: the records are still in the CPU cache when their values are copied.
GROUP_BYTES = 4 << 20
MAX_REPLACEMENTS = 8  # batches to try in place of a batch whose samples are all bad


class Planner:
    """Plans the batches of one loader. ``seed`` and the epoch determine all random numbers.

    With ``check_crc`` the checksum of each record is verified when it is read. Otherwise the decode
    threads verify it.
    """

    def __init__(
        self,
        dataset: Dataset,
        spec: LoadSpec,
        *,
        seed: int,
        policy: FaultPolicy,
        check_crc: bool,
        cache: RecordCache,
    ) -> None:
        self.check_crc = check_crc
        self.cache = cache
        self._dataset = dataset
        self._plans = spec.plans
        self._seed = seed
        self._policy = policy
        n_bytes = sum(shard.size for shard in dataset.manifest.shards)
        self._record_bytes = n_bytes / max(1, len(dataset))
        self._image_fields = {each.name: each for each in spec.image_fields}
        decoded = (each for each in (*spec.image_fields, *spec.fields) if each.decoded_by_pool)
        self._decoded_fields = {each.name: each for each in decoded}

    def plan(self, ids: Ids, epoch: int, *, in_order: bool = False) -> PlannedBatch:
        """Plans one batch. Bad samples are substituted or raised.

        ``in_order`` says that the batch is the next one of an epoch.
        """
        chunks = self.cache.chunks_for(in_order=in_order)
        started = time.perf_counter()
        return self._plan(ids, epoch, started, check_crc=self.check_crc, chunks=chunks)

    def _plan(
        self,
        ids: Ids,
        epoch: int,
        started: float,
        *,
        check_crc: bool,
        chunks: _core.ChunkCache | None = None,
    ) -> PlannedBatch:
        records = read_records(self._dataset, sample_ids(ids), check_crc=check_crc, cache=chunks)
        faults: Faults = {**self._incomplete(records), **records.faults}
        try:
            if not faults:
                return self._planned(ids, epoch, records, faults, started)
        except ConfigError:
            if check_crc:
                raise
        if not check_crc:  # the cause may be a damaged record, which the checksum reveals
            return self._plan(ids, epoch, started, check_crc=True)
        while self._policy.on_error != "raise" and len(faults) < len(ids):
            taken = substitutes(faults, len(ids))
            good = read_records(self._dataset, sample_ids(ids[taken]), check_crc=True)
            # A sample that was good before may be damaged now, if the disk fails.
            again = {**self._incomplete(good), **good.faults}
            if not again:
                return self._planned(ids, epoch, good, faults, started)
            faults |= {int(taken[place]): error for place, error in again.items()}
        return self.replacement(ids, epoch, faults)

    def _planned(
        self, ids: Ids, epoch: int, records: BatchRecords, faults: Faults, started: float
    ) -> PlannedBatch:
        drawn = ids[substitutes(faults, len(ids))] if faults else ids
        rows = self._rows(records, drawn, epoch)
        return PlannedBatch(ids, epoch, records, rows, faults, time.perf_counter() - started)

    def replacement(
        self, ids: Ids, epoch: int, faults: Faults, n_tries: int = MAX_REPLACEMENTS
    ) -> PlannedBatch:
        """Plans another batch in place of one whose samples are all bad.

        Raises the error of the first sample if the policy does not allow it, or if the other
        batches are bad as well.
        """
        started = time.perf_counter()
        ids = sample_ids(ids)
        self._policy.check(faults, ids)
        n = len(self._dataset)
        for number in range(1, n_tries + 1):
            others = (ids + number * (n // (MAX_REPLACEMENTS + 1) + 1)) % n
            records = read_records(self._dataset, others, check_crc=True)
            if not self._incomplete(records) and not records.faults:
                return self._planned(others, epoch, records, {}, started)
        raise faults[min(faults)]

    def plan_group(self, batches: Sequence[Ids], epoch: int) -> deque[PlannedBatch]:
        """Plans several batches; returns an empty deque if they must be planned one by one."""
        started = time.perf_counter()
        planned: deque[PlannedBatch] = deque()
        try:
            ids = np.concatenate(batches)
            records = read_records(
                self._dataset,
                sample_ids(ids),
                check_crc=self.check_crc,
                cache=self.cache.chunks_for(in_order=True),
            )
            if records.faults or self._incomplete(records):
                return planned
            rows = self._rows(records, ids, epoch)
        except (FastloadError, OSError, MemoryError):
            return planned
        if any(each.bad for each in rows.values()):
            return planned
        plan_s = (time.perf_counter() - started) / len(batches)
        items = {name: self._image_fields[name].items for name in rows}
        first = 0
        for own_ids in batches:
            last = first + len(own_ids)
            own_rows = {
                name: each.take(slice(first * items[name], last * items[name]))
                for name, each in rows.items()
            }
            planned.append(
                PlannedBatch(own_ids, epoch, records.slice(first, last), own_rows, {}, plan_s)
            )
            first = last
        return planned

    def group_size(self, batch_size: int) -> int:
        """Returns how many batches of this size are planned per call."""
        batch_size = max(1, batch_size)
        if not self.check_crc:
            return max(GROUP_BATCHES, GROUP_SAMPLES // batch_size)
        return max(1, int(min(GROUP_SAMPLES, GROUP_BYTES / self._record_bytes)) // batch_size)

    def _incomplete(self, records: BatchRecords) -> Faults:
        """Returns an error for each sample whose number of images is not the expected one."""
        faults: Faults = {}
        n = len(records.ids)
        for name, each in self._decoded_fields.items():
            rows = records.part_rows(each.number)
            if records.rows_per_sample and len(rows) == each.items * n:
                continue
            counts = np.bincount(rows["sample"], minlength=n)
            for place in np.flatnonzero(counts != each.items).tolist():
                why = f"found {counts[place]} {each.field.kind}s, expected {each.items}"
                faults[place] = bad_sample(self._dataset, records, place, name, why)
        return faults

    def _rows(self, records: BatchRecords, drawn: Ids, epoch: int) -> dict[str, PlanRows]:
        rows: dict[str, PlanRows] = {}
        for name, plan in self._plans.items():
            image = self._image_fields[name]
            images = records.part_rows(image.number)
            alike = records.rows_per_sample > 0
            ids = np.repeat(drawn, image.items) if alike else drawn[images["sample"]]
            rows[name] = plan.rows(ids, shown_sizes(images), seed=self._seed, epoch=epoch)
        return rows
