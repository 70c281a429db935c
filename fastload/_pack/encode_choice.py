"""``--encode auto``: measures a few samples and chooses between pixels and encoded files."""

from __future__ import annotations

import io
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import simplejpeg
from PIL import Image

from fastload._pack.images import StoredImage, store_image
from fastload._pack.options import PackOptions
from fastload._pack.sources.base import Encoded, Pixels, Sample
from fastload._store.record import JPEG, PNG
from fastload.errors import BadImage

SAMPLES = 64
MAX_GROWTH = 3.0  # raw pixels may take at most this many times the bytes of the files
READ_BYTES_PER_S = 1e9  # assumed read rate: a good NVMe drive shared by a few processes


@dataclass(frozen=True, slots=True)
class EncodeChoice:
    """The encoding that ``auto`` chose, and why. Printed once and stored in the manifest."""

    encode: str
    reason: str


def choose_encode(images: Iterable[Pixels], options: PackOptions) -> EncodeChoice:
    """Compares the time to decode the files that `keep` stores with the time to read raw pixels."""
    keep = replace(options, encode="keep")
    kept_bytes = raw_bytes = n = 0
    decode_s = 0.0
    for value in images:
        try:
            stored = store_image(value, keep)
        except BadImage:
            continue  # the packer reports it later
        n += 1
        kept_bytes += len(stored.data) + len(stored.index)
        raw_bytes += stored.width * stored.height * stored.channels
        decode_s += _decode_seconds(stored)
    if not n:
        return EncodeChoice("keep", "no readable image among the first samples")
    growth = raw_bytes / kept_bytes
    extra_read_s = (raw_bytes - kept_bytes) / READ_BYTES_PER_S
    sizes = (
        f"{n} images: {kept_bytes / n / 1024:.1f} KiB and {decode_s / n * 1e6:.0f} us to decode "
        f"as files, {raw_bytes / n / 1024:.1f} KiB ({growth:.1f}x) as pixels"
    )
    if growth > MAX_GROWTH:
        return EncodeChoice("keep", f"{sizes}. Pixels need more than {MAX_GROWTH:.0f}x the space")
    if extra_read_s < decode_s:
        return EncodeChoice("raw", f"{sizes}. Reading pixels is faster than decoding")
    return EncodeChoice("keep", f"{sizes}. Decoding is faster than reading pixels")


def images_of(sample: Sample, names: Sequence[str]) -> Iterator[Pixels]:
    """Yields all images of a sample, including the items of list fields."""
    for name in names:
        value = sample.values.get(name)
        items = value if isinstance(value, list | tuple) else [value]
        yield from (each for each in items if isinstance(each, Encoded | np.ndarray | Image.Image))


def _decode_seconds(stored: StoredImage) -> float:
    """Returns the CPU time of one decode. The first of two runs warms the caches."""
    best = float("inf")
    for _ in range(2):
        started = time.thread_time()
        if stored.codec == JPEG:
            simplejpeg.decode_jpeg(
                stored.data, colorspace="GRAY" if stored.channels == 1 else "RGB"
            )
        elif stored.codec == PNG:
            np.asarray(Image.open(io.BytesIO(stored.data)))
        best = min(best, time.thread_time() - started)
    return best
