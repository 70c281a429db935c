"""Types of the native core (native/bind*.cpp)."""

from collections.abc import Buffer, Sequence

import numpy as np
from numpy.typing import NDArray

libjpeg_turbo_version: str

class BadJpeg(ValueError): ...

def simd_level() -> str: ...
def set_avx2(wanted: bool) -> bool: ...
def crc32c(data: Buffer, crc: int = 0) -> int: ...
def jpeg_header(
    data: Buffer,
) -> tuple[int, int, int, int, tuple[tuple[int, int], ...], int, int, int, bool, int, bool, int, int]: ...

# Decoding (bind_decode.cpp): see fastload/decode/backend.py for what the arguments mean.
request_size: int

def decode_region(data: Buffer, denominator: int, x0: int, y0: int, x1: int, y1: int, *, gray: bool = False) -> NDArray[np.uint8]: ...
def set_entropy_hook(wanted: bool) -> bool: ...
def request_members() -> list[tuple[str, int, int]]: ...

class Ticket:
    @property
    def done(self) -> bool: ...
    def wait(self, timeout_s: float | None = None) -> bool: ...
    def result(self) -> tuple[NDArray[np.uint8], NDArray[np.uint32], dict[int, str]]: ...

class Pool:
    threads: int
    def __init__(self, threads: int) -> None: ...
    def submit(
        self,
        sources: Sequence[Buffer],
        requests: Buffer,
        output: object,
        *,
        planar: bool,
        colour: int,
        fill: Sequence[int],
        mean: Sequence[float],
        std: Sequence[float],
    ) -> Ticket: ...
    def close(self) -> None: ...
