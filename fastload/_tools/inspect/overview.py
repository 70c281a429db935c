"""The default output of `fastload inspect`: all figures of a dataset, as JSON and as text."""

from __future__ import annotations

import json
import statistics
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass

import numpy as np

from fastload._common.formatting import byte_size, exact_percent
from fastload._common.tables import Row, Section
from fastload._store.dataset import Dataset
from fastload._store.fields import SPLIT, Field, kind_text
from fastload._store.kinds import FLOAT
from fastload._store.manifest import Manifest
from fastload._tools.inspect.records import (
    LIMIT,
    ClassCounts,
    Numbers,
    RecordFacts,
    Sizes,
    Tick,
    class_counts,
    numbers,
    scan_records,
    sizes_of,
    summarize,
)

_TOP = 5  # most frequent classes shown
_BOTTOM = 3  # least frequent classes shown
_CHANNELS = {1: "gray", 3: "color"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """The figures that `fastload inspect` shows."""

    path: str
    n_samples: int  # of the split
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
            "n_samples": self.n_samples,
            "tool": found.tool,
            "n_bytes": self.n_bytes,
            "n_shards": len(found.shards),
            "fields": [
                {
                    "name": each.name,
                    "kind": each.kind.name,
                    "list": each.list,
                    "n_classes": len(each.classes),
                    "along": each.along,
                }
                for each in found.fields
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
                "bits": {str(key): count for key, count in records.bits.items()},
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
    sizes = [
        _sizes_of_field(dataset, each.name, records) for each in found.fields if each.kind.is_image
    ]
    per_block = dataset.blocks[:, 1]
    return Facts(
        path=str(dataset.path),
        n_samples=len(dataset),
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


def _sizes_of_field(dataset: Dataset, field: str, records: RecordFacts) -> Sizes | None:
    """Sizes from the columns (all samples); for lists of images, from the scanned records."""
    if any(column.name == f"{field}.width" for column in dataset.manifest.columns):
        return sizes_of(
            field, dataset.column_rows(f"{field}.width"), dataset.column_rows(f"{field}.height")
        )
    counted = records.sizes.get(field, Counter[tuple[int, int]]())
    rows = np.array([(*size, count) for size, count in counted.items()], np.int64).reshape(-1, 3)
    return summarize(field, rows[:, 0], rows[:, 1], rows[:, 2])


def _by_name(counts: ClassCounts) -> Mapping[str, object]:
    """Counts as a list of pairs, because class names may repeat."""
    return {
        "missing": counts.missing,
        "counts": list(map(list, zip(counts.names, counts.counts, strict=True))),
    }


def overview(facts: Facts) -> list[Section]:
    found = facts.manifest
    based_on = f"from {facts.sampled}"
    sections = [
        Section("dataset", list(_dataset(facts))),
        Section("fields", [Row(each.name, _field(each, facts)) for each in found.fields]),
    ]
    if facts.splits is not None:
        sections.append(
            Section("splits", list(_classes(facts.splits, shown=len(facts.splits.names))))
        )
    sections += [
        Section(
            f"classes of {each.field}", list(_classes(each)), note=f"{len(each.names):,} classes"
        )
        for each in facts.classes
    ]
    sections += [
        Section(f"sizes of {each.field}", list(_sizes(each)), note="width x height")
        for each in facts.sizes
    ]
    if facts.records.n_images:
        sections += [
            Section("images", list(_images(facts.records)), note=based_on),
            Section("GPU hardware JPEG decoder", list(_engine(facts.records)), note=based_on),
        ]
    sections.append(Section("pack", list(_pack(facts))))
    if facts.records.damaged:
        rows = [Row("", why) for why in facts.records.damaged[:3]]
        rows.append(Row("", f"run: fastload verify {facts.path}"))
        unreadable = f"{len(facts.records.damaged)} of the scanned records cannot be read"
        sections.append(Section("DAMAGED", rows, note=unreadable))
    return sections


def _dataset(facts: Facts) -> Iterator[Row]:
    found = facts.manifest
    is_part = facts.n_samples < found.n_samples
    yield Row("samples", f"{facts.n_samples:,}" + (f" of {found.n_samples:,}" if is_part else ""))
    yield Row(
        "bytes",
        f"{byte_size(facts.n_bytes)}, "
        f"{byte_size(facts.n_bytes / max(1, found.n_samples))} per sample",
    )
    largest = max((shard.size for shard in found.shards), default=0)
    yield Row("shards", f"{len(found.shards):,} of up to {byte_size(largest)}")
    least, median, most = facts.samples_per_block
    share = facts.n_samples / max(1, found.n_samples)
    per_block = f"{least:,} to {most:,} samples, median {median:,}"
    yield Row(
        "blocks",
        f"{facts.n_blocks:,} of {per_block if least < most else f'{most:,} samples'}, "
        f"{byte_size(facts.n_bytes * share / max(1, facts.n_blocks))} each",
    )
    unshuffled = "same as the source, not shuffled (--shuffle-quality measures the effect)"
    is_source_order = found.order == "source"
    yield Row("order", unshuffled if is_source_order else f"shuffled, seed {found.seed}")


def _field(each: Field, facts: Facts) -> str:
    records = facts.records
    phrases = [kind_text(each)]
    if each.classes:
        phrases[0] += f", {len(each.classes):,} classes"
    if each.kind.row_widths or each.list:
        phrases.append(f"{records.items[each.name] / max(1, records.n_records):.1f} per sample")
    for row in facts.numbers:
        if row.field == each.name:
            phrases.append(
                f"{_number(row.least)} to {_number(row.most)}"
                + (f", mean {row.mean:.6g}" if each.kind is FLOAT else "")
            )
    if records.values[each.name] < records.n_records:
        phrases.append(
            f"in {exact_percent(records.values[each.name], records.n_records)} of the samples"
        )
    return ", ".join(phrases)


def _classes(counts: ClassCounts, *, shown: int = _TOP + _BOTTOM) -> Iterator[Row]:
    total = max(1, sum(counts.counts) + counts.missing)
    ranked = counts.ranked()
    most = max(1, ranked[0][1])
    rows = [
        Row(name, f"{count:,} ({exact_percent(count, total)})", count / most)
        for name, count in ranked
    ]
    if len(rows) > shown + 1:
        between = [count for _, count in ranked[_TOP:-_BOTTOM]]
        rows[_TOP:-_BOTTOM] = [
            Row("...", f"{len(between):,} classes with {between[-1]:,} to {between[0]:,} samples")
        ]
    yield from rows
    if counts.missing:
        yield Row("(no class)", f"{counts.missing:,} ({exact_percent(counts.missing, total)})")


def _sizes(sizes: Sizes) -> Iterator[Row]:
    def text(size: tuple[int, int]) -> str:
        return f"{size[0]} x {size[1]}"

    if sizes.n_sizes == 1:
        yield Row("all", text(sizes.median))
        return
    yield Row(
        "smallest, median, largest",
        f"{text(sizes.smallest)},  {text(sizes.median)},  {text(sizes.largest)}",
    )
    for size, count in sizes.common:
        if count > 1 or sizes.n_sizes <= len(sizes.common):
            yield Row(
                text(size),
                f"{count:,} ({exact_percent(count, sizes.n_images)})",
                count / sizes.n_images,
            )
    if sizes.n_sizes > len(sizes.common):
        yield Row("...", f"{sizes.n_sizes:,} different sizes")


def _images(records: RecordFacts) -> Iterator[Row]:
    n = records.n_images
    yield Row(
        "bytes",
        f"{byte_size(records.image_bytes / n)} per image on average; median record "
        f"{byte_size(statistics.median(records.record_bytes))}",
    )
    yield from _shares("codec", records.codecs, n)
    if records.codecs["jpeg"]:
        yield from _shares("JPEG coding", records.coding, records.codecs["jpeg"])
        yield from _shares("subsampling", records.subsampling, records.codecs["jpeg"])
    yield from _shares(
        "channels",
        {_CHANNELS.get(key, f"{key} channels"): count for key, count in records.channels.items()},
        n,
    )
    if records.bits[8] < n:
        depths = {f"{bits} bits per channel": count for bits, count in records.bits.items()}
        yield from _shares("depth", depths, n)
    yield Row(
        "restart index",
        f"{exact_percent(records.indexed, n)} of the images: a crop decodes only its segments",
        records.indexed / n,
    )
    yield Row(
        "orientation",
        f"{exact_percent(records.to_orient, n)} are rotated or flipped when loaded (EXIF)"
        if records.to_orient
        else "all images are stored upright",
    )


def _engine(records: RecordFacts) -> Iterator[Row]:
    n = records.n_images
    yield Row("supported", f"{exact_percent(records.engine, n)} of the images", records.engine / n)
    for why, count in records.engine_refusals.most_common(5):
        yield Row("not supported", f"{exact_percent(count, n)}: {why}")
    yield Row(
        "requirements",
        "baseline JPEG with one scan, 4:4:4, 4:2:2, 4:2:0, 4:4:0 or gray "
        "(A100, A30, Hopper, Ada, Blackwell)",
    )


def _shares(name: str, counts: Mapping[str, int], total: int) -> Iterator[Row]:
    for key, count in sorted(counts.items(), key=lambda row: -row[1]):
        yield Row(name, f"{key} {exact_percent(count, total)}", count / total)
        name = ""


def _pack(facts: Facts) -> Iterator[Row]:
    found = facts.manifest
    yield Row("packed by", found.tool)
    hidden = ["order", "seed", "info"]  # shown elsewhere
    hidden += ["quality"] if found.options.get("encode") != "jpeg" else []
    for name, value in found.options.items():
        if name not in hidden and value not in (None, 0, ""):
            yield Row(name.replace("_", " "), _option(name, value))
    if found.options.get("info"):
        yield Row("info", _shortened(json.dumps(found.options["info"], ensure_ascii=False)))
    for why, count in sorted(found.converted.items(), key=lambda row: -row[1]):
        yield Row("converted", f"{count:,}: {why}")
    yield Row(
        "skipped", f"{found.skipped:,} (listed in pack-log.jsonl)" if found.skipped else "none"
    )


def _option(name: str, value: object) -> str:
    if name.endswith("_size") and isinstance(value, int):
        return byte_size(value)
    if name == "restart":
        return "chosen by image size" if value == -1 else f"every {value} MCUs"
    return _shortened(value if isinstance(value, str) else json.dumps(value, ensure_ascii=False))


def _shortened(text: str, most: int = 100) -> str:
    return text if len(text) <= most else text[: most - 3] + "..."


def _number(value: float) -> str:
    return f"{int(value):,}" if value == int(value) else f"{value:.6g}"
