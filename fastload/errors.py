"""Every error fastload raises on purpose; the class says who must act.

    FastloadError
    ├── ConfigError   (ValueError)    the caller must change an argument, an option or a file he named
    ├── BadImage      (ValueError)    one image cannot be used; it is named
    ├── StoreError    (OSError)       the files of a dataset cannot be used
    │   ├── CorruptManifest           manifest.json is missing, damaged or not ours
    │   └── CorruptShard              a shard or a record is damaged: it is named
    ├── MissingPart   (ImportError)   an optional package or the native core is not installed
    └── WorkerDied    (RuntimeError)  a process or thread of ours ended without a word

A message says what was being done, what is wrong (found and expected), where, and what to do.
"""

from __future__ import annotations


class FastloadError(Exception):
    """Base of all errors below: ``except fastload.FastloadError`` catches what fastload raises on purpose."""


class ConfigError(FastloadError, ValueError):
    """The caller must change an argument, an option or a file he named."""


class BadImage(FastloadError, ValueError):
    """One image cannot be used. ``why`` is the bare reason, ``source`` the file it came from, where known."""

    def __init__(self, why: str, *, source: str = "", image_id: int | None = None) -> None:
        name = source or ("image" if image_id is None else f"image {image_id}")
        super().__init__(f"{name}: {why}")
        self.why = why
        self.source = source
        self.image_id = image_id


class StoreError(FastloadError, OSError):
    """The files of a dataset cannot be used."""


class CorruptManifest(StoreError):
    """manifest.json is missing, damaged, too large or not one of ours."""


class CorruptShard(StoreError):
    """A shard or a record in it is damaged; ``shard`` and ``record`` say which."""

    def __init__(self, message: str, *, shard: str = "", record: int | None = None) -> None:
        super().__init__(message)
        self.shard = shard
        self.record = record


class MissingPart(FastloadError, ImportError):
    """An optional package or the native core is not installed; the message has the command that adds it."""


class WorkerDied(FastloadError, RuntimeError):
    """A process or thread of ours ended without a word; ``how`` says how (e.g. ``"signal 9"``)."""

    def __init__(self, message: str, *, how: str = "", image_id: int | None = None) -> None:
        super().__init__(message)
        self.how = how
        self.image_id = image_id
