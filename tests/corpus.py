"""Where tests find the real pictures (they are not part of the project)."""

from __future__ import annotations

import os
from pathlib import Path

import pytest


def corpus_dir() -> Path:
    """The corpus folder; skips the test without it, fails it under FASTLOAD_REQUIRE_CORPUS=1."""
    named = os.environ.get("FASTLOAD_CORPUS")
    folder = Path(named) if named else Path(__file__).resolve().parents[2] / "shared" / "corpus"
    if not (folder / "photos").is_dir():
        message = f"not run: no corpus at {folder}"
        if os.environ.get("FASTLOAD_REQUIRE_CORPUS") == "1":
            pytest.fail(message)
        pytest.skip(message)
    return folder


def photos(count: int | None = None) -> list[Path]:
    """The ordinary photographs, sorted; `count` of them, spread over all."""
    paths = sorted((corpus_dir() / "photos").glob("*.*"))
    return paths if count is None else paths[:: max(1, len(paths) // count)][:count]
