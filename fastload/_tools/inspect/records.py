"""Statistics over records: codecs, subsampling, orientation, and support by GPU JPEG engines.

Reads all records of a small dataset and an evenly spread subset of a large one, so that a dataset
of 10 million samples takes seconds.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from fastload._store.dataset import Dataset
from fastload._store.fields import Field
from fastload._store.jpeg_header import JpegHeader, read_header
from fastload._store.record import CODEC_NAMES, JPEG, RESTART_INDEX, Part, shown_size
from fastload.errors import BadImage, StoreError

LIMIT = 2000  # records to scan
Tick = Callable[[int, int], None]  # called with (records done, total)
# According to the nvJPEG documentation, section 1.5; 4:1:0 and 4:1:1 are not supported.
_ENGINE_SAMPLING = ("444", "422", "420", "440", "gray")


@dataclass(slots=True)
class RecordFacts:
    """Counts over the scanned records. Every image of a list field counts."""

    n_records: int = 0
    all_records: bool = True  # False: an evenly spread subset
    n_images: int = 0
    codecs: Counter[str] = field(default_factory=Counter)
    coding: Counter[str] = field(default_factory=Counter)  # of JPEGs: baseline, progressive ...
    subsampling: Counter[str] = field(default_factory=Counter)  # of JPEGs
    channels: Counter[int] = field(default_factory=Counter)
    # By field: (width, height) after EXIF orientation
    sizes: dict[str, Counter[tuple[int, int]]] = field(default_factory=dict)
    to_orient: int = 0  # images whose EXIF orientation is applied when they are loaded
    indexed: int = 0  # images with a restart index
    image_bytes: int = 0
    record_bytes: list[int] = field(default_factory=list)
    values: Counter[str] = field(default_factory=Counter)  # by field: records with a value
    # By field: items of lists, rows of boxes and points
    items: Counter[str] = field(default_factory=Counter)
    engine: int = 0  # images that the JPEG engine of a GPU can decode
    # Reasons why it cannot decode the others
    engine_refusals: Counter[str] = field(default_factory=Counter)
    damaged: list[str] = field(default_factory=list)


def spread(n: int, limit: int) -> NDArray[np.int64]:
    """At most ``limit`` evenly spread numbers of 0..n-1, including both ends."""
    return (
        np.arange(n)
        if n <= limit
        else np.unique(np.linspace(0, n - 1, limit).round().astype(np.int64))
    )


def scan_records(dataset: Dataset, *, limit: int = LIMIT, tick: Tick | None = None) -> RecordFacts:
    """Reads and verifies records and their image headers. Damaged records are listed."""
    facts = RecordFacts(all_records=len(dataset) <= limit)
    ids = spread(len(dataset), limit).tolist()
    for done, sample_id in enumerate(ids, 1):
        if tick is not None:
            tick(done, len(ids))
        try:
            parts = dataset.parts(sample_id)
        except StoreError as error:
            facts.damaged.append(str(error))
            continue
        facts.n_records += 1
        facts.record_bytes.append(sum(len(part.data) for part in parts))
        seen: set[str] = set()
        for part in parts:
            if part.field >= len(dataset.fields):
                continue
            each = dataset.fields[part.field]
            if part.role == RESTART_INDEX:
                facts.indexed += 1
                continue
            seen.add(each.name)
            facts.items[each.name] += _rows(each, part)
            if each.kind.is_image:
                _count_image(facts, each, part, sample_id)
        facts.values.update(seen)
    return facts


def engine_refusal(header: JpegHeader) -> str:
    """Why the JPEG engine of a GPU cannot decode this file; '' if it can.

    It decodes baseline JPEG with a single scan, except 4:1:1 and 4:1:0.
    """
    if header.sof != 0xC0 or header.precision != 8:
        return "progressive" if header.progressive else "not baseline"
    if header.n_scans != 1:
        return "several scans"
    return "" if header.subsampling in _ENGINE_SAMPLING else sampling_name(header.subsampling)


def sampling_name(subsampling: str) -> str:
    """``"420"`` → ``"4:2:0"``."""
    return ":".join(subsampling) if subsampling.isdecimal() else subsampling


def coding_name(header: JpegHeader) -> str:
    if header.arithmetic:
        return "arithmetic"
    if header.progressive:
        return "progressive"
    return "baseline" if header.sof == 0xC0 else "extended"


def _rows(each: Field, part: Part) -> int:
    """The number of rows of boxes and points, which is stored at byte 8; 1 for other kinds."""
    if each.kind.row_widths and not each.list and len(part.data) >= 16:
        return int.from_bytes(part.data[8:16], "little")
    return 1


def _count_image(facts: RecordFacts, each: Field, part: Part, sample_id: int) -> None:
    facts.n_images += 1
    facts.image_bytes += len(part.data)
    facts.codecs[CODEC_NAMES[part.codec]] += 1
    facts.channels[part.channels] += 1
    facts.sizes.setdefault(each.name, Counter())[shown_size(part)] += 1
    facts.to_orient += part.orientation > 1
    if part.codec != JPEG:
        facts.engine_refusals[CODEC_NAMES[part.codec]] += 1
        return
    try:
        header = read_header(memoryview(part.data))
    except BadImage as error:
        facts.damaged.append(f"sample {sample_id}, field {each.name!r}: {error.why}")
        return
    facts.coding[coding_name(header)] += 1
    facts.subsampling[sampling_name(header.subsampling)] += 1
    refusal = engine_refusal(header)
    facts.engine += not refusal
    if refusal:
        facts.engine_refusals[refusal] += 1
