"""fastload works without the native core and reports once what is missing."""

from __future__ import annotations

import importlib.machinery
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from fastload._common import native


def python(program: str, **env: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        check=True,
        cwd="/",  # the installed package, not the source folder of this clone
        env={**os.environ, **env},
    )


def test_hidden_core_is_reported_and_the_header_is_still_read() -> None:
    program = (
        "import fastload\nfrom fastload._store.jpeg_header import read_header\nassert not fastload.native_status()\n"
        "print(fastload.native_status())\n"
        "try: read_header(b'no jpeg')\nexcept fastload.BadImage as error: print(error)"
    )
    lines = python(program, FASTLOAD_NATIVE="off").stdout.splitlines()
    assert lines[0].startswith("native core: not built (")
    assert native.COST in lines[0]
    assert lines[1] == "image: not a JPEG: it does not start with FF D8"


def test_the_warning_is_printed_once_and_can_be_silenced() -> None:
    program = "from fastload._common.native import warn_once_if_missing as warn\nfor _ in range(3): warn()"
    result = python(program, FASTLOAD_NATIVE="off")
    assert result.stdout == ""
    assert len(result.stderr.splitlines()) == 1
    assert result.stderr.startswith("fastload: native core: not built")
    assert python(program, FASTLOAD_NATIVE="off", FASTLOAD_QUIET="1").stderr == ""


def test_a_present_core_prints_no_warning() -> None:
    if native.core() is None:
        pytest.skip("not run: no native core")
    assert (
        python("from fastload._common.native import warn_once_if_missing as warn; warn()").stderr
        == ""
    )


def test_missing_build_dependencies_are_named_with_their_packages(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.delenv("CONDA_PREFIX", raising=False)
    what, packages = native._missing_for_build(include_dirs=[str(tmp_path)])
    assert what == "no C++ compiler and no libjpeg-turbo headers (jpeglib.h)"
    assert packages == ["g++", "libjpeg-dev"]


def python_in_clone(tmp_path: Path, *, installed: bool) -> str:
    """Returns ``fastload.native_status()`` in a clone without a build."""
    clone = tmp_path / "clone"
    source = Path(native.__file__).parents[1]
    shutil.copytree(source, clone / "fastload", ignore=shutil.ignore_patterns("_core*", "*.pyc"))
    (clone / "native").mkdir()
    (clone / "CMakeLists.txt").write_text("")
    (clone / "pyproject.toml").write_text("")
    site = tmp_path / "site"
    (site / "fastload").mkdir(parents=True)
    if installed:
        (site / "fastload" / f"_core{importlib.machinery.EXTENSION_SUFFIXES[0]}").write_bytes(b"")
    ended = subprocess.run(
        # -S: without the site-packages of this test run
        [sys.executable, "-S", "-c", "import fastload; print(fastload.native_status())"],
        cwd=clone,
        env={**os.environ, "PYTHONPATH": str(site)},
        capture_output=True,
        text=True,
        check=True,
    )
    return ended.stdout.strip()


def test_a_clone_that_hides_the_installed_package_is_named(tmp_path: Path) -> None:
    said = python_in_clone(tmp_path, installed=True)
    assert said.startswith(
        f"native core: not found (Python imported the source folder {tmp_path / 'clone'}"
    )
    assert f"the package in {tmp_path / 'site'} has one" in said
    assert "start Python in another folder" in said
    assert f"pip install -e {tmp_path / 'clone'}" in said
    assert native.REINSTALL not in said


def test_a_clone_without_an_installed_package_is_named(tmp_path: Path) -> None:
    said = python_in_clone(tmp_path, installed=False)
    assert f"the source folder {tmp_path / 'clone'}" in said
    assert f"pip install -e {tmp_path / 'clone'}" in said
    assert native.REINSTALL not in said
    assert "the installed package" not in said
