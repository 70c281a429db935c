"""Files that a pack writes piece by piece: failures name the file, and nothing has its name before it is whole."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType

from fastload._common import files
from fastload.errors import StoreError


@contextlib.contextmanager
def writing(path: Path, *, needed: int) -> Iterator[None]:
    """Turns a failed write into a StoreError that names the file, and says so where the disk is full."""
    try:
        yield
    except StoreError:
        raise
    except OSError as error:
        raise files.write_error(error, path, needed=needed) from error


class NewFile:
    """Appends to a file under a temporary name; ``publish`` makes it durable and names it. Aborts as a context manager.

    Unbuffered: a buffer would fail a second time, and with another error, when it is closed on a full disk.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.size = 0
        self._temporary = files.partly(path)
        with writing(path, needed=4096):
            self._file = self._temporary.open("wb", buffering=0)

    def write(self, data: bytes) -> None:
        """Appends all of it."""
        with writing(self.path, needed=len(data)):
            view = memoryview(data)
            while view:  # a write may be short
                view = view[self._file.write(view) :]
        self.size += len(data)

    def publish(self) -> None:
        """Syncs the file and gives it its name."""
        with writing(self.path, needed=4096):
            os.fsync(self._file.fileno())
            self._file.close()
            files.publish(self._temporary, self.path)

    def __enter__(self) -> NewFile:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._file.close()
        self._temporary.unlink(missing_ok=True)
