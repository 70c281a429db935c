"""Types of the native core (native/bind/)."""

from collections.abc import Sequence
from typing import Any, overload

import numpy as np
from numpy.typing import NDArray

Buffer = bytes | bytearray | memoryview | NDArray[Any]  # anything with contiguous bytes

libjpeg_turbo_version: str

class BadJpeg(ValueError): ...

def simd_level() -> str: ...
def set_simd(most: str) -> str: ...
def crc32c(data: Buffer, crc: int = 0) -> int: ...
def jpeg_header(
    data: Buffer,
) -> tuple[
    int, int, int, int, tuple[tuple[int, int], ...], int, int, int, bool, int, bool, int, int
]: ...

# bind/rewrite.cpp
MAX_SIDE: int
MAX_PIXELS: int
MAX_PIXELS_PER_BYTE: int
MAX_SCANS: int

def rewrite(
    data: Buffer,
    *,
    restart: int = -1,
    orient: bool = True,
    optimize: bool = True,
    fast: bool = True,
) -> tuple[bytes, NDArray[np.uint32], int, int, int, int, str]:
    """JPEG, segment index, width, height, restart interval, orientation still to be applied, harmless warning or ""."""

def index(data: Buffer) -> tuple[NDArray[np.uint32], int]:
    """Segment index and restart interval of a JPEG as it is; empty and 0 where it cannot be cut."""

def cut(
    data: Buffer, index: Buffer, interval: int, x: int, y: int, w: int, h: int, *, scale: int = 1
) -> tuple[bytes, int, int]:
    """A smaller JPEG that holds the region, and where its first pixel is in the whole; the whole where it cannot be cut."""

# Decoding (bind/decode.cpp): see fastload/_decode/backend.py for what the arguments mean.
request_size: int

def decode_region(
    data: Buffer, denominator: int, x0: int, y0: int, x1: int, y1: int, *, gray: bool = False
) -> NDArray[np.uint8]: ...
def set_entropy_hook(wanted: bool) -> bool: ...
def request_members() -> list[tuple[str, int, int]]: ...

class Ticket:
    @property
    def done(self) -> bool: ...
    def wait(self, timeout_s: float | None = None) -> bool: ...
    def result(self) -> tuple[bytes, bytes, dict[int, str]]:
        """Of each slot: Status (uint8), nanoseconds of the stages (uint32), and why it failed."""

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
    @staticmethod
    def bare_loop(
        sources: Sequence[Buffer],
        requests: Buffer,
        output: object,
        *,
        planar: bool,
        colour: int,
        fill: Sequence[int],
        mean: Sequence[float],
        std: Sequence[float],
    ) -> tuple[float, float]: ...
    def under_way(self, ticket: Ticket) -> list[int]: ...
    def close(self) -> None: ...

# The part tables of records (bind/records.cpp): see fastload/_load/parts.py.
part_row_size: int

class ShardMap:
    def __init__(self, descriptor: int, size: int) -> None: ...
    @property
    def entries(self) -> int: ...
    def find(self, id: int) -> memoryview: ...

class Records(Sequence[memoryview]):
    """Records in their shards' maps, which stay mapped while these, or a view of one, are held. A slice takes neighbours."""

    def __len__(self) -> int: ...
    @overload
    def __getitem__(self, place: int) -> memoryview: ...
    @overload
    def __getitem__(self, which: slice) -> Records: ...

def read_records(
    maps: list[ShardMap | None],
    shards: NDArray[np.int64],
    ids: NDArray[np.int64],
    check_crc: bool = True,
) -> tuple[Records, bytes, bytes, int, dict[int, str]]: ...

# Reading ahead (bind/records.cpp): see fastload/_load/read_ahead.py.
def record_runs(
    maps: list[ShardMap | None], shards: NDArray[np.int64], ids: NDArray[np.int64]
) -> bytes: ...
def read_ahead(runs: Buffer) -> None: ...

# Decode requests out of part tables and a plan (bind/decode_requests.cpp): see fastload/_load/requests.py.
def image_requests(
    rows: Buffer,
    plan: tuple[Buffer, ...],
    requests: Buffer,
    *,
    field: int,
    first: int,
    mask_bits: int,
    filter: int,
    exact: bool,
) -> tuple[int, list[int]]:
    """Writes ``requests``; encoded bytes of the images, and slots of those that decode threads do not read in place."""

# Random numbers of order and plan (bind/random.cpp): see fastload/_order/permutation.py and fastload/_plan/rng.py. ``result`` is written.
def permute(positions: Buffer, result: Buffer, *, n: int, half_bits: int, keys: Buffer) -> None: ...
def uniform(
    ids: Buffer, counters: Buffer, result: Buffer, *, key_low: int, key_high: int
) -> None: ...

# Finished canvases moved on the CPU (bind/warp.cpp): see fastload/_finish/warp.py. ``output`` is written.
def warp_affine(
    input: Buffer,
    output: Buffer,
    inverse: Buffer,
    fill: Buffer,
    *,
    channels: int,
    height: int,
    width: int,
) -> None: ...

# What pack does for every image (bind/pack.cpp); None where the path in Python must be taken.
def keep_jpeg(data: Buffer, restart: int) -> tuple[bytes, bytes, int, int, int, int, int] | None:
    """JPEG, segment index, width, height, components, restart interval, orientation still to be applied."""

def read_plain(path: bytes, limit: int) -> bytes | None: ...
def encode_record(sample_id: int, parts: Sequence[tuple[Any, ...]]) -> bytes | None: ...
def start_writing(descriptor: int) -> bool: ...
def keep_freed_memory(n_bytes: int) -> bool: ...
