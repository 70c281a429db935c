"""Creates JPEGs for tests, of every kind that Pillow and simplejpeg can write."""

from __future__ import annotations

import io
from collections.abc import Iterator

import numpy as np
import numpy.typing as npt
import simplejpeg
from PIL import Image

Pixels = npt.NDArray[np.uint8]

SAMPLINGS = ("444", "422", "420", "440", "411", "gray")
_PILLOW = {"444": 0, "422": 1, "420": 2}


def sample_image(width: int, height: int, seed: int = 0) -> Pixels:
    """Returns colored waves with noise: neighboring pixels and blocks differ, also in chroma."""
    rng = np.random.default_rng(seed)
    y, x = np.mgrid[0:height, 0:width].astype(np.float32)
    planes = [
        128
        + 90 * np.sin(x / rng.uniform(2, 19) + rng.uniform(0, 6)) * np.cos(y / rng.uniform(2, 19))
        for _ in range(3)
    ]
    noisy = np.stack(planes, axis=-1) + rng.normal(0, 8, (height, width, 3))
    return np.clip(noisy, 0, 255).astype(np.uint8)


def encode(pixels: Pixels, sampling: str, quality: int = 85) -> bytes:
    """Encodes a baseline JPEG without restart markers, with any of SAMPLINGS."""
    if sampling == "gray":
        return bytes(
            simplejpeg.encode_jpeg(np.ascontiguousarray(pixels[:, :, :1]), quality, "GRAY", "gray")
        )
    return bytes(simplejpeg.encode_jpeg(np.ascontiguousarray(pixels), quality, "RGB", sampling))


def encode_by_pillow(pixels: Pixels, sampling: str, quality: int = 85, **options: object) -> bytes:
    """Encodes with options of Pillow (progressive, restart_marker_rows, exif); not 440, 411."""
    out = io.BytesIO()
    image = Image.fromarray(pixels)
    if sampling == "gray":
        image.convert("L").save(out, "JPEG", quality=quality, **options)
    else:
        image.save(out, "JPEG", quality=quality, subsampling=_PILLOW[sampling], **options)
    return out.getvalue()


def one_scan_per_component(side: int) -> bytes:
    """Returns a baseline JPEG with three scans, made of three gray images."""
    planes = [encode(sample_image(side, side, seed), "gray") for seed in range(3)]
    start = [plane.index(b"\xff\xda") for plane in planes]
    frame = planes[0].index(b"\xff\xc0")
    head = planes[0][:frame] + b"\xff\xc0\x00\x11\x08" + side.to_bytes(2, "big") * 2 + b"\x03"
    head += b"\x01\x11\x00\x02\x11\x00\x03\x11\x00"
    scans = [
        b"\xff\xda\x00\x08\x01" + bytes((i + 1, 0)) + b"\x00\x3f\x00" + plane[at + 10 : -2]
        for i, (plane, at) in enumerate(zip(planes, start, strict=True))
    ]
    return head + planes[0][frame + 13 : start[0]] + b"".join(scans) + b"\xff\xd9"


def decode(jpeg: bytes, *, strict: bool = True) -> Pixels:
    """Decodes with libjpeg-turbo to one gray channel or RGB."""
    gray = simplejpeg.decode_jpeg_header(jpeg, strict=strict)[2] == "Gray"
    return np.asarray(
        simplejpeg.decode_jpeg(jpeg, colorspace="GRAY" if gray else "RGB", strict=strict)
    )


def decode_by_pillow(jpeg: bytes) -> Pixels:
    """Decodes with Pillow, which has another build of libjpeg-turbo; ignores the orientation."""
    return np.asarray(Image.open(io.BytesIO(jpeg)))


def markers(jpeg: bytes) -> Iterator[tuple[int, bytes]]:
    """Yields (marker, body) up to the header of the first scan."""
    position = 2
    while True:
        assert jpeg[position] == 0xFF, f"no marker at {position}"
        marker, length = (
            jpeg[position + 1],
            int.from_bytes(jpeg[position + 2 : position + 4], "big"),
        )
        yield marker, jpeg[position + 4 : position + 2 + length]
        position += 2 + length
        if marker == 0xDA:
            return


def replace_frame(jpeg: bytes, marker: int | None = None, body: bytes | None = None) -> bytes:
    """Returns the JPEG with another frame marker (SOFn) or another frame body."""
    at = next(
        i for i in range(2, len(jpeg)) if jpeg[i] == 0xFF and jpeg[i + 1] in (0xC0, 0xC1, 0xC2)
    )
    length = int.from_bytes(jpeg[at + 2 : at + 4], "big")
    body = jpeg[at + 4 : at + 2 + length] if body is None else body
    head = bytes((0xFF, jpeg[at + 1] if marker is None else marker)) + (len(body) + 2).to_bytes(
        2, "big"
    )
    return jpeg[:at] + head + body + jpeg[at + 2 + length :]
