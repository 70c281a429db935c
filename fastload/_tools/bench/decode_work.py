"""The work that `fastload bench decode` measures: images of a dataset as decode batches."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray

from fastload import transforms as T
from fastload._common.threads import WorkerThreads
from fastload._decode.backend import DecodeBatch, PixelFormat
from fastload._decode.registry import BACKENDS
from fastload._load.decode_requests import make_requests
from fastload._load.decoder import Decoder
from fastload._load.records import BatchRecords, read_records, shown_sizes
from fastload._load.spec import image_channels
from fastload._plan.compiler import compile as compile_plan
from fastload._plan.field_plan import FieldPlan
from fastload._plan.rows import PlanRows
from fastload._store.dataset import Dataset
from fastload._store.record import JPEG, RAW
from fastload._tools.bench.load import image_field
from fastload.errors import ConfigError, FastloadError

PER_BATCH = 32  # samples per batch; all batches of a pass are in flight at once
MAX_OUTPUT_BYTES = 512 << 20  # decoded pixels of a pass


@dataclass(frozen=True, slots=True)
class Work:
    """How each image is decoded. ``size``: (height, width); None keeps the stored size."""

    name: str
    size: tuple[int, int] | None
    crop: bool = False
    exact: bool = False

    def plan(self) -> FieldPlan:
        """Uses the loader's own planner, so that the crops are the same as in training."""
        if self.size is None:
            return compile_plan(None)
        return compile_plan([T.RandomResizedCrop(self.size) if self.crop else T.Resize(*self.size)])


@dataclass(slots=True)
class BenchBatch:
    """Images that are decoded into one tensor."""

    records: BatchRecords
    images: NDArray[np.void]
    rows: PlanRows
    output: torch.Tensor
    request: DecodeBatch | None = None  # None: PNGs are decompressed in each pass, as in training


@dataclass(slots=True)
class BenchImages:
    """Images of one field of a dataset, kept mapped."""

    dataset: Dataset
    field_number: int
    ids: NDArray[np.int64]
    channels: int
    n_images: int
    bytes_in: int
    unpackers: WorkerThreads = field(default_factory=lambda: WorkerThreads(1, "fastload-bench"))

    @staticmethod
    def of(dataset: Dataset, *, field: str | None, samples: int) -> BenchImages:
        """Selects up to ``samples`` samples, evenly spread over the dataset, in disk order."""
        number = [each.name for each in dataset.fields].index(image_field(dataset, field))
        count = min(samples, len(dataset))
        if not count:
            raise ConfigError(f"{dataset.path} has no samples to measure")
        ids = dataset.ids.start + (np.arange(count) * len(dataset) // count).astype(np.int64)
        rows = read_records(dataset, ids, check_crc=True).part_rows(number)
        sizes = shown_sizes(rows)
        n_bytes = np.cumsum(sizes[:, 0] * sizes[:, 1] * 3)
        n_kept = max(1, int(np.searchsorted(n_bytes, MAX_OUTPUT_BYTES)))
        if n_kept < len(rows):
            ids = ids[: max(1, int(rows["sample"][n_kept - 1]))]
            rows = rows[:n_kept]
        channels = image_channels(dataset, number)
        return BenchImages(dataset, number, ids, channels, len(rows), int(rows["length"].sum()))

    def batches(self, work: Work, device: torch.device | str = "cpu") -> list[BenchBatch]:
        """All images, grouped by output size. Crops are drawn once, so all passes are equal."""
        plan = work.plan()
        found = []
        for ids in self._groups(work):
            for start in range(0, len(ids), PER_BATCH):
                records = read_records(
                    self.dataset, ids[start : start + PER_BATCH], check_crc=False
                )
                images = records.part_rows(self.field_number)
                rows = plan.rows(
                    records.ids[images["sample"]], shown_sizes(images), seed=0, epoch=0
                )
                shape = (len(images), rows.canvas_h, rows.canvas_w, self.channels)
                output = torch.empty(shape, dtype=torch.uint8, device=device)
                batch = BenchBatch(records, images, rows, output)
                if np.isin(images["codec"], (JPEG, RAW)).all():
                    batch.request = self._request(batch, work)
                found.append(batch)
        return found

    def _groups(self, work: Work) -> list[NDArray[np.int64]]:
        """Sample ids by output size."""
        if work.size:
            return [self.ids]
        images = read_records(self.dataset, self.ids, check_crc=False).part_rows(self.field_number)
        # The first image of each sample; the others of a list have the same size.
        first = images[np.unique(images["sample"], return_index=True)[1]]
        sizes = shown_sizes(first)
        return [
            self.ids[first["sample"][(sizes == size).all(1)]] for size in np.unique(sizes, axis=0)
        ]

    def _request(self, batch: BenchBatch, work: Work) -> DecodeBatch:
        made = make_requests(
            batch.records,
            self.field_number,
            batch.rows,
            exact=work.exact,
            mask_bits=0,
            unpackers=self.unpackers,
        )
        for why in made.faults.values():
            raise why
        pixels = PixelFormat("nhwc", "gray" if self.channels == 1 else "rgb")
        return DecodeBatch(made.sources, made.requests, batch.output, pixels)

    def run(
        self, decoder: Decoder, work: Work, batches: Sequence[BenchBatch]
    ) -> NDArray[np.float64]:
        """Decodes all batches and returns the seconds of thread time per stage of ``STAGES``.

        Raises BadImage.
        """
        backend = decoder.backend
        tickets = [backend.submit(each.request or self._request(each, work)) for each in batches]
        stages = np.zeros(5)
        for ticket in tickets:
            result = backend.collect(ticket)
            result.raise_first()
            stages += result.times_ns.sum(axis=0, dtype=np.float64) / 1e9
        return stages


def standard_works(
    sizes: Sequence[tuple[int, int]], *, crop: tuple[int, int] = (224, 224), exact: str = "both"
) -> list[Work]:
    """Stored size, random resized crops, and whole images resized to each of ``sizes``.

    ``exact`` is "off" (DCT scaling allowed), "on" or "both".
    """
    works = [Work("as stored", None)]
    for is_exact in {"off": (False,), "on": (True,), "both": (False, True)}[exact]:
        suffix = ", exact" if is_exact else ""
        works.append(Work(f"RRC {_size(crop)}{suffix}", crop, crop=True, exact=is_exact))
        works += [Work(f"whole -> {_size(size)}{suffix}", size, exact=is_exact) for size in sizes]
    return works


def _size(size: tuple[int, int]) -> str:
    return str(size[0]) if size[0] == size[1] else f"{size[1]}x{size[0]}"


def make_decoder(name: str, *, threads: int) -> Decoder:
    """A decoder with exactly ``threads`` threads; raises FastloadError if it cannot run here."""
    on_gpu = BACKENDS[name].on_gpu and torch.cuda.is_available()
    device = torch.device("cuda" if on_gpu else "cpu")
    decoder = Decoder(name, threads=threads, budget=threads, device=device)
    if decoder.choice.name != name:
        decoder.close()
        raise ConfigError(f"backend {name}: {decoder.choice}")
    return decoder


def usable_backends(names: Sequence[str] | None = None) -> tuple[list[str], dict[str, str]]:
    """The backends of ``names`` (default: all) that run here, and why the others do not."""
    usable: list[str] = []
    reasons: dict[str, str] = {}
    for name in BACKENDS if names is None else names:
        if name not in BACKENDS:
            raise ConfigError(f"backend={name!r:.40}: expected one of {', '.join(BACKENDS)}")
        if names is None and BACKENDS[name].on_gpu and not torch.cuda.is_available():
            reasons[name] = (
                f"torch finds no CUDA GPU; pass --backend {name} to measure its CPU mode"
            )
            continue
        try:
            make_decoder(name, threads=1).close()
        except (FastloadError, ImportError, OSError, RuntimeError) as error:
            reasons[name] = " ".join(str(error).split())
        else:
            usable.append(name)
    return usable, reasons
