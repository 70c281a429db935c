"""Labels drawn on a picture: boxes, points, polylines and masks, at the size at which it is shown."""

from __future__ import annotations

import colorsys
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFont

Color = tuple[int, int, int]
Font = ImageFont.FreeTypeFont | ImageFont.ImageFont
Array = NDArray[Any]

_FINER = 3  # shapes are drawn this much larger and shrunk: Pillow's lines have no smooth edges
_MASK_ALPHA = 110
_EDGE_ALPHA = 230
_SHADOW = (0, 0, 0, 170)
_FAR = 4.0  # points further out than this many picture sizes are pulled in: Pillow's integers are small


def color(number: int) -> Color:
    """A bright color for a class or instance; neighbors differ (hues a golden section apart)."""
    hue = (0.58 + 0.61803398875 * number) % 1.0
    red, green, blue = colorsys.hsv_to_rgb(hue, 0.72, 1.0)
    return round(255 * red), round(255 * green), round(255 * blue)


def font(size: int) -> Font:
    """DejaVu where it is installed (it has most scripts), else the one that Pillow carries."""
    try:
        return ImageFont.truetype("DejaVuSans.ttf", size)
    except OSError:
        return ImageFont.load_default(size)


def as_picture(pixels: Array) -> Image.Image:
    """Any stored image as 8-bit RGB; 16-bit ones are scaled to their brightest pixel."""
    if pixels.dtype != np.uint8:
        pixels = (pixels.astype(np.float64) * (255.0 / max(1, int(pixels.max())))).astype(np.uint8)
    return Image.fromarray(pixels[:, :, :3] if pixels.shape[2] >= 3 else pixels[:, :, 0]).convert(
        "RGB"
    )


def fitted(size: tuple[int, int], room: tuple[int, int]) -> tuple[int, int]:
    """The largest size of the same shape that fits the room."""
    scale = min(room[0] / size[0], room[1] / size[1])
    return max(1, round(size[0] * scale)), max(1, round(size[1] * scale))


def scaled(picture: Image.Image, size: tuple[int, int]) -> Image.Image:
    """Small pictures keep their pixels visible, large ones are smoothed."""
    grows = size[0] >= 2 * picture.width
    return picture.resize(size, Image.Resampling.NEAREST if grows else Image.Resampling.LANCZOS)


def draw_mask(picture: Image.Image, mask: Array, *, alpha: int = _MASK_ALPHA) -> Image.Image:
    """Lays a mask over the picture: 0 is nothing, every other label a translucent color with a firm edge."""
    labels = np.asarray(
        Image.fromarray(mask.astype(np.int32)).resize(picture.size, Image.Resampling.NEAREST)
    )
    layer = np.zeros((*labels.shape, 4), np.uint8)
    for label in np.unique(labels)[:256].tolist():
        if label:
            # 255: "ignore"
            layer[labels == label] = (*((200, 200, 200) if label == 255 else color(label)), alpha)
    edge = np.zeros(labels.shape, np.bool_)
    edge[:, 1:] |= labels[:, 1:] != labels[:, :-1]
    edge[1:] |= labels[1:] != labels[:-1]
    layer[edge & (labels != 0), 3] = max(alpha, _EDGE_ALPHA)
    return Image.alpha_composite(picture.convert("RGBA"), Image.fromarray(layer)).convert("RGB")


def draw_shapes(
    picture: Image.Image,
    scale: tuple[float, float],
    *,
    boxes: Array | None = None,
    lines: Sequence[Array] = (),
    points: Array | None = None,
    colors: Sequence[Color] = (),
) -> Image.Image:
    """Boxes (n, 4), polylines and points (n, 2 or 3), in pixels of the stored image, ``scale`` times larger here."""
    layer = Image.new("RGBA", (picture.width * _FINER, picture.height * _FINER))
    draw = ImageDraw.Draw(layer)
    for number, box in enumerate(_rows(boxes, 4)):
        x0, y0 = _moved(box[:2], scale, picture.size)
        x1, y1 = _moved(box[2:], scale, picture.size)
        left, right = sorted((x0, x1))
        top, bottom = sorted((y0, y1))
        # A box ends before its last coordinate, Pillow's rectangle with it.
        corners = (left, top, max(left, right - 1), max(top, bottom - 1))
        draw.rectangle(corners, outline=_SHADOW, width=4 * _FINER)
        inner = tuple(
            side + d for side, d in zip(corners, (_FINER, _FINER, -_FINER, -_FINER), strict=True)
        )
        if inner[0] <= inner[2] and inner[1] <= inner[3]:
            draw.rectangle(inner, outline=(*_chosen(colors, number), 255), width=2 * _FINER)
    for number, line in enumerate(lines):
        path = [_moved(point[:2], scale, picture.size) for point in _rows(line, 2)]
        for width, tint in ((5, _SHADOW), (3, (*_chosen(colors, number), 255))):
            if len(path) > 1:
                draw.line(path, fill=tint, width=width * _FINER, joint="curve")
            for x, y in (path[0], path[-1]) if path else ():
                draw.circle((x, y), width * _FINER / 2, fill=tint)
    for number, point in enumerate(_rows(points, 2)):
        x, y = _moved(point[:2], scale, picture.size)
        draw.circle((x, y), 5 * _FINER, fill=_SHADOW)
        draw.circle((x, y), 3.5 * _FINER, fill=(*_chosen(colors, number), 255))
    layer = layer.resize(picture.size, Image.Resampling.BOX)
    return Image.alpha_composite(picture.convert("RGBA"), layer).convert("RGB")


def draw_tags(
    picture: Image.Image,
    scale: tuple[float, float],
    boxes: Array,
    *,
    names: Sequence[str],
    colors: Sequence[Color],
) -> None:
    """The class of each box, on its upper edge, inside the picture."""
    letters = font(12)
    draw = ImageDraw.Draw(picture)
    for number, box in enumerate(_rows(boxes, 4)):
        if number >= len(names) or not names[number]:
            continue
        left, top = (
            min(max(0.0, place / _FINER), limit)
            for place, limit in zip(
                _moved(np.minimum(box[:2], box[2:]), scale, picture.size), picture.size, strict=True
            )
        )
        width = draw.textlength(names[number], font=letters) + 8
        x = min(left, max(0, picture.width - width))
        y = max(0, top - 16)
        draw.rectangle((x, y, x + width, y + 16), fill=_chosen(colors, number))
        draw.text((x + 4, y + 8), names[number], fill=(0, 0, 0), font=letters, anchor="lm")


def shortened(text: str, letters: Font, room: float) -> str:
    """The text, cut in its middle to fit so many pixels: of a path, both ends say something."""
    if letters.getlength(text) <= room:
        return text
    length = len(text)
    while length > 2 and letters.getlength(_middle_out(text, length)) > room:
        length -= 1
    return _middle_out(text, length)


def _middle_out(text: str, length: int) -> str:
    return f"{text[: length // 2]}...{text[len(text) - (length - length // 2) :]}"


def _chosen(colors: Sequence[Color], number: int) -> Color:
    return colors[number] if number < len(colors) else color(number)


def _rows(array: Array | None, least: int) -> Array:
    """The rows that can be drawn: finite numbers."""
    if array is None or array.ndim != 2 or array.shape[1] < least:
        return np.zeros((0, least))
    return array[np.isfinite(array).all(axis=1)]


def _moved(point: Array, scale: tuple[float, float], size: tuple[int, int]) -> tuple[float, float]:
    x, y = (
        float(np.clip(place * factor, -_FAR * side, _FAR * side)) * _FINER
        for place, factor, side in zip(point, scale, size, strict=True)
    )
    return x, y
