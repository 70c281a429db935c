"""How many samples a batch of any make holds."""

from __future__ import annotations

from collections.abc import Mapping

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
    """Detection batches are lists of (3, h, w), because h and w differ: their first axis is colours."""
    for value in values:
        shape = getattr(value, "shape", None)
        if shape is None or len(shape) != 3 or shape[0] not in (1, 3, 4):
            return False
    return bool(values)
