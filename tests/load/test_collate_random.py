"""Random numbers in a collate_fn: the same in every run, and none of the trainer's are used."""

from __future__ import annotations

import functools
import random
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fastload import transforms as T
from fastload._load.loader import DataLoader

N = 24
Draws = tuple[float, ...]


def draws() -> Draws:
    """Draws once from each process-wide generator.

    Normal numbers leave a second one in the state of Python's and NumPy's generators.
    """
    return (
        random.gauss(0, 1),
        random.random(),
        float(np.random.randn()),
        float(np.random.rand()),
        float(torch.rand(())),
    )


def seed_trainer() -> None:
    random.seed(1)
    np.random.seed(2)
    torch.manual_seed(3)


def collate(_: Any) -> Draws:
    return draws()


def collate_ahead(samples: Any, generator: torch.Generator | None = None) -> list[float]:
    return torch.rand(3, generator=generator).tolist()


def make(packed: Path, **options: Any) -> DataLoader:
    defaults = {"collate_fn": collate, "shuffle": True, "seed": 4, "fields": ("image", "id")}
    return DataLoader(packed, 4, transform=[T.Resize(8, 8)], **{**defaults, **options})


@pytest.fixture(autouse=True)
def _restored() -> Any:
    states = random.getstate(), np.random.get_state(), torch.get_rng_state()
    yield
    random.setstate(states[0])
    np.random.set_state(states[1])
    torch.set_rng_state(states[2])


@pytest.mark.parametrize("function", [collate, collate_ahead])
def test_draws_do_not_depend_on_threads_prefetching_or_the_trainer(
    packed: Path, function: Callable[..., Any]
) -> None:
    expected = list(make(packed, collate_fn=function))
    assert len({*map(tuple, expected)}) == len(expected)  # every batch draws other numbers
    for options in (
        {"num_workers": 1, "prefetch_factor": 1},
        {"num_workers": 4, "prefetch_factor": 6},
    ):
        found = []
        for batch in make(packed, collate_fn=function, **options):
            found.append(batch)
            draws()
            torch.manual_seed(len(found))
        assert found == expected


@pytest.mark.parametrize("function", [collate, collate_ahead])
def test_draws_depend_on_seed_and_epoch(packed: Path, function: Callable[..., Any]) -> None:
    loader = make(packed, collate_fn=function)
    found = [*loader, *loader, *make(packed, collate_fn=function, seed=5)]
    assert len({*map(tuple, found)}) == 3 * len(loader)


def test_ranks_draw_different_numbers(packed: Path) -> None:
    found = [batch for rank in (0, 1) for batch in make(packed, rank=rank, world_size=2)]
    assert len(set(found)) == len(found) == N // 4


def test_copies_of_a_sample_draw_other_numbers(packed: Path) -> None:
    found = list(make(packed, sampler=[3] * 12, shuffle=None))
    assert len(set(found)) == 3


@pytest.mark.parametrize("function", [collate, collate_ahead])
def test_a_resumed_run_draws_the_same_numbers(packed: Path, function: Callable[..., Any]) -> None:
    loader = make(packed, collate_fn=function)
    states = []
    batches = []
    for batch in loader:
        states.append(loader.state_dict())
        batches.append(batch)
    for done, state in enumerate(states[:-1], 1):
        resumed = make(packed, collate_fn=function, prefetch_factor=2)
        resumed.load_state_dict(state)
        assert list(resumed) == batches[done:]


@pytest.mark.parametrize("batch_size", [4, None])
def test_the_trainer_draws_as_if_no_collate_fn_had_run(
    packed: Path, batch_size: int | None
) -> None:
    steps = N if batch_size is None else N // batch_size
    seed_trainer()
    expected = [draws() for _ in range(steps)]
    seed_trainer()
    loader = DataLoader(
        packed, batch_size, transform=[T.Resize(8, 8)], collate_fn=collate, prefetch_factor=5
    )
    found = [draws() for _ in loader]
    assert found == expected


def test_an_error_in_collate_fn_restores_the_generators_and_threads(packed: Path) -> None:
    def failing(_: Any) -> None:
        draws()
        raise ZeroDivisionError

    threads = torch.get_num_threads()
    iterator = iter(make(packed, collate_fn=failing))
    seed_trainer()
    expected = draws()
    for _ in range(N // 4):
        seed_trainer()
        with pytest.raises(ZeroDivisionError):
            next(iterator)
        assert draws() == expected
        assert torch.get_num_threads() == threads
    with pytest.raises(StopIteration):
        next(iterator)


def test_a_batch_after_a_failed_one_draws_what_it_always_draws(packed: Path) -> None:
    expected = list(make(packed))
    calls = 0

    def failing_once(_: Any) -> Draws:
        nonlocal calls
        calls += 1
        if calls == 2:
            raise ZeroDivisionError
        return draws()

    iterator = iter(make(packed, collate_fn=failing_once))
    found = [next(iterator)]
    with pytest.raises(ZeroDivisionError):
        next(iterator)
    assert [*found, *iterator] == [expected[0], *expected[2:]]


def test_collate_fn_runs_in_the_thread_that_calls_next(packed: Path) -> None:
    names = list(make(packed, collate_fn=lambda _: threading.current_thread().name))
    assert set(names) == {threading.current_thread().name}


def test_collate_fn_with_a_generator_runs_ahead_in_the_background(packed: Path) -> None:
    third = threading.Event()
    calls = []

    def ahead(_: Any, *, generator: torch.Generator | None = None) -> tuple[str, int]:
        assert generator is not None
        calls.append(generator.initial_seed())
        if len(calls) == 3:
            third.set()
        return threading.current_thread().name, torch.get_num_threads()

    iterator = iter(make(packed, collate_fn=ahead, prefetch_factor=3))
    assert third.wait(300), "the loader does not run collate_fn ahead of next()"
    assert {*iterator} == {("fastload-feeder", 1)}
    assert len(set(calls)) == N // 4


@pytest.mark.parametrize(
    "function",
    [
        functools.partial(collate_ahead, generator=torch.Generator().manual_seed(9)),
        lambda samples, generator="another meaning": (generator, draws()),
        list,  # a builtin without a signature
    ],
    ids=["bound generator", "another default", "builtin"],
)
def test_only_a_parameter_generator_with_default_none_is_filled(
    packed: Path, function: Callable[..., Any]
) -> None:
    (first, *_) = make(packed, collate_fn=function)
    if isinstance(function, functools.partial):
        assert first == collate_ahead([], torch.Generator().manual_seed(9))
    elif function is not list:
        assert first[0] == "another meaning"
    else:
        assert [sample["image"].shape for sample in first] == [(3, 8, 8)] * 4


@pytest.mark.parametrize("function", [collate, collate_ahead])
def test_a_plain_loader_of_a_framework_draws_as_torch_does(
    packed: Path, function: Callable[..., Any]
) -> None:
    loader = make(packed, collate_fn=function)
    plain: Any = torch.utils.data.DataLoader(
        loader.dataset, batch_sampler=loader.batch_sampler, collate_fn=loader.collate_fn
    )
    seed_trainer()
    found = list(plain)
    seed_trainer()
    torch.empty((), dtype=torch.int64).random_()  # torch's loader draws its base seed
    assert found == [function(None) for _ in found]
