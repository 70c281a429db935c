"""Collects training steps and writes one row of metrics.jsonl for every few of them."""

from __future__ import annotations

import os
import platform
import socket
import statistics
import sys
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, NamedTuple, Protocol

import psutil

from fastload._common.metrics import (
    DATA_PROBE,
    EventRow,
    RunRow,
    SlowStep,
    Span,
    StageStats,
    StepRow,
)
from fastload._tools.monitor.batches import count_samples
from fastload._tools.monitor.metrics_file import LineFile
from fastload._version import __version__
from fastload.errors import ConfigError

if TYPE_CHECKING:
    from fastload._load.loader import DataLoader


clock = time.perf_counter
_SLOW = 2.0  # a step is slow above this multiple of the running median
_MAX_SLOW = 8  # slow steps per row
_MEDIAN_STEPS = 128  # steps in the running median
# Reading the swap counters costs 60 us and loader statistics cost 160 us, so both are rate-limited.
_SWAP_S = 0.25
_LOADER_STATS_S = 0.25


class StageClock(Protocol):
    """Sums the stage times of each step and returns the sums of completed steps."""

    def begin(self) -> object:
        """Starts a stage and returns a token for ``end``."""

    def end(self, name: str, begun: object, /) -> None:
        """Ends the stage that ``begin`` started."""

    def step_ended(self) -> None:
        """Assigns the stages since the previous step to the step that just ended."""

    def step_dropped(self) -> None:
        """Discards the stages since the previous step, because the loop was left early."""

    def collect(self) -> tuple[int, dict[str, float]]:
        """Returns (steps, total seconds by stage) since the previous call.

        A GPU reports its latest steps in a later call.
        """


class HostStages:
    """Stage times by the CPU clock."""

    def __init__(self) -> None:
        self._steps = 0
        self._totals: dict[str, float] = {}
        self._open: dict[str, float] = {}

    def begin(self) -> object:
        return clock()

    def end(self, name: str, begun: object, /) -> None:
        if isinstance(begun, float):
            self._open[name] = self._open.get(name, 0.0) + clock() - begun

    def step_ended(self) -> None:
        self._steps += 1
        for name, seconds in self._open.items():
            self._totals[name] = self._totals.get(name, 0.0) + seconds
        self._open.clear()

    def step_dropped(self) -> None:
        self._open.clear()

    def collect(self) -> tuple[int, dict[str, float]]:
        collected = self._steps, self._totals
        self._steps = 0
        self._totals = {}
        return collected


def imported_torch() -> ModuleType | None:
    """Returns torch if the program has imported it. The probe never imports it."""
    return sys.modules.get("torch")


def cuda_in_use() -> ModuleType | None:
    """Returns ``fastload._common.cuda`` if the program has initialized CUDA, else None.

    It neither imports torch nor initializes CUDA.
    """
    if imported_torch() is None:
        return None
    from fastload._common import cuda

    return cuda if cuda.in_use() else None


def swapped_bytes() -> int:
    """Returns the bytes swapped in and out since boot."""
    swap = psutil.swap_memory()
    return int(swap.sin + swap.sout)


class _Step(NamedTuple):
    iter_time: float
    data_time: float
    samples: int | None


class Recorder:
    """Receives the events of a training loop, from the training thread only.

    A step lasts from the request for its batch (``mark``) to the request for the next one.
    """

    def __init__(
        self,
        out: str,
        *,
        every: int,
        start: int,
        device: str,
        samples: Callable[[object], int | None] | None,
    ) -> None:
        if every < 1:
            raise ConfigError(f"StepProbe: every={every}: expected 1 or more")
        if device not in ("auto", "cpu", "cuda"):
            raise ConfigError(f"StepProbe: device={device!r:.40}: expected 'auto', 'cpu' or 'cuda'")
        self.done = start
        self.stages: StageClock = HostStages()
        self.loader = LoaderDeltas()
        self._out = out
        self._every = every
        self._device = device
        self._samples_of = samples or count_samples
        self._file: LineFile | None = None
        self._pid = os.getpid()
        self._rank = 0
        self.marked = clock()  # time of the latest request for a batch
        self._since: float | None = None  # when the batch of the open step was requested
        self._wait = 0.0
        self._samples: int | None = None
        self._steps: list[_Step] = []
        self._stages: dict[str, Stage] = {}
        self._recent: deque[float] = deque(maxlen=_MEDIAN_STEPS)
        self._swap = swapped_bytes()
        self._swap_read = clock()

    @property
    def number(self) -> int:
        """Number of the open step, or of the last step if none is open."""
        return self.done + (self._since is not None)

    def mark(self) -> None:
        """Records that the next batch is requested now. The open step may end here."""
        self.marked = clock()

    def request(self) -> None:
        """Records that the next batch is requested now, which ends the open step."""
        self.mark()
        self.end()

    def arrived(self, batch: object, *, samples: int | None = None) -> None:
        """Starts a step. An open step ends at the last mark."""
        now = clock()
        self.end()
        self._wait = now - self.marked
        self._samples = self._samples_of(batch) if samples is None else samples
        if self._file is None:
            self._open()
        self._since = self.marked

    def end(self) -> None:
        """Ends the open step, if there is one, at the last mark."""
        if self._since is None:
            return
        self._steps.append(_Step(self.marked - self._since, self._wait, self._samples))
        self._since = None
        self.done += 1
        self.stages.step_ended()
        if len(self._steps) >= self._every:
            self.flush()

    def drop(self) -> None:
        """Discards the open step because the loop was left early."""
        if self._since is not None:
            self._since = None
            self.stages.step_dropped()

    def event(self, name: str, seconds: float) -> None:
        """Writes an event row immediately."""
        file = self._file or self._open()
        file.append(EventRow(time.time(), self._rank, self.number, name, seconds))

    def stage(self, name: str) -> Stage:
        """Returns the context that times stage ``name``. It is created once."""
        return self._stages.setdefault(name, Stage(name, self))

    def flush(self) -> None:
        """Writes a row for the steps since the previous row."""
        steps, self._steps = self._steps, []
        if not steps:
            return
        file = self._file or self._open()
        file.append(self._row(steps))
        if self._device == "auto" and isinstance(self.stages, HostStages) and cuda_in_use():
            self._use_cuda()

    def close(self) -> None:
        """Writes the last row. In a forked child it writes nothing."""
        if os.getpid() == self._pid:
            self.drop()
            self.flush()
        if self._file is not None:
            self._file.close()

    def _row(self, steps: list[_Step]) -> StepRow:
        times, waits, samples = zip(*steps, strict=True)
        n_steps = len(steps)
        seconds = sum(times)
        total = None if None in samples else sum(samples)
        n_timed, stages = self.stages.collect()
        cuda = cuda_in_use()
        return StepRow(
            time.time(),
            self._rank,
            self.done,
            n_steps,
            data_time=sum(waits) / n_steps,
            data_time_max=max(waits),
            iter_time=seconds / n_steps,
            iter_time_max=max(times),
            stage_times={name: total_s / n_timed for name, total_s in stages.items()},
            data_probe=self.loader.since_last(),
            samples=total,
            samples_per_s=total / seconds if total is not None and seconds > 0 else None,
            gpu_mem_mb=cuda.allocated_mb() if cuda is not None else None,
            swap_bytes=self._swapped(),
            slow=self._slow(steps),
        )

    def _slow(self, steps: list[_Step]) -> tuple[SlowStep, ...]:
        """Returns the slowest steps above twice the running median."""
        self._recent.extend(step.iter_time for step in steps)
        limit = _SLOW * statistics.median(self._recent)
        first = self.done - len(steps) + 1
        slow = [
            SlowStep(number, step.iter_time, step.data_time)
            for number, step in enumerate(steps, start=first)
            if step.iter_time > limit
        ]
        slowest = sorted(slow, key=lambda each: (-each.iter_time, -each.iter))[:_MAX_SLOW]
        return tuple(sorted(slowest))

    def _swapped(self) -> int:
        """Returns the bytes swapped since the previous reading, or 0 if it is too recent."""
        if clock() - self._swap_read < _SWAP_S:
            return 0
        before, self._swap = self._swap, swapped_bytes()
        self._swap_read = clock()
        return self._swap - before

    def _open(self) -> LineFile:
        """Opens the file for the first row, when torch.distributed is initialized."""
        self._rank, world = rank_and_world()
        self._file = LineFile(Path(self._out.replace("{rank}", str(self._rank))))
        cuda = cuda_in_use()
        if self._device == "cuda" or (self._device == "auto" and cuda is not None):
            self._use_cuda()
        torch = imported_torch()
        device, gpu = cuda.device_and_name() if cuda is not None else ("cpu", None)
        self._file.append(
            RunRow(
                time.time(),
                self._rank,
                world,
                socket.gethostname(),
                self._pid,
                platform.python_version(),
                str(torch.__version__) if torch is not None else "",
                __version__,
                device,
                gpu,
                self._samples,
            )
        )
        return self._file

    def _use_cuda(self) -> None:
        from fastload._common.cuda import StageEvents

        self.stages = StageEvents()


class Stage:
    """A context that times one stage of a step. It is created once per name and reused."""

    __slots__ = ("_begun", "_name", "_recorder")

    def __init__(self, name: str, recorder: Recorder) -> None:
        self._name = name
        self._recorder = recorder
        self._begun: object = None

    def __enter__(self) -> None:
        self._begun = self._recorder.stages.begin()

    def __exit__(self, *_: object) -> None:
        begun, self._begun = self._begun, None
        if begun is not None:
            self._recorder.stages.end(self._name, begun)


def rank_and_world() -> tuple[int, int]:
    """Returns rank and world size from torch.distributed, else from torchrun, else (0, 1)."""
    torch = imported_torch()
    if (
        torch is not None
        and torch.distributed.is_available()
        and torch.distributed.is_initialized()
    ):
        return int(torch.distributed.get_rank()), int(torch.distributed.get_world_size())
    rank, world = os.environ.get("RANK", ""), os.environ.get("WORLD_SIZE", "")
    return (int(rank), int(world)) if rank.isdecimal() and world.isdecimal() else (0, 1)


class LoaderDeltas:
    """Stage times of a fastload loader since the previous row. Other loaders have none."""

    def __init__(self) -> None:
        self._loader: DataLoader | None = None
        self._before: dict[str, StageStats] = {}
        self._read_at = 0.0

    def track(self, loader: object) -> None:
        """Starts to measure ``loader``, if it is a fastload loader."""
        found = _as_fastload_loader(loader)
        if found is not self._loader:
            self._loader = found
            self._before = found.stats().stages if found is not None else {}

    def since_last(self) -> dict[str, Span]:
        """Returns the stage times. Empty if nothing was loaded or the last call is too recent."""
        now = clock()
        if self._loader is None or now - self._read_at < _LOADER_STATS_S:
            return {}
        stages = self._loader.stats().stages
        before = self._before
        self._before = stages
        self._read_at = now
        spans = {}
        for name in DATA_PROBE:
            count = stages[name].count
            seconds = stages[name].mean * count
            # A smaller count than before means that the loader's statistics were reset.
            if name in before and before[name].count <= count:
                count -= before[name].count
                seconds -= before[name].mean * before[name].count
            if count:
                spans[name] = Span(max(seconds, 0.0) / count, stages[name].max)
        return spans


def _as_fastload_loader(loader: object) -> DataLoader | None:
    """Returns ``loader`` if it is a fastload loader, and imports fastload's only if it may be one.

    A fastload loader is always a subclass of torch's.
    """
    torch = imported_torch()
    if torch is None or not isinstance(loader, torch.utils.data.DataLoader):
        return None
    from fastload._load.loader import DataLoader

    return loader if isinstance(loader, DataLoader) else None
