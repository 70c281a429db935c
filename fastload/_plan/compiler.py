"""Compiles a list of transforms to a plan, and checks it before the first batch.

All geometric transforms of a list become one crop of whole source pixels, one resize, one position
on the canvas and one flip (``geometry``). Warps and color changes follow in the order of the list.
The output format is last.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TypeVar

from fastload._plan.arguments import Size, image_fill
from fastload._plan.field_plan import FieldPlan
from fastload._plan.format import Normalize, output_format
from fastload._plan.transform import (
    GeometricTransform,
    OpContext,
    PixelOp,
    PixelTransform,
    Transform,
)
from fastload.errors import ConfigError

MAX_TRANSFORMS = 1000  # the position must fit the low 16 bits of a random stream's number
T = TypeVar("T")


def compile(transforms: object, *, group: int = 0, bits: int = 8) -> FieldPlan:
    """Checks a list of transforms and compiles it to the plan of an image field.

    Args:
        transforms: A transform, a list of transforms (nested lists are flattened), or None.
        group: Number of the random stream. Plans with different groups draw different random
            numbers. Default 0.
        bits: Bits per channel of the images, 8 or 16. Default 8.

    Returns:
        The plan. Its method ``rows`` shows the crop, size and flip of given samples.

    Raises:
        ConfigError: An entry is not a transform, or two transforms cannot be combined.

    Examples:
        >>> from fastload import transforms as T
        >>> plan = compile([T.Resize(shorter=256), T.CenterCrop(224)])
        >>> print(plan.rows([0], [[375, 500]], seed=0, epoch=0)[0])
        sample 0: 328x329 at (85, 23) of 500x375 -> 224x224
    """
    if bits not in (8, 16):
        raise ConfigError(f"bits={bits!r:.40}: expected 8 or 16")
    listed = tuple(_flattened(transforms))
    if len(listed) > MAX_TRANSFORMS:
        raise ConfigError(
            f"transform: expected at most {MAX_TRANSFORMS} transforms, found {len(listed)}"
        )
    _check_order(listed)
    geometric = [each for each in listed if isinstance(each, GeometricTransform)]
    _check_padding(geometric)
    size: Size | None = None
    for each in geometric:
        size = each.size_after(size)
    output = output_format(listed, bits)
    fill = _agreed("fill", [_fill(each, output.bits) for each in listed], (0,))
    if size is not None:
        for transform in listed:
            if isinstance(transform, PixelTransform):
                transform.check_canvas(size)
    return FieldPlan(
        transforms=listed,
        group=group,
        size=size,
        output=output,
        fill=fill,
        mask_fill=_agreed("mask_fill", [each.mask_fill for each in listed], 0),
        ops=tuple(_ops(listed, fill, output.white)),
        filter=_agreed("filter", [each.filter for each in geometric], "antialias"),
    )


def compile_fields(
    transform: object, image_fields: Sequence[str], *, bits: Mapping[str, int] | None = None
) -> dict[str, FieldPlan]:
    """Compiles the ``transform=`` argument of a DataLoader to one plan per image field.

    Args:
        transform: A list for all image fields, or a dict of lists. A key of the dict is a field
            name, or a tuple of field names that share random numbers. Image fields that are not in
            the dict stay unmodified.
        image_fields: Names of the image fields of the dataset.
        bits: Bits per channel of the images by field, 8 or 16. Fields that are not named have 8.
            Default None.

    Returns:
        The plan of each image field, by name.

    Raises:
        ConfigError: A list is invalid (see ``compile``), or a name in the dict is repeated or is
            not an image field.

    Examples:
        >>> from fastload import transforms as T
        >>> plans = compile_fields({"left": [T.CenterCrop(224)]}, ["left", "right"])
        >>> plans["left"].size, plans["right"].size
        ((224, 224), None)
    """
    depths = dict.fromkeys(image_fields, 8) | dict(bits or {})
    groups = (
        transform.items() if isinstance(transform, Mapping) else [((*image_fields,), transform)]
    )
    plans: dict[str, FieldPlan] = {}
    for group, (key, transforms) in enumerate(groups):
        names = key if isinstance(key, tuple) else (key,)
        listed = tuple(_flattened(transforms))
        by_depth = {
            depth: compile(listed, group=group, bits=depth)
            for depth in {depths.get(name, 8) for name in names} or {8}
        }
        for name in names:
            if name not in image_fields:
                known = ", ".join(map(repr, image_fields)) or "none"
                raise ConfigError(
                    f"transform: {name!r} is not an image field; the image fields are {known}"
                )
            if name in plans:
                raise ConfigError(f"transform: field {name!r} is named twice; remove one")
            plans[name] = by_depth[depths[name]]
    unmodified = {depth: compile(None, bits=depth) for depth in set(depths.values())}
    return {name: plans.get(name, unmodified[depths[name]]) for name in image_fields}


def _flattened(transforms: object) -> Iterator[Transform]:
    if transforms is None:
        return
    if isinstance(transforms, Transform):
        yield transforms
    elif isinstance(transforms, type) and issubclass(transforms, Transform):
        name = transforms.__name__
        raise ConfigError(f"transform: {name} is a class; expected an instance, {name}(...)")
    elif isinstance(transforms, Iterable) and not isinstance(transforms, str | bytes | Mapping):
        for each in transforms:
            yield from _flattened(each)
    else:
        raise _not_a_transform(transforms)


def _not_a_transform(value: object) -> ConfigError:
    name = f"{type(value).__module__}.{type(value).__qualname__}"
    text = " ".join(repr(value).split())
    hint = "Apply other Python code to the batches that the loader yields."
    if "torchvision" in name:
        hint = "print(fastload.migrate(your_torch_loader)) shows the equivalents. " + hint
    return ConfigError(
        f"transform: expected transforms of fastload.transforms, found {name} {text:.60}. {hint}"
    )


def _check_order(listed: Sequence[Transform]) -> None:
    """Requires the order geometry, pixel operations, format.

    HorizontalFlip is allowed anywhere, and RandomErasing after Normalize.
    """
    pixels: Transform | None = None
    normalize: Transform | None = None
    for each in listed:
        name = type(each).__name__
        earlier = pixels or normalize
        if isinstance(each, GeometricTransform) and not each.allowed_anywhere and earlier:
            raise ConfigError(
                f"transform: {name} follows {type(earlier).__name__}, but geometry is computed "
                f"during decoding; put {name} before {type(earlier).__name__}"
            )
        if isinstance(each, PixelTransform):
            if normalize and not each.allowed_after_normalize:
                raise ConfigError(
                    f"transform: {name} follows Normalize, but works on pixel values; "
                    f"put {name} before Normalize"
                )
            pixels = pixels or each
        if isinstance(each, Normalize):
            normalize = each


def _check_padding(geometric: Sequence[GeometricTransform]) -> None:
    """Rejects crops after padding: a decoder cannot produce a crop of padding only."""
    padding = ""
    for each in geometric:
        name = type(each).__name__
        if padding and each.crops:
            raise ConfigError(
                f"transform: {name} follows {padding} and could crop padding only; "
                f"put {name} before {padding}, or remove one of them"
            )
        if each.pads:
            padding = name


def _ops(listed: Sequence[Transform], fill: tuple[int, ...], white: float) -> Iterator[PixelOp]:
    normalized = False
    for each in listed:
        normalized = normalized or isinstance(each, Normalize)
        if isinstance(each, PixelTransform):
            for op in each.ops(OpContext(fill, normalized, white)):
                yield replace(op, white=white)


def _fill(transform: Transform, bits: int) -> tuple[int, ...] | None:
    if transform.fill is None and transform.default_fill is not None:
        return (transform.default_fill * (257 if bits == 16 else 1),)
    return image_fill("fill", transform.fill)


def _agreed(what: str, wanted: Iterable[T | None], default: T) -> T:
    """Returns the value that the transforms set, and requires that they set the same one."""
    found = [value for value in wanted if value is not None]
    for other in found:
        if other != found[0]:
            raise ConfigError(
                f"transform: {what} is {found[0]!r} in one transform and {other!r} in another; "
                "use the same value, because the list becomes one resize and one canvas"
            )
    return found[0] if found else default
