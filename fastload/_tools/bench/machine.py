"""The machine and the versions that a figure was measured with, for every table and JSON file."""

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
    """Versions of Python, fastload, its native core, torch, NumPy, lmdb and ``packages``."""
    return {
        "python": platform.python_version(),
        "fastload": __version__,
        "core": str(native_status()),
        **{name: package_version(name) for name in ("torch", "numpy", "lmdb", *packages)},
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
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith(("model name", "Model")):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


def busy_with_others() -> float:
    """The load average of the last minute."""
    return os.getloadavg()[0]
