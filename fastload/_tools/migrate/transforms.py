"""Translates torchvision transforms to fastload transforms.

Transforms are recognized by class name and attributes, so torchvision need not be installed.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

_BATCH = "apply it to the batches of the loader"
_UNNEEDED = {
    "PILToTensor",
    "ToImage",
    "ToImageTensor",
    "ToPureTensor",
    "Identity",
    "ToPILImage",
}
_GEOMETRIC = {"RandomPerspective", "ElasticTransform"}
_FLIPS = {"HorizontalFlip", "VerticalFlip"}  # equal padding on all sides commutes with them
_FILTERS = {
    "bilinear": "",
    "2": "",
    "nearest": "nearest",
    "nearest-exact": "nearest",
    "0": "nearest",
}
_DTYPES = ("float32", "float16", "bfloat16", "uint8")


@dataclass(frozen=True, slots=True)
class TransformCall:
    """A fastload transform with literal arguments."""

    name: str
    arguments: tuple[object, ...] = ()
    options: dict[str, object] = field(default_factory=dict)
    note: str = field(default="", compare=False)  # how it differs from the original

    @property
    def code(self) -> str:
        given = [repr(value) for value in self.arguments]
        given += [f"{name}={value!r}" for name, value in self.options.items()]
        return f"T.{self.name}({', '.join(given)})"

    def make(self) -> object:
        """Creates the transform. Raises ConfigError for invalid arguments."""
        from fastload import transforms

        kind: Callable[..., object] = getattr(transforms, self.name)
        return kind(*self.arguments, **self.options)


@dataclass(frozen=True, slots=True)
class Translated:
    """A transform and its fastload equivalent.

    Without ``call``, the transform is not needed, or ``lost``: it has no equivalent.
    """

    was: str
    call: TransformCall | None = None
    note: str = ""  # how the equivalent differs, or why there is none
    lost: bool = False

    @property
    def code(self) -> str:
        return self.call.code if self.call else ""

    def as_json(self) -> dict[str, object]:
        return {"was": self.was, "code": self.code, "note": self.note, "lost": self.lost}


# The equivalent of a transform, None if it is not needed, or why there is no equivalent.
_Match = TransformCall | str | None
_Step = tuple[str, TransformCall]  # part of a preset, and its equivalent
_FLOAT32 = TransformCall("ToDtype", ("float32",))


def translate(transform: object) -> list[Translated]:
    """Translates each part of a transform in order. Compose and presets are split into parts."""
    found = _fold_padding([each for part in _parts(transform) for each in _translate_one(part)])
    names = [each.call.name if each.call else "" for each in found]
    # Normalize converts to float32 itself, and the last conversion decides.
    last = None if "Normalize" in names else _last(names, "ToDtype")
    return [
        Translated(each.was)
        if each.call
        and each.call.name == "ToDtype"
        and place != last
        and (last is not None or each.call == _FLOAT32)
        else each
        for place, each in enumerate(found)
    ]


def _last(names: list[str], name: str) -> int | None:
    return max((place for place, each in enumerate(names) if each == name), default=None)


def _fold_padding(found: list[Translated]) -> list[Translated]:
    """Makes each Pad an option of the RandomCrop that follows it; any other Pad is lost."""
    for place, each in enumerate(found):
        if each.call is None or each.call.name != "Pad":
            continue
        later = range(place + 1, len(found))
        target = next((i for i in later if (c := found[i].call) and c.name not in _FLIPS), place)
        crop = found[target].call
        if crop is None or crop.name != "RandomCrop":
            note = f"padding is only supported before RandomCrop; {_BATCH}"
            found[place] = Translated(each.was, note=note, lost=True)
            continue
        pad = each.call.options["pad"]
        fill = each.call.options["fill"]
        own_pad = crop.options.get("pad", 0)
        if own_pad and crop.options.get("fill", 0) != fill:
            note = "the padding has another color than that of RandomCrop, which has no equivalent"
            found[place] = Translated(each.was, note=note, lost=True)
            continue
        options = {**crop.options, "pad": pad + own_pad, **({"fill": fill} if fill else {})}  # type: ignore[operator]
        merged = TransformCall("RandomCrop", crop.arguments, options)
        found[target] = Translated(found[target].was, merged, found[target].note)
        found[place] = Translated(each.was, note="pad= of RandomCrop")
    return found


def wants_gray(transform: object) -> bool:
    """Whether the transform converts images to one gray channel."""
    return any(
        _name(each) == "Grayscale" and getattr(each, "num_output_channels", 1) == 1
        for each in _parts(transform)
    )


def _parts(transform: object) -> Iterator[object]:
    inner = getattr(transform, "transforms", None)
    name = _name(transform)
    if name in ("Compose", "Sequential", "StandardTransform") and isinstance(inner, Sequence):
        for each in inner:
            yield from _parts(each)
    elif name == "StandardTransform":
        yield from _parts(getattr(transform, "transform", None))
    elif name == "Sequential" and hasattr(transform, "children"):
        for each in transform.children():
            yield from _parts(each)
    elif transform is not None:
        yield transform


def _translate_one(each: object) -> list[Translated]:
    name = _name(each)
    was = _described(each)
    if name in _UNNEEDED:
        return [Translated(was)]
    if name in _GEOMETRIC:
        return [Translated(was, note=f"not supported; {_BATCH}", lost=True)]
    try:
        if name in _PRESETS:
            return [
                Translated(f"{name}: {part}", call, call.note)
                for part, call in _PRESETS[name](each)
            ]
        convert = _CONVERTERS.get(name)
        if convert is None:
            return [Translated(was, note=f"unknown transform; {_BATCH}", lost=True)]
        match = convert(each)
    except (AttributeError, TypeError, ValueError, IndexError):
        # The class has the name of a torchvision transform but other attributes.
        return [Translated(was, note=f"unknown attributes; {_BATCH}", lost=True)]
    if isinstance(match, str):
        return [Translated(was, note=match, lost=True)]
    return [Translated(was, match, match.note if match else "")]


def _classification_preset(each: Any) -> Iterator[_Step]:
    """``weights.transforms()`` of a torchvision classifier."""
    *resize, normalize = _segmentation_preset(each)
    yield from resize
    yield "center crop", TransformCall("CenterCrop", (_size(each.crop_size),))
    yield normalize


def _segmentation_preset(each: Any) -> Iterator[_Step]:
    if each.resize_size is not None:
        yield "resize", _resized(each, each.resize_size)
    yield "normalize", TransformCall("Normalize", (_numbers(each.mean), _numbers(each.std)))


def _detection_preset(_: Any) -> Iterator[_Step]:
    yield "to float", _FLOAT32


def _resize(each: Any) -> _Match:
    if getattr(each, "max_size", None) is not None:
        return "max_size has no equivalent: the longer side would not be limited"
    return _resized(each, each.size)


def _resized(each: Any, size: Any) -> TransformCall:
    """One number is the size of the shorter side."""
    sides = _listed(size)
    options, note = _filter(each)
    if len(sides) == 1:
        return TransformCall("Resize", (), {"shorter": sides[0], **options}, note)
    return TransformCall("Resize", (sides[0], sides[1]), options, note)


def _random_resized_crop(each: Any) -> _Match:
    options, note = _filter(each)
    ranges = _non_default(each, scale=(0.08, 1.0), ratio=(3 / 4, 4 / 3))
    return TransformCall("RandomResizedCrop", (_size(each.size),), {**ranges, **options}, note)


def _random_crop(each: Any) -> _Match:
    padding = _padding(each) if getattr(each, "padding", None) else {}
    if isinstance(padding, str):
        return padding
    if not padding.get("pad"):
        padding = {}
    return TransformCall(
        "RandomCrop", (_size(each.size),), {k: v for k, v in padding.items() if v != 0}
    )


def _pad(each: Any) -> _Match:
    padding = _padding(each)
    # Not a transform of fastload: _fold_padding makes it an option of RandomCrop.
    return padding if isinstance(padding, str) else TransformCall("Pad", (), padding)


def _padding(each: Any) -> dict[str, object] | str:
    """Returns pad and fill, or why they have no equivalent."""
    sides = set(_listed(each.padding))
    if len(sides) > 1:
        return "padding that differs by side has no equivalent"
    if getattr(each, "padding_mode", "constant") != "constant":
        return f"padding_mode={each.padding_mode!r} has no equivalent"
    fill = getattr(each, "fill", 0)
    if isinstance(fill, dict):
        return "fill by type has no equivalent"
    return {"pad": sides.pop(), "fill": _one_or_many("fill", fill or 0).get("fill", 0)}


def _affine(each: Any) -> _Match:
    """Converts RandomAffine and RandomRotation."""
    if getattr(each, "expand", False) or getattr(each, "center", None) is not None:
        return (
            "expand and center have no equivalent: images rotate about their center and keep "
            "their size"
        )
    options: dict[str, object] = {}
    for name in ("translate", "scale", "shear"):
        value = getattr(each, name, None)
        if value is not None:
            options[name] = _numbers(_range(value) if name == "shear" else value)
    options |= _one_or_many("fill", getattr(each, "fill", None) or 0)
    mode = _interpolation(each)
    note = "" if mode in ("bilinear", "2") else f"{mode} has no equivalent: bilinear is used"
    return TransformCall("RandomAffine", (_numbers(_range(each.degrees)),), options, note)


def _color_jitter(each: Any) -> _Match:
    neutral = {"brightness": 1.0, "contrast": 1.0, "saturation": 1.0, "hue": 0.0}
    amounts = {name: _amount(getattr(each, name, None), value) for name, value in neutral.items()}
    given = {name: value for name, value in amounts.items() if value is not None}
    note = "applied in this order; torchvision uses a random order"
    return TransformCall("ColorJitter", (), given, note) if given else None


def _grayscale(each: Any) -> _Match:
    if getattr(each, "num_output_channels", 1) == 3:
        return TransformCall("Grayscale", (), {"p": 1.0})
    return None  # replaced by color="gray" of the loader


def _blur(each: Any) -> _Match:
    kernel = _listed(each.kernel_size)
    note = (
        ""
        if len(set(kernel)) == 1
        else f"kernel_size={tuple(kernel)} has no equivalent: a square kernel is used"
    )
    return TransformCall("GaussianBlur", (max(kernel),), {"sigma": _numbers(each.sigma)}, note)


def _erasing(each: Any) -> _Match:
    if isinstance(each.value, str) or each.value is None:
        return f"value={each.value!r} (noise) has no equivalent; use a number"
    ranges = _non_default(each, scale=(0.02, 0.33), ratio=(0.3, 3.3))
    options = {"p": each.p, **ranges, **_one_or_many("value", each.value)}
    return TransformCall("RandomErasing", (), options)


def _to_dtype(each: Any) -> _Match:
    name = str(getattr(each, "dtype", "float32")).removeprefix("torch.")
    if name not in _DTYPES:
        return f"dtype={name:.40} has no equivalent"
    scaled = getattr(each, "scale", True) or name == "uint8"
    return TransformCall("ToDtype", (name,), {} if scaled else {"scale": False})


def _random_apply(each: Any) -> _Match:
    """Converts RandomApply of one color transform to that transform with ``p``."""
    inner = [one for part in each.transforms for one in _translate_one(part)]
    calls = [part.call for part in inner if part.call]
    if len(calls) != 1 or calls[0].name not in ("ColorJitter", "GaussianBlur"):
        return "RandomApply is only supported with one ColorJitter or GaussianBlur"
    return replace(calls[0], options={**calls[0].options, "p": each.p})


def _flip(name: str) -> Callable[[Any], _Match]:
    return lambda each: TransformCall(name, () if each.p == 0.5 else (each.p,))


_CONVERTERS: dict[str, Callable[[Any], _Match]] = {
    "Resize": _resize,
    "RandomResizedCrop": _random_resized_crop,
    "RandomCrop": _random_crop,
    "Pad": _pad,
    "ToTensor": lambda _: _FLOAT32,
    "CenterCrop": lambda each: TransformCall("CenterCrop", (_size(each.size),)),
    "RandomHorizontalFlip": _flip("HorizontalFlip"),
    "RandomVerticalFlip": _flip("VerticalFlip"),
    "RandomAffine": _affine,
    "RandomRotation": _affine,
    "ColorJitter": _color_jitter,
    "Grayscale": _grayscale,
    "RandomGrayscale": lambda each: TransformCall("Grayscale", (), {"p": each.p}),
    "GaussianBlur": _blur,
    "RandomErasing": _erasing,
    "Normalize": lambda each: TransformCall("Normalize", (_numbers(each.mean), _numbers(each.std))),
    "ToDtype": _to_dtype,
    "ConvertImageDtype": _to_dtype,
    "RandomApply": _random_apply,
}


_PRESETS: dict[str, Callable[[Any], Iterator[_Step]]] = {
    "ImageClassification": _classification_preset,
    "SemanticSegmentation": _segmentation_preset,
    "ObjectDetection": _detection_preset,
}


def _interpolation(each: Any) -> str:
    mode = getattr(each, "interpolation", "bilinear")
    return str(getattr(mode, "value", mode)).lower()


def _filter(each: Any) -> tuple[dict[str, object], str]:
    """Returns the option ``filter``, and a note if the interpolation has no equivalent."""
    mode = _interpolation(each)
    if mode not in _FILTERS:
        return {}, f"{mode} has no equivalent: bilinear with antialias is used"
    return ({"filter": _FILTERS[mode]} if _FILTERS[mode] else {}), ""


def _non_default(each: Any, **defaults: Sequence[float]) -> dict[str, object]:
    """Returns the options whose value is not the default."""
    return {
        name: _numbers(getattr(each, name))
        for name, value in defaults.items()
        if not _close(getattr(each, name), value)
    }


def _one_or_many(name: str, value: Any) -> dict[str, object]:
    """Returns an option with one number or one per channel; nothing if all are 0."""
    values = _listed(value)
    if not any(values):
        return {}
    return {name: _numbers(values) if len(values) > 1 else values[0]}


def _range(value: Any) -> list[Any]:
    """Expands a single number a to (-a, a), as torchvision does."""
    listed = _listed(value)
    return [-listed[0], listed[0]] if len(listed) == 1 else listed


def _amount(limits: Any, neutral: float) -> object | None:
    """Converts (1 - a, 1 + a), as torchvision stores it, back to a. None if it changes nothing."""
    if limits is None or _close(limits, (neutral, neutral)):
        return None
    low, high = (_listed(limits) * 2)[:2]
    if math.isclose(high - neutral, neutral - low):
        return round(float(high - neutral), 9)
    return _numbers((low, high))


def _listed(value: Any) -> list[Any]:
    if hasattr(value, "tolist"):
        value = value.tolist()
    return list(value) if isinstance(value, list | tuple) else [value]


def _size(value: Any) -> object:
    sides = _listed(value)
    return sides[0] if len(set(sides)) == 1 else (sides[0], sides[1])


def _numbers(value: Any) -> tuple[float, ...]:
    return tuple(
        int(each) if isinstance(each, int) else round(float(each), 9) for each in _listed(value)
    )


def _close(value: Any, expected: Sequence[float]) -> bool:
    found = _listed(value)
    return len(found) == len(expected) and all(
        math.isclose(a, b, rel_tol=1e-6, abs_tol=1e-12)
        for a, b in zip(found, expected, strict=True)
    )


def _name(each: object) -> str:
    return type(each).__name__


def _described(each: object) -> str:
    text = repr(each)
    return _name(each) if text.startswith("<") or "\n" in text or len(text) > 60 else text
