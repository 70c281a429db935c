"""Access to the native core, and a status that says why it is missing and how to install it."""

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

# Not by name, because pip would search the package index.
REINSTALL = "pip install --force-reinstall --no-deps . (in a clone of fastload)"
COST = "decoding is several times slower (reference backend), and pack stores JPEGs unmodified"


@public()
@dataclass(frozen=True, slots=True)
class NativeStatus:
    """The status of the native core. ``bool(status)`` is True if it can be used.

    Examples:
        >>> print(fastload.native_status())
        native core: present (libjpeg-turbo 2.1.5, avx2)
    """

    present: bool  # the core can be used
    simd: str = ""  # "avx512", "avx2" or "portable"
    libjpeg: str = ""  # version of libjpeg-turbo that it was built with
    missing: str = ""  # why it cannot be used
    command: str = ""  # command that installs it
    built: bool = False  # a core exists, but Python did not find it

    def __bool__(self) -> bool:
        return self.present

    def __str__(self) -> str:
        if self.present:
            return f"native core: present (libjpeg-turbo {self.libjpeg}, {self.simd})"
        state = "native core: not found" if self.built else "native core: not built"
        return f"{state} ({self.missing}). To install it: {self.command}. Without it, {COST}."


@functools.cache
def core() -> ModuleType | None:
    """Returns the extension module, or None if it is not built or ``FASTLOAD_NATIVE=off``."""
    if (
        os.environ.get("FASTLOAD_NATIVE", "").lower() in ("off", "0", "no")
        or importlib.util.find_spec("fastload._core") is None
    ):
        return None
    return importlib.import_module("fastload._core")


@functools.cache
def native_status() -> NativeStatus:
    """Returns whether the native core can be used, and otherwise why not and how to install it.

    Returns:
        The status. It does not change while the process runs.

    Examples:
        >>> if not fastload.native_status():
        ...     print(fastload.native_status().command)
    """
    module = core()
    if module is not None:
        return NativeStatus(True, simd=module.simd_level(), libjpeg=module.libjpeg_turbo_version)
    if importlib.util.find_spec("fastload._core") is not None:
        return NativeStatus(
            False, missing="disabled by FASTLOAD_NATIVE", command="unset FASTLOAD_NATIVE"
        )
    clone = _source_folder()
    installed = clone and _installed_core(clone)
    if installed:
        return NativeStatus(
            False,
            missing=f"Python imported the source folder {clone}, which has no core; the package in "
            f"{installed} has one",
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
        missing = f"Python imported the source folder {clone}, which has no build of it"
    else:
        missing = "this installation of fastload was built without it"
    return NativeStatus(False, missing=missing, command=install)


def _source_folder() -> Path | None:
    """Returns the clone that this package was imported from, or None for an installed package."""
    root = Path(__file__).resolve().parents[2]
    return root if (root / "native").is_dir() and (root / "CMakeLists.txt").is_file() else None


def _installed_core(clone: Path) -> Path | None:
    """Returns the entry of ``sys.path`` with another fastload that has a core, or None."""
    for folder in map(Path, sys.path):
        for suffix in importlib.machinery.EXTENSION_SUFFIXES:
            if (folder / "fastload" / f"_core{suffix}").exists() and folder.resolve() != clone:
                return folder
    return None


@functools.cache
def warn_once_if_missing() -> None:
    """Prints one line to stderr, once per process, if the core is missing."""
    status = native_status()
    if not status and os.environ.get("FASTLOAD_QUIET") != "1":
        sys.stderr.write(f"fastload: {status}\n")


def _missing_for_build(
    include_dirs: Iterable[str] = ("/usr/include", "/usr/local/include"),
) -> tuple[str, list[str]]:
    """Returns what a build of the core lacks, as text and as Debian packages."""
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
