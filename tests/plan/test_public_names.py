"""Public names of fastload.transforms and their documentation."""

from __future__ import annotations

import pickle
from dataclasses import fields
from typing import Any

from fastload import transforms

PUBLIC = [
    "Brightness", "CenterCrop", "ColorJitter", "Contrast", "Crop", "FieldPlan", "GaussianBlur", "Grayscale",
    "HorizontalFlip", "Hue", "Layout", "Letterbox", "Normalize", "OutputFormat", "PixelOp", "PlanRows",
    "RandomAffine", "RandomCrop", "RandomErasing", "RandomResizedCrop", "Resize", "Saturation", "ToDtype", "Transform",
    "VerticalFlip", "compile", "compile_fields", "move_boxes", "move_boxes_batch", "move_from_image", "move_points",
    "move_points_batch", "move_polylines", "move_to_image",
]  # fmt: skip


def test_public_names_equal_the_list() -> None:
    assert transforms.__all__ == PUBLIC


def test_public_names_belong_to_the_public_module() -> None:
    for name in PUBLIC:
        assert getattr(transforms, name).__module__ == "fastload.transforms"
        assert getattr(transforms, name).__qualname__ == name


def test_every_transform_documents_all_arguments() -> None:
    for name in PUBLIC:
        each: Any = getattr(transforms, name)
        if (
            isinstance(each, type)
            and issubclass(each, transforms.Transform)
            and name != "Transform"
        ):
            assert each.__doc__ is not None
            assert all(part in each.__doc__ for part in ("Args:", "Raises:", "Examples:")), name
            for argument in fields(each):
                assert f"        {argument.name}: " in each.__doc__, (name, argument.name)


def test_every_public_name_has_an_example() -> None:
    """tests/docs/test_transforms_docs.py runs the examples."""
    assert [name for name in PUBLIC if "Examples:" not in getattr(transforms, name).__doc__] == []


def test_transforms_and_plans_survive_pickling() -> None:
    plan = transforms.compile(
        [transforms.Resize(4, 5), transforms.RandomAffine(3), transforms.Hue(0.1)]
    )
    copy = pickle.loads(pickle.dumps(plan))
    assert copy == plan
    assert b"_plan.resizes" not in pickle.dumps(plan.transforms)
