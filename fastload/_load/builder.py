"""From sample ids to a finished batch, in two steps, so that the decode threads always have the next batches, too.

``begin`` reads the part tables, asks the plan and submits the images; ``finish`` waits for the pixels and adds the labels.
"""

from __future__ import annotations

import copy
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from fastload._decode.backend import STAGES, Status
from fastload._load.buffers import BufferPool
from fastload._load.decoder import Decoder
from fastload._load.faults import FaultPolicy, Faults, substitutes
from fastload._load.images import ImageDecoder, Ticket
from fastload._load.labels import Values, moved, tensors, unpacked
from fastload._load.records import BatchRecords, damaged, read_records, shown_sizes
from fastload._load.spec import LoadSpec
from fastload._load.stats import StatsCollector
from fastload._load.transfer import Stay, Transfer
from fastload._plan.rows import PlanRows
from fastload._store.dataset import Dataset
from fastload.errors import BadImage, ConfigError, FastloadError, RecordError

Ids = NDArray[np.int64]
_OTHERS = 8  # batches tried instead of one that has no good sample


@dataclass(slots=True)
class Begun:
    """A batch under way."""

    ids: Ids  # as asked for
    epoch: int
    parts: BatchRecords  # of these samples, bad ones replaced
    rows: dict[str, PlanRows]  # of each image field
    faults: Faults
    plan_s: float = 0.0  # what preparing it together with others took
    tickets: list[Ticket] = field(default_factory=list)
    times_ns: list[NDArray[np.uint32]] = field(default_factory=list)

    @property
    def n_bytes(self) -> int:
        """Encoded bytes of its images and masks."""
        return sum(ticket.n_bytes for ticket in self.tickets)


class BatchMaker:
    """Makes the batches of one loader; ``seed`` and the epoch decide what the plan draws."""

    def __init__(
        self,
        dataset: Dataset,
        spec: LoadSpec,
        backend: Decoder,
        *,
        seed: int,
        ring: BufferPool,
        stats: StatsCollector,
        faults: FaultPolicy,
        transfer: Transfer,
    ) -> None:
        self.dataset, self.spec, self.backend, self.seed = dataset, spec, backend, seed
        self.stats, self.faults = stats, faults
        self.pictures, self._transfer = ImageDecoder(spec, backend, ring, transfer), transfer
        self.movers = {each.name: each for each in spec.movers}
        self._pictured = {each.name: each for each in (*spec.movers, *spec.fields) if each.pictured}
        # The backends check each record's checksum in their own threads; where Python uses its bytes, it is checked before.
        self.check_crc = spec.reads_records or not spec.images or not backend.backend.checks_crc

    def on_cpu(self) -> BatchMaker:
        """This one, or its like with CPU tensors: what ``loader.dataset`` hands out, in any thread and on no stream."""
        if self._transfer.device.type == "cpu":
            return self
        return BatchMaker(
            self.dataset,
            self.spec,
            self.backend.on_cpu(),
            seed=self.seed,
            ring=BufferPool(2),
            stats=StatsCollector(),
            faults=self.faults,
            transfer=Stay(pin=False),
        )

    def begin(self, ids: Ids, epoch: int, prepared: Begun | None = None) -> Begun:
        """Starts work on a batch, which may have been prepared; returns when the decode threads have it."""
        started = time.perf_counter()
        begun = prepared or self.prepare(ids, epoch)
        with (
            self._transfer.stream()
        ):  # memory for pixels belongs to the stream that it is allocated on
            for chosen in self.spec.fields:
                if chosen.pictured:
                    begun.tickets.append(
                        self.pictures.submit(
                            chosen, begun.parts, begun.rows[chosen.image or chosen.name]
                        )
                    )
        self.stats.took("plan", begun.plan_s + time.perf_counter() - started)
        return begun

    def prepare(self, ids: Ids, epoch: int, *, check_crc: bool | None = None) -> Begun:
        """Reads and plans a batch, nothing more."""
        check_crc = self.check_crc if check_crc is None else check_crc
        parts = read_records(self.dataset, ids, check_crc=check_crc)
        faults: Faults = {**self.incomplete(parts), **parts.faults}
        try:
            if not faults:
                return Begun(ids, epoch, parts, self.rows(parts, epoch), faults)
        except ConfigError:
            if check_crc:
                raise
        if not check_crc:
            return self.prepare(
                ids, epoch, check_crc=True
            )  # what looks wrong may be damage: the checksum tells
        if self.faults.on_error == "raise" or len(faults) == len(ids):
            return self._elsewhere(Begun(ids, epoch, parts, {}, faults))
        instead = read_records(self.dataset, ids[substitutes(faults, len(ids))], check_crc=True)
        return Begun(ids, epoch, instead, self.rows(instead, epoch), faults)

    def _elsewhere(self, begun: Begun, others: int = _OTHERS) -> Begun:
        """Another batch in the place of one that has no good sample; raises where bad samples are not to be replaced."""
        self.faults.check(begun.faults, begun.ids)
        n = len(self.dataset)
        for number in range(1, others + 1):
            ids = (begun.ids + number * (n // (_OTHERS + 1) + 1)) % n
            other = read_records(self.dataset, ids, check_crc=True)
            if not self.incomplete(other) and not other.faults:
                return Begun(ids, begun.epoch, other, self.rows(other, begun.epoch), {})
        raise begun.faults[min(begun.faults)]

    def incomplete(self, parts: BatchRecords) -> Faults:
        """Samples that lack an image, or have another number of images than the others."""
        faults: Faults = {}
        for name, each in self._pictured.items():
            if parts.alike and len(parts.part_rows(each.number)) == each.items * len(parts.ids):
                continue
            counts = np.bincount(parts.part_rows(each.number)["sample"], minlength=len(parts.ids))
            for place in np.flatnonzero(counts != each.items).tolist():
                faults[place] = self._bad(
                    parts, place, name, f"{counts[place]} {each.field.kind}s, expected {each.items}"
                )
        return faults

    def rows(self, parts: BatchRecords, epoch: int) -> dict[str, PlanRows]:
        """What the plan says about each image field."""
        rows: dict[str, PlanRows] = {}
        for name, plan in self.spec.plans.items():
            images = parts.part_rows(self.movers[name].number)
            ids = (
                parts.ids[images["sample"]]
                if not parts.alike
                else np.repeat(parts.ids, self.movers[name].items)
            )
            rows[name] = plan.rows(ids, shown_sizes(images), seed=self.seed, epoch=epoch)
        return rows

    def done(self, begun: Begun) -> bool:
        """All its images are decoded, as far as the decoder can tell."""
        return all(self.backend.done(ticket.ticket) for ticket in begun.tickets)

    def finish(
        self, begun: Begun, shape: Callable[[Values], Any] | None = None, *, others: int = _OTHERS
    ) -> Any:
        """Waits for the pixels and puts the batch together; ``shape`` then makes of it what the user gets."""
        with (
            self._transfer.stream()
        ):  # all of it: a user's collate_fn may touch pixels that are only queued yet
            return self._finish(begun, shape, others)

    def _finish(self, begun: Begun, shape: Callable[[Values], Any] | None, others: int) -> Any:
        self._collect(begun)
        started = time.perf_counter()
        labels = self._labels(begun)
        if len(begun.faults) == len(begun.ids):
            other = self._elsewhere(begun, others)
            return self.finish(self.begin(other.ids, other.epoch), shape, others=others - 1)
        take = None
        if begun.faults:
            self.faults.check(begun.faults, begun.ids)
            take = substitutes(begun.faults, len(begun.ids))
        values = self._put_together(begun, labels, take)
        batch = values if shape is None else shape(values)
        times = (
            np.concatenate(begun.times_ns)
            if begun.times_ns
            else np.empty((0, len(STAGES)), np.uint32)
        )
        self.stats.decoded(times, begun.n_bytes, time.perf_counter() - started)
        return batch

    def _collect(self, begun: Begun) -> None:
        """Waits for the pixels; notes which samples have none."""
        for ticket in begun.tickets:
            result = self.pictures.collect(ticket)
            begun.times_ns.append(result.times_ns)
            if (
                result.reasons and Status.NO_MEMORY in result.status
            ):  # no sample's fault: nothing may stand in its place
                slot = int(np.flatnonzero(result.status == Status.NO_MEMORY)[0])
                raise MemoryError(
                    f"decoding sample {begun.parts.ids[slot // ticket.chosen.items]}: {result.reasons[slot]}"
                )
            corrupt = {
                slot: why
                for slot, why in result.reasons.items()
                if result.status[slot] == Status.CORRUPT
            }
            wrong: dict[int, object] = {**result.reasons, **ticket.faults, **corrupt}
            for slot, why in wrong.items():
                place = slot // ticket.chosen.items
                if place in begun.faults:
                    continue
                if slot in corrupt or isinstance(why, RecordError):
                    begun.faults[place] = damaged(
                        self.dataset,
                        int(begun.parts.ids[place]),
                        begun.parts.records[place],
                        str(why),
                    )
                else:
                    text = why.why if isinstance(why, BadImage) else str(why)
                    begun.faults[place] = self._bad(begun.parts, place, ticket.chosen.name, text)
        for (
            name,
            rows,
        ) in begun.rows.items():  # also of images that only move labels, and are not asked for
            for slot, reason in rows.bad.items():
                place = slot // self.movers[name].items
                if place not in begun.faults:
                    begun.faults[place] = self._bad(begun.parts, place, name, reason)

    def unfinished(self, begun: Begun) -> Ids:
        """The samples that a batch still waits for, as far as the decoder can tell; all of them where it cannot."""
        places = {
            slot // ticket.chosen.items
            for ticket in begun.tickets
            for slot in self.backend.unfinished(ticket.ticket)
        }
        return begun.parts.ids[sorted(places)] if places else begun.parts.ids

    def _labels(self, begun: Begun) -> dict[str, list[Any]]:
        """The values of all fields that Python unpacks, as they are stored."""
        values: dict[str, list[Any]] = {}
        for chosen in self.spec.fields:
            if chosen.pictured or chosen.in_column:
                continue
            values[chosen.name], wrong = unpacked(chosen, begun.parts)
            for place, why in wrong.items():
                fault: FastloadError = (
                    self._bad(begun.parts, place, chosen.name, why.why)
                    if isinstance(why, BadImage)
                    else damaged(
                        self.dataset,
                        int(begun.parts.ids[place]),
                        begun.parts.records[place],
                        f"field {chosen.name!r}: {why}",
                    )
                )
                begun.faults.setdefault(place, fault)
        return values

    def _put_together(
        self, begun: Begun, labels: dict[str, list[Any]], take: NDArray[np.intp] | None
    ) -> Values:
        """The batch; ``take``: which sample stands at each place, None where each has its own."""
        ids, rows, places = begun.parts.ids, begun.rows, [*range(len(begun.parts.ids))]
        if take is not None:
            ids, places = ids[take], take.tolist()
            rows = {
                name: each.take(_slots(take, self.movers[name].items))
                for name, each in rows.items()
            }
        batch, tickets = Values(), {ticket.chosen.name: ticket for ticket in begun.tickets}
        for chosen in self.spec.fields:
            if chosen.pictured:
                batch[chosen.name] = self.pictures.finished(
                    tickets[chosen.name], rows[chosen.image or chosen.name], take
                )
            elif chosen.in_column:
                batch[chosen.name] = torch.from_numpy(self.dataset.column(chosen.name)[ids])
            else:
                own = [labels[chosen.name][place] for place in places]
                if (
                    take is not None
                ):  # a list or a JSON object that stands in two places would be one and the same
                    own = [copy.deepcopy(each) for each in own]
                batch |= tensors(
                    chosen,
                    moved(chosen, own, rows.get(chosen.image), self.movers.get(chosen.image)),
                    ids,
                )
        if "id" in self.spec.implicit:
            batch["id"] = torch.from_numpy(ids.copy())  # they are the feeder's own
        if "source" in self.spec.implicit:
            batch["source"] = [begun.parts.source(place) for place in places]
        for name, each in rows.items() if self.spec.return_matrix else ():
            matrices, mover = each.matrices.astype(np.float32), self.movers[name]
            batch[f"{name}.matrix"] = torch.from_numpy(
                matrices.reshape(len(ids), -1, 3, 3) if mover.field.list else matrices
            )
        return batch

    def _bad(self, parts: BatchRecords, place: int, name: str, why: str) -> BadImage:
        sample_id = int(parts.ids[place])
        why = why if why.startswith("field ") else f"field {name!r}: {why}"
        where = self.dataset.reader(sample_id).path
        return BadImage(
            f"sample {sample_id} in {where}, {why}", image_id=sample_id, source=parts.source(place)
        )


def _slots(take: NDArray[np.intp], items: int) -> NDArray[np.intp]:
    slots: NDArray[np.intp] = (take[:, None] * items + np.arange(items)).ravel()
    return slots
