"""Transforms for ``DataLoader(transform=[...])``.

Sizes are (height, width), as in torchvision. All crops, resizes and flips of a list become one
crop, one resize and one flip, computed during decoding. Warps and color changes run on the device,
on whole batches. Random numbers depend on seed, epoch and sample id only, so a sample gets the same
crop for any batch size, thread count, rank or restart. docs/transforms.md has rules and examples.

``compile`` and ``compile_fields`` show the effect of a list without loading data. The ``move_*``
functions move labels with an image.

Examples:
    >>> from fastload import transforms as T
    >>> train = [T.RandomResizedCrop(224), T.HorizontalFlip(), T.Normalize(0.5, 0.25)]
    >>> T.compile(train).size
    (224, 224)
"""

from fastload._plan.color import (
    Brightness,
    ColorJitter,
    Contrast,
    GaussianBlur,
    Grayscale,
    Hue,
    RandomErasing,
    Saturation,
)
from fastload._plan.compiler import compile, compile_fields
from fastload._plan.crops import CenterCrop, Crop, RandomCrop, RandomResizedCrop
from fastload._plan.field_plan import FieldPlan
from fastload._plan.format import Layout, Normalize, OutputFormat, ToDtype
from fastload._plan.labels import (
    move_boxes,
    move_boxes_batch,
    move_from_image,
    move_points,
    move_points_batch,
    move_polylines,
    move_to_image,
)
from fastload._plan.resizes import HorizontalFlip, Letterbox, Resize
from fastload._plan.rows import PlanRows
from fastload._plan.transform import PixelOp, Transform
from fastload._plan.warps import RandomAffine, VerticalFlip

__all__ = [
    "Brightness",
    "CenterCrop",
    "ColorJitter",
    "Contrast",
    "Crop",
    "FieldPlan",
    "GaussianBlur",
    "Grayscale",
    "HorizontalFlip",
    "Hue",
    "Layout",
    "Letterbox",
    "Normalize",
    "OutputFormat",
    "PixelOp",
    "PlanRows",
    "RandomAffine",
    "RandomCrop",
    "RandomErasing",
    "RandomResizedCrop",
    "Resize",
    "Saturation",
    "ToDtype",
    "Transform",
    "VerticalFlip",
    "compile",
    "compile_fields",
    "move_boxes",
    "move_boxes_batch",
    "move_from_image",
    "move_points",
    "move_points_batch",
    "move_polylines",
    "move_to_image",
]

# Error messages, help() and pickles show the public module instead of fastload._plan.
for _name in __all__:
    globals()[_name].__module__ = __name__
