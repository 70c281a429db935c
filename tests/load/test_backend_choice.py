"""backend="auto": the choice from given measurements, real measurements on the CPU, the record."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch

from fastload import transforms as T
from fastload._common.metrics import LoaderStats, StageStats
from fastload._common.native import core
from fastload._decode import selftest_record as record
from fastload._decode.registry import AUTO, BACKENDS, GPU_BACKENDS
from fastload._load import backend_measure
from fastload._load.backend_choice import Candidate, Measured, choose, from_json, to_json
from fastload._load.backend_measure import (
    Bench,
    Probe,
    candidates,
    learn_step,
    measure,
    measure_all,
    measured_choice,
)
from fastload._load.decoder import BackendChoice, Decoder
from fastload._load.loader import DataLoader
from fastload._load.spec import SampleOptions, load_spec
from fastload._load.transfer import Stay
from fastload._store.dataset import open_dataset
from fastload.errors import ConfigError
from tests.gpu_backends import needs_dali
from tests.loading import needs_core

CPU = torch.device("cpu")
N = 20
NATIVE, DALI, NVJPEG = (Candidate(name) for name in ("native", "dali", "nvjpeg"))
ENGINE = Candidate("dali", True)


def named(measured: list[Measured], **options: Any) -> str:
    return str(choose(measured, cpus=8, **options).candidate)


# 8 CPUs: native is slow and uses all of them, dali is fast and uses GPU time, the JPEG
# engine is in between and cheap.
SLOW, FAST = Measured(NATIVE, 0.060, 0.400, 0.001), Measured(DALI, 0.020, 0.030, 0.008)
MIDDLE = Measured(ENGINE, 0.030, 0.010, 0.001)


@pytest.mark.parametrize(
    ("step_s", "expected"),
    [
        (None, "dali"),
        (0.0, "dali"),  # the step is unknown, so the fastest backend is chosen
        (0.005, "dali"),
        (0.012, "dali"),  # a short step waits least for the fastest backend
        (
            0.030,
            "dali with the JPEG engine",
        ),  # iterations of 31 ms, against 38 with dali and 60 with native
        (
            0.200,
            "dali with the JPEG engine",
        ),  # all are fast enough; the engine uses 1 ms of the GPU and no CPU time
    ],
)
def test_the_shortest_iteration_wins(step_s: float | None, expected: str) -> None:
    assert named([SLOW, FAST, MIDDLE], step_s=step_s) == expected


def test_the_cheapest_of_equal_iterations_wins() -> None:
    assert (
        named([SLOW, FAST], step_s=0.5) == "dali"
    )  # both are fast enough; 0.03/8 + 0.008 s against 0.4/8 + 0.001
    light = Measured(NATIVE, 0.060, 0.040, 0.0)
    assert named([light, FAST], step_s=0.5) == "native", (
        "a step this long is fed by the processor, which costs the GPU nothing"
    )
    assert named([light, FAST], step_s=0.02) == "dali"


def test_the_first_of_equal_candidates_wins() -> None:
    same = [Measured(each, 0.02, 0.02, 0.001) for each in (NATIVE, DALI, NVJPEG)]
    assert named(same) == "native"
    assert named(same[::-1]) == "nvjpeg"


def test_timings_within_the_measurement_error_are_equal() -> None:
    assert (
        named([Measured(NATIVE, 0.0202, 0.01, 0.0), Measured(DALI, 0.0200, 0.01, 0.005)])
        == "native"
    )


def test_a_failed_candidate_is_reported_and_not_chosen() -> None:
    decision = choose(
        [SLOW, Measured(DALI, failure="RuntimeError: CUDA out of memory")],
        cpus=8,
        skipped={"nvjpeg": "is not installed"},
    )
    assert decision.candidate == NATIVE
    assert "dali failed: RuntimeError: CUDA out of memory" in decision.why
    assert "nvjpeg not measured: is not installed" in decision.why
    with pytest.raises(ConfigError, match="no backend works on this machine: dali: broken"):
        choose([Measured(DALI, failure="broken")], cpus=8)


def test_the_reason_contains_the_measurements() -> None:
    why = choose([SLOW, FAST], cpus=8, step_s=0.1).why
    assert (
        why
        == "60 ms (83 % CPU, 2 % GPU) per batch; fast enough for a training step of 100 ms; dali 20 ms (19 % CPU, 40 % GPU)"
    )
    assert "\n" not in why


def test_measurements_survive_json() -> None:
    rows = [SLOW, MIDDLE, Measured(NVJPEG, failure="broken")]
    assert from_json(json.loads(json.dumps(to_json(rows)))) == rows
    several: tuple[Any, ...] = (
        None,
        [],
        {},
        [3],
        [{}],
        [{"candidate": "dali"}],
        [{"candidate": {"name": "dali"}, "batch_s": "1"}],
        [{"candidate": {"name": "dali"}, "batch_s": -1}],
        [{"candidate": {"name": 5}}],
        [{"candidate": {"name": "a"}, "host_s": True}],
    )
    for wrong in several:
        assert from_json(wrong) is None


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "fastload"


class OnGpu(Stay):
    """A transfer that claims to use a GPU, to test which backend would be chosen there."""

    def __init__(self) -> None:
        super().__init__(pin=False)
        self.device = torch.device("cuda", 0)


def bench(packed: Path, *, gpu: bool = False, **options: Any) -> Bench:
    dataset = open_dataset(packed)
    spec = load_spec(dataset, SampleOptions(transform=[T.RandomResizedCrop(24)]))
    return Bench(
        dataset,
        spec,
        OnGpu() if gpu else Stay(pin=False),
        **{"batch_size": 8, "ahead": 2, "budget": 2, **options},
    )


@pytest.mark.parametrize("probe", [False, True])
def test_real_backends_are_measured(packed: Path, probe: bool) -> None:
    """Runs on the CPU. Only checks that the results are plausible numbers."""
    some, skipped = candidates(CPU)
    assert {each.name for each in some} | set(skipped) == {
        "native" if core() else "reference",
        "dali",
        "nvjpeg",
    }
    measured = measure_all(some, bench(packed), probe=probe)
    assert [each.candidate for each in measured] == some
    for each in measured:
        assert not each.failure
        assert 0 < each.batch_s < 60
        assert 0 < each.host_s < 60
        assert each.device_s == 0 or (probe and each.device_s < 60)
    assert choose(measured, cpus=2).candidate in some


def test_a_dataset_smaller_than_a_batch_can_be_measured(packed: Path) -> None:
    found = measure(
        Candidate("native" if core() else "reference"),
        bench(packed, batch_size=33, ahead=1),
        probe=None,
    )
    assert not found.failure


def test_a_backend_that_cannot_start_is_recorded_as_failed(packed: Path) -> None:
    found = measure(Candidate("dali", True), bench(packed), probe=None)
    assert "hardware=True requires a GPU" in found.failure or "not installed" in found.failure
    assert found.batch_s == math.inf


def test_the_probe_counts_its_products_and_stops() -> None:
    probe = Probe(CPU)
    result, beside = probe.beside(lambda: sum(range(2_000_000)))
    assert result == 1999999000000
    assert beside.per_s > 0
    assert beside.cpu_s > 0
    with pytest.raises(ZeroDivisionError):
        probe.beside(lambda: 1 / 0)
    assert probe.beside(lambda: 5)[0] == 5


def test_without_a_gpu_nothing_is_measured(packed: Path, cache: Path) -> None:
    assert measured_choice("auto", bench(packed)) is None
    assert measured_choice("dali", bench(packed, gpu=True)) is None
    assert DataLoader(packed, 4, transform=[T.Resize(20, 20)]).backend.name == (
        "native" if core() else "reference"
    )
    assert not cache.exists()


def made_up(rows: list[Measured], monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Replaces the measurements by ``rows``; returns a list with one entry per measurement."""
    taken: list[str] = []

    def measure_all(some: Any, bench: Bench, *, probe: bool) -> list[Measured]:
        taken.append("measured")
        assert probe
        return rows

    monkeypatch.setattr(backend_measure, "measure_all", measure_all)
    return taken


def test_a_choice_is_measured_and_printed_once_and_stored(
    packed: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], cache: Path
) -> None:
    taken = made_up([SLOW, FAST], monkeypatch)
    choice = measured_choice("auto", bench(packed, gpu=True, budget=8))
    assert choice is not None
    assert (choice.name, choice.requested, choice.hardware, bool(choice)) == (
        "dali",
        "auto",
        False,
        False,
    )
    line = capsys.readouterr().err
    assert line.startswith(
        "fastload: backend='auto' uses dali: 20 ms (19 % CPU, 40 % GPU) per batch; native 60 ms"
    )
    assert line.count("\n") == 1
    assert str(choice) in line
    assert measured_choice("auto", bench(packed, gpu=True, budget=8)) == choice
    assert taken == ["measured"]
    monkeypatch.setenv("FASTLOAD_QUIET", "1")
    capsys.readouterr()
    measured_choice("auto", bench(packed, gpu=True, budget=8, batch_size=9))
    assert taken == ["measured"] * 2, "another batch size is another question"
    assert capsys.readouterr().err == ""
    assert len(list(cache.iterdir())) == 2


def stats(batches: int, images_per_s: float, wait_s: float) -> LoaderStats:
    return LoaderStats(
        batches,
        8 * batches,
        0,
        0,
        images_per_s,
        1.0,
        2,
        0,
        {"wait": StageStats(wait_s, wait_s, wait_s, wait_s, batches)},
    )


def test_the_step_duration_is_recorded_and_may_change_the_choice(
    packed: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    taken = made_up([Measured(NATIVE, 0.060, 0.040, 0.0), FAST], monkeypatch)
    on = bench(packed, gpu=True)
    assert getattr(measured_choice("auto", on), "name", "") == "dali"
    learn_step(on, stats(batches=10, images_per_s=16.0, wait_s=0.0))
    assert getattr(measured_choice("auto", on), "name", "") == "dali", "ten batches tell nothing"
    learn_step(
        on, stats(batches=100, images_per_s=16.0, wait_s=0.1)
    )  # 8 images in 0.5 s, including a wait of 0.1 s
    choice = measured_choice("auto", on)
    assert choice is not None
    assert choice.name == "native"
    assert "fast enough for a training step of 400 ms" in choice.measured
    assert taken == ["measured"]


def test_a_damaged_record_is_measured_again(
    packed: Path, monkeypatch: pytest.MonkeyPatch, cache: Path
) -> None:
    taken = made_up([SLOW, FAST], monkeypatch)
    for text in ("", "{", "[]", "null", '{"for": {}}', '{"measured": 5}'):
        measured_choice("auto", bench(packed, gpu=True))
        (record,) = cache.iterdir()
        record.write_text(text)
    measured_choice("auto", bench(packed, gpu=True))
    assert len(taken) == 7


def test_a_read_only_cache_is_ignored(
    packed: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    taken = made_up([SLOW, FAST], monkeypatch)
    for _ in range(2):
        assert getattr(measured_choice("auto", bench(packed, gpu=True)), "name", "") == "dali"
    assert len(taken) == 2


def test_the_jpeg_engine_needs_a_passed_selftest_of_these_versions(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    device = torch.device("cuda", 0)
    for name, entry in GPU_BACKENDS.items():
        why = "" if name == "dali" else "is not installed"
        monkeypatch.setattr(entry.load(), "missing", lambda device, hardware=False, why=why: why)
    assert candidates(device) == (
        [Candidate("native" if core() else "reference"), DALI],
        {
            "dali with the JPEG engine": "'fastload selftest --device cuda' has not passed on this machine",
            "nvjpeg": "is not installed",
        },
    )
    record.save(device, {"dali": dict.fromkeys(record.HARDWARE_STAGES[1:], True)})
    assert candidates(device)[0][1:] == [DALI], "one stage has not been run"
    record.save(device, {"dali": dict.fromkeys(record.HARDWARE_STAGES, True)})
    assert candidates(device)[0][1:] == [DALI, ENGINE]
    real = record.key
    monkeypatch.setattr(record, "key", lambda device: {**real(device), "driver": "999.1"})
    assert candidates(device)[0][1:] == [DALI]


def test_a_stored_choice_ends_with_the_selftest_record(
    packed: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    taken = made_up([SLOW, MIDDLE], monkeypatch)
    device = torch.device("cuda", 0)
    record.save(device, {"dali": dict.fromkeys(record.HARDWARE_STAGES, True)})
    choice = measured_choice("auto", bench(packed, gpu=True, budget=8))
    assert choice is not None
    assert choice.hardware
    assert measured_choice("auto", bench(packed, gpu=True, budget=8)) == choice
    assert taken == ["measured"]
    made_up([SLOW, FAST], monkeypatch)
    record.save(device, {"dali": {"engine": False}})
    revoked = measured_choice("auto", bench(packed, gpu=True, budget=8))
    assert revoked is not None
    assert (revoked.name, revoked.hardware) == ("dali", False)


def test_the_names_of_backends(packed: Path) -> None:
    assert (AUTO, *BACKENDS) == ("auto", "native", "dali", "nvjpeg", "reference")
    with pytest.raises(ConfigError, match="expected one of auto, native, dali, nvjpeg, reference"):
        DataLoader(packed, backend="cuda")
    assert str(BackendChoice("dali", "auto", "", True, "2 ms")) == "dali with the JPEG engine: 2 ms"


def test_the_chosen_backend_decodes(packed: Path) -> None:
    needs_core()
    needs_dali()
    backend = Decoder(
        "auto", threads=1, budget=1, choice=BackendChoice("dali", "auto", "", False, "20 ms")
    )
    assert (backend.backend.name, backend.device, backend.on_cpu().backend.name) == (
        "dali",
        CPU,
        "native",
    )
    backend.close()
