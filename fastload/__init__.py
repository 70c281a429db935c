"""fastload takes the waiting out of training. See README.md; the public names are the list below."""

from __future__ import annotations

from fastload._version import __version__
from fastload.errors import (
    BadImage,
    ConfigError,
    CorruptManifest,
    CorruptShard,
    FastloadError,
    MissingPart,
    StoreError,
    WorkerDied,
)
from fastload.native import NativeStatus, native_status

__all__ = [
    "BadImage",
    "ConfigError",
    "CorruptManifest",
    "CorruptShard",
    "FastloadError",
    "MissingPart",
    "NativeStatus",
    "StoreError",
    "WorkerDied",
    "__version__",
    "native_status",
]
