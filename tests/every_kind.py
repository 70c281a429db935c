"""Small datasets with a field of every kind, single and in lists, for operations on datasets."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

import fastload
from fastload._store.fields import Field
from fastload._store.kinds import KINDS
from tests.packed_datasets import encoded, pack_samples
from tests.packing import file_of, pixels
from tests.small_dataset import same

FIELDS = (
    Field("image", "image"),
    Field("cameras", "image", list=True),
    Field("mask", "mask"),
    Field("masks", "mask", list=True),
    Field("boxes", "boxes"),
    Field("box_lists", "boxes", list=True),
    Field("points", "points"),
    Field("lanes", "points", list=True),
    Field("camera", "matrix"),
    Field("cameras_k", "matrix", list=True, image="cameras"),
    Field("numbers", "array"),
    Field("arrays", "array", list=True),
    Field("label", "int", classes=("cat", "dog", "emu")),
    Field("count", "int"),
    Field("counts", "int", list=True),
    Field("score", "float"),
    Field("scores", "float", list=True),
    Field("text", "str"),
    Field("texts", "str", list=True),
    Field("meta", "json"),
    Field("metas", "json", list=True),
    Field("blob", "bytes"),
    Field("blobs", "bytes", list=True),
)
assert {each.kind for each in FIELDS} == {*KINDS.values()}


def sample(seed: int) -> dict[str, Any]:
    """Returns a sample. Every third sample has only some of the fields."""
    rng = np.random.default_rng(seed)
    width = 20 + seed % 7
    found: dict[str, Any] = {
        "image": encoded(file_of(pixels(width, 24, seed=seed))),
        "cameras": [encoded(file_of(pixels(16, 16, seed=seed + i), "PNG")) for i in range(2)],
        "mask": rng.integers(0, 5, (24, width), dtype=np.uint8),
        "masks": [rng.integers(0, 900, (8, 8), dtype=np.uint16) for _ in range(seed % 3)],
        "boxes": rng.random((seed % 4, 4), dtype=np.float32),
        "box_lists": [rng.random((1, 4), dtype=np.float32)],
        "points": rng.random((3, 2), dtype=np.float32),
        "lanes": [rng.random((n, 3), dtype=np.float32) for n in (0, 2)],
        "camera": rng.random((3, 3)),
        "cameras_k": [rng.random((3, 3)) for _ in range(2)],
        "numbers": rng.integers(0, 9, (2, 0, 3), dtype=np.int16),
        "arrays": [rng.random(4).astype(np.float16), np.array(7, np.uint64)],
        "label": seed % 3,
        "count": seed - 5,
        "counts": [seed, -seed],
        "score": seed / 4,
        "scores": [float("inf"), 0.5],
        "text": f"é {seed}",
        "texts": ["", "a\nb"],
        "meta": {"seed": seed, "list": [None, True, "x"]},
        "metas": [1, {"a": []}],
        "blob": rng.bytes(5 + seed % 3),
        "blobs": [b"", b"\xff\0"],
    }
    if seed % 3 == 2:
        return {name: found[name] for name in ("image", "text", "lanes")}
    return found


def pack_every_kind(
    dest: Path, seeds: Sequence[int], *, fields: Sequence[Field] = FIELDS, **options: Any
) -> fastload.Dataset:
    pack_samples(dest, fields, [sample(seed) for seed in seeds], **options)
    return fastload.open(dest)


def assert_same_samples(
    found: fastload.Dataset, ids: Sequence[int], expected: fastload.Dataset, others: Sequence[int]
) -> None:
    """Asserts that samples have equal values, sources and column values."""
    assert len(ids) == len(others)
    names = {column.name for column in found.manifest.columns} - {"_blocks", "_source_index"}
    for i, j in zip(ids, others, strict=True):
        assert same(found[i], expected[j]), (i, j)
        assert found.source(i) == expected.source(j)
        for name in names:
            one, two = (data.column(name)[k : k + 1] for data, k in ((found, i), (expected, j)))
            assert same(one, two), (name, i, j)


def assert_intact(path: Path) -> fastload.Dataset:
    """Asserts that verify finds no fault and that reading finds the stored properties."""
    report = fastload.verify(path, deep=True)
    assert report.ok, str(report)
    return fastload.open(path)
