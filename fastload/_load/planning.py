"""Reads the records of batches and makes their plan.

NumPy's cost is per call, and between two batches its code has left the processor's cache, so
``plan_group`` plans several batches with one call. Whatever needs a closer look (damage, missing
images, sizes that differ, a shard that does not open) is planned batch by batch, so that an error
takes the place of its own batch.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Sequence

import numpy as np

from fastload._load.batch import Ids, PlannedBatch
from fastload._load.faults import FaultPolicy, Faults, bad_sample, substitutes
from fastload._load.records import BatchRecords, read_records, shown_sizes
from fastload._load.spec import LoadSpec
from fastload._plan.rows import PlanRows
from fastload._store.dataset import Dataset
from fastload.errors import ConfigError, FastloadError

GROUP_SAMPLES = 512  # planned per call: more would keep the decode threads waiting
GROUP_BATCHES = 4  # planned per call at least, however large they are
GROUP_BYTES = 4 << 20  # where checksums are verified here: still cached when the values are copied
MAX_REPLACEMENTS = 8  # batches tried in place of one without a good sample


class Planner:
    """Plans the batches of one loader; ``seed`` and the epoch decide what the plan draws.

    ``check_crc``: verify each record's checksum when it is read. Without it the decode threads do.
    """

    def __init__(
        self, dataset: Dataset, spec: LoadSpec, *, seed: int, policy: FaultPolicy, check_crc: bool
    ) -> None:
        self.check_crc = check_crc
        self._dataset = dataset
        self._plans = spec.plans
        self._seed = seed
        self._policy = policy
        n_bytes = sum(shard.size for shard in dataset.manifest.shards)
        self._record_bytes = n_bytes / max(1, len(dataset))
        self._image_fields = {each.name: each for each in spec.image_fields}
        decoded = (each for each in (*spec.image_fields, *spec.fields) if each.decoded_by_pool)
        self._decoded_fields = {each.name: each for each in decoded}

    def plan(self, ids: Ids, epoch: int) -> PlannedBatch:
        """Plans one batch; replaces or raises its bad samples."""
        return self._plan(ids, epoch, time.perf_counter(), check_crc=self.check_crc)

    def _plan(self, ids: Ids, epoch: int, started: float, *, check_crc: bool) -> PlannedBatch:
        records = read_records(self._dataset, ids, check_crc=check_crc)
        faults: Faults = {**self._incomplete(records), **records.faults}
        try:
            if not faults:
                return self._planned(ids, epoch, records, faults, started)
        except ConfigError:
            if check_crc:
                raise
        if not check_crc:  # what looks wrong may be damage: the checksum tells
            return self._plan(ids, epoch, started, check_crc=True)
        if self._policy.on_error == "raise" or len(faults) == len(ids):
            return self.replacement(ids, epoch, faults)
        good = read_records(self._dataset, ids[substitutes(faults, len(ids))], check_crc=True)
        return self._planned(ids, epoch, good, faults, started)

    def _planned(
        self, ids: Ids, epoch: int, records: BatchRecords, faults: Faults, started: float
    ) -> PlannedBatch:
        rows = self._rows(records, epoch)
        return PlannedBatch(ids, epoch, records, rows, faults, time.perf_counter() - started)

    def replacement(
        self, ids: Ids, epoch: int, faults: Faults, n_tries: int = MAX_REPLACEMENTS
    ) -> PlannedBatch:
        """Another batch in place of one without a good sample; raises if the policy does not allow it."""
        started = time.perf_counter()
        self._policy.check(faults, ids)
        n = len(self._dataset)
        for number in range(1, n_tries + 1):
            others = (ids + number * (n // (MAX_REPLACEMENTS + 1) + 1)) % n
            records = read_records(self._dataset, others, check_crc=True)
            if not self._incomplete(records) and not records.faults:
                return self._planned(others, epoch, records, {}, started)
        raise faults[min(faults)]

    def plan_group(self, batches: Sequence[Ids], epoch: int) -> deque[PlannedBatch]:
        """What ``plan`` would return for each, or nothing if one of them needs a closer look."""
        started = time.perf_counter()
        planned: deque[PlannedBatch] = deque()
        try:
            ids = np.concatenate(batches)
            records = read_records(self._dataset, ids, check_crc=self.check_crc)
            if records.faults or self._incomplete(records):
                return planned
            rows = self._rows(records, epoch)
        except (FastloadError, OSError, MemoryError):
            return planned
        if any(each.bad for each in rows.values()):
            return planned
        plan_s = (time.perf_counter() - started) / len(batches)
        first = 0
        for own_ids in batches:
            last = first + len(own_ids)
            own_rows = {}
            for name, each in rows.items():
                items = self._image_fields[name].items
                own_rows[name] = each.take(slice(first * items, last * items))
            own_records = records.slice(first, last)
            planned.append(PlannedBatch(own_ids, epoch, own_records, own_rows, {}, plan_s))
            first = last
        return planned

    def group_size(self, batch_size: int) -> int:
        """How many batches of this size are planned per call."""
        batch_size = max(1, batch_size)
        if not self.check_crc:
            return max(GROUP_BATCHES, GROUP_SAMPLES // batch_size)
        return max(1, int(min(GROUP_SAMPLES, GROUP_BYTES / self._record_bytes)) // batch_size)

    def _incomplete(self, records: BatchRecords) -> Faults:
        """Samples that lack an image, or have another number of images than the others."""
        faults: Faults = {}
        n = len(records.ids)
        for name, each in self._decoded_fields.items():
            rows = records.part_rows(each.number)
            if records.rows_per_sample and len(rows) == each.items * n:
                continue
            counts = np.bincount(rows["sample"], minlength=n)
            for place in np.flatnonzero(counts != each.items).tolist():
                why = f"{counts[place]} {each.field.kind}s, expected {each.items}"
                faults[place] = bad_sample(self._dataset, records, place, name, why)
        return faults

    def _rows(self, records: BatchRecords, epoch: int) -> dict[str, PlanRows]:
        rows: dict[str, PlanRows] = {}
        for name, plan in self._plans.items():
            image = self._image_fields[name]
            images = records.part_rows(image.number)
            alike = records.rows_per_sample > 0
            ids = np.repeat(records.ids, image.items) if alike else records.ids[images["sample"]]
            rows[name] = plan.rows(ids, shown_sizes(images), seed=self._seed, epoch=epoch)
        return rows
