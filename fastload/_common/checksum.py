"""CRC-32C from the native core if it is installed, otherwise from google-crc32c."""

from __future__ import annotations

from collections.abc import Callable

import google_crc32c

from fastload._common.native import core

Bytes = bytes | bytearray | memoryview


def _fallback(data: Bytes, crc: int = 0) -> int:
    # google-crc32c accepts only bytes, so each checksum of a view copies the record.
    return int(google_crc32c.extend(crc, data if isinstance(data, bytes) else bytes(data)))


# crc32c(data, crc=0) -> int continues ``crc`` over ``data``. It is bound once, because a lookup per
# record would be measurable.
crc32c: Callable[..., int] = getattr(core(), "crc32c", _fallback)
