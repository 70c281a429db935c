"""Types of the native core (native/bind*.cpp)."""

from collections.abc import Buffer

import numpy as np
import numpy.typing as npt

libjpeg_turbo_version: str

class BadJpeg(ValueError): ...

def simd_level() -> str: ...
def set_avx2(wanted: bool) -> bool: ...
def crc32c(data: Buffer, crc: int = 0) -> int: ...
def jpeg_header(
    data: Buffer,
) -> tuple[int, int, int, int, tuple[tuple[int, int], ...], int, int, int, bool, int, bool, int, int]: ...

# bind_transform.cpp
MAX_SIDE: int
MAX_PIXELS: int
MAX_PIXELS_PER_BYTE: int
MAX_SCANS: int

def rewrite(
    data: Buffer, *, restart: int = -1, orient: bool = True, optimize: bool = True, fast: bool = True
) -> tuple[bytes, npt.NDArray[np.uint32], int, int, int, int, str]:
    """JPEG, segment index, width, height, restart interval, orientation still to be applied, harmless warning or ""."""

def index(data: Buffer) -> tuple[npt.NDArray[np.uint32], int]:
    """Segment index and restart interval of a JPEG as it is; empty and 0 where it cannot be cut."""

def cut(
    data: Buffer, index: Buffer, interval: int, x: int, y: int, w: int, h: int, *, scale: int = 1
) -> tuple[bytes, int, int]:
    """A smaller JPEG that holds the region, and where its first pixel is in the whole; the whole where it cannot be cut."""
