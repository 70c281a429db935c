"""StepProbe on any loader: its rows, and a readable file however the loop ends."""

from __future__ import annotations

import gc
import json
import os
import signal
import subprocess
import sys
import weakref
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch

import fastload
from fastload._common.metrics import DATA_PROBE
from fastload._tools.monitor import recorder as recording
from fastload._tools.monitor.batches import count_samples
from fastload._tools.monitor.metrics_file import Metrics, read_metrics
from fastload.errors import ConfigError
from tests.loading import pack_photos


class Clock:
    """A clock that tests set, so that durations are exact."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 100.0
        for module in ("recorder", "probe"):
            monkeypatch.setattr(f"fastload._tools.monitor.{module}.clock", lambda: self.now)

    def fail(self, *, after: float) -> None:
        self.now += after
        raise OSError("disk full")

    def loader(self, waits: list[float]) -> Iterator[torch.Tensor]:
        for wait in waits:
            self.now += wait
            yield torch.zeros(4, 3)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    return Clock(monkeypatch)


def read(path: Path) -> Metrics:
    metrics = read_metrics(path)
    assert (metrics.skipped, metrics.torn) == (0, False)
    return metrics


def test_rows_have_means_maxima_stages_and_samples(tmp_path: Path, clock: Clock) -> None:
    path = tmp_path / "m.jsonl"
    with fastload.StepProbe(path, every=4) as probe:
        for number, _ in enumerate(probe.watch(clock.loader([0.5, 0.1, 0.1, 0.1, 0.2]))):
            with probe.stage("forward"):
                clock.now += 1.0
            for _ in range(2):
                with probe.stage("backward"):
                    clock.now += 0.25
            if number == 2:
                clock.now += 7.0
    metrics = read(path)
    (run,) = metrics.runs
    assert (run.rank, run.world, run.pid, run.batch_size, run.device, run.gpu) == (
        0,
        1,
        os.getpid(),
        4,
        "cpu",
        None,
    )
    assert run.torch == torch.__version__
    first, rest = metrics.steps
    assert (first.iter, first.steps, first.samples) == (4, 4, 16)
    assert first.data_time == pytest.approx(0.2)
    assert first.data_time_max == pytest.approx(0.5)
    assert first.iter_time == pytest.approx((2.0 + 1.6 + 8.6 + 1.6) / 4)
    assert first.iter_time_max == pytest.approx(8.6)
    assert first.stage_times == {"forward": pytest.approx(1.0), "backward": pytest.approx(0.5)}
    assert first.samples_per_s == pytest.approx(16 / 13.8, rel=1e-3)
    assert first.slow == ((3, 8.6, 0.1),)
    assert first.data_probe == {}
    assert (rest.iter, rest.steps, rest.samples, rest.slow) == (5, 1, 4, ())


def test_epoch_start_counts_as_waiting_but_time_between_epochs_does_not(
    tmp_path: Path, clock: Clock
) -> None:
    class Slow:
        def __iter__(self) -> Iterator[torch.Tensor]:
            clock.now += 3.0  # starting workers
            return clock.loader([0.0, 0.0])

    path = tmp_path / "m.jsonl"
    with fastload.StepProbe(path, every=1) as probe:
        watched = probe.watch(Slow())
        for _ in range(2):
            for _batch in watched:
                clock.now += 1.0
            clock.now += 50.0
    rows = read(path).steps
    assert [row.data_time for row in rows] == pytest.approx([3.0, 0.0, 3.0, 0.0])
    assert [row.iter_time for row in rows] == pytest.approx([4.0, 1.0, 4.0, 1.0])
    assert [row.iter for row in rows] == [1, 2, 3, 4]


def test_break_does_not_affect_the_next_loop(tmp_path: Path, clock: Clock) -> None:
    path = tmp_path / "m.jsonl"
    probe = fastload.StepProbe(path, every=1)
    for _ in probe.watch(clock.loader([0.1, 0.1, 0.1])):
        with probe.stage("forward"):
            clock.now += 1.0
        if probe.iter == 1:
            break
    clock.now += 99.0
    for _ in probe.watch(clock.loader([0.1])):
        with probe.stage("forward"):
            clock.now += 2.0
    probe.close()
    rows = read(path).steps
    assert [row.iter for row in rows] == [1, 2]
    assert [row.iter_time for row in rows] == pytest.approx([1.1, 2.1])
    assert [row.stage_times["forward"] for row in rows] == pytest.approx([1.0, 2.0])


def test_event_rows_have_the_number_of_the_open_step(tmp_path: Path, clock: Clock) -> None:
    path = tmp_path / "m.jsonl"
    with fastload.StepProbe(path, every=2, start=1000) as probe:
        for _ in probe.watch(clock.loader([0.0] * 4)):
            if probe.iter == 1002:
                with probe.event("checkpoint"):
                    clock.now += 4.0
        with pytest.raises(OSError, match="full"), probe.event("evaluation"):
            clock.fail(after=2.0)
    metrics = read(path)
    assert [(row.name, row.iter, row.seconds) for row in metrics.events] == [
        ("checkpoint", 1003, 4.0),
        ("evaluation", 1004, 2.0),
    ]
    assert [row.iter for row in metrics.steps] == [1002, 1004]
    assert metrics.steps[1].slow == ((1003, 4.0, 0.0),)


def test_row_lists_the_eight_slowest_steps_in_order(tmp_path: Path, clock: Clock) -> None:
    path = tmp_path / "m.jsonl"
    with fastload.StepProbe(path, every=60) as probe:
        for number, _ in enumerate(probe.watch(clock.loader([0.0] * 60)), start=1):
            clock.now += 1.0 + (number if number % 5 == 0 else 0)
    (row,) = read(path).steps
    assert [step for step, _, _ in row.slow] == [25, 30, 35, 40, 45, 50, 55, 60]


def test_steps_before_an_exception_are_written(tmp_path: Path) -> None:
    path = tmp_path / "m.jsonl"

    def train() -> None:
        with fastload.StepProbe(path, every=10) as probe:
            for number, _ in enumerate(probe.watch([torch.zeros(2)] * 20)):
                with probe.stage("forward"):
                    _ = 1 / (15 - number)

    with pytest.raises(ZeroDivisionError):
        train()
    assert [(row.iter, row.steps) for row in read(path).steps] == [(10, 10), (15, 5)]


def test_loader_error_propagates_and_the_next_loop_works(tmp_path: Path) -> None:
    def failing() -> Iterator[int]:
        yield 1
        raise OSError("no such file")

    path = tmp_path / "m.jsonl"
    probe = fastload.StepProbe(path, every=1)
    with pytest.raises(OSError, match="no such file"):
        list(probe.watch(failing()))
    assert list(probe.watch([1, 2])) == [1, 2]
    probe.close()
    assert [row.iter for row in read(path).steps] == [1, 2, 3]


def test_garbage_collected_probe_writes_its_last_row(tmp_path: Path) -> None:
    path = tmp_path / "m.jsonl"
    for _ in fastload.StepProbe(path, every=100).watch([1, 2, 3]):
        pass
    gc.collect()
    assert [row.iter for row in read(path).steps] == [3]


def test_probe_keeps_no_reference_to_a_batch(tmp_path: Path) -> None:
    alive: list[weakref.ref[torch.Tensor]] = []

    def batches() -> Iterator[torch.Tensor]:
        for _ in range(3):
            assert all(each() is None for each in alive)
            batch = torch.zeros(5)
            alive.append(weakref.ref(batch))
            yield batch
            del batch

    with fastload.StepProbe(tmp_path / "m.jsonl") as probe:
        for batch in probe.watch(batches()):
            del batch
    assert len(alive) == 3


def test_watched_loader_has_length_and_attributes_of_the_loader(tmp_path: Path) -> None:
    loader = torch.utils.data.DataLoader(
        torch.utils.data.TensorDataset(torch.zeros(10, 3), torch.zeros(10)), batch_size=4
    )
    with fastload.StepProbe(tmp_path / "m.jsonl", every=1) as probe:
        watched = probe.watch(loader)
        assert len(watched) == 3
        assert watched.batch_size == 4
        assert watched.dataset is loader.dataset
        with pytest.raises(AttributeError):
            _ = watched.no_such_thing
        with pytest.raises(TypeError, match="generator"):
            len(probe.watch(x for x in [1]))
        for _ in range(2):
            assert sum(len(batch[0]) for batch in watched) == 10
    metrics = read(tmp_path / "m.jsonl")
    assert [row.samples for row in metrics.steps] == [4, 4, 2, 4, 4, 2]
    assert metrics.runs[0].batch_size == 4


def test_forked_process_writes_nothing(tmp_path: Path) -> None:
    path = tmp_path / "m.jsonl"
    probe = fastload.StepProbe(path, every=100)
    assert list(probe.watch([1, 2])) == [1, 2]
    child = os.fork()
    if not child:
        probe.recorder.close()
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    assert read(path).steps == ()
    probe.close()
    assert [row.iter for row in read(path).steps] == [2]


def test_rows_have_the_stage_times_of_a_fastload_loader(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fastload._tools.monitor.recorder._LOADER_STATS_S", 0.0)
    loader = fastload.DataLoader(
        str(pack_photos(tmp_path / "data", 24, vary=0)), batch_size=4, backend="reference"
    )
    list(loader)  # before the probe, so it must not enter the means
    path = tmp_path / "m.jsonl"
    before = loader.stats().stages["decode"]
    with fastload.StepProbe(path, every=6) as probe:
        for _ in probe.watch(loader):
            pass
    loader.close()
    (row,) = read(path).steps
    assert (row.samples, row.iter) == (24, 6)
    assert row.data_probe.keys() == set(DATA_PROBE)
    after = loader.stats().stages["decode"]
    expected = (after.mean * after.count - before.mean * before.count) / (
        after.count - before.count
    )
    assert row.data_probe["decode"].mean == pytest.approx(expected, rel=1e-3)
    assert row.data_probe["decode"].max >= row.data_probe["decode"].mean


RANK = """
import sys, torch, torch.distributed as dist
import fastload
rank, rendezvous, out = int(sys.argv[1]), sys.argv[2], sys.argv[3]
dist.init_process_group("gloo", init_method="file://" + rendezvous, rank=rank, world_size=2)
with fastload.StepProbe(out, every=2) as probe:
    for batch in probe.watch([torch.zeros(8, 2)] * 200):
        if probe.iter % 20 == 0:
            dist.barrier()
dist.destroy_process_group()
"""


def test_two_ranks_share_one_file(tmp_path: Path) -> None:
    path = tmp_path / "m.jsonl"
    ranks = [
        subprocess.Popen([sys.executable, "-c", RANK, str(rank), str(tmp_path / "meet"), str(path)])
        for rank in range(2)
    ]
    assert [rank.wait(600) for rank in ranks] == [0, 0]
    metrics = read(path)
    assert sorted((run.rank, run.world) for run in metrics.runs) == [(0, 2), (1, 2)]
    for rank in range(2):
        assert [row.iter for row in metrics.of_rank(rank)] == list(range(2, 201, 2))


def test_rank_in_the_file_name_is_from_torchrun(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RANK", "3")
    monkeypatch.setenv("WORLD_SIZE", "8")
    with fastload.StepProbe(tmp_path / "m-{rank}.jsonl") as probe:
        list(probe.watch([1]))
    (run,) = read(tmp_path / "m-3.jsonl").runs
    assert (run.rank, run.world) == (3, 8)


ENDLESS = """
import itertools, sys, fastload
probe = fastload.StepProbe(sys.argv[1], every=1)
for number in probe.watch(itertools.count()):
    with probe.stage("forward"):
        pass
    if number == 300:
        print("running", flush=True)
"""


def test_file_is_readable_after_kill_9(tmp_path: Path) -> None:
    path = tmp_path / "m.jsonl"
    for _ in range(3):  # each process appends to the same file
        with subprocess.Popen(
            [sys.executable, "-c", ENDLESS, str(path)], stdout=subprocess.PIPE
        ) as child:
            assert child.stdout is not None
            assert child.stdout.readline() == b"running\n"
            child.send_signal(signal.SIGKILL)
    metrics = read_metrics(path)
    assert len(metrics.runs) == 3
    assert metrics.skipped <= 3
    assert len(metrics.steps) >= 900


@pytest.mark.parametrize(
    ("batch", "count"),
    [
        (torch.zeros(7, 3, 4, 4), 7),
        ((torch.zeros(7, 3), torch.zeros(2)), 7),
        ({"id": "x", "image": torch.zeros(5, 1)}, 5),
        ([np.zeros((6, 2))], 6),
        (([torch.zeros(3, 8, 8), torch.zeros(3, 9, 7)], [{"boxes": torch.zeros(9, 4)}]), 2),
        ({"inputs": [torch.zeros(3, 8, 8)]}, 1),
        (torch.tensor(3.0), None),
        ([1, 2, 3], None),
        ("text", None),
        (None, None),
        ([], None),
        ([[[[[[torch.zeros(4)]]]]]], None),
    ],
)
def test_samples_are_counted_in_batches_of_any_structure(batch: object, count: int | None) -> None:
    assert count_samples(batch) == count


def test_user_function_counts_samples(tmp_path: Path) -> None:
    with fastload.StepProbe(tmp_path / "m.jsonl", samples=lambda batch: 6) as probe:
        list(probe.watch([1, 2]))
    assert read(tmp_path / "m.jsonl").steps[0].samples == 12


@pytest.mark.parametrize("options", [{"every": 0}, {"device": "tpu"}])
def test_invalid_arguments_are_named(options: dict[str, object]) -> None:
    with pytest.raises(ConfigError, match=next(iter(options))):
        fastload.StepProbe("m.jsonl", **options)  # type: ignore[arg-type]


def test_swap_is_counted_since_the_previous_row(
    tmp_path: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    counted = iter([1000, 5106, 5116])
    monkeypatch.setattr(recording, "swapped_bytes", lambda: next(counted))
    with fastload.StepProbe(tmp_path / "m.jsonl", every=1) as probe:
        for number, _ in enumerate(probe.watch(clock.loader([0.0] * 3))):
            # The second row follows too soon for another reading.
            clock.now += 0.01 if number == 1 else 1.0
    assert [row.swap_bytes for row in read(tmp_path / "m.jsonl").steps] == [4106, 0, 10]


def test_every_line_is_strict_json(tmp_path: Path) -> None:
    with fastload.StepProbe(tmp_path / "m.jsonl", every=1) as probe:
        list(probe.watch([1, 2]))
    for line in (tmp_path / "m.jsonl").read_text().splitlines():
        assert set(json.loads(line)) >= {"kind", "time", "rank"}


class FakeEvent:
    """A CUDA event on a GPU that has completed all work up to the time ``passed``.

    Each record() advances the GPU clock by one millisecond.
    """

    passed, time, made = 0.0, 0.0, 0

    def __init__(self, *, enable_timing: bool) -> None:
        assert enable_timing
        FakeEvent.made += 1
        self.at = 0.0

    def record(self) -> None:
        FakeEvent.time += 1.0
        self.at = FakeEvent.time

    def query(self) -> bool:
        return self.at <= FakeEvent.passed

    def elapsed_time(self, other: FakeEvent) -> float:
        assert other.query(), "elapsed_time would wait for the GPU"
        return other.at - self.at


def test_cuda_events_are_read_only_for_completed_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    from fastload._common.cuda import StageEvents

    monkeypatch.setattr(torch.cuda, "Event", FakeEvent)
    stages = StageEvents()
    for _ in range(3):  # each step has two stages of one millisecond
        for name in ("forward", "backward"):
            stages.end(name, stages.begin())
        stages.step_ended()
    FakeEvent.passed = 7.0  # in the middle of the second step
    assert stages.collect() == (1, {"forward": 0.001, "backward": 0.001})
    assert stages.collect() == (0, {})
    stages.end("forward", stages.begin())
    stages.step_dropped()  # the loop was left, so this stage belongs to no step
    FakeEvent.passed = 99.0
    assert stages.collect() == (2, {"forward": 0.002, "backward": 0.002})
    made = FakeEvent.made
    stages.end("forward", stages.begin())
    assert FakeEvent.made == made  # events are reused


def test_probe_does_not_import_torch(tmp_path: Path) -> None:
    program = (
        "import sys, fastload\nwith fastload.StepProbe(sys.argv[1]) as probe:\n    for _ in probe.watch([[1], [2]]):\n"
        "        with probe.stage('forward'): pass\nprint('torch' in sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path / "m.jsonl")],
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == "False\n"
    metrics = read(tmp_path / "m.jsonl")
    assert (metrics.runs[0].torch, metrics.steps[0].samples) == ("", None)
