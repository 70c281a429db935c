"""What can be told of a batch by looking at it: samples, bytes, the size of its images."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

KEPT = 8  # batches kept to be replayed
KEPT_BYTES = 512 << 20


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


def n_samples(batch: object) -> int:
    """The first axis of the first array; the length of a list without arrays; 0 where neither is there."""
    for each in arrays(batch):
        if len(each.shape):
            return int(each.shape[0])
    return len(batch) if isinstance(batch, list | tuple) else 0


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


class Keeper:
    """Keeps the first batches, within bounds, for the step to be run on alone."""

    def __init__(self) -> None:
        self.batches: list[object] = []
        self._bytes = 0

    def offer(self, batch: object) -> None:
        """Takes it while there is room; the first one always."""
        size = n_bytes(batch)
        if not self.batches or (len(self.batches) < KEPT and self._bytes + size <= KEPT_BYTES):
            self.batches.append(batch)
            self._bytes += size
