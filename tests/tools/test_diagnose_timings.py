"""diagnose() times the loader, the step and both together, on any iterable."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator

import pytest
import simplejpeg
import torch

import fastload
from fastload._tools.doctor.finding import Ceiling, Finding
from fastload._tools.monitor.batches import count_samples
from tests.slow_loaders import Batches, Slow, slow_decode


def ceiling(found: Finding) -> Ceiling:
    assert found.ceiling is not None
    return found.ceiling


def test_a_loader_slower_than_its_step() -> None:
    found = fastload.diagnose(Batches(50, 0.060), lambda batch: time.sleep(0.020), seconds=2)
    assert found.numbers.loader.seconds == pytest.approx(0.060, rel=0.2)
    assert found.numbers.step is not None
    assert found.numbers.step.seconds == pytest.approx(0.020, rel=0.2)
    assert found.numbers.together is not None
    assert found.numbers.together.seconds == pytest.approx(
        0.080, rel=0.15
    )  # a plain iterable does not work ahead
    assert found.numbers.wait_share == pytest.approx(0.75, rel=0.2)
    assert (found.state, found.numbers.batch_size) == ("data-bound", 6)
    assert "the step waits 7" in str(found)


def test_a_step_slower_than_its_loader(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(simplejpeg, "decode_jpeg", slow_decode)
    loader = torch.utils.data.DataLoader(Slow(), batch_size=1, num_workers=2)
    found = fastload.diagnose(loader, lambda batch: time.sleep(0.120), seconds=4)
    assert found.state == "compute-bound"
    assert found.numbers.wait_share is not None
    assert (
        found.numbers.wait_share < 0.15
    )  # on an idle machine 0.01; handing over takes longer on a busy one
    assert not [each for each in found.findings if "num_workers" in each.fix]


def test_more_workers_are_suggested_and_the_ceiling_is_kept(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(simplejpeg, "decode_jpeg", slow_decode)
    found = fastload.diagnose(
        torch.utils.data.DataLoader(Slow(), batch_size=1),
        lambda batch: time.sleep(0.060),
        seconds=3,
    )
    best = found.findings[0]
    assert best.fix == "num_workers=2 (now 0)"
    assert found.numbers.ceiling_per_s is not None
    assert ceiling(best).it_s <= found.numbers.ceiling_per_s
    assert ceiling(best).gain == pytest.approx(
        1.5, rel=0.25
    )  # 90 + 60 ms become 60; a busy machine stretches each a little
    assert "ceiling" in str(found)


def test_a_generator_is_used_up_and_that_is_said() -> None:
    def batches() -> Iterator[int]:
        for number in range(8):
            time.sleep(0.030)
            yield number

    found = fastload.diagnose(batches(), lambda batch: time.sleep(0.010), seconds=3)
    assert found.numbers.loader.seconds == pytest.approx(0.030, rel=0.2)
    assert found.numbers.together is None
    assert found.numbers.wait_share == pytest.approx(0.75, rel=0.2)
    assert any("are gone" in note for note in found.notes)
    assert any("ended before" in note for note in found.notes)


def test_a_generator_that_lasts_is_also_run_with_the_step() -> None:
    found = fastload.diagnose(
        iter(Batches(10_000, 0.005)), lambda batch: time.sleep(0.005), seconds=0.5
    )
    assert found.numbers.together is not None


def test_a_loader_shorter_than_the_time_is_run_again() -> None:
    loader = Batches(3, 0.030)
    found = fastload.diagnose(loader, seconds=1)
    assert loader.given > 9
    assert found.numbers.loader.seconds == pytest.approx(0.030, rel=0.2)
    assert found.numbers.step is None
    assert found.state == "unknown"


def test_a_loader_of_one_batch_says_that_its_start_is_included() -> None:
    found = fastload.diagnose(Batches(1, 0.020), seconds=0.2)
    assert found.numbers.loader.seconds == pytest.approx(0.020, rel=0.2)
    assert any("one batch a pass" in note for note in found.notes)


def test_a_list_of_batches_is_a_loader() -> None:
    assert fastload.diagnose([torch.zeros(2, 3)] * 5, seconds=0.1).numbers.batch_size == 2


@pytest.mark.parametrize(
    "empty", [[], iter([]), torch.utils.data.DataLoader(Slow(0))], ids=["list", "iterator", "torch"]
)
def test_an_empty_loader_is_refused(empty: object) -> None:
    with pytest.raises(fastload.ConfigError, match="gave no batch"):
        fastload.diagnose(empty, seconds=1)  # type: ignore[arg-type]


class Failing(Slow):
    def __getitem__(self, index: int) -> int:
        if index == 5:
            raise ValueError("sample 5 is broken")
        return index


@pytest.mark.parametrize("workers", [0, 2])
def test_what_the_loader_raises_is_one_clear_line(workers: int) -> None:
    with pytest.raises(
        fastload.ConfigError,
        match=r"the loader raised ValueError: sample 5 is broken \(after 2 batches\)",
    ) as raised:
        fastload.diagnose(
            torch.utils.data.DataLoader(Failing(), batch_size=2, num_workers=workers), seconds=1
        )
    assert "\n" not in str(raised.value)
    assert (
        fastload.diagnose(Batches(5, 0.001), seconds=0.1).numbers.loader.batches > 0
    )  # and the next one works


def test_what_the_step_raises_is_one_clear_line() -> None:
    def step(batch: torch.Tensor) -> None:
        raise KeyError("images")

    with pytest.raises(fastload.ConfigError, match="the step raised KeyError: 'images'"):
        fastload.diagnose(Batches(5, 0.001), step, seconds=0.1)


@pytest.mark.parametrize(
    ("loader", "step", "seconds", "message"),
    [
        (3, None, 1, "expected a loader"),
        (Batches(1, 0), "step", 1, "expected a function"),
        (Batches(1, 0), None, 0, "above 0"),
        (Batches(1, 0), None, float("nan"), "above 0"),
    ],
)
def test_wrong_arguments_are_refused(
    loader: object, step: object, seconds: float, message: str
) -> None:
    with pytest.raises(fastload.ConfigError, match=message):
        fastload.diagnose(loader, step, seconds=seconds)  # type: ignore[arg-type]


def test_it_is_json_all_the_way_down() -> None:
    found = fastload.diagnose(Batches(50, 0.005), lambda batch: None, seconds=0.3)
    told = json.loads(json.dumps(found.as_json()))
    assert told["loader"]["seconds"] == found.numbers.loader.seconds
    assert told["state"] == found.state


def test_a_detection_batch_is_counted_as_everywhere_else() -> None:
    """A list of 8 images of (3, h, w): 8 samples, not 3 as their channels."""
    images = [torch.zeros(3, 20 + number, 30) for number in range(8)]
    targets = [{"boxes": torch.zeros(2, 4)} for _ in images]
    found = fastload.diagnose([(images, targets)] * 5, lambda batch: None, seconds=0.1)
    assert found.numbers.batch_size == count_samples((images, targets)) == 8
