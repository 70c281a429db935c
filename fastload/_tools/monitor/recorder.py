"""Gathers steps and writes a row of metrics.jsonl for every few of them; figures of a fastload loader since the row before."""

from __future__ import annotations

import os
import platform
import socket
import statistics
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

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
from fastload._tools.monitor.clocks import (
    HostStages,
    StageClock,
    clock,
    cuda_in_use,
    swapped_bytes,
    torch_here,
)
from fastload._tools.monitor.metrics_file import LineFile
from fastload._version import __version__
from fastload.errors import ConfigError

if TYPE_CHECKING:
    from fastload._load.loader import DataLoader

_SLOW = 2.0  # times the running median
_MOST_SLOW = 8  # such steps in a row
_REMEMBERED = 128  # steps of the running median
_SWAP_S = 0.25  # /proc/vmstat costs 80 us: not oftener than this


class Recorder:
    """What StepProbe and the callbacks report to; used by the training thread only.

    A step goes from the moment its batch is asked for (``mark``) to the moment the next one is.
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
            raise ConfigError(f"StepProbe(every={every}): expected 1 or more steps a row")
        if device not in ("auto", "cpu", "cuda"):
            raise ConfigError(f"StepProbe(device={device!r:.40}): expected 'auto', 'cpu' or 'cuda'")
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
        self.marked = clock()  # when the next batch was last requested
        self._since: float | None = None  # when the open step's batch was asked for
        self._wait = 0.0
        self._samples: int | None = None
        self._steps: list[tuple[float, float, int | None]] = []  # iter_time, data_time, samples
        self._recent: deque[float] = deque(maxlen=_REMEMBERED)
        self._swap = swapped_bytes()
        self._swap_read = clock()

    @property
    def number(self) -> int:
        """The step that is going on; between steps the last one."""
        return self.done + (self._since is not None)

    def mark(self) -> None:
        """Here a step may end: the next batch is being asked for."""
        self.marked = clock()

    def request(self) -> None:
        """Here a step ends: the next batch is being asked for."""
        self.marked = clock()
        if self._since is not None:
            self.end()

    def arrived(self, batch: object, *, samples: int | None = None) -> None:
        """The batch is here; a step begins, and the one before ended with the last mark."""
        now = clock()
        if self._since is not None:
            self.end()
        self._wait = now - self.marked
        self._samples = self._samples_of(batch) if samples is None else samples
        if self._file is None:
            self._open()
        self._since = self.marked

    def end(self) -> None:
        """The open step ended with the last mark."""
        if self._since is None:
            return
        self._steps.append((self.marked - self._since, self._wait, self._samples))
        self._since = None
        self.done += 1
        self.stages.step_ended()
        if len(self._steps) >= self._every:
            self.flush()

    def drop(self) -> None:
        """The open step, if any, is not going to end: the loop was left."""
        if self._since is not None:
            self._since = None
            self.stages.step_dropped()

    def event(self, name: str, seconds: float) -> None:
        """Writes an event row at once."""
        file = self._file or self._open()
        file.append(EventRow(time.time(), self._rank, self.number, name, seconds))

    def flush(self) -> None:
        """Writes the row of the steps gathered so far."""
        steps, self._steps = self._steps, []
        if not steps:
            return
        file = self._file or self._open()
        file.append(self._row(steps))
        if self._device == "auto" and isinstance(self.stages, HostStages) and cuda_in_use():
            self._use_cuda()

    def close(self) -> None:
        """Writes what is left. A forked child's copy writes nothing."""
        if os.getpid() == self._pid:
            self.drop()
            self.flush()
        if self._file is not None:
            self._file.close()

    def _row(self, steps: list[tuple[float, float, int | None]]) -> StepRow:
        took, waits, samples = zip(*steps, strict=True)
        n_steps = len(steps)
        seconds = sum(took)
        total = None if None in samples else sum(samples)
        timed, stages = self.stages.collect()
        return StepRow(
            time.time(),
            self._rank,
            self.done,
            n_steps,
            data_time=sum(waits) / n_steps,
            data_time_max=max(waits),
            iter_time=seconds / n_steps,
            iter_time_max=max(took),
            stage_times={name: each / timed for name, each in stages.items()},
            data_probe=self.loader.since_last(),
            samples=total,
            samples_per_s=total / seconds if total is not None and seconds > 0 else None,
            gpu_mem_mb=_gpu_mem_mb(),
            swap_bytes=self._swapped(),
            slow=self._slow(steps),
        )

    def _slow(self, steps: list[tuple[float, float, int | None]]) -> tuple[SlowStep, ...]:
        """The slowest of those that took more than twice the running median, which a few stalls do not move."""
        self._recent.extend(step[0] for step in steps)
        limit = _SLOW * statistics.median(self._recent)
        first = self.done - len(steps) + 1
        slow = [
            SlowStep(first + place, took, wait)
            for place, (took, wait, _) in enumerate(steps)
            if took > limit
        ]
        slowest = sorted(slow, key=lambda each: (-each.iter_time, -each.iter))[:_MOST_SLOW]
        return tuple(sorted(slowest))

    def _swapped(self) -> int | None:
        if self._swap is None:
            return None
        now = clock()
        if now - self._swap_read < _SWAP_S:
            return 0  # the next row has it
        before, self._swap, self._swap_read = self._swap, swapped_bytes(), now
        return sum(self._swap) - sum(before) if self._swap is not None else None

    def _open(self) -> LineFile:
        """Opens the file when the first row is due: by then torch.distributed knows the rank."""
        self._rank, world = rank_and_world()
        self._file = LineFile(Path(self._out.replace("{rank}", str(self._rank))))
        if self._device == "cuda" or (self._device == "auto" and cuda_in_use()):
            self._use_cuda()
        torch = torch_here()
        device, gpu = _gpu() or ("cpu", None)
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


def rank_and_world() -> tuple[int, int]:
    """torch.distributed's where it is initialized, else torchrun's, else (0, 1)."""
    torch = torch_here()
    if (
        torch is not None
        and torch.distributed.is_available()
        and torch.distributed.is_initialized()
    ):
        return int(torch.distributed.get_rank()), int(torch.distributed.get_world_size())
    rank, world = os.environ.get("RANK", ""), os.environ.get("WORLD_SIZE", "")
    return (int(rank), int(world)) if rank.isdecimal() and world.isdecimal() else (0, 1)


def _gpu() -> tuple[str, str] | None:
    if not cuda_in_use():
        return None
    from fastload._common.cuda import device_and_name

    return device_and_name()


def _gpu_mem_mb() -> float | None:
    if not cuda_in_use():
        return None
    from fastload._common.cuda import allocated_mb

    return allocated_mb()


_AT_MOST_EVERY_S = 0.25  # a snapshot costs 160 us


class LoaderDeltas:
    """Means since the last row, and the largest times so far, of a fastload loader; nothing for other loaders."""

    def __init__(self) -> None:
        self._loader: DataLoader | None = None
        self._before: dict[str, StageStats] = {}
        self._taken = 0.0

    def track(self, loader: object) -> None:
        """From now on this loader. One that is no fastload loader has no such figures."""
        found = _fastload_loader(loader)
        if found is not self._loader:
            self._loader = found
            self._before = found.stats().stages if found is not None else {}

    def since_last(self) -> dict[str, Span]:
        """By stage; empty where nothing was loaded, or too short a time ago."""
        now = clock()
        if self._loader is None or now - self._taken < _AT_MOST_EVERY_S:
            return {}
        stages = self._loader.stats().stages
        before = self._before
        self._before = stages
        self._taken = now
        found = {}
        for name in DATA_PROBE:
            count = stages[name].count
            seconds = stages[name].mean * count
            # Fewer than before: the loader's figures have been reset.
            if name in before and before[name].count <= count:
                count -= before[name].count
                seconds -= before[name].mean * before[name].count
            if count:
                found[name] = Span(max(seconds, 0.0) / count, stages[name].max)
        return found


def _fastload_loader(loader: object) -> DataLoader | None:
    """The loader, if it is ours. Nothing is imported for other iterables: ours is always one of torch's loaders."""
    torch = torch_here()
    if torch is None or not isinstance(loader, torch.utils.data.DataLoader):
        return None
    from fastload._load.loader import DataLoader

    return loader if isinstance(loader, DataLoader) else None
