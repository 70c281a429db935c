"""Finds the photos that are not part of the project."""

from __future__ import annotations

import os
from pathlib import Path

import pytest


def corpus_dir() -> Path:
    """The corpus folder. Without it the test is skipped, or fails if FASTLOAD_REQUIRE_CORPUS=1."""
    named = os.environ.get("FASTLOAD_CORPUS")
    folder = Path(named) if named else Path(__file__).resolve().parents[2] / "shared" / "corpus"
    if not (folder / "photos").is_dir():
        message = f"not run: no corpus at {folder}"
        if os.environ.get("FASTLOAD_REQUIRE_CORPUS") == "1":
            pytest.fail(message)
        pytest.skip(message)
    return folder


def photos(count: int | None = None) -> list[Path]:
    """The photos in sorted order, or ``count`` of them, evenly spaced."""
    paths = sorted((corpus_dir() / "photos").glob("*.*"))
    return paths if count is None else paths[:: max(1, len(paths) // count)][:count]
