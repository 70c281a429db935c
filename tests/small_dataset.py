"""Writes small datasets for tests with the store alone, without sources and threads."""

from __future__ import annotations

import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from PIL import Image

from fastload._common import files
from fastload._store import manifest
from fastload._store.columns import ColumnWriter
from fastload._store.fields import Field, encode_value, source_part
from fastload._store.kinds import MISSING_INT
from fastload._store.manifest import Column, Manifest
from fastload._store.properties import PropertyCounter
from fastload._store.record import JPEG, Part, encode_record, shown_size
from fastload._store.writer import ShardWriter, shard_name

FIELDS = (
    Field("image", "image"),
    Field("label", "int", classes=("cat", "dog", "emu")),
    Field("note", "str"),
)
_MISSING = {"int": MISSING_INT, "float": float("nan")}


def jpeg(
    width: int,
    height: int,
    *,
    seed: int = 0,
    gray: bool = False,
    quality: int = 90,
    exif_orientation: int = 0,
) -> bytes:
    """Returns a JPEG of smooth noise."""
    rng = np.random.default_rng(seed)
    pixels = rng.integers(
        0, 256, (max(2, height // 8), max(2, width // 8)) + (() if gray else (3,)), dtype=np.uint8
    )
    image = Image.fromarray(pixels).resize((width, height), Image.Resampling.BILINEAR)
    exif = Image.Exif()
    if exif_orientation:
        exif[0x0112] = exif_orientation
    out = io.BytesIO()
    image.save(out, "JPEG", quality=quality, exif=exif)
    return out.getvalue()


def jpeg_part(number: int, data: bytes, *, item: int = 0, orientation: int = 1) -> Part:
    """Returns a complete JPEG file as the part of an image field."""
    with Image.open(io.BytesIO(data)) as image:
        width, height = image.size
        channels = len(image.getbands())
    return Part(
        number,
        data,
        item,
        JPEG,
        channels=channels,
        bits=8,
        width=width,
        height=height,
        orientation=orientation,
    )


def parts_of(fields: Sequence[Field], sample: dict[str, Any], source: str) -> list[Part]:
    """Returns the parts of a sample. Image bytes are a JPEG."""
    parts: list[Part] = [source_part(source)] if source else []
    for number, field in enumerate(fields):
        value = sample.get(field.name)
        if field.kind.is_image and isinstance(value, bytes):
            parts.append(jpeg_part(number, value))
        else:
            parts.extend(encode_value(number, field, value))
    return parts


def write_dataset(
    folder: Path,
    samples: Sequence[dict[str, Any]],
    *,
    fields: tuple[Field, ...] = FIELDS,
    per_shard: int = 8,
    per_block: int = 4,
    sources: Sequence[str] = (),
) -> Manifest:
    """Writes and publishes samples in their order. Returns the manifest."""
    folder.mkdir(parents=True, exist_ok=True)
    rows: dict[str, list[Any]] = {name: [] for name in manifest.expected_columns(fields)}
    shards = []
    properties = PropertyCounter(fields)
    for number, first in enumerate(range(0, len(samples), per_shard)):
        base = 100 * (number + 1) + first  # differs from the ids, as in an appended dataset
        with ShardWriter(folder, shard_name(number), base=base) as writer:
            for sample_id in range(first, min(first + per_shard, len(samples))):
                sample = samples[sample_id]
                source = sources[sample_id] if sources else f"images/{sample_id:04d}.jpg"
                parts = parts_of(fields, sample, source)
                key = base + sample_id - first
                writer.add(key, encode_record(key, parts))
                properties.add(parts)
                _add_rows(rows, fields, sample, parts, sample_id)
            rows["_blocks"] += [
                (block, min(per_block, first + writer.records - block))
                for block in range(first, first + writer.records, per_block)
            ]
            shards.append(writer.publish(first))
    columns = tuple(
        _write_column(folder, name, dtype, rows[name])
        for name, dtype in manifest.expected_columns(fields).items()
    )
    written = Manifest(
        n_samples=len(samples),
        fields=fields,
        properties=properties.found,
        shards=tuple(shards),
        columns=columns,
        content=manifest.content_of(shards),
        tool="fastload test",
        order="source",
    )
    files.write_atomically(folder / manifest.NAME, manifest.dump(written))
    return written


def _add_rows(
    rows: dict[str, list[Any]],
    fields: Sequence[Field],
    sample: dict[str, Any],
    parts: list[Part],
    sample_id: int,
) -> None:
    rows["_source_index"].append(sample_id)
    for number, field in enumerate(fields):
        if field.name in rows:
            value = sample.get(field.name)
            rows[field.name].append(_MISSING[field.kind.name] if value is None else value)
        if f"{field.name}.width" in rows:
            width, height = next(
                (shown_size(part) for part in parts if part.field == number), (0, 0)
            )
            rows[f"{field.name}.width"].append(width)
            rows[f"{field.name}.height"].append(height)


def _write_column(folder: Path, name: str, dtype: str, rows: list[Any]) -> Column:
    with ColumnWriter(folder, name, dtype, width=2 if name == "_blocks" else 1) as writer:
        writer.append(np.array(rows, dtype))
        return writer.finish()


def simple_samples(count: int, *, size: int = 32) -> list[dict[str, Any]]:
    """Returns different samples with FIELDS."""
    return [
        {"image": jpeg(size + i % 3, size, seed=i), "label": i % 3, "note": f"note {i}"}
        for i in range(count)
    ]


def same(a: Any, b: Any) -> bool:
    """Compares values recursively, including types, arrays, lists and dicts."""
    if isinstance(a, np.ndarray) or isinstance(b, np.ndarray):
        return (
            type(a) is type(b)
            and a.dtype == b.dtype
            and bool(np.array_equal(a, b, equal_nan=a.dtype.kind == "f"))
        )
    if isinstance(a, dict) and isinstance(b, dict):
        return a.keys() == b.keys() and all(same(a[key], b[key]) for key in a)
    if isinstance(a, list) and isinstance(b, list):
        return len(a) == len(b) and all(map(same, a, b))
    return type(a) is type(b) and bool(a == b)


Array = npt.NDArray[Any]
