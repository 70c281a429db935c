"""Ctrl-C at any point of ``next(iterator)``: no batch is lost, repeated, or counted undelivered.

Python raises KeyboardInterrupt when a function call starts. A tracer raises it at each such call in
turn.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
import pytest
import torch

from fastload import transforms as T
from fastload._load.loader import DataLoader
from fastload.errors import WorkerDied

N = 24
MOST_CALLS = 400  # more than one next() makes; the tests stop after the last one


def interrupted(call: Callable[[], Any], number: int) -> tuple[bool, Any]:
    """Runs ``call`` and raises KeyboardInterrupt at the start of its ``number``-th function call.

    Returns whether the interrupt was raised, and the result.
    """
    left = number

    def trace(frame: FrameType, event: str, _: object) -> None:
        nonlocal left
        if event == "call":
            left -= 1
            if left == 0:
                raise KeyboardInterrupt

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        return False, call()
    except KeyboardInterrupt:
        return True, None
    finally:
        sys.settrace(before)


def collate(samples: list[dict[str, Any]]) -> dict[str, Any]:
    return {"id": torch.stack([sample["id"] for sample in samples])}


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"sampler": [*range(N)], "shuffle": None},
        {"prefetch_factor": 1},
        {"collate_fn": collate},
    ],
    ids=["own order", "sampler", "one ahead", "collate_fn"],
)
def test_an_interrupt_at_any_call_loses_and_repeats_nothing(
    packed: Path, options: dict[str, Any]
) -> None:
    def make() -> DataLoader:
        return DataLoader(
            packed,
            4,
            **{
                "shuffle": True,
                "transform": [T.Resize(8, 8)],
                "fields": ("image", "id"),
                "seed": 2,
                **options,
            },
        )

    expected = [batch["id"].tolist() for batch in make()]
    died = 0
    for number in range(1, MOST_CALLS):
        loader = make()
        iterator = iter(loader)
        got = [next(iterator)["id"].tolist()]
        was, batch = interrupted(lambda: next(iterator), number)  # noqa: B023 - called immediately
        if not was:
            got.append(batch["id"].tolist())
            assert got == expected[:2]
            assert number > 10, "nothing was interrupted: the test sees no calls"
            assert died == 0 or "sampler" in options
            return
        state = loader.state_dict()
        try:
            assert got + [batch["id"].tolist() for batch in iterator] == expected, (
                f"at call {number}"
            )
        except WorkerDied:  # the exception has ended the generator of the sampler, not the epoch
            died += 1
        resumed = make()
        resumed.load_state_dict(state)
        assert got + [batch["id"].tolist() for batch in resumed] == expected, (
            f"resumed, at call {number}"
        )
    raise AssertionError(f"more than {MOST_CALLS} calls in one next()")


def test_an_interrupt_at_any_call_restores_the_generators_and_threads(packed: Path) -> None:
    def state() -> tuple[object, ...]:
        numpy_state: Any = np.random.get_state()
        return (
            random.getstate(),
            numpy_state[1].tolist(),
            numpy_state[2:],
            torch.get_rng_state().tolist(),
            torch.get_num_threads(),
        )

    loader = DataLoader(
        packed, 4, transform=[T.Resize(8, 8)], fields=("image", "id"), collate_fn=collate
    )
    random.gauss(0, 1)
    before = state()
    for number in range(1, MOST_CALLS):
        iterator = iter(loader)
        was, _ = interrupted(lambda: next(iterator), number)  # noqa: B023 - called immediately
        assert state() == before, f"at call {number}"
        if not was:
            return
    raise AssertionError(f"more than {MOST_CALLS} calls in one next()")
