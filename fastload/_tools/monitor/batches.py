"""What a batch of any make holds: samples, bytes, the size of its images. The only place that counts samples."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

_DEPTH = 4


def count_samples(batch: object, depth: int = _DEPTH) -> int | None:
    """The first axis of the first tensor in it; of a list of images, its length. None where there is neither."""
    shape = getattr(batch, "shape", None)
    if shape is not None:
        return int(shape[0]) if len(shape) else None
    if not depth:
        return None
    if isinstance(batch, list | tuple):
        if _are_images(batch):
            return len(batch)
        values = iter(batch)
    elif isinstance(batch, Mapping):
        values = iter(batch.values())
    else:
        return None
    return next(
        (count for value in values if (count := count_samples(value, depth - 1)) is not None), None
    )


def _are_images(values: list[object] | tuple[object, ...]) -> bool:
    """Detection batches are lists of (3, h, w), because h and w differ: their first axis is colors."""
    for value in values:
        shape = getattr(value, "shape", None)
        if shape is None or len(shape) != 3 or shape[0] not in (1, 3, 4):
            return False
    return bool(values)


def arrays(batch: object) -> Iterator[Any]:
    """Everything in a batch that has a shape: tensors and arrays, in order."""
    if hasattr(batch, "shape") and hasattr(batch, "dtype"):
        yield batch
    elif isinstance(batch, Mapping):
        for value in batch.values():
            yield from arrays(value)
    elif isinstance(batch, list | tuple):
        for value in batch:
            yield from arrays(value)


def n_bytes(batch: object) -> int:
    """Memory of all arrays."""
    return sum(int(each.nbytes) for each in arrays(batch))


def image_size(batch: object) -> tuple[int, int] | None:
    """Height and width of the first thing that looks like images (N, C, H, W) or (N, H, W, C)."""
    for each in arrays(batch):
        shape = tuple(int(side) for side in each.shape)
        if len(shape) == 4 and shape[1] in (1, 3, 4):
            return shape[2], shape[3]
        if len(shape) == 4 and shape[3] in (1, 3, 4):
            return shape[1], shape[2]
    return None


def float_images(batch: object) -> bool:
    """Whether the images travel as float32: four bytes where one would do."""
    return any(
        len(each.shape) == 4 and str(each.dtype).endswith("float32") for each in arrays(batch)
    )
