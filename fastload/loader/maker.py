"""From sample ids to a finished batch, in two steps, so that the decode threads always have the next batches, too.

``begin`` reads the part tables, asks the plan and submits the images; ``finish`` waits for the pixels and adds the labels.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from fastload.decode.backend import DecodeBackend, DecodeBatch, PixelFormat, Status
from fastload.errors import BadImage, ConfigError, FastloadError
from fastload.finish import Finish
from fastload.loader.faults import FaultPolicy
from fastload.loader.labels import Values, moved, tensors, unpacked
from fastload.loader.parts import BatchParts, read_parts, shown_sizes
from fastload.loader.requests import image_requests
from fastload.loader.ring import Ring
from fastload.loader.spec import ChosenField, LoadSpec
from fastload.loader.stats import StatsCollector
from fastload.loader.transfer import Transfer
from fastload.plan.field_plan import FieldPlan
from fastload.plan.rows import PlanRows
from fastload.store.dataset import Dataset, source_of
from fastload.store.record import SOURCE_FIELD

Ids = NDArray[np.int64]
_DTYPES = {"uint8": torch.uint8, "float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}
_UNSIGNED = {1: torch.uint8, 2: torch.uint16, 4: torch.uint32}


@dataclass(slots=True)
class ImageTicket:
    """One image or mask field of a batch, under way."""

    chosen: ChosenField
    n_items: int
    output: torch.Tensor
    ticket: Any                             # the backend's own
    faults: dict[int, str] = field(default_factory=dict)        # slot → why


@dataclass(slots=True)
class Begun:
    """A batch under way."""

    ids: Ids                                # as asked for
    parts: BatchParts                       # of these samples, bad records replaced
    rows: dict[str, PlanRows]               # of each image field
    n_items: dict[str, int]                 # images of a sample, in each image field
    tickets: list[ImageTicket]
    faults: dict[int, FastloadError]        # place in the batch → what was wrong with its record
    epoch: int


class BatchMaker:
    """Makes the batches of one loader; ``seed`` and the epoch decide what the plan draws."""

    def __init__(self, dataset: Dataset, spec: LoadSpec, backend: DecodeBackend[Any], *, seed: int, colour: str, ring: Ring,
                 stats: StatsCollector, faults: FaultPolicy, transfer: Transfer) -> None:
        self.dataset, self.spec, self.backend, self.seed, self.colour = dataset, spec, backend, seed, colour
        self.ring, self.stats, self.faults, self.transfer = ring, stats, faults, transfer
        self._finishes = {name: Finish(plan) for name, plan in spec.plans.items()}
        self._numbers = {each.name: number for number, each in enumerate(dataset.fields)}
        self._in_python = any(each.in_python for each in spec.fields) or "source" in spec.implicit

    def begin(self, ids: Ids, epoch: int) -> Begun:
        """Starts work on a batch; returns when the decode threads have it."""
        started = time.perf_counter()
        # The decode threads check each record's checksum; where Python uses other parts of it, it is checked before.
        parts = read_parts(self.dataset, ids, check_crc=self._in_python or not self.spec.images)
        faults: dict[int, FastloadError] = dict(parts.faults)
        if faults:
            parts = self._replaced(ids, faults)
        rows: dict[str, PlanRows] = {}
        n_items: dict[str, int] = {}
        for name, plan in self.spec.plans.items():
            images = self._image_rows(parts, name)
            n_items[name] = len(images) // len(ids)
            rows[name] = plan.rows(parts.ids[images["sample"]], shown_sizes(images), seed=self.seed, epoch=epoch)
        begun = Begun(ids, parts, rows, n_items, [], faults, epoch)
        for chosen in self.spec.fields:
            if _decoded(chosen):
                begun.tickets.append(self._submit(begun, chosen))
        self.stats.took("plan", time.perf_counter() - started)
        return begun

    def _replaced(self, ids: Ids, faults: dict[int, FastloadError]) -> BatchParts:
        """The same batch with a good sample in the place of each whose record is damaged."""
        good = [place for place in range(len(ids)) if place not in faults]
        if not good:
            raise next(iter(faults.values()))
        instead = ids.copy()
        instead[list(faults)] = ids[good[0]]
        return read_parts(self.dataset, instead, check_crc=self._in_python)

    def _image_rows(self, parts: BatchParts, name: str) -> NDArray[np.void]:
        """The part rows of an image field: as many for each sample."""
        images = parts.of(self._numbers[name])
        counts = np.bincount(images["sample"], minlength=len(parts.ids))
        if not len(images) or (counts != counts[0]).any():
            place = int(np.argmin(counts))
            raise BadImage(f"field {name!r}: {counts[place]} images, another sample of the batch has {counts.max()}: a batch needs as many "
                           "of each sample", source=source_of(self.dataset.parts(int(parts.ids[place]))), image_id=int(parts.ids[place]))
        return images

    def _submit(self, begun: Begun, chosen: ChosenField) -> ImageTicket:
        mask = chosen.field.kind == "mask"
        image = chosen.image if mask else chosen.name
        plan, rows = self.spec.plans[image], begun.rows[image]
        images = begun.parts.of(chosen.number)
        if mask and (len(images) != len(rows) or (shown_sizes(images) != np.stack([rows.source_h, rows.source_w], axis=1)).any()):
            raise ConfigError(f"mask {chosen.name!r}: its size differs from that of image {image!r}, which moves it. Pack a mask that is "
                              "not over the image (a bird's-eye view) as 'array'")
        asked = image_requests(begun.parts, chosen.number, images, rows, exact=self.spec.exact, mask=mask)
        faults = {**asked.faults, **rows.bad}
        if mask:
            width = int(images["bits"].max()) // 8
            output = self.ring.tensor((len(rows), rows.canvas_h, rows.canvas_w, width), torch.uint8)
            pixels = PixelFormat("nhwc", "stored", plan.mask_fill)
        else:
            output, pixels = self._image_output(chosen, plan, rows)
        ticket = self.backend.submit(DecodeBatch(asked.sources, asked.requests, output, pixels))
        return ImageTicket(chosen, begun.n_items[image], output, ticket, faults)

    def _image_output(self, chosen: ChosenField, plan: FieldPlan, rows: PlanRows) -> tuple[torch.Tensor, PixelFormat]:
        """Memory for the images. Colour steps work on uint8 NHWC afterwards; without them the decode threads finish the job."""
        colour = "gray" if chosen.channels == 1 else self.colour
        fill = plan.fill if len(plan.fill) == chosen.channels else (plan.fill * chosen.channels)[:chosen.channels]
        form = plan.output
        planar = form.layout == "NCHW" and not plan.steps
        size = (rows.canvas_h, rows.canvas_w)
        shape = (len(rows), chosen.channels, *size) if planar else (len(rows), *size, chosen.channels)
        dtype = torch.uint8 if plan.steps else _DTYPES[form.dtype]
        mean, std = None, None
        if dtype != torch.uint8:
            mean, std = ((values * chosen.channels)[:chosen.channels] if len(values) == 1 else values for values in (form.mean, form.std))
        return self.ring.tensor(shape, dtype), PixelFormat("nchw" if planar else "nhwc", colour, fill, mean, std, 255.0)   # type: ignore[arg-type]

    def finish(self, begun: Begun) -> Values:
        """Waits for the pixels and puts the batch together."""
        take = np.arange(len(begun.ids))
        faults = dict(begun.faults)
        for each in begun.tickets:
            self._collect(each, begun, faults)
        if faults:
            take = self.faults.handle(faults, begun.ids)
        batch: Values = {}
        for each in begun.tickets:
            batch[each.chosen.name] = self._image(each, begun, take)
        for chosen in self.spec.fields:
            if not _decoded(chosen):
                batch |= self._labels(chosen, begun, take)
        batch |= self._extras(begun, take)
        order = [each.name for each in self.spec.fields]
        return {name: batch[name] for name in (*order, *(name for name in batch if name not in order))}

    def _collect(self, each: ImageTicket, begun: Begun, faults: dict[int, FastloadError]) -> None:
        """Waits for one field's pixels; notes which samples have none."""
        result = self.backend.collect(each.ticket)
        n_bytes = int(begun.parts.of(each.chosen.number)["length"].sum())
        self.stats.decoded(result.times_ns, n_bytes, 0)
        for slot, why in {**result.reasons, **each.faults}.items():
            place = slot // each.n_items
            sample_id = int(begun.parts.ids[place])
            if place in faults:
                continue
            if slot in result.reasons and result.status[slot] == Status.CORRUPT:
                faults[place] = self.dataset.reader(sample_id).fault(sample_id, why)
            else:
                faults[place] = BadImage(f"sample {sample_id}, field {each.chosen.name!r}: {why}", image_id=sample_id,
                                         source=self.dataset.source(sample_id))

    def _image(self, each: ImageTicket, begun: Begun, take: NDArray[np.intp]) -> torch.Tensor:
        pixels = each.output
        wanted = np.flatnonzero(take != np.arange(len(take)))
        if each.n_items > 1 or each.chosen.field.list:
            pixels = pixels.view(len(take), each.n_items, *pixels.shape[1:])
        for place in wanted.tolist():
            pixels[place] = pixels[int(take[place])]
        if each.chosen.field.kind == "mask":
            return pixels.view(_UNSIGNED[pixels.shape[-1]])[..., 0]
        return self._finished(pixels, each, begun, take)

    def _finished(self, pixels: torch.Tensor, each: ImageTicket, begun: Begun, take: NDArray[np.intp]) -> torch.Tensor:
        """The decode threads have finished the job, or colours come now, on the device the batch goes to."""
        finish = self._finishes[each.chosen.name]
        if finish.idle:
            return pixels.movedim(-1, -3) if finish.output.layout == "channels_last" else pixels
        slots = (take[:, None] * each.n_items + np.arange(each.n_items)).ravel()
        with self.transfer.stream():
            done = finish(self.transfer.stage(pixels.view(-1, *pixels.shape[-3:])), begun.rows[each.chosen.name].parameters[slots])
        return done.view(*pixels.shape[:-3], *done.shape[1:])

    def _labels(self, chosen: ChosenField, begun: Begun, take: NDArray[np.intp]) -> Values:
        kind = chosen.field.kind
        if kind in ("int", "float") and not chosen.field.list:
            return {chosen.name: torch.from_numpy(self.dataset.column(chosen.name)[begun.parts.ids[take]])}
        values = unpacked(chosen, begun.parts)
        rows = begun.rows.get(chosen.image)
        found = moved(chosen, values, rows, begun.n_items.get(chosen.image, 1))
        return tensors(chosen, {name: [own[place] for place in take.tolist()] for name, own in found.items()}, self.spec.ragged)

    def _extras(self, begun: Begun, take: NDArray[np.intp]) -> Values:
        extras: Values = {}
        if "id" in self.spec.implicit:
            extras["id"] = torch.from_numpy(begun.parts.ids[take])
        if "source" in self.spec.implicit:
            found = begun.parts.parts(SOURCE_FIELD)
            extras["source"] = [source_of(found[place]) for place in take.tolist()]
        if self.spec.return_matrix:
            for name, rows in begun.rows.items():
                matrices = rows.matrices.reshape(len(take), -1, 3, 3)[take].astype(np.float32)
                listed = self.dataset.fields[self._numbers[name]].list
                extras["matrix" if len(begun.rows) == 1 else f"{name}.matrix"] = torch.from_numpy(matrices if listed else matrices[:, 0])
        return extras


def _decoded(chosen: ChosenField) -> bool:
    """Its pixels come from the decode threads: images, and masks that move with one."""
    return chosen.field.kind == "image" or (chosen.field.kind == "mask" and bool(chosen.image))
