"""The content of a batch: tuple or dict, stacked, list or padded, ids, dtypes, layouts, codecs."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fastload import transforms as T
from fastload._load.loader import DataLoader
from fastload._store.dataset import open_dataset
from fastload._store.fields import Field
from fastload.errors import ConfigError
from tests.loading import LABELED, png, same_batch, spots
from tests.packed_datasets import encoded, pack_samples, photo

FIELDS = (
    Field("image", "image"),
    Field("boxes", "boxes"),
    Field("classes", "int", list=True),
    Field("weights", "float", list=True),
    Field("keypoints", "points"),
    Field("speed", "array"),
    Field("track", "array"),
    Field("pose", "array"),
    Field("camera", "matrix"),
    Field("lanes", "points", list=True),
    Field("score", "float"),
    Field("name", "str"),
    Field("meta", "json"),
    Field("blob", "bytes"),
    Field("split", "int", classes=("train", "val")),
)
N = 7


def sample(i: int) -> dict[str, Any]:
    values: dict[str, Any] = {
        "image": encoded(photo(64, 48, seed=i)),
        "boxes": np.array([[1 + k, 2, 20 + k, 30] for k in range(i % 3)], np.float32).reshape(
            -1, 4
        ),
        "classes": [10 * i + k for k in range(i % 3)],
        "weights": [0.5 * k for k in range(i % 3)],
        "keypoints": np.full((5, 2), i + 0.5),
        "speed": np.array([i, i + 1], np.float32),
        "track": np.arange(i, dtype=np.int16),
        "pose": np.full((2, 3), i, np.int64),
        "camera": np.eye(3),
        "lanes": [np.ones((2 + k, 2)) for k in range(i % 2)],
        "score": i / 4,
        "name": f"n{i}",
        "meta": {"i": [i]},
        "blob": bytes([i]),
        "split": int(i > 3),
    }
    if i == 5:
        del values["boxes"], values["classes"], values["lanes"], values["score"], values["name"]
    return values


@pytest.fixture(scope="module")
def all_kinds(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return pack_samples(
        tmp_path_factory.mktemp("all") / "packed", FIELDS, [sample(i) for i in range(N)]
    )


@pytest.fixture(scope="module")
def photos(pack_once: Callable[..., Path]) -> Path:
    return pack_once(12)


def one_batch(all_kinds: Path, **options: Any) -> Any:
    (batch,) = list(DataLoader(all_kinds, **{"batch_size": N, "split": "all", **options}))
    return batch


def test_image_and_label_are_a_tuple_and_other_fields_a_dict(photos: Path) -> None:
    resize = [T.Resize(8, 8)]
    images, labels = next(iter(DataLoader(photos, 5, transform=resize)))
    assert (images.shape, images.dtype, labels.shape, labels.dtype) == (
        (5, 3, 8, 8),
        torch.uint8,
        (5,),
        torch.int64,
    )
    for options in (
        {"fields": ("label", "image")},
        {"fields": ("image", "label", "id")},
        {"fields": ("image",)},
        {"return_matrix": True},
    ):
        assert isinstance(next(iter(DataLoader(photos, 5, transform=resize, **options))), dict)
    assert list(next(iter(DataLoader(photos, 5, fields="label")))) == ["label"]


def test_fields_are_stacked_listed_or_padded(all_kinds: Path) -> None:
    batch = one_batch(all_kinds, shuffle=False)
    assert "split" not in batch
    assert batch["keypoints"].shape == (N, 5, 2)  # all samples have one shape, so they are stacked
    assert batch["keypoints.visible"].shape == (N, 5)
    assert (batch["speed"].dtype, batch["speed"].shape) == (torch.float32, (N, 2))
    assert (batch["pose"].dtype, batch["pose"].shape) == (torch.int64, (N, 2, 3))
    assert (batch["camera"].dtype, batch["camera"].shape) == (torch.float32, (N, 3, 3))
    assert [tuple(each.shape) for each in batch["boxes"]] == [
        (0, 4),
        (1, 4),
        (2, 4),
        (0, 4),
        (1, 4),
        (0, 4),
        (0, 4),
    ]
    assert [each.tolist() for each in batch["classes"]] == [[], [10], [20, 21], [], [40], [], []]
    assert [each.dtype for each in batch["track"]] == [torch.int16] * N
    assert [len(each) for each in batch["lanes"]] == [0, 1, 0, 1, 0, 0, 0]
    assert batch["name"] == ["n0", "n1", "n2", "n3", "n4", None, "n6"]
    assert (batch["meta"][3], batch["blob"][3]) == ({"i": [3]}, b"\x03")
    assert batch["score"].dtype == torch.float64
    assert batch["score"].isnan().tolist() == [False] * 5 + [True, False]


def test_padding_appends_zeros_and_adds_a_mask(all_kinds: Path) -> None:
    listed, padded = one_batch(all_kinds), one_batch(all_kinds, ragged="pad")
    assert (padded["boxes"].shape, padded["boxes.mask"].shape) == ((N, 2, 4), (N, 2))
    assert padded["boxes.mask"].sum(1).tolist() == [0, 1, 2, 0, 1, 0, 0]
    for name in ("boxes", "classes", "weights", "track", "boxes.kept"):
        values, mask = padded[name], padded[f"{name}.mask"]
        assert not values[~mask].any()
        for place in range(N):
            assert same_batch(values[place][mask[place]], listed[name][place])
    assert padded["keypoints"].shape == (N, 5, 2)
    assert "keypoints.mask" not in padded
    assert isinstance(padded["lanes"], list)  # lists of lists are not padded
    mixed = one_batch(all_kinds, ragged={"boxes": "pad", "keypoints": "list"})
    assert mixed["boxes.mask"].shape == (N, 2)
    assert isinstance(mixed["track"], list)
    assert [tuple(each.shape) for each in mixed["keypoints"]] == [(5, 2)] * N


def test_padding_a_batch_of_empty_tables(all_kinds: Path) -> None:
    batch = one_batch(
        all_kinds, ragged="pad", sampler=[0, 3, 6], fields=("boxes", "classes", "lanes")
    )
    assert (batch["boxes"].shape, batch["classes"].shape) == ((3, 0, 4), (3, 0))
    assert [len(each) for each in batch["lanes"]] == [0, 1, 0]


def test_the_stacking_error_names_both_samples_and_the_solution(tmp_path: Path) -> None:
    samples = [{"label": i, "pose": np.zeros((3, 4 if i == 100 else 3))} for i in range(140)]
    packed = pack_samples(
        tmp_path / "packed", (Field("label", "int"), Field("pose", "matrix")), samples
    )
    loader = DataLoader(packed, 20)
    with pytest.raises(
        ConfigError,
        match=r"field 'pose'.* of \(3, 3\) in sample 10,.*of \(3, 4\) in sample 100.*ragged=\{'pose': 'list'\}",
    ):
        list(DataLoader(packed, 2, sampler=[10, 100]))
    assert next(iter(loader))["pose"].shape == (20, 3, 3)
    assert len(list(DataLoader(packed, 20, ragged={"pose": "list"}))) == 7


def test_padded_values_have_a_mask(tmp_path: Path) -> None:
    samples = [{"points": np.zeros((4 if i == 100 else 5, 2))} for i in range(140)]
    packed = pack_samples(tmp_path / "packed", (Field("points", "points"),), samples)
    assert isinstance(next(iter(DataLoader(packed, 2)))["points"], list)
    padded = next(iter(DataLoader(packed, 2, sampler=[10, 100], ragged={"points": "pad"})))
    assert padded["points.mask"].sum(1).tolist() == [5, 4]


def test_ids_and_sources_match_the_dataset(photos: Path) -> None:
    dataset = open_dataset(photos)
    for batch in DataLoader(photos, 5, shuffle=True, fields=("id", "source", "label")):
        assert list(batch) == ["label", "id", "source"]
        assert batch["source"] == [dataset.source(i) for i in batch["id"].tolist()]
        assert batch["label"].tolist() == dataset.column("label")[batch["id"].numpy()].tolist()


@pytest.mark.parametrize("steps", [[], [T.Brightness(0.4)]], ids=["decoder", "torch"])
@pytest.mark.parametrize("layout", ["NCHW", "NHWC", "channels_last"])
@pytest.mark.parametrize("dtype", ["uint8", "float32", "float16", "bfloat16"])
def test_dtypes_and_layouts(photos: Path, dtype: str, layout: str, steps: list[Any]) -> None:
    def load(*more: Any) -> torch.Tensor:
        images: torch.Tensor = next(
            iter(DataLoader(photos, 6, transform=[T.Resize(10, 12), *steps, *more]))
        )[0]
        return images

    plain, images = load(), load(T.ToDtype(dtype), T.Layout(layout))
    assert images.dtype == getattr(torch, dtype)
    assert images.shape == ((6, 10, 12, 3) if layout == "NHWC" else (6, 3, 10, 12))
    assert images.is_contiguous(
        memory_format=torch.channels_last if layout == "channels_last" else torch.contiguous_format
    )
    upright = images.permute(0, 3, 1, 2) if layout == "NHWC" else images
    wanted = plain.double() if dtype == "uint8" else plain.double() / 255
    assert (upright.double() - wanted).abs().max() <= {
        "uint8": 0,
        "float32": 1e-6,
        "float16": 1e-3,
        "bfloat16": 4e-3,
    }[dtype] + (0.51 / 255 if steps and dtype != "uint8" else 0)


def test_normalization_equals_that_of_torchvision(photos: Path) -> None:
    mean, std = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
    plain = next(iter(DataLoader(photos, 6, transform=[T.Resize(10, 12)])))[0]
    images = next(
        iter(DataLoader(photos, 6, transform=[T.Resize(10, 12), T.Normalize(mean, std)]))
    )[0]
    wanted = (plain.double() / 255 - torch.tensor(mean).view(1, 3, 1, 1)) / torch.tensor(std).view(
        1, 3, 1, 1
    )
    assert images.dtype == torch.float32
    assert (images.double() - wanted).abs().max() < 1e-5


@pytest.mark.parametrize("how", ["png", "raw", "array"])
def test_png_and_raw_images_are_exact(tmp_path: Path, how: str) -> None:
    pixels = [spots(40 + i, 30, [(10 + i, 12), (25, 20)]) for i in range(5)]
    samples = [
        {"image": encoded(png(each)) if how != "array" else each, "label": i % 3}
        for i, each in enumerate(pixels)
    ]
    packed = pack_samples(
        tmp_path / "packed", LABELED, samples, encode="raw" if how == "raw" else "keep"
    )
    images, _ = next(iter(DataLoader(packed, 5, transform=[T.CenterCrop((24, 32))])))
    for image, each in zip(images, pixels, strict=True):
        left = round((each.shape[1] - 32) / 2)
        assert np.array_equal(image.permute(1, 2, 0).numpy(), each[3:27, left : left + 32])
    mirrored, _ = next(
        iter(DataLoader(packed, 5, transform=[T.CenterCrop((24, 32)), T.HorizontalFlip(1.0)]))
    )
    assert torch.equal(mirrored.flip(3), images)


def test_labels_are_loaded_without_decoding_images(all_kinds: Path) -> None:
    batch = one_batch(all_kinds, fields=("score", "name", "id"), transform=None)
    assert list(batch) == ["score", "name", "id"]
    assert batch["id"].tolist() == list(range(N))
