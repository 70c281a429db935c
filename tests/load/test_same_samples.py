"""The same seed yields the same samples, crops, labels and order with any other option."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from fastload import transforms as T
from fastload._load.loader import DataLoader
from tests.loading import backends, needs_core, pack_gray, same_batch

N = 37
CROPPED = [
    T.RandomResizedCrop(24),
    T.HorizontalFlip(),
    T.ColorJitter(brightness=0.5, contrast=0.5),
    T.Normalize(0.5, 0.25),
]


@pytest.fixture(scope="module")
def by_id(packed: Path) -> dict[int, dict[str, torch.Tensor]]:
    """The samples of epoch 1 by id."""
    return samples(make(packed))


def make(packed: Path, **options: Any) -> DataLoader:
    loader = DataLoader(
        packed,
        **{
            "batch_size": 8,
            "shuffle": True,
            "transform": CROPPED,
            "seed": 9,
            "fields": ("image", "label", "id"),
            "return_matrix": True,
            **options,
        },
    )
    loader.set_epoch(1)
    return loader


def samples(loader: DataLoader) -> dict[int, dict[str, torch.Tensor]]:
    return {
        i: {name: value[place] for name, value in batch.items()}
        for batch in loader
        for place, i in enumerate(batch["id"].tolist())
    }


def order(loader: DataLoader) -> list[int]:
    return [i for batch in loader for i in batch["id"].tolist()]


@pytest.mark.parametrize(
    "options",
    [
        {"num_workers": 1},
        {"num_workers": 7},
        {"prefetch_factor": 1},
        {"prefetch_factor": 9},
        {"batch_size": 1},
        {"batch_size": 5},
        {"batch_size": N},
        {"batch_size": 3, "num_workers": 3},
        {"last_batch": "pad"},
    ],
    ids=str,
)
def test_the_same_for_any_threads_prefetch_and_batch_size(
    packed: Path, by_id: dict[int, dict[str, torch.Tensor]], options: dict[str, Any]
) -> None:
    assert order(make(packed, **options)) == order(make(packed))
    found = samples(make(packed, **options))
    assert found.keys() == by_id.keys() == set(range(N))
    assert all(same_batch(found[i], by_id[i]) for i in by_id)


@pytest.mark.parametrize(
    "options",
    [{"shuffle": "full"}, {"shuffle": False}, {"window": 1}, {"sampler": list(range(N))[::-1]}],
    ids=str,
)
def test_a_crop_does_not_depend_on_the_order(
    packed: Path, by_id: dict[int, dict[str, torch.Tensor]], options: dict[str, Any]
) -> None:
    options = {"shuffle": None, **options} if "sampler" in options else options
    assert order(make(packed, **options)) != order(make(packed))
    found = samples(make(packed, **options))
    assert all(same_batch(found[i], by_id[i]) for i in by_id)


@pytest.mark.parametrize("world", [2, 3, 5])
def test_the_same_on_any_rank(
    packed: Path, by_id: dict[int, dict[str, torch.Tensor]], world: int
) -> None:
    ranks = [
        samples(make(packed, rank=rank, world_size=world, last_batch="partial"))
        for rank in range(world)
    ]
    assert sorted(i for rank in ranks for i in rank) == list(range(N))
    assert all(same_batch(sample, by_id[i]) for rank in ranks for i, sample in rank.items())


def test_the_same_after_a_resume(packed: Path, by_id: dict[int, dict[str, torch.Tensor]]) -> None:
    loader = make(packed)
    first = [next(iterator) for iterator in [iter(loader)] for _ in range(2)]
    other = make(packed, num_workers=3)
    other.load_state_dict(loader.state_dict())
    rest = samples(other)
    assert rest.keys() == set(range(N)) - {i for batch in first for i in batch["id"].tolist()}
    assert all(same_batch(sample, by_id[i]) for i, sample in rest.items())


def test_another_seed_or_epoch_has_another_order_and_other_crops(
    packed: Path, by_id: dict[int, dict[str, torch.Tensor]]
) -> None:
    other_epoch = make(packed)
    other_epoch.set_epoch(2)
    for other in (make(packed, seed=10), other_epoch):
        found = samples(other)
        same = sum(same_batch(found[i]["image"], by_id[i]["image"]) for i in by_id)
        assert same <= 1
    assert order(make(packed, seed=10)) != order(make(packed))


# Bilinear without antialiasing: OpenCV has fixed-point weights, torch has floats. Results differ
# by up to 2 in 1 pixel of 10,000.
GEOMETRY = [
    pytest.param([T.RandomResizedCrop(24), T.HorizontalFlip()], 1, id="crop"),
    pytest.param([T.Letterbox(40, 40, fill=90)], 1, id="letterbox"),
    pytest.param([T.CenterCrop(100, fill=7)], 1, id="padded"),
    pytest.param([T.Crop(top=0.3), T.Resize(20, 30), T.HorizontalFlip()], 1, id="stretch"),
    pytest.param([T.Resize(shorter=30, filter="bilinear"), T.RandomCrop(24)], 2, id="bilinear"),
]


@pytest.mark.parametrize("layout", ["NCHW", "channels_last"])
@pytest.mark.parametrize(("transform", "tolerance"), GEOMETRY)
def test_both_backends_return_the_same_pixels_within_a_tolerance(
    packed: Path, transform: list[Any], tolerance: int, layout: str
) -> None:
    needs_core()
    native, reference = (
        list(make(packed, backend=backend, exact=True, transform=[*transform, T.Layout(layout)]))
        for backend in ("native", "reference")
    )
    assert all(
        same_batch(one, other, atol=tolerance) for one, other in zip(native, reference, strict=True)
    )
    assert (
        make(packed, backend="native").backend.name,
        make(packed, backend="reference").backend.name,
    ) == ("native", "reference")


def test_decoding_at_a_lower_scale_changes_pixels_a_little_and_nothing_else(packed: Path) -> None:
    """Without exact=True, large images may be decoded at a reduced scale; labels do not change."""
    needs_core()
    exact, scaled = (
        next(iter(make(packed, exact=exact, transform=[T.Resize(20, 30)])))
        for exact in (True, False)
    )
    assert all(same_batch(exact[name], scaled[name]) for name in ("label", "id", "image.matrix"))
    difference = (exact["image"].double() - scaled["image"].double()).abs()
    assert 0 < difference.mean() < 12


def test_gray_images_are_one_channel_on_both_backends(tmp_path: Path) -> None:
    needs_core()
    packed = pack_gray(tmp_path / "gray", 10)
    native, reference = (
        next(iter(DataLoader(packed, 10, backend=backend, transform=[T.ToDtype("float32")])))
        for backend in ("native", "reference")
    )
    assert native[0].shape == (10, 1, 128, 128)
    assert same_batch(native, reference, atol=1 / 255 + 1e-6)
    as_color = next(iter(DataLoader(packed, 10, color="rgb")))[0]
    assert as_color.shape == (10, 3, 128, 128)
    assert torch.equal(as_color[:, 0], as_color[:, 2])


@pytest.mark.parametrize("backend", backends())
def test_a_single_mean_applies_to_any_number_of_channels(packed: Path, backend: str) -> None:
    for color, n in (("gray", 1), ("rgb", 3)):
        box = [T.Letterbox(24, 96, fill=(114, 114, 114))]
        images, _ = next(iter(DataLoader(packed, 6, color=color, transform=box, backend=backend)))
        assert images[:, :, 12, 0].tolist() == [[114] * n] * 6


def test_color_orders(packed: Path) -> None:
    resize = [T.Resize(24, 24)]
    rgb, bgr, gray = (
        next(iter(DataLoader(packed, 6, color=color, transform=resize)))[0]
        for color in ("rgb", "bgr", "gray")
    )
    assert torch.equal(rgb.flip(1), bgr)
    luma = (rgb.double() * torch.tensor([0.299, 0.587, 0.114]).view(1, 3, 1, 1)).sum(
        1, keepdim=True
    )
    assert gray.shape == (6, 1, 24, 24)
    assert (gray.double() - luma).abs().max() <= 3
