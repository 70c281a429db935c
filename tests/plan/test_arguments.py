"""Arguments and lists of transforms: accepted values, rejected values and error messages."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import FrozenInstanceError

import numpy as np
import pytest

from fastload import transforms as T
from fastload.errors import ConfigError
from fastload.transforms import compile

WRONG: list[tuple[Callable[[], T.Transform], str]] = [
    (
        lambda: T.RandomResizedCrop(0),
        "RandomResizedCrop: size: expected a whole number from 1 to 16384, found 0",
    ),
    (lambda: T.RandomResizedCrop(224.0), "found 224.0"),  # type: ignore[arg-type]
    (lambda: T.RandomResizedCrop(True), "found True"),
    (lambda: T.RandomResizedCrop((1, 2, 3)), r"expected \(height, width\), found \(1, 2, 3\)"),
    (lambda: T.RandomResizedCrop((224, 0)), "width: expected a whole number"),
    (
        lambda: T.RandomResizedCrop(224, scale=(0.5, 0.1)),
        r"scale: expected the smaller number first, found \(0.5, 0.1\)",
    ),
    (
        lambda: T.RandomResizedCrop(224, scale=(0.0, 1.0)),
        "scale: expected a number from 1e-06 to 1",
    ),
    (lambda: T.RandomResizedCrop(224, scale=(0.5, 2.0)), "found 2.0"),
    (lambda: T.RandomResizedCrop(224, scale=0.5), r"scale: expected \(from, to\), found 0.5"),  # type: ignore[arg-type]
    (lambda: T.RandomResizedCrop(224, ratio=(-1, 2)), "ratio: expected a number"),
    (
        lambda: T.RandomResizedCrop(224, filter="lanczos"),
        "filter: expected one of 'antialias', 'bilinear', 'nearest', found 'lanczos'",
    ),
    (
        T.Resize,
        r"Resize: expected exactly one of Resize\(height, width\), Resize\(shorter=...\) and "
        r"Resize\(longer=...\)",
    ),
    (
        lambda: T.Resize(256),
        r"Resize: expected both height and width; Resize\(shorter=256\) keeps the aspect ratio",
    ),
    (lambda: T.Resize(width=256), "shorter=256"),
    (lambda: T.Resize(256, 256, shorter=3), "expected exactly one of"),
    (lambda: T.Resize(shorter=3, longer=3), "expected exactly one of"),
    (lambda: T.Resize(shorter=0), "Resize: shorter: expected a whole number"),
    (lambda: T.Resize(20_000, 1), "from 1 to 16384, found 20000"),
    (
        lambda: T.Letterbox(640, 640, fill=65_536),
        "Letterbox: fill: expected a whole number from 0 to 65535, found 65536",
    ),
    (
        lambda: T.Letterbox(640, 640, fill=(1, 2, 3, 4, 5)),
        "fill: expected one pixel value, or one per channel",
    ),
    (lambda: T.Letterbox(640, 640, align="left"), "align: expected one of 'center', 'top-left'"),
    (lambda: T.Letterbox(640, 640, mask_fill=-1), "mask_fill"),
    (lambda: T.CenterCrop("224"), "CenterCrop: size"),  # type: ignore[arg-type]
    (T.Crop, r"at least one of top, bottom, left, right, for example Crop\(top=0.3\)"),
    (
        lambda: T.Crop(top=1.0),
        "top=1.0 removes the whole image; expected a fraction below 1, or top=1",
    ),
    (lambda: T.Crop(top=1.5), "top as a fraction: expected a number from 0 to 1, found 1.5"),
    (lambda: T.Crop(top=-3), "top in pixels: expected a whole number from 0"),
    (
        lambda: T.Crop(left=0.6, right=0.4),
        "left=0.6 and right=0.4 leave nothing; expected a sum below 1",
    ),
    (lambda: T.Crop(top=float("nan")), "found nan"),
    (
        lambda: T.RandomCrop(32, pad=32),
        "pad=32 with size 32x32 could crop padding only; expected pad to be at most 31",
    ),
    (lambda: T.RandomCrop(32, pad=-1), "RandomCrop: pad"),
    (lambda: T.HorizontalFlip(1.1), "HorizontalFlip: p: expected a number from 0 to 1, found 1.1"),
    (lambda: T.VerticalFlip(-1), "VerticalFlip: p: expected a number from 0 to 1, found -1"),
    (
        lambda: T.RandomAffine(-10),
        "RandomAffine: degrees: expected a number from 0 to 360, found -10",
    ),
    (
        lambda: T.RandomAffine((10, -10)),
        r"degrees: expected the smaller number first, found \(10, -10\)",
    ),
    (
        lambda: T.RandomAffine(10, 0.1),  # type: ignore[arg-type]
        r"translate: expected fractions \(horizontal, vertical\), found 0.1",
    ),
    (
        lambda: T.RandomAffine(10, (0.1, 1.5)),
        "translate as a fraction: expected a number from 0 to 1, found 1.5",
    ),
    (
        lambda: T.RandomAffine(10, scale=(0, 2)),
        "scale: expected a number from 0.01 to 100, found 0",
    ),
    (lambda: T.RandomAffine(10, scale=1.2), r"scale: expected \(from, to\), found 1.2"),  # type: ignore[arg-type]
    (lambda: T.RandomAffine(10, shear=90), "shear: expected a number from 0 to 80, found 90"),
    (
        lambda: T.RandomAffine(10, shear=(1, 2, 3)),
        r"shear: expected \(from, to\), found \(1, 2, 3\)",
    ),
    (
        lambda: T.RandomAffine(10, fill=65_536),
        "RandomAffine: fill: expected a whole number from 0 to 65535",
    ),
    (lambda: T.RandomAffine(10, mask_fill=-1), "RandomAffine: mask_fill"),
    (lambda: T.RandomAffine(10, p=2), "RandomAffine: p"),
    (lambda: T.Brightness(-0.1), "Brightness: expected a number from 0 to 100, found -0.1"),
    (lambda: T.Brightness((1.2, 0.8)), "smaller number first"),
    (lambda: T.Contrast(0.1, p=2), "Contrast: p"),
    (lambda: T.Saturation("much"), "found 'much'"),  # type: ignore[arg-type]
    (lambda: T.Hue(0.6), "Hue: expected a number from 0 to 0.5, found 0.6"),
    (lambda: T.Hue((-0.7, 0)), "Hue: expected a number from -0.5 to 0.5"),
    (T.ColorJitter, "at least one of brightness, contrast, saturation, hue"),
    (lambda: T.ColorJitter(0.4, hue=0.9), "ColorJitter: hue: expected a number from 0 to 0.5"),
    (lambda: T.Grayscale(-1), "Grayscale: p"),
    (lambda: T.GaussianBlur(4), "kernel: expected an odd number, found 4"),
    (lambda: T.GaussianBlur(1), "kernel: expected a whole number from 3"),
    (lambda: T.GaussianBlur(5, sigma=0), "sigma: expected a number from 0.001"),
    (lambda: T.RandomErasing(value="random"), "value: expected a number"),  # type: ignore[arg-type]
    (lambda: T.RandomErasing(value=(1, 2, 3, 4, 5)), "one number, or one per channel"),
    (lambda: T.RandomErasing(scale=(0, 1)), "scale"),
    (
        lambda: T.Normalize((0.4, 0.4, 0.4), (0.2, 0.2)),
        r"expected as many values in std as in mean \(3\), found 2",
    ),
    (lambda: T.Normalize(0.5, 0), "std: expected numbers above 0"),
    (
        lambda: T.Normalize((123.7, 116.3, 103.5), (58.4, 57.1, 57.4)),
        "expected values in the range 0 to 1; divide pixel values by 255",
    ),
    (
        lambda: T.ToDtype("float64"),
        "ToDtype: expected one of 'uint8', 'uint16', 'float16', 'bfloat16', 'float32', found 'float64'",
    ),
    (
        lambda: T.Layout("HWC"),
        "Layout: expected one of 'NCHW', 'NHWC', 'channels_last', found 'HWC'",
    ),
]


@pytest.mark.parametrize(("make", "message"), WRONG, ids=[message for _, message in WRONG])
def test_wrong_arguments_raise_in_the_constructor(
    make: Callable[[], T.Transform], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        make()


def test_transforms_compare_and_hash_by_their_arguments() -> None:
    assert T.RandomResizedCrop(224) == T.RandomResizedCrop(224)
    assert T.RandomResizedCrop(224) != T.RandomResizedCrop(225)
    assert len({T.Crop(top=0.3), T.Crop(top=0.3), T.Crop(top=3)}) == 2
    with pytest.raises(FrozenInstanceError):
        T.HorizontalFlip().p = 0.7  # type: ignore[misc]


def test_lists_and_numpy_numbers_print_as_plain_values() -> None:
    """A resumed run compares the repr, which must not depend on the type of a number."""
    mean = np.array([0.25, 0.5, 0.75])
    assert (
        repr(T.Normalize(mean, [0.25, 0.25, 0.25]))  # type: ignore[arg-type]
        == "Normalize(mean=(0.25, 0.5, 0.75), std=(0.25, 0.25, 0.25))"
    )
    assert T.Crop(top=np.int64(3)) == T.Crop(top=3)  # type: ignore[arg-type]
    assert T.RandomResizedCrop([20, 30]) == T.RandomResizedCrop((20, 30))
    assert compile([T.HorizontalFlip(np.float64(0.5))]).describe() == "[HorizontalFlip(p=0.5)]"


@pytest.mark.parametrize(
    ("transforms", "message"),
    [
        (
            [T.Letterbox(64, 64), T.CenterCrop(32)],
            "CenterCrop follows Letterbox and could crop padding only; put CenterCrop before Letterbox",
        ),
        (
            [T.Letterbox(64, 64), T.HorizontalFlip(), T.RandomResizedCrop(32)],
            "RandomResizedCrop follows Letterbox",
        ),
        ([T.RandomCrop(32, pad=4), T.Crop(top=1)], "Crop follows RandomCrop"),
        (
            [T.ColorJitter(0.4), T.RandomResizedCrop(32)],
            "RandomResizedCrop follows ColorJitter, but geometry is computed during decoding",
        ),
        ([T.Normalize(0.5, 0.5), T.Resize(3, 4)], "Resize follows Normalize"),
        (
            [T.Normalize(0.5, 0.5), T.Grayscale()],
            "Grayscale follows Normalize, but works on pixel values; put Grayscale before Normalize",
        ),
        (
            [T.Normalize(0.5, 0.5), T.VerticalFlip()],
            "VerticalFlip follows Normalize, but works on pixel values",
        ),
        (
            [T.RandomAffine(10), T.RandomCrop(32)],
            "RandomCrop follows RandomAffine, but geometry is computed during decoding; put RandomCrop before RandomAffine",
        ),
        (
            [T.Letterbox(64, 64), T.RandomAffine(10, fill=0)],
            r"fill is \(114,\) in one transform and \(0,\) in another",
        ),
        ([T.Normalize(0.5, 0.5), T.Normalize(0.5, 0.5)], "Normalize is in the list twice"),
        (
            [T.ToDtype("uint8"), T.Normalize(0.5, 0.5)],
            r"Normalize produces floating-point values, but ToDtype\('uint8'\) requests uint8",
        ),
        (
            [T.ToDtype("float32", scale=False), T.Normalize(0.5, 0.5)],
            r"Normalize works on values from 0 to 1, but ToDtype\(scale=False\) requests pixel values",
        ),
        (
            [T.CenterCrop(50, fill=1), T.Letterbox(64, 64)],
            r"fill is \(1,\) in one transform and \(114,\) in another",
        ),
        (
            [T.Resize(30, 30, filter="nearest"), T.Resize(20, 20)],
            "filter is 'nearest' in one transform and 'antialias' in another",
        ),
        (
            [T.Resize(10, 40), T.GaussianBlur(21)],
            r"kernel=21 is too large for an output of 10x40 \(height x width\) pixels; expected at most 19",
        ),
        (
            [T.Resize(100, 40), T.Crop(top=60, bottom=40)],
            r"Crop\(top=60.* leaves nothing of its input of 100x40 \(height x width\) pixels; remove less",
        ),
        (
            [T.CenterCrop(50), T.Crop(right=0.5), T.Crop(left=25)],
            r"Crop\(.*left=25.* leaves nothing of its input of 50x25",
        ),
        (
            [T.RandomErasing(value=-1)],
            "is before Normalize: expected value to be a pixel value, 0 to 255",
        ),
        (
            [T.RandomResizedCrop],
            r"RandomResizedCrop is a class; expected an instance, RandomResizedCrop\(...\)",
        ),
        (
            [lambda image: image],
            "expected transforms of fastload.transforms, found builtins.function",
        ),
        (
            [type("Compose", (), {"__module__": "torchvision.transforms.transforms"})()],
            r"fastload\.migrate\(your_torch_loader\)\) shows the equivalents",
        ),
        (["resize"], "found builtins.str 'resize'"),
        ([T.HorizontalFlip()] * 1001, "expected at most 1000 transforms, found 1001"),
    ],
    ids=lambda value: value[:40] if isinstance(value, str) else "",
)
def test_invalid_lists_raise_and_name_the_transforms(
    transforms: list[object], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        compile(transforms)
    assert compile([T.HorizontalFlip()]).transforms == (T.HorizontalFlip(),)


def test_nested_lists_and_single_transforms_are_flattened() -> None:
    flat = compile([T.Resize(3, 4), T.HorizontalFlip(), T.Brightness(0.1)])
    assert compile([[T.Resize(3, 4), (T.HorizontalFlip(),)], T.Brightness(0.1)]) == flat
    assert compile(T.Resize(3, 4)) == compile([T.Resize(3, 4)])
    assert compile(None) == compile([])


def test_output_format_of_a_list() -> None:
    def output(*transforms: T.Transform) -> tuple[str, str, tuple[float, ...], tuple[float, ...]]:
        found = compile(transforms).output
        return found.dtype, found.layout, found.mean, found.std

    assert output() == ("uint8", "NCHW", (0.0,), (1.0,))
    assert output(T.ToDtype("float16")) == ("float16", "NCHW", (0.0,), (255.0,))
    assert output(T.ToDtype("float32", scale=False)) == ("float32", "NCHW", (0.0,), (1.0,))
    assert output(T.Normalize((0.2, 0.4, 0.6), (0.2, 0.2, 0.4))) == (
        "float32",
        "NCHW",
        (51.0, 102.0, 153.0),
        (51.0, 51.0, 102.0),
    )
    assert output(T.Layout("NHWC"), T.Normalize(0.2, 0.2), T.ToDtype("bfloat16")) == (
        "bfloat16",
        "NHWC",
        (51.0,),
        (51.0,),
    )


def test_fill_and_filter_of_a_list() -> None:
    assert compile([]).fill == (0,)
    assert compile([T.CenterCrop(600), T.Letterbox(640, 640, mask_fill=255)]).fill == (114,)
    assert compile([T.CenterCrop(600), T.Letterbox(640, 640, mask_fill=255)]).mask_fill == 255
    assert compile([T.RandomCrop(32, pad=4, fill=(1, 2, 3))]).fill == (1, 2, 3)
    assert (
        compile([T.Resize(3, 3, filter="nearest")]).rows([0], [[9, 9]], seed=0, epoch=0).filter == 2
    )
