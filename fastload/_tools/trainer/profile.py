"""One step under torch's profiler: compiled regions, and kernels on the GPU."""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from torch.autograd import DeviceType  # type: ignore[attr-defined]
from torch.profiler import ProfilerActivity, profile

from fastload._tools.trainer.facts import Facts


def profile_step(facts: Facts, step: Callable[[], object]) -> None:
    """Fills in what only the profiler sees. A profiler that is in use already (the user's own) is left alone, and that is told."""
    activities = [ProfilerActivity.CPU] + [ProfilerActivity.CUDA] * (facts.device == "cuda")
    profiler: Any = profile(activities=activities)
    try:
        with _without_chatter():
            profiler.__enter__()
    except RuntimeError as error:
        facts.failed = str(error).splitlines()[0]
        step()
        return
    try:
        step()
    finally:
        with _without_chatter():
            profiler.__exit__(None, None, None)
    for event in profiler.events() or ():
        if event.name.startswith("Torch-Compiled Region"):
            facts.compiled_regions += 1
        if event.device_type == DeviceType.CUDA:
            facts.kernels += 1
            facts.kernel_s += event.time_range.elapsed_us() / 1e6


@contextmanager
def _without_chatter() -> Iterator[None]:
    """Holds stderr back while the profiler starts or stops, and lets all through but the lines torch 2.13 writes there itself ("USDT:")."""
    sys.stderr.flush()
    with tempfile.TemporaryFile() as held:
        kept = os.dup(2)
        os.dup2(held.fileno(), 2)
        try:
            yield
        finally:
            os.dup2(kept, 2)
            os.close(kept)
            held.seek(0)
            lines = [
                line
                for line in held.read().splitlines(keepends=True)
                if not line.startswith(b"USDT:")
            ]
            os.write(2, b"".join(lines))
