"""The contract that every source must fulfill, and small test data."""

from __future__ import annotations

import io
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from fastload._pack.sources.base import (
    AnySource,
    Encoded,
    KnowsSplits,
    Ref,
    Sample,
    Source,
    is_stream,
)
from fastload._store.fields import Field, splits_of
from fastload.errors import BadImage


@dataclass(frozen=True, slots=True)
class Loaded:
    """A sample whose values are untyped for tests."""

    values: dict[str, Any]
    source: str


def image_bytes(
    seed: int = 0, *, form: str = "JPEG", mode: str = "RGB", size: tuple[int, int] = (16, 16)
) -> bytes:
    """Returns a small image that differs for each seed."""
    pixels = np.random.default_rng(seed).integers(0, 256, (size[1], size[0], 3), dtype=np.uint8)
    stream = io.BytesIO()
    Image.fromarray(pixels).convert(mode).save(stream, form)
    return stream.getvalue()


def put_image(path: Path, seed: int = 0, *, mode: str = "RGB") -> bytes:
    """Writes an image in the format of its suffix and returns the bytes."""
    form = {".jpg": "JPEG", ".jpeg": "JPEG", ".tif": "TIFF"}.get(
        path.suffix.lower(), path.suffix[1:].upper()
    )
    data = image_bytes(seed, form=form, mode=mode)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    return data


def outcome(source: AnySource) -> tuple[list[Loaded], list[str]]:
    """Returns all good samples, checked against the contract, and the messages of the bad ones."""
    good: list[Loaded] = []
    bad: list[str] = []
    found: list[Sample | BadImage]
    if is_stream(source):
        found = list(source)
    else:
        assert isinstance(source, Source)
        refs = list(source.refs())
        assert refs == list(source.refs()), "refs must have the same order each time"
        found = [_loaded(source, json.dumps(ref)) for ref in refs]
        assert_splits_are_known(source, refs, found)
    for sample in found:
        if isinstance(sample, BadImage):
            assert sample.source, "a bad sample must be named"
            bad.append(str(sample))
        else:
            assert_sample_fits(sample, source.fields)
            good.append(Loaded(dict(sample.values), sample.source))
    json.dumps(source.info, allow_nan=False)
    return good, bad


def samples_of(source: AnySource) -> list[Loaded]:
    """Returns all samples and asserts that none is bad."""
    good, bad = outcome(source)
    assert bad == []
    return good


def _loaded(source: Source, ref: str) -> Sample | BadImage:
    assert len(ref) < 4096
    try:
        return source.load(json.loads(ref))  # through JSON, as after a restart
    except BadImage as error:
        return error


def assert_splits_are_known(
    source: Source, refs: list[Ref], found: list[Sample | BadImage]
) -> None:
    """Asserts that the source returns the split of each sample without loading it."""
    assert isinstance(source, KnowsSplits) or not splits_of(source.fields)
    for ref, sample in zip(refs, found, strict=True):
        if isinstance(source, KnowsSplits) and splits_of(source.fields):
            split = source.split_of(ref)
            assert isinstance(sample, BadImage) or sample.values["split"] in (split, None)


def assert_sample_fits(sample: Sample, fields: tuple[Field, ...]) -> None:
    """Asserts that every value has the type that ``Sample`` documents for its kind."""
    by_name = {field.name: field for field in fields}
    assert sample.source
    assert sample.source.isprintable(), ascii(sample.source)
    sample.source.encode()
    for name, value in sample.values.items():
        field = by_name[name]
        if value is None:
            continue
        items: list[object] = [value]
        if field.list:
            assert isinstance(value, list), (name, value)
            items = list(value)
        for item in items:
            assert _fits(item, field), (name, field.kind, item)


def _fits(value: object, field: Field) -> bool:
    kind = field.kind.name
    if kind in ("image", "mask") and isinstance(value, Encoded):
        return isinstance(value.data, bytes) and bool(value.data) and bool(value.name)
    if isinstance(value, np.ndarray):
        shapes = {
            "boxes": (np.float32, 2, (4,)),
            "points": (np.float32, 2, (2, 3)),
            "matrix": (np.float64, 2, None),
        }
        if kind in shapes:
            dtype, ndim, widths = shapes[kind]
            return (
                value.dtype == dtype
                and value.ndim == ndim
                and (widths is None or value.shape[1] in widths)
            )
        if kind == "mask":
            return value.dtype.kind in "iu" and value.ndim == 2
        if kind == "image":
            return value.dtype in (np.uint8, np.uint16) and value.ndim in (2, 3)
        return kind == "array" and value.dtype.kind in "biuf"
    if kind == "json":
        return bool(json.dumps(value, allow_nan=False))
    if kind == "int" and field.classes:
        return type(value) is int and 0 <= value < len(field.classes)
    plain = {"int": int, "float": float, "str": str, "bytes": bytes, "image": Image.Image}
    return isinstance(value, plain[kind]) and not isinstance(value, bool)
