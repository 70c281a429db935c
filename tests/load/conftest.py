"""The dataset of the loader tests."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest


@pytest.fixture(scope="module")
def packed(request: pytest.FixtureRequest, pack_once: Callable[..., Path]) -> Path:
    """Photos with labels, shared and read-only.

    The constants ``N`` (number of photos, default 40) and ``PHOTOS`` (options of ``pack_photos``)
    of the test module select the dataset.
    """
    module = request.module
    return pack_once(getattr(module, "N", 40), **getattr(module, "PHOTOS", {}))
