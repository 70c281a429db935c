"""Memory of batches: never overwritten while referenced, reused afterwards, limited, reported."""

from __future__ import annotations

import gc
from collections import deque
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fastload import transforms as T
from fastload._load.buffers import BufferPool
from fastload._load.loader import DataLoader

SIDE, SIZE = 20, 4
BATCH_BYTES = SIZE * 3 * SIDE * SIDE


def make(packed: Path, **options: Any) -> DataLoader:
    return DataLoader(
        packed,
        SIZE,
        **{
            "shuffle": True,
            "transform": [T.RandomResizedCrop(SIDE)],
            "prefetch_factor": 2,
            **options,
        },
    )


def memory(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage().data_ptr()


@pytest.mark.parametrize("steps", [[], [T.Brightness(0.5)]], ids=["decoder", "torch"])
def test_referenced_batches_do_not_change(packed: Path, steps: list[Any]) -> None:
    loader = make(packed, transform=[T.RandomResizedCrop(SIDE), *steps])
    kept, copies = [], []
    for _ in range(3):
        for images, _labels in loader:
            kept.append(images)
            copies.append(images.clone())
    assert len({memory(images) for images in kept}) == len(kept) == 30
    assert all(torch.equal(one, other) for one, other in zip(kept, copies, strict=True))


@pytest.mark.parametrize(
    "piece",
    [
        lambda images: images[1],
        lambda images: images[:, 0, 3:5],
        lambda images: images[0].permute(1, 2, 0),
        lambda images: images.view(-1)[5:9],
        lambda images: images[2].numpy(),
        lambda images: memoryview(images[3].numpy()),
    ],
    ids=["item", "slice", "permuted", "view", "numpy", "memoryview"],
)
def test_a_slice_keeps_the_whole_batch_valid(packed: Path, piece: Any) -> None:
    loader = make(packed)
    pieces, copies = [], []
    for images, _labels in loader:
        pieces.append(piece(images))
        copies.append(np.asarray(pieces[-1]).copy())
        del images
    for _ in range(2):
        for _batch in loader:
            pass
    assert all(
        np.array_equal(np.asarray(one), other) for one, other in zip(pieces, copies, strict=True)
    )


def test_memory_of_dropped_batches_is_reused(packed: Path) -> None:
    loader = make(packed)
    seen = set()
    for _ in range(4):
        for images, _labels in loader:
            seen.add(memory(images))
            del images
    assert len(seen) <= 2 + 2  # two prefetched, one referenced here, one being finished
    stats = loader.stats()
    assert BATCH_BYTES <= stats.buffer_bytes <= (2 + 2) * (BATCH_BYTES + 64)


def test_memory_of_stored_batches_is_released_after_they_are_dropped(packed: Path) -> None:
    loader = make(packed)
    kept = [images for images, _ in loader]
    assert loader.stats().buffer_bytes >= 10 * BATCH_BYTES
    del kept
    gc.collect()
    ring = BufferPool(3)
    held = [ring.tensor((100,), torch.uint8) for _ in range(9)]
    assert ring.n_bytes == 9 * 164
    del held
    other = ring.tensor(
        (1000,), torch.float32
    )  # of another size, so free buffers are released except for the reserve
    assert ring.n_bytes == 2 * 164 + 4064
    del other
    assert ring.n_bytes == 2 * 164 + 4064


def test_unused_buffers_are_released_after_a_while(packed: Path) -> None:
    loader = make(packed)
    kept = [images for _ in range(3) for images, _ in loader]
    assert loader.stats().buffer_bytes >= 30 * BATCH_BYTES
    del kept
    gc.collect()
    for _ in range(60):
        for images, _labels in loader:
            del images
    assert loader.stats().buffer_bytes <= (2 + 2) * (BATCH_BYTES + 64)


@pytest.mark.parametrize("n", [40, 700])
def test_buffers_that_are_used_repeatedly_are_not_released(n: int) -> None:
    ring, seen = BufferPool(2), set()
    for _ in range(20):
        held = [ring.tensor((100,), torch.uint8) for _ in range(n)]
        seen |= {memory(each) for each in held}
        del held
    assert len(seen) == n
    assert ring.n_bytes == n * 164


@pytest.mark.parametrize("ahead", [3, 100])
def test_alternating_sizes_neither_release_nor_allocate_buffers(ahead: int) -> None:
    ring, under_way, seen = BufferPool(ahead + 2), deque[list[torch.Tensor]](), set()
    for number in range(2000):
        under_way.append([ring.tensor((size,), torch.uint8) for size in (100, 1000, 1000, 5000)])
        seen |= {memory(each) for each in under_way[-1]} if number > ahead else set()
        if len(under_way) > ahead:
            under_way.popleft()
    assert len(seen) == 4 * (ahead + 1)


def test_tensors_are_aligned_and_have_the_requested_shape() -> None:
    ring = BufferPool(2)
    for shape, dtype in (
        ((3, 5), torch.uint8),
        ((2, 3, 7), torch.float32),
        ((1,), torch.bfloat16),
        ((0, 4), torch.uint8),
    ):
        tensor = ring.tensor(shape, dtype)
        assert (tuple(tensor.shape), tensor.dtype, tensor.is_contiguous()) == (shape, dtype, True)
        assert tensor.data_ptr() % 64 == 0 or not tensor.numel()


def test_a_short_batch_reuses_the_memory_of_a_full_one() -> None:
    ring = BufferPool(2)
    memory_of_long = memory(ring.tensor((100, 10), torch.uint8))
    assert memory(ring.tensor((60, 10), torch.uint8)) == memory_of_long
    small = ring.tensor((4, 10), torch.uint8)
    assert memory(small) != memory_of_long  # but not a buffer that is much too large


def test_the_consumer_may_modify_its_batch(packed: Path) -> None:
    loader = make(packed)
    expected = [images.clone() for images, _ in loader]
    loader.set_epoch(0)
    for number, (images, _labels) in enumerate(loader):
        assert torch.equal(images, expected[number])
        images.zero_()
