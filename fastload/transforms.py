"""What can be asked for in ``transform=``: ``from fastload import transforms as T``. See docs/transforms.md.

Sizes are (height, width), as in torchvision. Geometry becomes one crop, one resize and one flip while decoding; colours are changed,
and finished canvases turned, on the device, in batches; all random numbers belong to the sample: the same crop whatever the batch,
thread, rank or resume.
"""

from fastload._plan.base import Transform
from fastload._plan.crops import CenterCrop, Crop, HorizontalFlip, RandomCrop
from fastload._plan.geometric import Letterbox, RandomResizedCrop, Resize
from fastload._plan.output import Layout, Normalize, ToDtype
from fastload._plan.photometric import (
    Brightness,
    ColorJitter,
    Contrast,
    GaussianBlur,
    Grayscale,
    Hue,
    RandomErasing,
    Saturation,
)
from fastload._plan.warps import RandomAffine, VerticalFlip

__all__ = [
    "Brightness",
    "CenterCrop",
    "ColorJitter",
    "Contrast",
    "Crop",
    "GaussianBlur",
    "Grayscale",
    "HorizontalFlip",
    "Hue",
    "Layout",
    "Letterbox",
    "Normalize",
    "RandomAffine",
    "RandomCrop",
    "RandomErasing",
    "RandomResizedCrop",
    "Resize",
    "Saturation",
    "ToDtype",
    "Transform",
    "VerticalFlip",
]
