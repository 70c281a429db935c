"""A dataset that a test may damage."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest


@pytest.fixture
def dataset(packed_folder: Path, tmp_path: Path) -> Path:
    """A writable copy of ``packed_folder``."""
    return Path(shutil.copytree(packed_folder, tmp_path / "packed"))
