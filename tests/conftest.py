"""Settings and datasets for all tests."""

from __future__ import annotations

import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings

# A shell ignores SIGINT for background commands, and child processes inherit that. Tests that
# interrupt a child need the default handler.
signal.signal(signal.SIGINT, signal.default_int_handler)

# No deadline: elapsed time means nothing on a shared machine. A failing case prints its seed.
settings.register_profile("fastload", deadline=None, print_blob=True)
settings.load_profile("fastload")


@pytest.fixture(scope="session")
def pack_once(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """``pack_once(count, **options)``: ``pack_photos``, cached per session by its arguments.

    Never write to the result. A test that damages a dataset packs or copies one to ``tmp_path``.
    """
    from tests.loading import pack_photos

    packed: dict[str, Path] = {}

    def get(count: int = 40, **options: Any) -> Path:
        key = f"{count} {sorted(options.items())}"
        if key not in packed:
            packed[key] = pack_photos(
                tmp_path_factory.mktemp("photos") / "packed", count, **options
            )
        return packed[key]

    return get


@pytest.fixture(scope="session")
def packed_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """40 packed photos in class folders, read-only; their folder is ``source`` next to it."""
    from tests.packed_datasets import pack_folder

    return pack_folder(tmp_path_factory.mktemp("folder"))


@pytest.fixture(scope="module")
def packed(request: pytest.FixtureRequest, pack_once: Callable[..., Path]) -> Path:
    """A read-only dataset of ``N`` labeled photos; ``N`` is a constant of the test module (40)."""
    return pack_once(getattr(request.module, "N", 40))
