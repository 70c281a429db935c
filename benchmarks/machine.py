"""The machine and the versions that a figure was measured with, for every table and JSON file."""

from __future__ import annotations

import os
import platform
import statistics
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import numpy as np

from fastload import __version__, native_status
from fastload._common.cpus import available_cpus


def describe(*packages: str) -> dict[str, str]:
    """CPU, operating system, versions and load average."""
    return {
        "processor": _processor(),
        "cpus": str(available_cpus()),
        "load": " ".join(f"{x:.1f}" for x in os.getloadavg()),
        "system": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
        "numpy": np.__version__,
        "fastload": __version__,
        "core": str(native_status()),
        **{name: _version(name) for name in packages},
    }


def describe_machine(*packages: str) -> str:
    """``describe`` in one line."""
    return ", ".join(f"{name} {value}" for name, value in describe(*packages).items())


def spread(values: Sequence[float]) -> str:
    """Median and quartiles as text."""
    low, middle, high = quartiles(values)
    return f"{middle:.2f} [{low:.2f}-{high:.2f}]"


def quartiles(values: Sequence[float]) -> tuple[float, float, float]:
    """Lower quartile, median, upper quartile."""
    if len(values) < 2:
        return values[0], values[0], values[0]
    low, middle, high = statistics.quantiles(values, n=4, method="inclusive")
    return low, middle, high


def photo_paths() -> list[Path]:
    """The photographs of the corpus in $FASTLOAD_CORPUS or ../shared/corpus."""
    folder = (
        Path(
            os.environ.get(
                "FASTLOAD_CORPUS", Path(__file__).resolve().parents[2] / "shared" / "corpus"
            )
        )
        / "photos"
    )
    paths = sorted(path for path in folder.glob("*") if path.is_file())
    if not paths:
        raise SystemExit(
            f"no photographs in {folder}: set FASTLOAD_CORPUS to a folder with a photos/ subfolder"
        )
    return paths


def _processor() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith(("model name", "Model")):
            return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return "not installed"
