"""From a list of transforms to a plan: checked once, here, so that a batch can no longer go wrong. Pure.

All geometry of a list becomes one crop of whole source pixels, one resize, one placement and one flip (fastload._plan.geometry).
Colours and warps come after it, in the order of the list; then the output's format.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TypeVar

from fastload._plan.base import Geometric, OnDevice, Step, Transform
from fastload._plan.checks import Size
from fastload._plan.crops import HorizontalFlip
from fastload._plan.field_plan import FieldPlan
from fastload._plan.output import Normalize, output_format
from fastload._plan.photometric import GaussianBlur, RandomErasing
from fastload._plan.warps import Warp
from fastload.errors import ConfigError

MAX_TRANSFORMS = 1000  # their number is the low 16 bits of a stream's; the rest is the group's
T = TypeVar("T")


def compile(transforms: object, *, group: int = 0) -> FieldPlan:
    """Checks a list of transforms and folds what can be known beforehand; raises ConfigError with the pair that does not fit.

    >>> from fastload import transforms as T
    >>> compile([T.Resize(shorter=256), T.CenterCrop(224)]).rows([0], [[375, 500]], seed=0, epoch=0)[0].describe()
    'sample 0: 328x329 at (85, 23) of 500x375 -> 224x224'
    """
    listed = tuple(_flat(transforms))
    if len(listed) > MAX_TRANSFORMS:
        raise ConfigError(f"transform: {len(listed)} transforms: at most {MAX_TRANSFORMS}")
    _check_order(listed)
    geometric = [each for each in listed if isinstance(each, Geometric)]
    _check_padding(geometric)
    size: Size | None = None
    for each in geometric:
        size = each.size_after(size)
    filling = [each.fills for each in listed if isinstance(each, Geometric | Warp)]
    fill = _agreed("fill", [each[0] for each in filling], (0,))
    if size is not None:
        _check_blur(listed, size)
    return FieldPlan(
        transforms=listed,
        group=group,
        size=size,
        output=output_format(listed),
        fill=fill,
        mask_fill=_agreed("mask_fill", [each[1] for each in filling], 0),
        steps=tuple(_steps(listed, fill)),
        filter=_agreed("filter", [each.resizes_by or None for each in geometric], "antialias"),
    )


def compile_fields(transform: object, image_fields: Sequence[str]) -> dict[str, FieldPlan]:
    """The plan of each image field: a list is shared by all; a dict names a field, or a tuple of fields that share, for each list.

    Fields that a dict does not name are left as they are.
    """
    if not isinstance(transform, Mapping):
        shared = compile(transform)
        return dict.fromkeys(image_fields, shared)
    plans: dict[str, FieldPlan] = {}
    for group, (key, transforms) in enumerate(transform.items()):
        plan = compile(transforms, group=group)
        for name in key if isinstance(key, tuple) else (key,):
            if name not in image_fields:
                raise ConfigError(
                    f"transform: {name!r} is no image field; there are {', '.join(map(repr, image_fields)) or 'none'}"
                )
            if name in plans:
                raise ConfigError(f"transform: field {name!r} is named twice")
            plans[name] = plan
    untouched = compile(None)
    return {name: plans.get(name, untouched) for name in image_fields}


def _flat(transforms: object) -> Iterator[Transform]:
    """The transforms of a list, lists in it opened; a single transform is a list of one."""
    if transforms is None:
        return
    if isinstance(transforms, Transform):
        yield transforms
    elif isinstance(transforms, type) and issubclass(transforms, Transform):
        raise ConfigError(
            f"transform: {transforms.__name__} is the class itself; write {transforms.__name__}(...)"
        )
    elif isinstance(transforms, Iterable) and not isinstance(transforms, str | bytes | Mapping):
        for each in transforms:
            yield from _flat(each)
    else:
        name = f"{type(transforms).__module__}.{type(transforms).__qualname__}"
        known = (
            "; torchvision's have equals here: print(fastload.migrate(your_torch_loader)) writes them"
            if "torchvision" in name
            else ""
        )
        raise ConfigError(
            f"transform: expected transforms of fastload.transforms, found {name} {' '.join(repr(transforms).split()):.60}; "
            f"what runs Python for each image cannot be planned: do it to the batches that the loader yields{known}"
        )


def _check_order(listed: Sequence[Transform]) -> None:
    """Geometry, colours, format; flips anywhere, erasing also behind Normalize."""
    colour: Transform | None = None
    normalize: Transform | None = None
    for each in listed:
        if (
            isinstance(each, Geometric)
            and not isinstance(each, HorizontalFlip)
            and (colour or normalize)
        ):
            raise ConfigError(
                f"transform: {_name(each)} follows {_name(colour or normalize)}: geometry is done while decoding, "
                f"before {_name(colour or normalize)}; put {_name(each)} in front of it"
            )
        if isinstance(each, OnDevice) and not isinstance(each, RandomErasing) and normalize:
            raise ConfigError(
                f"transform: {_name(each)} follows Normalize: it works on levels, before; put {_name(each)} in front of it"
            )
        if isinstance(each, OnDevice):
            colour = colour or each
        if isinstance(each, Normalize):
            normalize = each


def _check_padding(geometric: Sequence[Geometric]) -> None:
    """A crop that could hold nothing but padding cannot be asked of a decoder."""
    padding: Geometric | None = None
    for each in geometric:
        if padding and each.crops:
            raise ConfigError(
                f"transform: {_name(each)} follows {_name(padding)}: it could cut out nothing but padding; "
                f"put {_name(each)} in front of {_name(padding)}, or remove one of them"
            )
        if each.pads:
            padding = each


def _check_blur(listed: Sequence[Transform], size: Size) -> None:
    for each in listed:
        if isinstance(each, GaussianBlur):
            each.check_canvas(size)


def _steps(listed: Sequence[Transform], fill: tuple[int, ...]) -> Iterator[Step]:
    normalized = False
    for each in listed:
        normalized = normalized or isinstance(each, Normalize)
        if isinstance(each, OnDevice):
            for step in each.steps():
                if (
                    step.kind == "erase"
                    and not normalized
                    and not 0 <= min(step.value) <= max(step.value) <= 255
                ):
                    raise ConfigError(
                        f"transform: {each} stands before Normalize: its value is a level, 0 to 255"
                    )
                yield replace(
                    step,
                    after_normalize=normalized,
                    value=fill if step.kind == "affine" else step.value,
                )


def _agreed(what: str, wanted: Iterable[T | None], otherwise: T) -> T:
    """The one value that those who mind agree upon."""
    found = [value for value in wanted if value is not None]
    if any(value != found[0] for value in found):
        raise ConfigError(
            f"transform: {what} is {found[0]!r} in one transform and {next(v for v in found if v != found[0])!r} in another; "
            "there is one resize and one canvas: give them the same"
        )
    return found[0] if found else otherwise


def _name(transform: Transform | None) -> str:
    return type(transform).__name__
