"""Runs the commands of docs/distributed-packing.md on a Ray cluster, in shares, on Dask and MPI."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import fastload
from fastload._cli import main
from tests.packed_datasets import pack_folder
from tests.packing import tree
from tests.ray_cluster import add_raylets, cluster

__all__ = ["cluster"]  # a fixture

PAGE = Path(__file__).resolve().parents[2] / "docs/distributed-packing.md"


def run(language: str, text: str) -> None:
    if language == "python":
        exec(compile(text, str(PAGE), "exec"), {"__name__": "page"})
        return
    for line in text.splitlines():
        assert main(shlex.split(line)[1:]) == 0, line


def blocks() -> list[tuple[str, str]]:
    return re.findall(r"```(python|sh)\n(.*?)```", PAGE.read_text(), re.S)


def test_the_page_runs(cluster: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    distributed = pytest.importorskip("distributed")
    add_raylets(cluster, 1)
    pack_folder(tmp_path, count=12)
    (tmp_path / "source").rename(tmp_path / "images")
    monkeypatch.chdir(tmp_path)
    assert main(["pack", "images", "alone"]) == 0
    expected = tree(tmp_path / "alone")
    install, ray, python, shares, slurm, dask, *_ = blocks()
    assert install[1].startswith("pip install")
    with distributed.LocalCluster(
        n_workers=1, threads_per_worker=1, dashboard_address=":0", local_directory="dask"
    ) as local:
        on_dask = dask[1].replace("scheduler:8786", local.scheduler_address)
        for number, block in enumerate((ray, python, shares, ("python", on_dask))):
            run(*block)
            assert tree(tmp_path / "shared") == expected
            (tmp_path / "shared").rename(tmp_path / f"was-{number}")
    wrapped = shlex.split(slurm[1])[-1]
    for task in range(40):
        run("sh", wrapped.replace("$SLURM_ARRAY_TASK_ID", str(task)))
    assert tree(tmp_path / "shared") == expected


def test_the_mpi_form_runs(tmp_path: Path) -> None:
    pytest.importorskip("mpi4py", reason="not run: mpi4py is not installed")
    if shutil.which("mpiexec") is None:
        pytest.skip("not run: mpiexec is not installed")
    pack_folder(tmp_path, count=12)
    (tmp_path / "source").rename(tmp_path / "images")
    fastload.pack(tmp_path / "images", tmp_path / "alone")
    *_, (_, script), (_, line) = blocks()
    (tmp_path / "pack.py").write_text(script)
    words = [sys.executable if word == "python" else word for word in shlex.split(line)]
    allowed = ("OMPI_ALLOW_RUN_AS_ROOT", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM")  # for containers
    done = subprocess.run(
        words,
        cwd=tmp_path,
        env={
            **os.environ,
            **dict.fromkeys((*allowed, "OMPI_MCA_rmaps_base_oversubscribe"), "1"),
            "PYTHONPATH": str(PAGE.parents[1]),
        },
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "Packed 12 samples" in done.stdout
    assert tree(tmp_path / "shared") == tree(tmp_path / "alone")
