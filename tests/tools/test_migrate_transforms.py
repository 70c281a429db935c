"""Translation of each torchvision transform, and reports of what has no equivalent."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from fastload._tools.migrate.transforms import translate, wants_gray
from tests.lookalikes.torchvision import transforms as V


def codes(*transforms: Any) -> list[str]:
    return [each.code for each in translate(V.Compose(list(transforms))) if each.code]


@pytest.mark.parametrize(
    ("transform", "code"),
    [
        (V.Resize(256), "T.Resize(shorter=256)"),
        (V.Resize([256]), "T.Resize(shorter=256)"),
        (V.Resize((128, 96)), "T.Resize(128, 96)"),
        (V.Resize(256, V.InterpolationMode.NEAREST), "T.Resize(shorter=256, filter='nearest')"),
        (V.Resize(64, 2), "T.Resize(shorter=64)"),
        (V.CenterCrop(224), "T.CenterCrop(224)"),
        (V.CenterCrop((100, 80)), "T.CenterCrop((100, 80))"),
        (V.RandomResizedCrop(224), "T.RandomResizedCrop(224)"),
        (
            V.RandomResizedCrop((96, 64), (0.2, 1.0), (0.5, 2.0)),
            "T.RandomResizedCrop((96, 64), scale=(0.2, 1.0), ratio=(0.5, 2.0))",
        ),
        (V.RandomCrop(32), "T.RandomCrop(32)"),
        (V.RandomCrop(32, 4), "T.RandomCrop(32, pad=4)"),
        (V.RandomCrop(32, [4], fill=128), "T.RandomCrop(32, pad=4, fill=128)"),
        (V.RandomHorizontalFlip(), "T.HorizontalFlip()"),
        (V.RandomHorizontalFlip(0.3), "T.HorizontalFlip(0.3)"),
        (V.RandomVerticalFlip(), "T.VerticalFlip()"),
        (V.RandomVerticalFlip(0.3), "T.VerticalFlip(0.3)"),
        (V.RandomRotation(15, "bilinear"), "T.RandomAffine((-15.0, 15.0))"),
        (
            V.RandomAffine((0, 30), (0.1, 0.2), (0.8, 1.2), 5, "bilinear", fill=[1, 2, 3]),
            "T.RandomAffine((0.0, 30.0), translate=(0.1, 0.2), scale=(0.8, 1.2), shear=(-5.0, 5.0), fill=(1, 2, 3))",
        ),
        (
            V.RandomAffine(0, shear=(-1, 1, -2, 2), interpolation=2),
            "T.RandomAffine((0.0, 0.0), shear=(-1.0, 1.0, -2.0, 2.0))",
        ),
        (
            V.ColorJitter(0.4, 0.4, 0.2, 0.1),
            "T.ColorJitter(brightness=0.4, contrast=0.4, saturation=0.2, hue=0.1)",
        ),
        (V.ColorJitter(brightness=(0.5, 1.2)), "T.ColorJitter(brightness=(0.5, 1.2))"),
        (V.RandomGrayscale(0.2), "T.Grayscale(p=0.2)"),
        (V.Grayscale(3), "T.Grayscale(p=1.0)"),
        (V.Grayscale(1), ""),
        (V.GaussianBlur(5, (0.1, 2.0)), "T.GaussianBlur(5, sigma=(0.1, 2.0))"),
        (V.RandomErasing(), "T.RandomErasing(p=0.5)"),
        (
            V.RandomErasing(0.2, (0.1, 0.2), (0.5, 2.0), 7),
            "T.RandomErasing(p=0.2, scale=(0.1, 0.2), ratio=(0.5, 2.0), value=7)",
        ),
        (
            V.Normalize((0.5, 0.4, 0.3), np.array([0.2, 0.2, 0.2])),
            "T.Normalize((0.5, 0.4, 0.3), (0.2, 0.2, 0.2))",
        ),
        (V.Normalize([0.5], torch.tensor([0.25])), "T.Normalize((0.5,), (0.25,))"),
        (V.RandomApply([V.ColorJitter(0.4)], p=0.8), "T.ColorJitter(brightness=0.4, p=0.8)"),
        (V.ConvertImageDtype(torch.float16), "T.ToDtype('float16')"),
        (V.ToDtype(torch.float32, scale=False), "T.ToDtype('float32', scale=False)"),
        (V.PILToTensor(), ""),
        (V.ToTensor(), "T.ToDtype('float32')"),
    ],
    ids=lambda value: type(value).__name__ if not isinstance(value, str) else "",
)
def test_transform_is_translated(transform: Any, code: str) -> None:
    (found,) = translate(transform)
    assert (found.code, found.lost) == (code, False)
    if code:
        from fastload import transforms as T

        assert eval(code, {"T": T}) is not None


@pytest.mark.parametrize(
    "transform",
    [
        V.RandomPerspective(),
        V.Resize(256, max_size=300),
        V.RandomCrop(32, (1, 2)),
        V.RandomCrop(32, 4, padding_mode="reflect"),
        V.Pad(4),
        V.Pad((1, 2)),
        V.RandomRotation(10, expand=True),
        V.RandomAffine(10, center=(3, 4)),
        V.Lambda(),
        V.RandomErasing(value="random"),
        V.RandomApply([V.RandomRotation(10)]),
        V.ConvertImageDtype(torch.float64),
        lambda image: image,
    ],
    ids=lambda value: type(value).__name__,
)
def test_transform_without_equivalent_is_reported(transform: Any) -> None:
    (found,) = translate(transform)
    assert (found.code, found.lost) == ("", True)
    assert found.note


@pytest.mark.parametrize(
    ("transform", "note"),
    [
        (V.Resize(256, V.InterpolationMode.BICUBIC), "bicubic has no equivalent"),
        (V.ColorJitter(0.4), "random order"),
        (V.GaussianBlur((3, 5)), "square"),
        (V.RandomRotation(10), "nearest has no equivalent"),
    ],
)
def test_differences_are_reported(transform: Any, note: str) -> None:
    (found,) = translate(transform)
    assert found.code
    assert note in found.note


def test_class_of_another_library_with_the_same_name_is_reported() -> None:
    class Resize:
        height, width = 32, 48

    class Normalize:
        mean, std = None, None

    for each in (Resize(), Normalize()):
        assert [(part.code, part.lost) for part in translate(each)] == [("", True)]


def test_typical_training_transforms() -> None:
    normalize = V.Normalize((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
    assert codes(
        V.RandomResizedCrop(224), V.Compose([V.RandomHorizontalFlip()]), V.ToTensor(), normalize
    ) == [
        "T.RandomResizedCrop(224)",
        "T.HorizontalFlip()",
        "T.Normalize((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))",
    ]
    assert codes(V.Resize(64), V.PILToTensor(), V.ToDtype(torch.float32, scale=True), normalize)[
        -1
    ].startswith("T.Normalize")
    assert codes(V.Resize(64), V.ToTensor()) == ["T.Resize(shorter=64)", "T.ToDtype('float32')"]
    assert codes(V.Resize(64), V.PILToTensor()) == ["T.Resize(shorter=64)"]
    assert codes() == []
    assert wants_gray(V.Compose([V.Grayscale(1)]))
    assert not wants_gray(V.Compose([V.Grayscale(3)]))


def test_padding_becomes_an_option_of_the_random_crop() -> None:
    assert codes(V.Pad(4), V.RandomHorizontalFlip(), V.RandomCrop(32)) == [
        "T.HorizontalFlip()",
        "T.RandomCrop(32, pad=4)",
    ]
    assert codes(V.Pad(2, fill=7), V.RandomCrop(32, 3, fill=7)) == [
        "T.RandomCrop(32, pad=5, fill=7)"
    ]
    for steps in ([V.Pad(4), V.CenterCrop(32)], [V.Pad(2, fill=7), V.RandomCrop(32, 3)]):
        pad, crop = translate(V.Compose(steps))
        assert pad.lost
        assert pad.note
        assert not crop.lost


def test_presets_are_split_into_their_steps() -> None:
    preset = V.ImageClassification(crop_size=224, resize_size=232)
    assert codes(preset) == [
        "T.Resize(shorter=232)",
        "T.CenterCrop(224)",
        "T.Normalize((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))",
    ]
