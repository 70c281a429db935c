"""What a figure was measured on; it stands in every table and every JSON file."""

from __future__ import annotations

import os
import platform
import subprocess
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from fastload._common.cpus import available_cpus
from fastload._common.native import native_status
from fastload._version import __version__


def machine() -> dict[str, str]:
    """Processor, memory, system, GPU, load by others."""
    found = {
        "processor": processor(),
        "cpus": str(available_cpus()),
        "memory": _memory(),
        "load": " ".join(f"{x:.1f}" for x in os.getloadavg()),
        "system": f"{platform.system()} {platform.release()}",
    }
    gpu = _gpu()
    return {**found, "gpu": gpu} if gpu else found


def versions(*packages: str) -> dict[str, str]:
    """Of Python, fastload, its core, and the packages named."""
    named = {name: package_version(name) for name in ("torch", "numpy", "lmdb", *packages)}
    return {
        "python": platform.python_version(),
        "fastload": __version__,
        "core": str(native_status()),
        **named,
    }


def package_version(name: str) -> str:
    """As installed, or 'not installed'."""
    try:
        return version(name)
    except PackageNotFoundError:
        return "not installed"


def commit(folder: Path) -> str:
    """The commit that ``folder`` is at, with a + where files differ from it; '' outside of git."""

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
    """The commit of fastload's own checkout; '' where it is installed."""
    root = Path(__file__).resolve().parents[3]
    return commit(root) if (root / "benchmarks").is_dir() else ""


def in_one_line(found: dict[str, str]) -> str:
    """For the line above a table."""
    return ", ".join(f"{name} {value}" for name, value in found.items())


def processor() -> str:
    """Its name, as the system has it."""
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith(("model name", "Model")):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


def busy_with_others() -> float:
    """Processes that want a processor now, as the last minute had it."""
    return os.getloadavg()[0]


def _memory() -> str:
    import psutil

    return f"{psutil.virtual_memory().total / 2**30:.0f} GiB"


def _gpu() -> str:
    import torch

    if not torch.cuda.is_available():
        return ""
    from fastload._common.cuda import all_names

    return all_names()
