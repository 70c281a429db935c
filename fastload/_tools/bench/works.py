"""What `fastload bench decode` has decoded: images of a dataset, as stored, cropped at random, or resized; ready to be submitted."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray

from fastload import transforms as T
from fastload._common.threads import Helpers
from fastload._decode.backend import DecodeBatch, PixelFormat
from fastload._load.decode_requests import make_requests
from fastload._load.decoder import Decoder
from fastload._load.records import BatchRecords, read_records, shown_sizes
from fastload._load.spec import SampleScan
from fastload._plan.compiler import compile as compile_plan
from fastload._plan.field_plan import FieldPlan
from fastload._plan.rows import PlanRows
from fastload._store.dataset import Dataset
from fastload._store.record import JPEG, RAW
from fastload.errors import ConfigError

PER_BATCH = 32  # samples a ticket; all tickets of a pass are under way at once
MAX_OUTPUT = 512 << 20  # bytes of decoded pixels in a pass


@dataclass(frozen=True, slots=True)
class Work:
    """What becomes of each image. ``size``: (height, width), None = as stored."""

    name: str
    size: tuple[int, int] | None
    crop: bool = False
    exact: bool = False

    def plan(self) -> FieldPlan:
        """For the loader's own planner, so that the crops are those of training."""
        if self.size is None:
            return compile_plan(None)
        return compile_plan([T.RandomResizedCrop(self.size) if self.crop else T.Resize(*self.size)])


@dataclass(slots=True)
class Ticket:
    """Images that are decoded into one tensor."""

    parts: BatchRecords
    images: NDArray[np.void]
    rows: PlanRows
    output: torch.Tensor
    ready: DecodeBatch | None = None  # None: PNGs are unpacked each time, as the loader has to


@dataclass(slots=True)
class Works:
    """Images of one field of a dataset, kept mapped, for any number of works."""

    dataset: Dataset
    number: int  # of the field
    ids: NDArray[np.int64]
    channels: int
    n_images: int
    bytes_in: int
    unpackers: Helpers = field(default_factory=lambda: Helpers(1, "fastload-bench"))

    @staticmethod
    def of(dataset: Dataset, *, field: str | None, samples: int) -> Works:
        """``samples`` of the dataset, spread over all of it, in the order of the disk."""
        images = {
            each.name: number for number, each in enumerate(dataset.fields) if each.kind.is_image
        }
        name = next(iter(images), "") if field is None else field
        if name not in images:
            raise ConfigError(
                f"image field {name!r:.40}: {dataset.path} has {', '.join(images) or 'none'}"
            )
        count = min(samples, len(dataset))
        if not count:
            raise ConfigError(f"{dataset.path} has no samples: nothing to measure")
        ids = (np.arange(count) * len(dataset) // count).astype(np.int64)
        rows = read_records(dataset, ids, check_crc=True).part_rows(images[name])
        sizes = shown_sizes(rows)
        pixels = np.cumsum(sizes[:, 0] * sizes[:, 1] * 3)
        keep = max(1, int(np.searchsorted(pixels, MAX_OUTPUT)))
        if keep < len(rows):
            ids, rows = ids[: max(1, int(rows["sample"][keep - 1]))], rows[:keep]
        return Works(
            dataset,
            images[name],
            ids,
            SampleScan(dataset).channels(images[name]),
            len(rows),
            int(rows["length"].sum()),
        )

    def tickets(self, work: Work, device: torch.device | str = "cpu") -> list[Ticket]:
        """All images, in groups that share an output size; crops are drawn once, so that every pass does the same work."""
        plan = work.plan()
        images = read_records(self.dataset, self.ids, check_crc=False).part_rows(self.number)
        first = images[
            np.unique(images["sample"], return_index=True)[1]
        ]  # of each sample; the others of a list have its size
        sizes = shown_sizes(first)
        groups = (
            [self.ids]
            if work.size
            else [
                self.ids[first["sample"][(sizes == size).all(1)]]
                for size in np.unique(sizes, axis=0)
            ]
        )
        found = []
        for group in groups:
            for start in range(0, len(group), PER_BATCH):
                parts = read_records(
                    self.dataset, group[start : start + PER_BATCH], check_crc=False
                )
                chosen = parts.part_rows(self.number)
                rows = plan.rows(parts.ids[chosen["sample"]], shown_sizes(chosen), seed=0, epoch=0)
                output = torch.empty(
                    (len(chosen), rows.canvas_h, rows.canvas_w, self.channels),
                    dtype=torch.uint8,
                    device=device,
                )
                ticket = Ticket(parts, chosen, rows, output)
                if np.isin(chosen["codec"], (JPEG, RAW)).all():
                    ticket.ready = self._batch(ticket, work)
                found.append(ticket)
        return found

    def _batch(self, ticket: Ticket, work: Work) -> DecodeBatch:
        asked = make_requests(
            ticket.parts,
            self.number,
            ticket.rows,
            exact=work.exact,
            mask_bits=0,
            unpackers=self.unpackers,
        )
        for why in asked.faults.values():
            raise why
        colour = PixelFormat("nhwc", "gray" if self.channels == 1 else "rgb")
        return DecodeBatch(asked.sources, asked.requests, ticket.output, colour)

    def run(self, backend: Decoder, work: Work, tickets: Sequence[Ticket]) -> NDArray[np.float64]:
        """One pass; seconds of thread time in each stage (read, cut, decode, resize, finish). Raises BadImage."""
        decoder = backend.backend
        begun = [decoder.submit(ticket.ready or self._batch(ticket, work)) for ticket in tickets]
        stages = np.zeros(5)
        for each in begun:
            result = decoder.collect(each)
            result.raise_first()
            stages += result.times_ns.sum(axis=0, dtype=np.float64) / 1e9
        return stages


def works_for(
    sizes: Sequence[tuple[int, int]], *, crop: tuple[int, int] = (224, 224), exact: str = "both"
) -> list[Work]:
    """As stored, a random crop, and whole images to each of ``sizes``; each scaled, exact, or both."""
    names = [Work("as stored", None)]
    for scaled in {"off": (False,), "on": (True,), "both": (False, True)}[exact]:
        tail = ", exact" if scaled else ""
        names.append(Work(f"RRC {_size(crop)}{tail}", crop, crop=True, exact=scaled))
        names += [Work(f"whole -> {_size(size)}{tail}", size, exact=scaled) for size in sizes]
    return names


def _size(size: tuple[int, int]) -> str:
    return str(size[0]) if size[0] == size[1] else f"{size[1]}x{size[0]}"
