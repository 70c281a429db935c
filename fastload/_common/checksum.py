"""CRC-32C, from the native core where it was built, else from google-crc32c."""

from __future__ import annotations

from collections.abc import Callable

import google_crc32c

from fastload._common.native import core

Bytes = bytes | bytearray | memoryview


def _fallback(data: Bytes, crc: int = 0) -> int:
    # google-crc32c takes bytes only, no views: without the native core each checksum costs a copy of the record.
    return int(google_crc32c.extend(crc, data if isinstance(data, bytes) else bytes(data)))


def _chosen() -> Callable[..., int]:
    module = core()
    if module is None:
        return _fallback
    function: Callable[..., int] = module.crc32c
    return function


crc32c = _chosen()
"""``crc32c(data, crc=0) -> int``: continues ``crc`` over ``data``; bound once, since a record pays for every lookup."""
