"""Datasets for the tests of the store."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest


@pytest.fixture
def dataset(packed_folder: Path, tmp_path: Path) -> Path:
    """A copy of ``packed_folder`` that a test may damage."""
    return Path(shutil.copytree(packed_folder, tmp_path / "packed"))
