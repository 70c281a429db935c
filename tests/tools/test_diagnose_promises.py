"""The promised speed of fastload is measured on the user's samples, or nothing is promised."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

import fastload
from fastload._tools.doctor.loader.model import (
    Candidate,
    CannotMeasure,
    _delivered,
    measure_candidate,
)
from tests.loading import needs_core
from tests.packed_datasets import photo


def tensor(path: Path, size: tuple[int, int]) -> torch.Tensor:
    with open(path, "rb") as file:
        image = Image.open(file).convert("RGB").resize((size[1], size[0]))
    return torch.from_numpy(np.asarray(image).transpose(2, 0, 1).copy())


class Samples(torch.utils.data.Dataset[Any]):
    """Sample i opens the images that ``choose(i)`` names and returns what ``make`` returns."""

    def __init__(self, choose: Callable[[int], list[Path]], make: Callable[[list[Path]], Any]):
        self.choose = choose
        self.make = make

    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> Any:
        return self.make(self.choose(index))


def cameras(paths: list[Path]) -> torch.Tensor:
    return torch.stack([tensor(path, (60, 80)) for path in paths])


def mosaic(paths: list[Path]) -> torch.Tensor:
    return torch.cat([tensor(path, (60, 80)) for path in paths], dim=1)


def as_lists(items: list[Any]) -> tuple[list[Any], list[Any]]:
    return items, [{"boxes": torch.zeros(3, 4)} for _ in items]


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    root = tmp_path_factory.mktemp("photos")
    for number in range(24):
        (root / f"{number:02}.jpg").write_bytes(photo(160, 120, seed=number, noise=20))
    return sorted(root.iterdir())


def diagnosed(dataset: Samples, **options: Any) -> tuple[list[str], str]:
    """Evidence of the promise, and all notes."""
    needs_core()
    loader = torch.utils.data.DataLoader(dataset, batch_size=4, **options)
    found = fastload.diagnose(loader, seconds=1)
    return [each.evidence[0] for each in found.found("decoding")], "\n".join(found.notes)


def test_several_cameras_are_measured_with_all_their_images(
    photos: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[Candidate] = []

    def watched(*args: Any) -> Candidate:
        seen.append(measure_candidate(*args))
        return seen[-1]

    monkeypatch.setattr("fastload._tools.doctor.loader.diagnose.measure_candidate", watched)
    diagnosed(Samples(lambda i: photos[3 * i : 3 * i + 3], cameras))
    (candidate,) = seen
    assert (candidate.images_per_sample, candidate.size) == (3, (60, 80))
    assert candidate.seconds > 0


def test_a_detection_batch_is_measured_at_its_own_size(photos: list[Path]) -> None:
    sizes = [(60, 80), (90, 70)] * 4
    samples: list[list[str | bytes]] = [[str(path)] for path in photos[:8]]
    batch = as_lists([torch.zeros(3, *size) for size in sizes[:4]])
    needs_core()
    candidate = measure_candidate(samples, batch, 4, 0.1)
    assert (candidate.images_per_sample, candidate.size) == (1, (90, 80))


@pytest.mark.parametrize(
    ("choose", "make", "reason"),
    [
        (lambda i, paths: paths[4 * (i % 4) : 4 * (i % 4) + 4], mosaic, "opens 4 and delivers 1"),
        (lambda i, paths: [], lambda paths: torch.zeros(3, 60, 80), "were not seen"),
        (lambda i, paths: paths[i : i + 1], lambda paths: mosaic(paths).sum(), "not recognized"),
    ],
)
def test_nothing_is_promised_where_nothing_can_be_measured(
    photos: list[Path],
    choose: Callable[[int, list[Path]], list[Path]],
    make: Callable[[list[Path]], Any],
    reason: str,
) -> None:
    promised, notes = diagnosed(Samples(lambda i: choose(i, photos), make))
    assert promised == []
    assert "the gain of fastload is not predicted" in notes
    assert reason in notes


def test_a_varying_number_of_images_is_not_measured(photos: list[Path]) -> None:
    samples: list[list[str | bytes]] = [[str(photos[0])], [str(photos[1]), str(photos[2])]]
    with pytest.raises(CannotMeasure, match="varies"):
        measure_candidate(samples, torch.zeros(2, 3, 8, 8), 2, 0.1)


def test_a_file_that_is_read_and_then_decoded_counts_once(photos: list[Path]) -> None:
    needs_core()
    samples: list[list[str | bytes]] = [[str(path), path.read_bytes()] for path in photos[:4]]
    assert measure_candidate(samples, torch.zeros(4, 3, 8, 8), 4, 0.1).images_per_sample == 1


@pytest.mark.parametrize(
    ("shape", "expected"),
    [
        ((4, 3, 60, 80), (1, (60, 80))),
        ((4, 60, 80, 3), (1, (60, 80))),
        ((4, 6, 3, 60, 80), (6, (60, 80))),
    ],
)
def test_images_per_sample_and_size_of_a_batch(
    shape: tuple[int, ...], expected: tuple[int, tuple[int, int]]
) -> None:
    assert _delivered({"x": torch.zeros(shape), "label": torch.zeros(4)}, 4) == expected
