"""Transforms for ``DataLoader(transform=[...])``: ``from fastload import transforms as T``.

Sizes are (height, width), as in torchvision. The geometry of a list becomes one crop, one resize and
one flip, done while decoding. Warps and color changes run on the device, on whole batches. Random
numbers belong to the sample: the same crop for any batch size, thread count, rank or restart.
docs/transforms.md has the rules and examples.

``compile`` and ``compile_fields`` show what a list does without loading anything, and the ``move_*``
functions move labels along with an image.
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

# Users see and pickle the public names.
for _name in __all__:
    globals()[_name].__module__ = __name__
