"""Files whose pages are, or are not, in memory."""

from __future__ import annotations

from pathlib import Path

import pytest

from fastload._tools.bench import readers


def pages_here(path: Path) -> list[bool]:
    """Which pages of a file are in memory."""
    with path.open("rb") as file:
        return readers.resident_pages(file.fileno())


def thrown_out(path: Path) -> Path:
    """A file none of whose pages is in memory."""
    if readers.evict([path]):
        pytest.skip("this file system keeps its files in memory")
    return path
