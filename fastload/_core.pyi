"""Types of the native core (native/bind/)."""

from collections.abc import Sequence
from typing import Any, overload

import numpy as np
from numpy.typing import NDArray

Buffer = bytes | bytearray | memoryview | NDArray[Any]  # any contiguous buffer

libjpeg_turbo_version: str

class BadJpeg(ValueError): ...

def simd_level() -> str: ...
def set_simd(max_level: str) -> str: ...
def crc32c(data: Buffer, crc: int = 0) -> int: ...

class JpegHeader:
    """The fields of fastload._store.jpeg_header.JpegHeader, which documents them."""

    @property
    def width(self) -> int: ...
    @property
    def height(self) -> int: ...
    @property
    def precision(self) -> int: ...
    @property
    def sof(self) -> int: ...
    @property
    def sampling(self) -> tuple[tuple[int, int], ...]: ...
    @property
    def orientation(self) -> int: ...
    @property
    def restart_interval(self) -> int: ...
    @property
    def n_scans(self) -> int: ...
    @property
    def complete(self) -> bool: ...
    @property
    def adobe_transform(self) -> int: ...
    @property
    def jfif(self) -> bool: ...
    @property
    def scan_offset(self) -> int: ...
    @property
    def end_offset(self) -> int: ...

def jpeg_header(data: Buffer) -> JpegHeader: ...

# The lossless rewrite and cut (bind/rewrite.cpp)
MAX_SIDE: int
MAX_PIXELS: int
MAX_PIXELS_PER_BYTE: int
MAX_SCANS: int

class RewrittenJpeg:
    @property
    def jpeg(self) -> bytes | memoryview:
        """A read-only view from ``rewrite_common``, which does not copy it."""

    @property
    def index(self) -> NDArray[np.uint32]:
        """Offsets of the restart segments and of the end marker; empty without restart markers."""

    @property
    def index_bytes(self) -> bytes: ...
    @property
    def width(self) -> int: ...
    @property
    def height(self) -> int: ...
    @property
    def n_components(self) -> int: ...
    @property
    def interval(self) -> int:
        """MCUs per restart segment; 0: no restart markers."""

    @property
    def orientation(self) -> int:
        """EXIF orientation that the loader must apply."""

    @property
    def warning(self) -> str:
        """A harmless warning of libjpeg, or ""."""

def rewrite(
    data: Buffer,
    *,
    restart: int = -1,
    orient: bool = True,
    optimize: bool = True,
    keep_tables: bool = True,
    fast: bool = True,
) -> RewrittenJpeg: ...
def rewrite_common(data: Sequence[Buffer], restart: int) -> list[RewrittenJpeg | None]:
    """Rewrites several JPEGs; None for a damaged JPEG and for unusual components."""

def find_segments(data: Buffer) -> tuple[NDArray[np.uint32], int]:
    """Returns the segment index and the restart interval; empty and 0 if it cannot be cut."""

class CutJpeg:
    """A part of a JPEG; ``x0`` and ``y0`` are the position of its first pixel in the whole."""

    @property
    def jpeg(self) -> bytes: ...
    @property
    def x0(self) -> int: ...
    @property
    def y0(self) -> int: ...

def cut(
    data: Buffer, index: Buffer, interval: int, x: int, y: int, w: int, h: int, *, scale: int = 1
) -> CutJpeg:
    """Returns a smaller JPEG that contains the region, or the whole one if it cannot be cut."""

# Decoding (bind/decode.cpp): fastload/_decode/backend.py documents the arguments.
request_size: int

def decode_region(
    data: Buffer, denominator: int, x0: int, y0: int, x1: int, y1: int, *, grayscale: bool = False
) -> NDArray[np.uint8]: ...
def set_entropy_hook(enabled: bool) -> bool: ...
def request_members() -> list[tuple[str, int, int]]: ...

class BatchResult:
    @property
    def statuses(self) -> bytes:
        """The status of each slot, uint8."""

    @property
    def times_ns(self) -> bytes:
        """Nanoseconds of each slot and stage, uint32."""

    @property
    def reasons(self) -> dict[int, str]:
        """Error messages by slot."""

class Ticket:
    @property
    def done(self) -> bool: ...
    def wait(self, timeout_s: float | None = None) -> bool: ...
    def result(self) -> BatchResult: ...

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
        color: int,
        fill: Sequence[int],
        mean: Sequence[float],
        std: Sequence[float],
        bits: int,
    ) -> Ticket: ...
    @staticmethod
    def bare_loop(
        sources: Sequence[Buffer],
        requests: Buffer,
        output: object,
        *,
        planar: bool,
        color: int,
        fill: Sequence[int],
        mean: Sequence[float],
        std: Sequence[float],
        bits: int,
    ) -> tuple[float, float]: ...
    def in_flight(self, ticket: Ticket) -> list[int]: ...
    def close(self) -> None: ...

# The part tables of records (bind/records.cpp): see fastload/_load/records.py.
part_row_size: int

class ShardFile:
    """A shard that is read with pread; fastload._store.lmdb_tree.TreeFile does the same."""

    def __init__(self, descriptor: int, size: int) -> None: ...
    @property
    def descriptor(self) -> int: ...
    @property
    def entries(self) -> int: ...
    def find(self, id: int) -> tuple[int, int]: ...
    def read(self, id: int) -> bytes: ...

class Records(Sequence[memoryview]):
    """Records of open shards. Indexing reads the rest of a record once; all views share the bytes.

    The view of a record that cannot be read, or whose checksum is wrong, is shorter than the
    record. A slice must have step 1.
    """

    def __len__(self) -> int: ...
    @overload
    def __getitem__(self, place: int) -> memoryview: ...
    @overload
    def __getitem__(self, which: slice) -> Records: ...

class ChunkCache:
    """Chunks of shards in memory, for ``read_records``. A cleared cache reads the shards again."""

    def __init__(self, capacity: int) -> None: ...
    @property
    def capacity(self) -> int: ...
    def clear(self) -> None: ...

class ReadRecords:
    @property
    def records(self) -> Records: ...
    @property
    def rows(self) -> bytes:
        """Part rows of all records, fastload._store.record.PART_ROW."""

    @property
    def starts(self) -> bytes:
        """First row of each record, then the number of rows, int64."""

    @property
    def rows_per_sample(self) -> int:
        """0 unless every record has the same fields, items and roles in the same order."""

    @property
    def faults(self) -> dict[int, str]:
        """Error messages by position in the batch."""

def read_records(
    files: list[ShardFile | None],
    shards: NDArray[np.int64],
    ids: NDArray[np.int64],
    check_crc: bool = True,
    cache: ChunkCache | None = None,
) -> ReadRecords: ...

# Checks of records (bind/verify.cpp): see fastload/_store/verify/bulk.py.
class CheckedRecords:
    @property
    def rows(self) -> bytes:
        """Part rows of the valid records, fastload._store.record.PART_ROW."""

    @property
    def values(self) -> bytes:
        """One int64 per row: the 8 bytes of a number, otherwise 0."""

    @property
    def doubtful(self) -> bytes:
        """Positions of all other records, uint32."""

def check_records(
    file: ShardFile, first: int, n: int, *, checks: bytes, lists: bytes
) -> CheckedRecords: ...

# Reading ahead (bind/records.cpp): see fastload/_load/read_ahead.py.
def record_runs(
    files: list[ShardFile | None], shards: NDArray[np.int64], ids: NDArray[np.int64]
) -> bytes: ...
def read_ahead(runs: Buffer) -> None: ...

# Decode requests from part tables and a plan (bind/decode_requests.cpp): see
# fastload/_load/decode_requests.py.
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
    """Fills ``requests``. Returns the encoded bytes, and the slots to unpack before decoding."""

# Random numbers of order and plan (bind/random.cpp): see fastload/_order/permutation.py and
# fastload/_plan/rng.py. They write to ``result``.
def permute(positions: Buffer, result: Buffer, *, n: int, half_bits: int, keys: Buffer) -> None: ...
def uniform(
    ids: Buffer, counters: Buffer, result: Buffer, *, key_low: int, key_high: int
) -> None: ...

# Affine warp on the CPU (bind/warp.cpp): see fastload/_finish/warp.py. It writes to ``output``.
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

# Per-image work of pack (bind/pack.cpp). None: use the Python path instead.
def read_regular_file(path: bytes, limit: int) -> bytes | None: ...
def encode_record(sample_id: int, parts: Sequence[tuple[Any, ...]]) -> bytes | None: ...
def start_writeback(descriptor: int) -> bool: ...
def keep_freed_memory(n_bytes: int) -> bool: ...
