"""Appends JSON lines so that a crash, a second rank or a full disk cannot spoil the lines before."""

from __future__ import annotations

import json
import os
import warnings
from collections.abc import Mapping
from pathlib import Path

from fastload.errors import ConfigError


class LineFile:
    """A file that grows by whole lines: one write(2) with O_APPEND a line, so ranks on one machine may share it.

    Nothing is buffered here: what was appended is the kernel's, and survives kill -9. A disk that fills up ends the log with
    one warning, not the training.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._descriptor = -1
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._descriptor = os.open(
                path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644
            )
            self._torn = self._ends_torn()
        except OSError as error:
            raise ConfigError(
                f"opening {path} to append metrics: {error.strerror}; name a file that can be written to"
            ) from error

    def append(self, row: Mapping[str, object]) -> None:
        """Adds a line. ValueError for NaN: that would be no JSON."""
        data = json.dumps(row, allow_nan=False, separators=(",", ":")).encode() + b"\n"
        if self._descriptor < 0:
            return
        try:
            self._torn = self._write(b"\n" + data if self._torn else data)
        except OSError as error:
            self.close()
            warnings.warn(
                f"fastload: no more metrics: writing {self.path}: {error.strerror}",
                RuntimeWarning,
                stacklevel=2,
            )

    def close(self) -> None:
        """Nothing is lost without it."""
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)

    def _write(self, data: bytes) -> bool:
        """Whether it left half a line behind, as on a full disk; its rest would stand between the lines of others, so it stays half."""
        return os.write(self._descriptor, data) < len(data)

    def _ends_torn(self) -> bool:
        """Whether somebody was killed, or ran out of disk, in the middle of the last line: the next one then starts anew."""
        end = os.fstat(self._descriptor).st_size
        return end > 0 and os.pread(self._descriptor, 1, end - 1) not in (b"\n", b"")
