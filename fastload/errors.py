"""The errors that fastload raises. The class says what the caller has to do.

    FastloadError
    ├── ConfigError   (ValueError)    change an argument, an option, or a file you passed
    ├── BadImage      (ValueError)    fix or exclude one image, which the error names
    ├── StoreError    (OSError)       fix a path, a permission or a disk
    │   ├── CorruptManifest           pack again, or restore manifest.json
    │   └── CorruptShard              restore or repack the shard, which the error names
    ├── RecordError   (ValueError)    internal: readers re-raise it as CorruptShard
    ├── MissingPart   (ImportError)   install an optional package or the native core
    ├── GateClosed    (RuntimeError)  the monitored run did not become steady in time
    └── WorkerDied    (RuntimeError)  a thread or process of fastload ended unexpectedly

Every message states what failed, the value found and the value expected, where, and what to do.
"""

from __future__ import annotations

import functools
from typing import Any


class FastloadError(Exception):
    """Base class of all fastload errors.

    Examples:
        >>> try:
        ...     dataset = fastload.open("packed")
        ... except fastload.FastloadError as error:
        ...     print(error)
    """


class ConfigError(FastloadError, ValueError):
    """An argument, an option or an input file is not valid.

    Raised by constructors and commands before they start to work. Change the value that the message
    names.
    """


class BadImage(FastloadError, ValueError):
    """One image cannot be decoded or exceeds a limit.

    Raised while packing with ``on_error="stop"`` and while loading. Fix or remove the image, or
    pass ``on_error="skip"`` to ``pack`` or ``on_error="substitute"`` to ``DataLoader``.

    Attributes:
        why: The reason, without the name of the image.
        source: The original file, or "" if unknown.
        image_id: The sample id, or None if unknown.
    """

    def __init__(self, why: str, *, source: str = "", image_id: int | None = None) -> None:
        name = source or ("image" if image_id is None else f"image {image_id}")
        super().__init__(f"{name}: {why}")
        self.why = why
        self.source = source
        self.image_id = image_id

    def __reduce__(self) -> tuple[Any, ...]:
        # The default would pass the whole message as ``why``. Engines send errors as pickles.
        return functools.partial(
            type(self), self.why, source=self.source, image_id=self.image_id
        ), ()


class StoreError(FastloadError, OSError):
    """The files of a dataset cannot be read or written.

    Raised for a missing folder, missing permissions, a full disk, or too many open files. Fix the
    cause that the message names and run the program again.
    """


class CorruptManifest(StoreError):
    """``manifest.json`` is missing, damaged, too large or not written by fastload.

    Raised when a dataset is opened. Restore the file from a copy, or run ``fastload pack`` again:
    it resumes an unfinished pack.
    """


class CorruptShard(StoreError):
    """A shard, a record in it, or a column is damaged.

    Raised when a file is opened or a record is read. ``fastload verify`` lists all damage. Restore
    the file from a copy, or pack again.

    Attributes:
        shard: The file name relative to the dataset.
        record: The record number in the shard, or None if the whole file is affected.
    """

    def __init__(self, message: str, *, shard: str = "", record: int | None = None) -> None:
        super().__init__(message)
        self.shard = shard
        self.record = record


class RecordError(FastloadError, ValueError):
    """The bytes of one record are damaged.

    Raised by the record parser. Readers add the location and re-raise it as ``CorruptShard``.

    Attributes:
        what: The part of the record that is wrong.
        found: The value found.
        expected: The value expected.
    """

    def __init__(self, what: str, found: object, expected: object) -> None:
        super().__init__(f"{what} is {found}, expected {expected}")
        self.what = what
        self.found = found
        self.expected = expected


class MissingPart(FastloadError, ImportError):
    """An optional package or the native core is not installed.

    Raised when a feature that needs it is used. The message contains the install command.
    """


class GateClosed(FastloadError, RuntimeError):
    """The run that ``fastload monitor --gate`` waits for did not become steady in time.

    Raised when ``--gate-timeout`` expires or the run ends. Check that the run makes progress, or
    relax the gate options.

    Attributes:
        seen: The last values that the monitor read.
    """

    def __init__(self, message: str, seen: dict[str, Any]) -> None:
        super().__init__(message)
        self.seen = seen


class WorkerDied(FastloadError, RuntimeError):
    """A thread or process of fastload ended unexpectedly.

    Raised when its result is needed: a process was killed, Ctrl-C interrupted a sampler, or an
    iterator is used after a fork. Call ``iter(loader)`` again, or follow the message.

    Attributes:
        how: How it ended, such as ``"signal 9"``.
        image_id: The sample it was working on, or None if unknown.
    """

    def __init__(self, message: str, *, how: str = "", image_id: int | None = None) -> None:
        super().__init__(message)
        self.how = how
        self.image_id = image_id
