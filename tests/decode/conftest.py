"""Fixtures that run a test with every registered backend on the CPU."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

from fastload._decode.backend import DecodeBackend
from fastload._decode.registry import BACKENDS

NewBackend = Callable[..., DecodeBackend]


def needs_backend(name: str) -> None:
    """Skips the test if the backend cannot run; fails it if FASTLOAD_REQUIRE_<NAME>=1."""
    why = BACKENDS[name].load().missing(torch.device("cpu"))
    if why and os.environ.get(f"FASTLOAD_REQUIRE_{name.upper()}") == "1":
        pytest.fail(f"not run: {why}")
    if why:
        pytest.skip(f"not run: {why}")


@functools.cache
def _shared(name: str) -> DecodeBackend:
    return BACKENDS[name].make(threads=2)


@pytest.fixture(params=tuple(BACKENDS))
def backend_name(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    needs_backend(name)
    return name


@pytest.fixture
def backend(backend_name: str) -> DecodeBackend:
    """A backend that the whole test run shares; do not close it."""
    return _shared(backend_name)


@pytest.fixture
def new_backend(backend_name: str) -> Iterator[NewBackend]:
    """Creates backends for one test and closes them."""
    made: list[DecodeBackend] = []

    def make(**options: Any) -> DecodeBackend:
        made.append(BACKENDS[backend_name].make(**{"threads": 1, **options}))
        return made[-1]

    yield make
    for each in made:
        each.close()
