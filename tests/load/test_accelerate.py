"""Accelerate uses a loader unchanged, with ``prepare`` and with ``prepare_data_loader``."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from fastload import transforms as T
from fastload._load.iterator import LoaderIterator
from fastload._load.loader import DataLoader
from tests.loading import same_batch

accelerate = pytest.importorskip("accelerate", reason="not run: no accelerate")

N = 22
CROPPED = [T.RandomResizedCrop(16)]
Prepare = Callable[[Any, DataLoader], Any]

both_ways = pytest.mark.parametrize(
    "prepare",
    [
        lambda accelerator, loader: accelerator.prepare(loader),
        lambda accelerator, loader: accelerator.prepare_data_loader(loader),
    ],
    ids=["prepare", "prepare_data_loader"],
)


@pytest.fixture
def accelerator() -> Iterator[Any]:
    from accelerate.state import AcceleratorState, GradientState

    yield accelerate.Accelerator(cpu=True)
    AcceleratorState._reset_state(reset_partial_state=True)
    GradientState._reset_state()


def make(packed: Path, **options: Any) -> DataLoader:
    return DataLoader(packed, 4, **{"shuffle": True, "transform": CROPPED, "seed": 3, **options})


@pytest.mark.parametrize(
    "read", [inspect.getmembers, lambda loader: loader._is_accelerate_prepared]
)
@pytest.mark.parametrize(
    "options", [{}, {"shuffle": None, "sampler": range(N)}], ids=["own", "sampler"]
)
def test_reading_attributes_does_not_prepare_a_loader(
    packed: Path, accelerator: Any, read: Callable[[Any], object], options: dict[str, Any]
) -> None:
    loader = make(packed, **options)
    before = dict(vars(loader))
    read(loader)
    assert vars(loader) == before
    assert type(iter(loader)) is LoaderIterator


def test_a_loader_on_another_device_can_be_inspected(
    packed: Path, accelerator: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    from accelerate.state import PartialState

    loader = make(packed)
    monkeypatch.setattr(PartialState(), "device", torch.device("cuda"), raising=False)
    assert dict(inspect.getmembers(loader))["batch_size"] == 4


@both_ways
def test_prepare_returns_the_same_loader_which_marks_the_last_batch(
    packed: Path, accelerator: Any, prepare: Prepare
) -> None:
    loader = make(packed)
    assert prepare(accelerator, loader) is loader
    assert accelerator._dataloaders == [loader]
    assert prepare(accelerator, loader) is loader
    ends = [accelerator.gradient_state.end_of_dataloader for _ in loader]
    assert ends == [False] * 5 + [True]
    assert not accelerator.gradient_state.in_dataloader
    loader.set_epoch(0)
    assert same_batch(list(loader), list(make(packed)))


@both_ways
def test_skip_first_batches_of_a_prepared_loader_marks_the_last_batch(
    packed: Path, accelerator: Any, prepare: Prepare
) -> None:
    expected = list(make(packed))
    rest = accelerate.skip_first_batches(prepare(accelerator, make(packed)), 2)
    found = [(batch, accelerator.gradient_state.end_of_dataloader) for batch in rest]
    assert same_batch([batch for batch, _ in found], expected[2:])
    assert [end for _, end in found] == [False] * 3 + [True]


def test_an_unprepared_loader_does_not_report_to_accelerate(packed: Path, accelerator: Any) -> None:
    loader = make(packed)
    assert not any(accelerator.gradient_state.in_dataloader for _ in loader)
