"""``--encode auto``: pixels or the encoded file? Measured on a few samples of the dataset itself."""

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
MAX_GROWTH = 3.0  # raw may take at most this many times the bytes
READ_BYTES_PER_S = 1e9  # what reading is taken to cost: a good NVMe drive shared by a few processes


@dataclass(frozen=True, slots=True)
class EncodeChoice:
    """What ``auto`` chose and why; printed once, kept in the manifest's options."""

    encode: str
    reason: str


def choose_encode(images: Iterable[Pixels], options: PackOptions) -> EncodeChoice:
    """Compares, over the given images, the time to decode what `keep` would store with the time to read the pixels."""
    keep = replace(options, encode="keep")
    kept_bytes = raw_bytes = n = 0
    decode_s = 0.0
    for value in images:
        try:
            stored = store_image(value, keep)
        except BadImage:
            continue  # it will be skipped or named when its turn comes
        n += 1
        kept_bytes += len(stored.data) + len(stored.index)
        raw_bytes += stored.width * stored.height * stored.channels
        decode_s += _decode_seconds(stored)
    if not n:
        return EncodeChoice("keep", "no readable image among the first samples")
    growth = raw_bytes / kept_bytes
    extra_read_s = (raw_bytes - kept_bytes) / READ_BYTES_PER_S
    facts = (
        f"{n} images: as files {kept_bytes / n / 1024:.1f} KiB and {decode_s / n * 1e6:.0f} us to decode, "
        f"as pixels {raw_bytes / n / 1024:.1f} KiB ({growth:.1f} x)"
    )
    if growth <= MAX_GROWTH and extra_read_s < decode_s:
        return EncodeChoice("raw", f"{facts}: reading the pixels is cheaper")
    if growth > MAX_GROWTH:
        return EncodeChoice(
            "keep", f"{facts}: pixels would take more than {MAX_GROWTH:.0f} x the space"
        )
    return EncodeChoice("keep", f"{facts}: decoding is cheaper than reading the pixels")


def images_of(sample: Sample, names: Sequence[str]) -> Iterator[Pixels]:
    """All images of a sample, of list fields too."""
    for name in names:
        value = sample.values.get(name)
        if isinstance(value, list | tuple):
            yield from (
                each for each in value if isinstance(each, Encoded | np.ndarray | Image.Image)
            )
        elif isinstance(value, Encoded | np.ndarray | Image.Image):
            yield value


def _decode_seconds(stored: StoredImage) -> float:
    """CPU time of one decode, the better of two (the first one warms the caches)."""
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
