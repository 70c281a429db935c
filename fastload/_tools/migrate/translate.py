"""torchvision's transforms in fastload's words. They are known by name and attributes: torchvision need not be installed."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from fastload._tools.migrate.result import Translated

_BATCH = "do it to the batches that the loader yields"
_GEOMETRY = "no crop, resize, flip or affine map; " + _BATCH
_NOTHING = {
    "ToTensor",
    "PILToTensor",
    "ToImage",
    "ToImageTensor",
    "ToPureTensor",
    "Identity",
    "ToPILImage",
}
_GEOMETRIC = {"RandomPerspective", "ElasticTransform", "Pad"}
_FILTERS = {
    "bilinear": "",
    "2": "",
    "nearest": "nearest",
    "nearest-exact": "nearest",
    "0": "nearest",
}


def translate(transform: object) -> list[Translated]:
    """Each part of a transform, Compose opened, in order."""
    parts = list(_parts(transform))
    normalises = any(_name(each) == "Normalize" for each in parts)
    made = [_one(each) for each in parts]
    tensor = next(
        (number for number, each in enumerate(parts) if _name(each) == "ToTensor"), None
    )  # makes 0..1
    if normalises:  # Normalize makes float32 by itself
        return [
            Translated(each.was, "") if each.code.startswith("T.ToDtype('float32'") else each
            for each in made
        ]
    if tensor is not None and not any(each.code.startswith("T.ToDtype") for each in made):
        made[tensor] = Translated(made[tensor].was, "T.ToDtype('float32')")
    return made


def _parts(transform: object) -> Iterator[object]:
    inner = getattr(transform, "transforms", None)
    if _name(transform) in ("Compose", "Sequential", "StandardTransform") and isinstance(
        inner, Sequence
    ):
        for each in inner:
            yield from _parts(each)
    elif _name(transform) == "StandardTransform":
        yield from _parts(getattr(transform, "transform", None))
    elif _name(transform) == "Sequential" and hasattr(transform, "children"):
        for each in transform.children():
            yield from _parts(each)
    elif transform is not None:
        yield transform


def _one(each: object) -> Translated:
    name = _name(each)
    was = _was(each)
    if name in _NOTHING:
        return Translated(was, "")
    if name in _GEOMETRIC:
        return Translated(was, "", _GEOMETRY, lost=True)
    known = _KNOWN.get(name)
    if known is None:
        return Translated(was, "", f"not known; {_BATCH}", lost=True)
    try:
        code, note = known(each)
    except (
        AttributeError,
        TypeError,
        ValueError,
        IndexError,
    ):  # of the same name, but not torchvision's
        return Translated(was, "", f"not known in this form; {_BATCH}", lost=True)
    return Translated(was, code, note, lost=not code and bool(note))


def _resize(each: Any) -> tuple[str, str]:
    size = _listed(each.size)
    filter_code, note = _filter(each)
    if getattr(each, "max_size", None) is not None:
        note = "; ".join(
            filter(None, (note, "max_size has no equal: the longer side is not bounded"))
        )
    if len(size) == 1:
        return f"T.Resize(shorter={size[0]}{filter_code})", note
    return f"T.Resize({size[0]}, {size[1]}{filter_code})", note


def _random_resized_crop(each: Any) -> tuple[str, str]:
    filter_code, note = _filter(each)
    code = f"T.RandomResizedCrop({_size(each.size)}"
    if not _close(each.scale, (0.08, 1.0)):
        code += f", scale={_numbers(each.scale)}"
    if not _close(each.ratio, (3 / 4, 4 / 3)):
        code += f", ratio={_numbers(each.ratio)}"
    return code + filter_code + ")", note


def _random_crop(each: Any) -> tuple[str, str]:
    padding = getattr(each, "padding", None) or 0
    sides = set(_listed(padding))
    note = []
    if len(sides) > 1:
        note.append("different padding on the sides: the largest is used")
    if getattr(each, "padding_mode", "constant") != "constant":
        note.append(f"padding_mode={each.padding_mode!r}: padding is filled here")
    fill = getattr(each, "fill", 0)
    code = f"T.RandomCrop({_size(each.size)}" + (f", pad={max(sides)}" if max(sides) else "")
    if fill and not isinstance(fill, dict):
        code += f", fill={_numbers(fill) if isinstance(fill, list | tuple) else fill}"
    return code + ")", "; ".join(note)


def _affine(each: Any) -> tuple[str, str]:
    """RandomAffine, and RandomRotation, which is one."""
    if getattr(each, "expand", False) or getattr(each, "center", None) is not None:
        return (
            "",
            "expand and center have no equal: images are turned about their centre and keep their size",
        )
    code = f"T.RandomAffine({_numbers(_range(each.degrees))}"
    for name in ("translate", "scale", "shear"):
        value = getattr(each, name, None)
        if value is not None:
            code += f", {name}={_numbers(_range(value) if name == 'shear' else value)}"
    fill = _listed(getattr(each, "fill", None) or 0)
    if any(fill):
        code += f", fill={_numbers(fill) if len(fill) > 1 else fill[0]}"
    mode = getattr(each, "interpolation", "bilinear")
    name = str(getattr(mode, "value", mode)).lower()
    return code + ")", "" if name in ("bilinear", "2") else f"{name} has no equal: bilinear is used"


def _range(value: Any) -> list[Any]:
    """torchvision keeps (-a, a) for a."""
    listed = _listed(value)
    return [-listed[0], listed[0]] if len(listed) == 1 else listed


def _jitter(each: Any) -> tuple[str, str]:
    neutral = {"brightness": 1.0, "contrast": 1.0, "saturation": 1.0, "hue": 0.0}
    amounts = {name: _amount(getattr(each, name, None), value) for name, value in neutral.items()}
    given = ", ".join(f"{name}={value}" for name, value in amounts.items() if value)
    return (
        (f"T.ColorJitter({given})", "always in this order; torchvision shuffles it")
        if given
        else ("", "")
    )


def _gray(each: Any) -> tuple[str, str]:
    if getattr(each, "num_output_channels", 1) == 3:
        return "T.Grayscale(p=1.0)", ""
    return "", ""  # color="gray" on the loader says it


def _blur(each: Any) -> tuple[str, str]:
    kernel = _listed(each.kernel_size)
    note = "" if len(set(kernel)) == 1 else f"kernel {tuple(kernel)}: a square one is used"
    return f"T.GaussianBlur({max(kernel)}, sigma={_numbers(_listed(each.sigma))})", note


def _erasing(each: Any) -> tuple[str, str]:
    if isinstance(each.value, str) or each.value is None:
        return "", f"value={each.value!r} (noise) has no equal; a number has"
    code = f"T.RandomErasing(p={each.p}"
    for name, usual in (("scale", (0.02, 0.33)), ("ratio", (0.3, 3.3))):
        if not _close(getattr(each, name), usual):
            code += f", {name}={_numbers(getattr(each, name))}"
    value = _listed(each.value)
    if any(value):
        code += f", value={_numbers(value) if len(value) > 1 else value[0]}"
    return code + ")", ""


def _to_dtype(each: Any) -> tuple[str, str]:
    name = str(getattr(each, "dtype", "float32")).removeprefix("torch.")
    if name not in ("float32", "float16", "bfloat16", "uint8"):
        return "", f"dtype {name:.40} has no equal"
    scale = getattr(each, "scale", True) or name == "uint8"
    return f"T.ToDtype({name!r}" + ("" if scale else ", scale=False") + ")", ""


def _apply(each: Any) -> tuple[str, str]:
    """RandomApply of one colour transform: that one with p."""
    inner = [_one(part) for part in each.transforms]
    codes = [part.code for part in inner if part.code]
    if len(codes) != 1 or not codes[0].startswith(("T.ColorJitter(", "T.GaussianBlur(")):
        return "", "RandomApply of anything but one ColorJitter or GaussianBlur has no equal"
    return f"{codes[0][:-1]}, p={each.p})", inner[0].note


_KNOWN: dict[str, Callable[[Any], tuple[str, str]]] = {
    "Resize": _resize,
    "RandomResizedCrop": _random_resized_crop,
    "RandomCrop": _random_crop,
    "ColorJitter": _jitter,
    "Grayscale": _gray,
    "GaussianBlur": _blur,
    "RandomErasing": _erasing,
    "ToDtype": _to_dtype,
    "ConvertImageDtype": _to_dtype,
    "RandomApply": _apply,
    "CenterCrop": lambda each: (f"T.CenterCrop({_size(each.size)})", ""),
    "RandomHorizontalFlip": lambda each: (
        f"T.HorizontalFlip({'' if each.p == 0.5 else each.p})",
        "",
    ),
    "RandomVerticalFlip": lambda each: (f"T.VerticalFlip({'' if each.p == 0.5 else each.p})", ""),
    "RandomAffine": _affine,
    "RandomRotation": _affine,
    "RandomGrayscale": lambda each: (f"T.Grayscale(p={each.p})", ""),
    "Normalize": lambda each: (f"T.Normalize({_numbers(each.mean)}, {_numbers(each.std)})", ""),
}


def wants_gray(transform: object) -> bool:
    """Whether the images become one channel of gray."""
    return any(
        _name(each) == "Grayscale" and getattr(each, "num_output_channels", 1) == 1
        for each in _parts(transform)
    )


def _filter(each: Any) -> tuple[str, str]:
    mode = getattr(each, "interpolation", "bilinear")
    name = str(getattr(mode, "value", mode)).lower()
    if name not in _FILTERS:
        return "", f"{name} has no equal: bilinear with antialias is used"
    return (f", filter={_FILTERS[name]!r}" if _FILTERS[name] else ""), ""


def _amount(limits: Any, neutral: float) -> str:
    """torchvision keeps (1 - a, 1 + a); None and nothing but the neutral value change nothing."""
    if limits is None or _close(_listed(limits), (neutral, neutral)):
        return ""
    low, high = (_listed(limits) * 2)[:2]
    symmetric = math.isclose(high - neutral, neutral - low)
    return (
        repr(round(float(high - neutral), 9)) if symmetric else f"({_plain(low)}, {_plain(high)})"
    )


def _listed(value: Any) -> list[Any]:
    if hasattr(value, "tolist"):
        value = value.tolist()
    return list(value) if isinstance(value, list | tuple) else [value]


def _size(value: Any) -> str:
    sides = _listed(value)
    return str(sides[0]) if len(set(sides)) == 1 else f"({sides[0]}, {sides[1]})"


def _numbers(value: Any) -> str:
    return (
        "("
        + ", ".join(map(_plain, _listed(value)))
        + ("," if len(_listed(value)) == 1 else "")
        + ")"
    )


def _plain(value: Any) -> str:
    return repr(int(value)) if isinstance(value, int) else repr(round(float(value), 9))


def _close(value: Any, usual: Sequence[float]) -> bool:
    found = _listed(value)
    return len(found) == len(usual) and all(
        math.isclose(a, b, rel_tol=1e-6, abs_tol=1e-12) for a, b in zip(found, usual, strict=True)
    )


def _name(each: object) -> str:
    return type(each).__name__


def _was(each: object) -> str:
    text = repr(each)
    return _name(each) if text.startswith("<") or "\n" in text or len(text) > 60 else text
