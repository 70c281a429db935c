"""From a list of transforms to a plan. The list is checked here, once, before the first batch.

All geometry of a list becomes one crop of whole source pixels, one resize, one placement and one
flip (``geometry``). Warps and colors follow in the order of the list, then the output format.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TypeVar

from fastload._plan.arguments import Size
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

MAX_TRANSFORMS = 1000  # the position is the low 16 bits of a random stream's number
T = TypeVar("T")


def compile(transforms: object, *, group: int = 0) -> FieldPlan:
    """Checks a list of transforms and returns the plan of an image field.

    Args:
        transforms: A transform, a list of them (lists inside are flattened), or None.
        group: Plans with different groups draw different random numbers.

    Raises:
        ConfigError: Something in the list is not a transform, or two transforms do not fit.

    Example:
        >>> from fastload import transforms as T
        >>> plan = compile([T.Resize(shorter=256), T.CenterCrop(224)])
        >>> print(plan.rows([0], [[375, 500]], seed=0, epoch=0)[0])
        sample 0: 328x329 at (85, 23) of 500x375 -> 224x224
    """
    listed = tuple(_flattened(transforms))
    if len(listed) > MAX_TRANSFORMS:
        raise ConfigError(f"transform: {len(listed)} transforms: at most {MAX_TRANSFORMS}")
    _check_order(listed)
    geometric = [each for each in listed if isinstance(each, GeometricTransform)]
    _check_padding(geometric)
    size: Size | None = None
    for each in geometric:
        size = each.size_after(size)
    fills = [each.fills for each in listed]
    fill = _agreed("fill", [image for image, _ in fills], (0,))
    if size is not None:
        for transform in listed:
            if isinstance(transform, PixelTransform):
                transform.check_canvas(size)
    return FieldPlan(
        transforms=listed,
        group=group,
        size=size,
        output=output_format(listed),
        fill=fill,
        mask_fill=_agreed("mask_fill", [mask for _, mask in fills], 0),
        ops=tuple(_ops(listed, fill)),
        filter=_agreed("filter", [each.resize_filter for each in geometric], "antialias"),
    )


def compile_fields(transform: object, image_fields: Sequence[str]) -> dict[str, FieldPlan]:
    """The plan of each image field.

    Args:
        transform: A list for all image fields, or a dict from field name, or tuple of field names
            that share random numbers, to list. Fields that a dict does not name stay unmodified.
        image_fields: The names of the dataset's image fields.

    Raises:
        ConfigError: As ``compile``; a name is not an image field, or stands in the dict twice.

    Example:
        >>> from fastload import transforms as T
        >>> plans = compile_fields({"left": [T.CenterCrop(224)]}, ["left", "right"])
        >>> plans["left"].size, plans["right"].size
        ((224, 224), None)
    """
    if not isinstance(transform, Mapping):
        shared = compile(transform)
        return dict.fromkeys(image_fields, shared)
    plans: dict[str, FieldPlan] = {}
    for group, (key, transforms) in enumerate(transform.items()):
        plan = compile(transforms, group=group)
        for name in key if isinstance(key, tuple) else (key,):
            if name not in image_fields:
                known = ", ".join(map(repr, image_fields)) or "none"
                raise ConfigError(f"transform: {name!r} is no image field; there are {known}")
            if name in plans:
                raise ConfigError(f"transform: field {name!r} is named twice")
            plans[name] = plan
    unmodified = compile(None)
    return {name: plans.get(name, unmodified) for name in image_fields}


def _flattened(transforms: object) -> Iterator[Transform]:
    """The transforms of nested lists; a single transform is a list of one."""
    if transforms is None:
        return
    if isinstance(transforms, Transform):
        yield transforms
    elif isinstance(transforms, type) and issubclass(transforms, Transform):
        name = transforms.__name__
        raise ConfigError(f"transform: {name} is the class itself; write {name}(...)")
    elif isinstance(transforms, Iterable) and not isinstance(transforms, str | bytes | Mapping):
        for each in transforms:
            yield from _flattened(each)
    else:
        raise _not_a_transform(transforms)


def _not_a_transform(value: object) -> ConfigError:
    name = f"{type(value).__module__}.{type(value).__qualname__}"
    hint = ""
    if "torchvision" in name:
        hint = (
            "; torchvision's have equivalents here: print(fastload.migrate(your_torch_loader)) "
            "writes them"
        )
    text = " ".join(repr(value).split())
    return ConfigError(
        f"transform: expected transforms of fastload.transforms, found {name} {text:.60}; "
        "Python code per image cannot be planned: apply it to the batches that the loader "
        f"yields{hint}"
    )


def _check_order(listed: Sequence[Transform]) -> None:
    """Geometry, pixel operations, format; flips anywhere, erasing also after Normalize."""
    pixels: Transform | None = None
    normalize: Transform | None = None
    for each in listed:
        name = type(each).__name__
        earlier = pixels or normalize
        if isinstance(each, GeometricTransform) and not each.allowed_anywhere and earlier:
            raise ConfigError(
                f"transform: {name} follows {type(earlier).__name__}: geometry is done while "
                f"decoding, before {type(earlier).__name__}; put {name} before it"
            )
        if isinstance(each, PixelTransform):
            if normalize and not each.allowed_after_normalize:
                raise ConfigError(
                    f"transform: {name} follows Normalize: it works on pixel values; "
                    f"put {name} before it"
                )
            pixels = pixels or each
        if isinstance(each, Normalize):
            normalize = each


def _check_padding(geometric: Sequence[GeometricTransform]) -> None:
    """A decoder cannot produce a crop that contains nothing but padding."""
    padding = ""
    for each in geometric:
        name = type(each).__name__
        if padding and each.crops:
            raise ConfigError(
                f"transform: {name} follows {padding}: it could cut out nothing but padding; "
                f"put {name} before {padding}, or remove one of them"
            )
        if each.pads:
            padding = name


def _ops(listed: Sequence[Transform], fill: tuple[int, ...]) -> Iterator[PixelOp]:
    normalized = False
    for each in listed:
        normalized = normalized or isinstance(each, Normalize)
        if isinstance(each, PixelTransform):
            yield from each.ops(OpContext(fill, normalized))


def _agreed(what: str, wanted: Iterable[T | None], default: T) -> T:
    """The one value that all transforms that state one agree upon."""
    found = [value for value in wanted if value is not None]
    for other in found:
        if other != found[0]:
            raise ConfigError(
                f"transform: {what} is {found[0]!r} in one transform and {other!r} in another; "
                "there is one resize and one canvas: use the same value"
            )
    return found[0] if found else default
