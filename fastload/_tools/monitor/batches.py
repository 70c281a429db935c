"""Counts samples and bytes in a batch of any structure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

_MAX_DEPTH = 4


def count_samples(batch: object, depth: int = _MAX_DEPTH) -> int | None:
    """Returns the number of samples in ``batch``, or None if it contains no tensor.

    The count is the first dimension of the first tensor. A list of images counts by its length.
    """
    shape = getattr(batch, "shape", None)
    if shape is not None:
        return int(shape[0]) if len(shape) else None
    if not depth:
        return None
    if isinstance(batch, list | tuple) and _is_image_list(batch):
        return len(batch)
    counts = (count_samples(value, depth - 1) for value in _children(batch))
    return next((count for count in counts if count is not None), None)


def _is_image_list(values: list[object] | tuple[object, ...]) -> bool:
    """Detection batches are lists of (3, h, w) tensors whose first dimension is the channels."""
    shapes: list[tuple[int, ...]] = [getattr(value, "shape", ()) for value in values]
    return bool(shapes) and all(len(shape) == 3 and shape[0] in (1, 3, 4) for shape in shapes)


def _children(batch: object) -> list[Any]:
    if isinstance(batch, Mapping):
        return list(batch.values())
    return list(batch) if isinstance(batch, list | tuple) else []


def arrays(batch: object) -> Iterator[Any]:
    """Yields the tensors and arrays in ``batch``, in order."""
    if hasattr(batch, "shape") and hasattr(batch, "dtype"):
        yield batch
    else:
        for value in _children(batch):
            yield from arrays(value)


def n_bytes(batch: object) -> int:
    return sum(int(array.nbytes) for array in arrays(batch))


def float_images(batch: object) -> bool:
    """Reports whether images are float32, which takes four times the memory of uint8."""
    return any(
        len(array.shape) == 4 and str(array.dtype).endswith("float32") for array in arrays(batch)
    )
