"""Short helpers that decode images through a backend."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from fastload._common.checksum import crc32c
from fastload._common.native import core
from fastload._decode.backend import Codec, DecodeBatch, DecodeResult, PixelFormat, new_requests

Pixels = NDArray[np.uint8]


def record(payload: bytes) -> tuple[bytes, int]:
    """A record with one part, and the offset of the part."""
    body = bytes([1, 0, 1, 0]) + (48 + len(payload)).to_bytes(4, "little") + bytes(8 + 24) + payload
    return b"FLR1" + crc32c(body).to_bytes(4, "little") + body, 48


@functools.cache
def native() -> Any:
    """A native backend, shared by all tests; skips the test without the core."""
    if core() is None:
        pytest.skip("not run: no native core")
    from fastload._decode.native import NativeBackend

    return NativeBackend(threads=2)


@functools.cache
def reference() -> Any:
    """A reference backend, shared by all tests."""
    from fastload._decode.reference import ReferenceBackend

    return ReferenceBackend(threads=2)


def run(
    backend: Any,
    sources: Sequence[bytes],
    to: tuple[int, int],
    /,
    *,
    pixels: PixelFormat | None = None,
    canvas: tuple[int, int] | None = None,
    channels: int = 3,
    dtype: Any = np.uint8,
    output: Any = None,
    **request: Any,
) -> DecodeResult:
    """Decodes each source to ``to`` (width, height); keywords are columns of the requests."""
    requests = new_requests(len(sources))
    requests["out_w"], requests["out_h"] = to
    for name, value in request.items():
        requests[name] = value
    pixels = pixels or PixelFormat()
    if output is None:
        width, height = canvas or to
        shape = (
            (len(sources), channels, height, width)
            if pixels.layout == "nchw"
            else (len(sources), height, width, channels)
        )
        output = np.full(shape, 77, dtype)
    result: DecodeResult = backend.collect(
        backend.submit(DecodeBatch(sources, requests, output, pixels))
    )
    return result


def pixels_of(backend: Any, source: bytes, to: tuple[int, int], /, **options: Any) -> Any:
    """The output of one sample, which must decode without error."""
    result = run(backend, [source], to, **options)
    result.raise_first()
    return result.output[0]


def raw_pixels(backend: Any, image: NDArray[Any], to: tuple[int, int], /, **options: Any) -> Any:
    """Like the function above, for raw pixels (H, W, C)."""
    height, width, channels = image.shape
    options = {
        "channels": channels * image.itemsize,
        "pixels": PixelFormat(color="stored"),
        **options,
    }
    return pixels_of(
        backend,
        image.tobytes(),
        to,
        codec=Codec.RAW,
        raw_w=width,
        raw_h=height,
        raw_channels=channels,
        raw_bits=8 * image.itemsize,
        **options,
    )


FALLBACK_SIMD = ("avx2", "portable")  # the best level is the default


@contextmanager
def at_most(level: str) -> Iterator[None]:
    """Limits vector instructions to this level."""
    module = core()
    assert module is not None
    module.set_simd(level)
    try:
        yield
    finally:
        module.set_simd("avx512")


@contextmanager
def libjpeg_alone() -> Iterator[None]:
    """Disables fastload's Huffman decoder, so that libjpeg decodes."""
    module = core()
    assert module is not None
    assert not module.set_entropy_hook(False)
    try:
        yield
    finally:
        assert module.set_entropy_hook(True), "our Huffman decoder does not fit this libjpeg"
