"""All figures about one dataset, from its manifest, columns and records."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass

import numpy as np

from fastload._store.dataset import SPLIT, Dataset
from fastload._store.manifest import Manifest
from fastload._tools.inspect.columns import (
    ClassCounts,
    Numbers,
    Sizes,
    class_counts,
    numbers,
    sizes_of,
    summarize,
)
from fastload._tools.inspect.records import LIMIT, RecordFacts, Tick, scan_records


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """The figures that `fastload inspect` shows."""

    path: str
    manifest: Manifest
    n_bytes: int  # of all shards
    classes: tuple[ClassCounts, ...]  # every int field with classes except `split`
    splits: ClassCounts | None
    numbers: tuple[Numbers, ...]
    sizes: tuple[Sizes, ...]
    n_blocks: int
    samples_per_block: tuple[int, int, int]  # least, median, most
    records: RecordFacts

    @property
    def sampled(self) -> str:
        """The number of records that the image figures are based on, as text."""
        if self.records.all_records:
            return "all records"
        return f"{self.records.n_records:,} evenly spread records"

    def as_json(self) -> dict[str, object]:
        found = self.manifest
        records = self.records
        return {
            "path": self.path,
            "n_samples": found.n_samples,
            "tool": found.tool,
            "n_bytes": self.n_bytes,
            "n_shards": len(found.shards),
            "fields": [
                {"name": f.name, "kind": f.kind.name, "list": f.list, "n_classes": len(f.classes)}
                for f in found.fields
            ],
            "classes": {each.field: _by_name(each) for each in self.classes},
            "splits": _by_name(self.splits) if self.splits else {},
            "numbers": [asdict(each) for each in self.numbers],
            "sizes": [asdict(each) for each in self.sizes],
            "blocks": {
                "count": self.n_blocks,
                "samples": dict(
                    zip(("least", "median", "most"), self.samples_per_block, strict=True)
                ),
            },
            "records": {
                "scanned": records.n_records,
                "all": records.all_records,
                "images": records.n_images,
                "codecs": records.codecs,
                "coding": records.coding,
                "subsampling": records.subsampling,
                "channels": {str(key): count for key, count in records.channels.items()},
                "orientation_to_apply": records.to_orient,
                "restart_indexed": records.indexed,
                "hardware_decoder": {"takes": records.engine, "refuses": records.engine_refusals},
                "mean_bytes": float(np.mean(records.record_bytes)) if records.record_bytes else 0.0,
                "fields": records.values,
                "damaged": records.damaged,
            },
            "pack": {
                "order": found.order,
                "seed": found.seed,
                "skipped": found.skipped,
                "converted": found.converted,
                "options": found.options,
                "content": found.content,
            },
        }


def gather(dataset: Dataset, *, limit: int = LIMIT, tick: Tick | None = None) -> Facts:
    """Collects all figures.

    Columns are read completely. Of more than ``limit`` records, an evenly spread subset is read.
    """
    found = dataset.manifest
    counts = [class_counts(dataset, each) for each in found.fields if each.classes]
    ranges = [
        numbers(dataset, each)
        for each in found.fields
        if each.kind.in_column and not each.list and not each.classes
    ]
    records = scan_records(dataset, limit=limit, tick=tick)
    sizes = [_sizes(dataset, each.name, records) for each in found.fields if each.kind.is_image]
    per_block = dataset.blocks[:, 1]
    return Facts(
        path=str(dataset.path),
        manifest=found,
        n_bytes=sum(shard.size for shard in found.shards),
        classes=tuple(each for each in counts if each.field != SPLIT),
        splits=next((each for each in counts if each.field == SPLIT), None),
        numbers=tuple(each for each in ranges if each is not None),
        sizes=tuple(each for each in sizes if each is not None),
        n_blocks=len(per_block),
        records=records,
        samples_per_block=(int(per_block.min()), int(np.median(per_block)), int(per_block.max()))
        if len(per_block)
        else (0, 0, 0),
    )


def _sizes(dataset: Dataset, field: str, records: RecordFacts) -> Sizes | None:
    """Sizes from the columns (all samples); for lists of images, from the scanned records."""
    if any(column.name == f"{field}.width" for column in dataset.manifest.columns):
        return sizes_of(field, dataset.column(f"{field}.width"), dataset.column(f"{field}.height"))
    counted = records.sizes.get(field, Counter[tuple[int, int]]())
    rows = np.array([(*size, count) for size, count in counted.items()], np.int64).reshape(-1, 3)
    return summarize(field, rows[:, 0], rows[:, 1], rows[:, 2])


def _by_name(counts: ClassCounts) -> Mapping[str, object]:
    """Counts as a list of pairs, because class names may repeat."""
    return {
        "missing": counts.missing,
        "counts": list(map(list, zip(counts.names, counts.counts, strict=True))),
    }
