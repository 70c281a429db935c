"""diagnose() restores the loader, its dataset, patched functions and random generators."""

from __future__ import annotations

import builtins
import io
import multiprocessing
import os
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import simplejpeg
import torch
from PIL import Image, ImageFile

import fastload
from fastload._tools.doctor.loader.instrument import Instruments
from tests.loading import pack_photos, same_batch
from tests.slow_loaders import Batches


class Random(torch.utils.data.Dataset[Any]):
    """Draws from the three random generators for each sample."""

    def __init__(self) -> None:
        self.transform = self.twice

    def twice(self, value: float) -> float:
        return 2 * value

    def __len__(self) -> int:
        return 64

    def __getitem__(self, index: int) -> Any:
        return index, self.transform(random.random()), np.random.rand(), torch.rand(())


def watched() -> list[object]:
    return [
        builtins.open,
        io.open,
        os.read,
        Image.open,
        Image.Image.convert,
        Image.Image.resize,
        ImageFile.ImageFile.load,
        simplejpeg.decode_jpeg,
        torch.nn.functional.interpolate,
    ]


def first_batches(loader: Any) -> list[Any]:
    return [batch for batch, _ in zip(loader, range(3), strict=False)]


def seeded() -> None:
    random.seed(3)
    np.random.seed(3)
    torch.manual_seed(3)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"num_workers": 2},
        {"num_workers": 2, "persistent_workers": True},
        {"generator": torch.Generator().manual_seed(5)},
    ],
    ids=lambda options: " and ".join(options) or "none",
)
def test_the_next_epoch_is_not_affected(options: dict[str, Any]) -> None:
    dataset = Random()
    loader, another = (
        torch.utils.data.DataLoader(dataset, batch_size=4, shuffle=True, **options)
        for _ in range(2)
    )
    generator = options.get("generator")
    before = None if generator is None else generator.get_state()
    seeded()
    expected = first_batches(another)
    if generator is not None:
        generator.set_state(before)
    seeded()
    functions, attributes = watched(), dict(vars(dataset))
    fastload.diagnose(loader, lambda batch: torch.rand(2), seconds=0.6)
    assert watched() == functions
    assert vars(dataset) == attributes
    assert same_batch(first_batches(loader), expected)
    for each in (loader, another):
        if each._iterator is not None:
            each._iterator._shutdown_workers()  # type: ignore[attr-defined]
    assert not multiprocessing.active_children()


def test_a_running_epoch_continues() -> None:
    loader: Any = torch.utils.data.DataLoader(
        list(range(40)),  # type: ignore[arg-type]
        batch_size=4,
        num_workers=2,
        persistent_workers=True,
    )
    iterator = iter(loader)
    got = next(iterator).tolist()
    fastload.diagnose(loader, seconds=0.4)
    got += [number for batch in iterator for number in batch.tolist()]
    assert got == list(range(40))
    iterator._shutdown_workers()


def test_functions_are_restored_after_an_error(tmp_path: Path) -> None:
    class Broken(Random):
        def __getitem__(self, index: int) -> Any:
            if len(calls) >= 40:  # only while its stages are measured
                raise OSError("gone")
            calls.append(index)
            return index

    calls: list[int] = []
    functions = watched()
    dataset = Broken()
    with Instruments(dataset) as instruments:
        assert watched() != functions
        assert dataset.transform(1.0) == 2.0
        instruments.refresh()
    assert watched() == functions
    with pytest.raises(fastload.ConfigError):
        fastload.diagnose(torch.utils.data.DataLoader(dataset, batch_size=4), seconds=0.5)
    assert watched() == functions
    assert dataset.transform == dataset.twice


def test_a_file_opened_in_the_context_still_reads_afterwards(tmp_path: Path) -> None:
    (tmp_path / "text").write_text("one\ntwo\n")
    with Instruments(object()) as instruments:
        instruments.clock.start()
        text, data = open(tmp_path / "text"), open(tmp_path / "text", "rb")  # noqa: SIM115 - they outlive the context
        assert text.readline() == "one\n"
        with pytest.raises(FileNotFoundError):
            open(tmp_path / "none")  # noqa: SIM115
        with open(tmp_path / "new", "w") as file:
            file.write("x")
        instruments.clock.stop()
    assert isinstance(data, io.BufferedReader)
    assert (text.read(), data.read()) == ("two\n", b"one\ntwo\n")
    text.close()
    data.close()


def test_a_dataset_with_read_only_attributes_is_not_changed() -> None:
    class Frozen:
        __slots__ = ()

        @property
        def transform(self) -> Any:
            return str

    dataset = Frozen()
    with Instruments(dataset):
        assert dataset.transform is str


def test_a_fastload_loader_keeps_its_position(tmp_path: Path) -> None:
    loader = fastload.DataLoader(
        pack_photos(tmp_path / "packed", 24, vary=0), batch_size=4, shuffle=True, seed=3
    )
    iterator = iter(loader)
    next(iterator)
    state = loader.state_dict()
    fastload.diagnose(loader, seconds=0.3)
    assert loader.state_dict() == state
    assert len(list(iterator)) == 5
    assert loader.stats().batches == 6
    loader.close()


def test_a_plain_iterable_is_only_iterated() -> None:
    loader = Batches(4, 0.001)
    fastload.diagnose(loader, seconds=0.1)
    assert len(list(loader)) == 4
