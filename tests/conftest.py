"""Settings and datasets for all tests."""

from __future__ import annotations

import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings

# A shell ignores SIGINT for background commands, and children inherit that: tests that interrupt a child need the default.
signal.signal(signal.SIGINT, signal.default_int_handler)

# No deadline: how long a case takes says nothing on a shared machine. A failing case prints what repeats it.
settings.register_profile("fastload", deadline=None, print_blob=True)
settings.load_profile("fastload")


@pytest.fixture(scope="session")
def pack_once(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """``pack_once(count, **options)`` is ``pack_photos``, done once per session for equal arguments. Never write to the result:
    a test that damages a dataset packs one into its own ``tmp_path``, or copies this one."""
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
    """40 photos in class folders, packed; the folder is ``source`` beside the dataset. Shared and read-only."""
    from tests.packed_datasets import pack_folder

    return pack_folder(tmp_path_factory.mktemp("folder"))


@pytest.fixture(scope="module")
def packed(request: pytest.FixtureRequest, pack_once: Callable[..., Path]) -> Path:
    """A dataset of ``N`` photos with labels, shared and read-only; ``N`` is a constant of the test module, 40 without one."""
    return pack_once(getattr(request.module, "N", 40))
