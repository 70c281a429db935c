"""Small packed datasets for tests of the loader, and functions that compare batches."""

from __future__ import annotations

import hashlib
import io
import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from PIL import Image

from fastload._common.native import core
from fastload._store.fields import Field
from tests.packed_datasets import encoded, pack_samples, photo

CLASSES = ("cat", "dog", "emu")
LABELED = (Field("image", "image"), Field("label", "int", classes=CLASSES))
BACKENDS = ("native", "reference")


def backends() -> list[Any]:
    """Returns both CPU decoders for parametrize; skips the native one if it was not built."""
    no_core = pytest.mark.skipif(core() is None, reason="not run: no native core")
    return [pytest.param("native", marks=no_core), "reference"]


def needs_core() -> None:
    """Skips the test if the native core was not built."""
    if core() is None:
        pytest.skip("not run: no native core")


def pack_photos(
    dest: Path,
    count: int = 40,
    *,
    val: int = 0,
    size: tuple[int, int] = (96, 72),
    vary: int = 8,
    **options: Any,
) -> Path:
    """Packs shuffled JPEGs with labels, in blocks of four samples and shards of 1 MiB.

    With ``val``, the photos are in split train, and as many more in split val.
    """
    width, height = size
    files = [
        photo(width + vary * (i % 3), height + vary * (i % 2), seed=i, noise=12, quality=92)
        for i in range(count + val)
    ]
    samples: list[dict[str, Any]] = [
        {"image": encoded(file), "label": i % 3, **({"split": int(i >= count)} if val else {})}
        for i, file in enumerate(files)
    ]
    one = len(files[0])
    return pack_samples(
        dest,
        (*LABELED, *([Field("split", "int", classes=("train", "val"))] if val else [])),
        samples,
        **{"order": "shuffle", "seed": 5, "block_size": 4 * one, "shard_size": 1 << 20, **options},
    )


def pack_gray(dest: Path, count: int = 24, *, side: int = 128, **options: Any) -> Path:
    """Packs grayscale JPEGs of one size, like a captcha dataset."""
    samples = [
        {"image": encoded(photo(side, side, seed=i, gray=True, noise=10)), "label": i % 3}
        for i in range(count)
    ]
    return pack_samples(dest, LABELED, samples, **options)


def png(pixels: NDArray[np.uint8]) -> bytes:
    """Encodes a PNG file."""
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "PNG")
    return file.getvalue()


def spots(
    width: int, height: int, points: Sequence[tuple[float, float]], *, sigma: float = 3.0
) -> NDArray[np.uint8]:
    """Returns a dark RGB image with a soft spot at each point, in turn red, green and blue.

    Pixel centers are at .5.
    """
    x, y = np.arange(width) + 0.5, np.arange(height) + 0.5
    image = np.zeros((height, width, 3))
    for number, (across, down) in enumerate(points):
        spot = np.exp(-((x[None, :] - across) ** 2 + (y[:, None] - down) ** 2) / (2 * sigma**2))
        image[:, :, number % 3] = np.maximum(image[:, :, number % 3], 255 * spot)
    pixels: NDArray[np.uint8] = image.round().astype(np.uint8)
    return pixels


def centroid(plane: NDArray[Any]) -> tuple[float, float]:
    """Returns the centroid (x, y) of one channel (height, width)."""
    weights = np.asarray(plane, np.float64)
    weights = np.where(weights > 0.2 * weights.max(), weights, 0.0)
    total = weights.sum()
    return (
        float((weights.sum(0) * (np.arange(weights.shape[1]) + 0.5)).sum() / total),
        float((weights.sum(1) * (np.arange(weights.shape[0]) + 0.5)).sum() / total),
    )


def same_batch(one: Any, other: Any, *, atol: float = 0.0) -> bool:
    """Compares nested tensors, lists, tuples and dicts, including their types."""
    if isinstance(one, torch.Tensor) and isinstance(other, torch.Tensor):
        if one.dtype != other.dtype or one.shape != other.shape:
            return False
        if atol:
            return (
                bool((one.double() - other.double()).abs().max() <= atol) if one.numel() else True
            )
        return torch.equal(one, other)
    if type(one) is not type(other):
        return False
    if isinstance(one, Mapping):
        return one.keys() == other.keys() and all(
            same_batch(one[name], other[name], atol=atol) for name in one
        )
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(
            same_batch(a, b, atol=atol) for a, b in zip(one, other, strict=True)
        )
    return bool(one == other)


def digest(batch: Any) -> str:
    """Returns a short digest of a batch, for child processes to print."""
    found = hashlib.sha256()
    for value in batch.values() if isinstance(batch, dict) else batch:
        found.update(
            value.numpy().tobytes() if isinstance(value, torch.Tensor) else repr(value).encode()
        )
    return found.hexdigest()[:16]


def our_threads(before: Collection[threading.Thread] = ()) -> list[str]:
    """Returns the names of iteration threads that are alive and not in ``before``.

    Helper threads live as long as their loader and are ignored.
    """
    return sorted(
        thread.name
        for thread in threading.enumerate()
        if thread.name in ("fastload-feeder", "fastload-readahead") and thread not in before
    )


def wait_until(true: Callable[[], bool], *, at_most_s: float = 300.0) -> bool:
    """Waits until ``true()`` holds; returns False after ``at_most_s`` seconds."""
    deadline = time.monotonic() + at_most_s
    while not true():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.005)
    return True
