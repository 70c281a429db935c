"""Every error fastload raises on purpose. The class tells the caller who must act.

    FastloadError
    ├── ConfigError   (ValueError)    change an argument, an option or a file that was named
    ├── BadImage      (ValueError)    one image cannot be used; the error names it
    ├── StoreError    (OSError)       the files of a dataset cannot be used
    │   ├── CorruptManifest           manifest.json is missing, damaged or not written by fastload
    │   └── CorruptShard              a shard or a record is damaged; the error names it
    ├── RecordError   (ValueError)    the bytes of one record are damaged; readers re-raise it as CorruptShard
    ├── MissingPart   (ImportError)   an optional package or the native core is not installed
    ├── GateClosed    (RuntimeError)  the monitored run did not become steady in time
    └── WorkerDied    (RuntimeError)  a thread or process of fastload ended unexpectedly

A message states what failed, the value found and the value expected, where, and what to do.
"""

from __future__ import annotations

from typing import Any


class FastloadError(Exception):
    """Base class: ``except fastload.FastloadError`` catches every error in this module."""


class ConfigError(FastloadError, ValueError):
    """The caller must change an argument, an option or a file that was named."""


class BadImage(FastloadError, ValueError):
    """One image cannot be used. ``why`` is the reason, ``source`` its file where known."""

    def __init__(self, why: str, *, source: str = "", image_id: int | None = None) -> None:
        name = source or ("image" if image_id is None else f"image {image_id}")
        super().__init__(f"{name}: {why}")
        self.why = why
        self.source = source
        self.image_id = image_id


class StoreError(FastloadError, OSError):
    """The files of a dataset cannot be used."""


class CorruptManifest(StoreError):
    """manifest.json is missing, damaged, too large or not written by fastload."""


class CorruptShard(StoreError):
    """A shard or a record in it is damaged; ``shard`` and ``record`` name them."""

    def __init__(self, message: str, *, shard: str = "", record: int | None = None) -> None:
        super().__init__(message)
        self.shard = shard
        self.record = record


class RecordError(FastloadError, ValueError):
    """The bytes of one record are damaged: ``what`` is wrong, as ``found``, not as ``expected``."""

    def __init__(self, what: str, found: object, expected: object) -> None:
        super().__init__(f"{what} is {found}, expected {expected}")
        self.what = what
        self.found = found
        self.expected = expected


class MissingPart(FastloadError, ImportError):
    """An optional package or the native core is missing; the message has the install command."""


class GateClosed(FastloadError, RuntimeError):
    """The monitored run did not become steady in time; ``seen`` is what the monitor measured."""

    def __init__(self, message: str, seen: dict[str, Any]) -> None:
        super().__init__(message)
        self.seen = seen


class WorkerDied(FastloadError, RuntimeError):
    """A thread or process of fastload ended unexpectedly; ``how`` is e.g. ``"signal 9"``."""

    def __init__(self, message: str, *, how: str = "", image_id: int | None = None) -> None:
        super().__init__(message)
        self.how = how
        self.image_id = image_id
