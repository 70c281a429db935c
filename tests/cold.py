"""Controls and reports which pages of a file are in the page cache."""

from __future__ import annotations

from pathlib import Path

import pytest

from fastload._tools.bench.io import evict, resident_pages


def pages_here(path: Path) -> list[bool]:
    """One flag per page of a file: is it in the page cache?"""
    with path.open("rb") as file:
        return resident_pages(file.fileno())


def evicted(path: Path) -> Path:
    """Drops a file from the page cache."""
    if evict([path]):
        pytest.skip("this file system keeps its files in memory")
    return path
