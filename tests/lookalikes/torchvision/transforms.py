"""The part of torchvision.transforms that migrate() and its tests use."""

# ruff: noqa: RUF012
from __future__ import annotations

import enum
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from PIL import Image, ImageOps


class InterpolationMode(enum.Enum):
    NEAREST = "nearest"
    BILINEAR = "bilinear"
    BICUBIC = "bicubic"


class Compose:
    def __init__(self, transforms: list[Any]) -> None:
        self.transforms = transforms

    def __call__(self, value: Any) -> Any:
        for each in self.transforms:
            value = each(value)
        return value


class _Holder:
    """Keeps its arguments as attributes, like the transforms of torchvision."""

    defaults: dict[str, Any] = {}

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        values = {**self.defaults, **dict(zip(self.defaults, args, strict=False)), **kwargs}
        self.__dict__.update(values)


def _pair(size: Any) -> tuple[int, int]:
    return (size, size) if isinstance(size, int) else tuple(size)


class Resize(_Holder):
    defaults = {
        "size": 0,
        "interpolation": InterpolationMode.BILINEAR,
        "max_size": None,
        "antialias": True,
    }

    def __call__(self, image: Image.Image) -> Image.Image:
        size: Any = self.__dict__["size"]
        if isinstance(size, int):
            ratio = size / min(image.size)
            return image.resize(
                (int(image.width * ratio), int(image.height * ratio)), Image.Resampling.BILINEAR
            )
        return image.resize((size[1], size[0]), Image.Resampling.BILINEAR)


class CenterCrop(_Holder):
    def __init__(self, size: Any) -> None:
        self.size = _pair(size)

    def __call__(self, image: Image.Image) -> Image.Image:
        left, top = (
            round((image.width - self.size[1]) / 2),
            round((image.height - self.size[0]) / 2),
        )
        return image.crop((left, top, left + self.size[1], top + self.size[0]))


class RandomResizedCrop(_Holder):
    def __init__(
        self,
        size: Any,
        scale: Sequence[float] = (0.08, 1.0),
        ratio: Sequence[float] = (3.0 / 4.0, 4.0 / 3.0),
        interpolation: Any = InterpolationMode.BILINEAR,
    ) -> None:
        self.size, self.scale, self.ratio, self.interpolation = (
            _pair(size),
            scale,
            ratio,
            interpolation,
        )

    def __call__(self, image: Image.Image) -> Image.Image:
        return image.resize((self.size[1], self.size[0]), Image.Resampling.BILINEAR)


class RandomCrop(_Holder):
    def __init__(
        self,
        size: Any,
        padding: Any = None,
        pad_if_needed: bool = False,
        fill: Any = 0,
        padding_mode: str = "constant",
    ) -> None:
        self.size, self.padding, self.pad_if_needed, self.fill, self.padding_mode = (
            _pair(size),
            padding,
            pad_if_needed,
            fill,
            padding_mode,
        )

    def __call__(self, image: Image.Image) -> Image.Image:
        if self.padding:
            image = ImageOps.expand(image, self.padding, self.fill)
        left = int(torch.randint(image.width - self.size[1] + 1, ()))
        top = int(torch.randint(image.height - self.size[0] + 1, ()))
        return image.crop((left, top, left + self.size[1], top + self.size[0]))


class Pad(_Holder):
    defaults = {"padding": 0, "fill": 0, "padding_mode": "constant"}

    def __call__(self, image: Image.Image) -> Image.Image:
        return ImageOps.expand(image, self.__dict__["padding"], self.__dict__["fill"])


class ImageClassification:
    """The preset that ``weights.transforms()`` of torchvision's classifiers returns."""

    def __init__(self, *, crop_size: int, resize_size: int = 256) -> None:
        self.crop_size, self.resize_size = [crop_size], [resize_size]
        self.mean, self.std = [0.485, 0.456, 0.406], [0.229, 0.224, 0.225]
        self.interpolation, self.antialias = InterpolationMode.BILINEAR, True

    def __call__(self, image: Image.Image) -> torch.Tensor:
        cropped = CenterCrop(self.crop_size[0])(Resize(self.resize_size[0])(image))
        return Normalize(self.mean, self.std)(ToTensor()(cropped))


class RandomHorizontalFlip(_Holder):
    defaults = {"p": 0.5}

    def __call__(self, image: Image.Image) -> Image.Image:
        return image


class RandomVerticalFlip(_Holder):
    defaults = {"p": 0.5}


class RandomRotation(_Holder):
    def __init__(
        self,
        degrees: Any,
        interpolation: Any = "nearest",
        expand: bool = False,
        center: Any = None,
        fill: Any = 0,
    ) -> None:
        self.degrees, self.interpolation, self.expand, self.center, self.fill = (
            _either_way(degrees),
            interpolation,
            expand,
            center,
            fill,
        )


class RandomAffine(_Holder):
    def __init__(  # noqa: PLR0917 - torchvision's own order
        self,
        degrees: Any,
        translate: Any = None,
        scale: Any = None,
        shear: Any = None,
        interpolation: Any = "nearest",
        fill: Any = 0,
        center: Any = None,
    ) -> None:
        self.degrees, self.translate, self.scale = _either_way(degrees), translate, scale
        self.shear, self.interpolation, self.fill, self.center = (
            None if shear is None else _either_way(shear),
            interpolation,
            fill,
            center,
        )


def _either_way(value: Any) -> list[float]:
    """torchvision stores floats, and a number a as (-a, a)."""
    return [float(each) for each in (value if isinstance(value, list | tuple) else (-value, value))]


class RandomPerspective(_Holder):
    defaults = {"p": 0.5}


class ColorJitter(_Holder):
    """Keeps ranges like torchvision; None for no change."""

    def __init__(
        self, brightness: Any = 0, contrast: Any = 0, saturation: Any = 0, hue: Any = 0
    ) -> None:
        self.brightness, self.contrast, self.saturation = (
            self._range(brightness),
            self._range(contrast),
            self._range(saturation),
        )
        self.hue = None if hue == 0 else (-hue, hue) if isinstance(hue, float) else tuple(hue)

    @staticmethod
    def _range(value: Any) -> tuple[float, float] | None:
        if isinstance(value, list | tuple):
            return value[0], value[1]
        return None if value == 0 else (max(0.0, 1 - value), 1 + value)


class Grayscale(_Holder):
    defaults = {"num_output_channels": 1}

    def __call__(self, image: Image.Image) -> Image.Image:
        return image.convert("L")


class RandomGrayscale(_Holder):
    defaults = {"p": 0.1}


class GaussianBlur(_Holder):
    def __init__(self, kernel_size: Any, sigma: Any = (0.1, 2.0)) -> None:
        self.kernel_size, self.sigma = _pair(kernel_size), sigma


class RandomErasing(_Holder):
    defaults = {"p": 0.5, "scale": (0.02, 0.33), "ratio": (0.3, 3.3), "value": 0, "inplace": False}


class RandomApply(_Holder):
    defaults = {"transforms": [], "p": 0.5}


class ToTensor(_Holder):
    def __call__(self, image: Image.Image) -> torch.Tensor:
        pixels = np.asarray(image, np.float32) / 255
        return torch.from_numpy(
            pixels[None] if pixels.ndim == 2 else pixels.transpose(2, 0, 1).copy()
        )


class PILToTensor(_Holder):
    pass


class ConvertImageDtype(_Holder):
    defaults = {"dtype": torch.float32}


class ToDtype(_Holder):
    defaults = {"dtype": torch.float32, "scale": False}


class Normalize(_Holder):
    defaults = {"mean": (), "std": (), "inplace": False}

    def __call__(self, image: torch.Tensor) -> torch.Tensor:
        return (image - torch.tensor(self.__dict__["mean"])[:, None, None]) / torch.tensor(
            self.__dict__["std"]
        )[:, None, None]


class Lambda(_Holder):
    defaults = {"lambd": None}
