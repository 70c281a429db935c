"""How a figure is measured (interleaved rounds, medians and quartiles), and on which machine."""

from __future__ import annotations

import os
import platform
import statistics
import subprocess
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import NamedTuple, TypeVar

from fastload._common.cpus import available_cpus
from fastload._common.native import native_status
from fastload._version import __version__

Key = TypeVar("Key")
Tick = Callable[[int, int], None]  # called with the measurements done and their total


def ignored(done: int, total: int) -> None:
    """A ``Tick`` that shows nothing."""


@dataclass(frozen=True, slots=True)
class Spread:
    """Median and quartiles of ``n`` rounds."""

    low: float
    middle: float
    high: float
    n: int

    def __str__(self) -> str:
        return f"{number(self.middle)} [{number(self.low)}-{number(self.high)}]"

    def as_json(self) -> dict[str, float]:
        return {"median": self.middle, "low": self.low, "high": self.high, "n": self.n}


def spread(values: Sequence[float]) -> Spread:
    """Summarizes one or more values."""
    if len(values) < 2:
        return Spread(values[0], values[0], values[0], len(values))
    low, middle, high = statistics.quantiles(values, n=4, method="inclusive")
    return Spread(low, middle, high, len(values))


def number(value: float) -> str:
    """Three significant digits: 12,345 / 123 / 12.3 / 1.23."""
    size = abs(value)
    if size >= 99.95:
        return f"{value:,.0f}"
    if size >= 9.995:
        return f"{value:.1f}"
    return f"{value:.2f}" if size >= 0.0995 else f"{value:.3g}"


def part(one: float, other: float) -> str:
    """Returns ``one`` divided by ``other``.

    CPU time has a resolution of 10 ms, so it can be zero in a short run.
    """
    return f"{one / other:.2f}" if other else "(run too short to measure)"


class Pass(NamedTuple):
    """One measured stretch of work."""

    wall_s: float
    cpu_s: float
    n: int  # images


def run_rounds(
    contestants: Mapping[Key, Callable[[], int]],
    *,
    rounds: int,
    seconds: float,
    tick: Tick = ignored,
) -> dict[Key, list[Pass]]:
    """Runs candidates in turn, so that a slow minute of the machine affects all of them.

    Each candidate does its work once per call and returns the number of images. The first round is
    a warm-up and is not counted. A pass takes at least ``seconds``.
    """
    found: dict[Key, list[Pass]] = {key: [] for key in contestants}
    done = 0
    for turn in range(rounds + 1):
        for key in alternating(contestants, turn):
            measured = timed(contestants[key], at_least_s=seconds if turn else 0.0)
            if turn:
                found[key].append(measured)
            done += 1
            tick(done, (rounds + 1) * len(contestants))
    return found


def alternating(keys: Iterable[Key], turn: int) -> list[Key]:
    """Reverses the order in every second round, so that the neighbors of a candidate change."""
    listed = list(keys)
    return listed if turn % 2 == 0 else listed[::-1]


def timed(run: Callable[[], int], *, at_least_s: float = 0.0) -> Pass:
    """Repeats ``run`` until ``at_least_s`` seconds have passed."""
    wall = time.perf_counter()
    cpu = time.process_time()
    n = 0
    while True:
        n += run()
        if time.perf_counter() - wall >= at_least_s:
            return Pass(time.perf_counter() - wall, time.process_time() - cpu, n)


def thread_counts(cpus: int) -> list[int]:
    """Powers of two below ``cpus``, and ``cpus`` itself."""
    return [*(1 << power for power in range((cpus - 1).bit_length())), cpus]


def machine() -> dict[str, str]:
    """CPU, memory, load average, operating system and GPU."""
    import psutil
    import torch

    from fastload._common.cuda import all_names

    found = {
        "processor": processor(),
        "cpus": str(available_cpus()),
        "memory": f"{psutil.virtual_memory().total / 2**30:.0f} GiB",
        "load": " ".join(f"{x:.1f}" for x in os.getloadavg()),
        "system": f"{platform.system()} {platform.release()}",
    }
    return {**found, "gpu": all_names()} if torch.cuda.is_available() else found


def versions(*packages: str) -> dict[str, str]:
    """Versions of Python, fastload, its native core, torch, NumPy and ``packages``."""
    return {
        "python": platform.python_version(),
        "fastload": __version__,
        "core": str(native_status()),
        **{name: package_version(name) for name in ("torch", "numpy", *packages)},
    }


def package_version(name: str) -> str:
    """The installed version, or 'not installed'."""
    try:
        return version(name)
    except PackageNotFoundError:
        return "not installed"


def commit(folder: Path) -> str:
    """The commit that is checked out in ``folder``, with a + if files differ; '' outside of git."""

    def git(*arguments: str) -> str:
        result = subprocess.run(  # noqa: S603
            ["git", "-C", str(folder), *arguments],  # noqa: S607
            capture_output=True,
            text=True,
            check=False,
        )
        return result.stdout.strip() if result.returncode == 0 else ""

    try:
        name = git("rev-parse", "--short=12", "HEAD")
        return name + ("+" if name and git("status", "--porcelain", "--untracked-files=no") else "")
    except FileNotFoundError:
        return ""


def own_commit() -> str:
    """The commit of the fastload checkout; '' if fastload is installed from a wheel."""
    root = Path(__file__).resolve().parents[3]
    return commit(root) if (root / "benchmarks").is_dir() else ""


def in_one_line(found: dict[str, str]) -> str:
    return ", ".join(f"{name} {value}" for name, value in found.items())


def processor() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith(("model name", "Model")):
            return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()
