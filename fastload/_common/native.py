"""The native core: is it here, and if not, what is missing and what does that cost?"""

from __future__ import annotations

import ctypes.util
import functools
import importlib
import importlib.machinery
import importlib.util
import os
import shutil
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

from fastload._common.public import public

# By name pip would look elsewhere for it.
REINSTALL = "pip install --force-reinstall --no-deps . (in a clone of fastload)"
COST = "images are decoded by the reference path, several times slower, and pack keeps JPEGs as they are"


@public()
@dataclass(frozen=True, slots=True)
class NativeStatus:
    """What is known of the native core. True if it can be used."""

    present: bool
    simd: str = ""  # "avx512", "avx2" or "portable"
    libjpeg: str = ""  # version of libjpeg-turbo it was built against
    missing: str = ""  # why it cannot be used
    command: str = ""  # what helps
    built: bool = False  # a core exists, but Python did not find it

    def __bool__(self) -> bool:
        return self.present

    def __str__(self) -> str:
        if self.present:
            return f"native core: present (libjpeg-turbo {self.libjpeg}, {self.simd})"
        state = "native core: not found" if self.built else "native core: not built"
        return f"{state} ({self.missing}); to add it: {self.command}; without it {COST}"


@functools.cache
def core() -> ModuleType | None:
    """The extension module, or None where it was not built. ``FASTLOAD_NATIVE=off`` hides it (for tests)."""
    if (
        os.environ.get("FASTLOAD_NATIVE", "").lower() in ("off", "0", "no")
        or importlib.util.find_spec("fastload._core") is None
    ):
        return None
    return importlib.import_module("fastload._core")


@functools.cache
def native_status() -> NativeStatus:
    """Whether the native core can be used; if not, what is missing and the command that helps."""
    module = core()
    if module is not None:
        return NativeStatus(True, simd=module.simd_level(), libjpeg=module.libjpeg_turbo_version)
    if importlib.util.find_spec("fastload._core") is not None:
        return NativeStatus(
            False, missing="switched off by FASTLOAD_NATIVE", command="unset FASTLOAD_NATIVE"
        )
    clone = _source_folder()
    installed = clone and _installed_core(clone)
    if installed:
        return NativeStatus(
            False,
            missing=f"Python imported the source folder {clone}, which has no core; the installed "
            f"package in {installed} has the core",
            command=f"start Python in another folder, or run pip install -e {clone}",
            built=True,
        )
    install = f"pip install -e {clone}" if clone else REINSTALL
    missing, packages = _missing_for_build()
    if missing and shutil.which("apt-get"):
        install = f"apt-get install {' '.join(packages)} && {install}"
    elif missing:
        install = f"install {missing.removeprefix('no ')}, then {install}"
    elif clone:
        missing = f"Python imported the source folder {clone}, in which it was never built"
    else:
        missing = "it was not there when fastload was built"
    return NativeStatus(False, missing=missing, command=install)


def _source_folder() -> Path | None:
    """The clone that this package was imported from; None for an installed package."""
    root = Path(__file__).resolve().parents[2]
    return root if (root / "native").is_dir() and (root / "CMakeLists.txt").is_file() else None


def _installed_core(clone: Path) -> Path | None:
    """Where on the path there is another fastload that has a core."""
    for folder in map(Path, sys.path):
        for suffix in importlib.machinery.EXTENSION_SUFFIXES:
            if (folder / "fastload" / f"_core{suffix}").exists() and folder.resolve() != clone:
                return folder
    return None


@functools.cache
def warn_once_if_missing() -> None:
    """Says in one line on stderr, once a process, that the slow path serves. Called at the first use of the loader."""
    status = native_status()
    if not status and os.environ.get("FASTLOAD_QUIET") != "1":
        sys.stderr.write(f"fastload: {status}\n")


def _missing_for_build(
    include_dirs: Iterable[str] = ("/usr/include", "/usr/local/include"),
) -> tuple[str, list[str]]:
    """What a build of the core would lack here, in words and as Debian packages."""
    wanted: list[tuple[str, str]] = []
    compiler = os.environ.get("CXX", "").split()[:1]
    if not any(
        shutil.which(name) for name in (compiler or ["c++", "g++", "clang++"])
    ) or compiler == ["false"]:
        wanted.append(("C++ compiler", "g++"))
    prefixes = [
        *include_dirs,
        *(str(Path(p) / "include") for p in (sys.prefix, os.environ.get("CONDA_PREFIX", "")) if p),
    ]
    if not any((Path(folder) / "jpeglib.h").exists() for folder in prefixes):
        wanted.append(("libjpeg-turbo headers (jpeglib.h)", "libjpeg-dev"))
    elif ctypes.util.find_library("jpeg") is None:
        wanted.append(("libjpeg library", "libjpeg-dev"))
    return ("no " + " and no ".join(what for what, _ in wanted) if wanted else ""), [
        package for _, package in wanted
    ]
