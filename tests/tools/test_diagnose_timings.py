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


@pytest.mark.usefixtures("exact_sleeps")
def test_a_loader_slower_than_its_step_is_data_bound() -> None:
    found = fastload.diagnose(Batches(50, 0.060), lambda batch: time.sleep(0.020), seconds=2)
    assert found.numbers.loader.seconds == pytest.approx(0.060, rel=0.01)
    assert found.numbers.step is not None
    assert found.numbers.step.seconds == pytest.approx(0.020, rel=0.01)
    assert found.numbers.together is not None
    assert found.numbers.together.seconds == pytest.approx(
        0.080, rel=0.01
    )  # a plain iterable does not prefetch
    assert found.numbers.wait_share == pytest.approx(0.75, rel=0.01)
    assert (found.state, found.numbers.batch_size) == ("data-bound", 6)
    assert "the step waits 7" in str(found)


def test_a_step_slower_than_its_loader_is_compute_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(simplejpeg, "decode_jpeg", slow_decode)
    loader = torch.utils.data.DataLoader(Slow(), batch_size=1, num_workers=2)
    for _ in range(5):  # on a busy machine, the step may wait for the handover of a batch
        found = fastload.diagnose(loader, lambda batch: time.sleep(0.120), seconds=4)
        if found.state == "compute-bound":
            break
    assert found.state == "compute-bound"
    assert not [each for each in found.findings if "num_workers" in each.fix]


@pytest.mark.usefixtures("exact_sleeps")
def test_more_workers_are_suggested_within_the_ceiling(
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
    assert ceiling(best).gain == pytest.approx(1.5, rel=0.01)  # 90 + 60 ms become 60 ms
    assert "ceiling" in str(found)


@pytest.mark.usefixtures("exact_sleeps")
def test_a_generator_is_consumed_with_a_note() -> None:
    def batches() -> Iterator[int]:
        for number in range(8):
            time.sleep(0.030)
            yield number

    found = fastload.diagnose(batches(), lambda batch: time.sleep(0.010), seconds=3)
    assert found.numbers.loader.seconds == pytest.approx(0.030, rel=0.01)
    assert found.numbers.together is None
    assert found.numbers.wait_share == pytest.approx(0.75, rel=0.01)
    assert any("are consumed" in note for note in found.notes)
    assert any("ended before" in note for note in found.notes)


def test_a_long_generator_also_runs_with_the_step() -> None:
    found = fastload.diagnose(
        iter(Batches(10_000, 0.005)), lambda batch: time.sleep(0.005), seconds=0.5
    )
    assert found.numbers.together is not None


@pytest.mark.usefixtures("exact_sleeps")
def test_a_short_loader_is_repeated() -> None:
    loader = Batches(3, 0.030)
    found = fastload.diagnose(loader, seconds=1)
    assert loader.given > 9
    assert found.numbers.loader.seconds == pytest.approx(0.030, rel=0.01)
    assert found.numbers.step is None
    assert found.state == "unknown"


@pytest.mark.usefixtures("exact_sleeps")
def test_a_loader_of_one_batch_gets_a_note_about_its_start() -> None:
    found = fastload.diagnose(Batches(1, 0.020), seconds=0.2)
    assert found.numbers.loader.seconds == pytest.approx(0.020, rel=0.01)
    assert any("one batch per pass" in note for note in found.notes)


def test_a_list_of_batches_is_accepted() -> None:
    assert fastload.diagnose([torch.zeros(2, 3)] * 5, seconds=0.1).numbers.batch_size == 2


@pytest.mark.parametrize(
    "empty", [[], iter([]), torch.utils.data.DataLoader(Slow(0))], ids=["list", "iterator", "torch"]
)
def test_an_empty_loader_is_rejected(empty: object) -> None:
    with pytest.raises(fastload.ConfigError, match="yielded no batch"):
        fastload.diagnose(empty, seconds=1)  # type: ignore[arg-type]


class Failing(Slow):
    def __getitem__(self, index: int) -> int:
        if index == 5:
            raise ValueError("sample 5 is broken")
        return index


@pytest.mark.parametrize("workers", [0, 2])
def test_an_error_of_the_loader_is_one_line(workers: int) -> None:
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
    )  # the next loader works


def test_an_error_of_the_step_is_one_line() -> None:
    def step(batch: torch.Tensor) -> None:
        raise KeyError("images")

    with pytest.raises(fastload.ConfigError, match="the step raised KeyError: 'images'"):
        fastload.diagnose(Batches(5, 0.001), step, seconds=0.1)


@pytest.mark.parametrize(
    ("loader", "step", "seconds", "message"),
    [
        (3, None, 1, "expected an iterable"),
        (Batches(1, 0), "step", 1, "expected a function"),
        (Batches(1, 0), None, 0, "above 0"),
        (Batches(1, 0), None, float("nan"), "above 0"),
    ],
)
def test_wrong_arguments_are_rejected(
    loader: object, step: object, seconds: float, message: str
) -> None:
    with pytest.raises(fastload.ConfigError, match=message):
        fastload.diagnose(loader, step, seconds=seconds)  # type: ignore[arg-type]


def test_the_diagnosis_converts_to_json() -> None:
    found = fastload.diagnose(Batches(50, 0.005), lambda batch: None, seconds=0.3)
    content = json.loads(json.dumps(found.as_json()))
    assert content["loader"]["seconds"] == found.numbers.loader.seconds
    assert content["state"] == found.state


def test_a_detection_batch_is_counted_by_its_images() -> None:
    """A list of 8 images (3, h, w) has 8 samples, not 3."""
    images = [torch.zeros(3, 20 + number, 30) for number in range(8)]
    targets = [{"boxes": torch.zeros(2, 4)} for _ in images]
    found = fastload.diagnose([(images, targets)] * 5, lambda batch: None, seconds=0.1)
    assert found.numbers.batch_size == count_samples((images, targets)) == 8
