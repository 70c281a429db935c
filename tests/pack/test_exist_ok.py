"""``exist_ok=True``: a hook that every rank calls packs once."""

from __future__ import annotations

import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

import fastload
from fastload._pack.state import PackState
from fastload.errors import ConfigError
from tests.packing import class_folders, tree


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return class_folders(tmp_path_factory.mktemp("source") / "images", per_class=20)


def test_an_equal_dataset_is_returned_and_another_one_refused(tmp_path: Path, root: Path) -> None:
    dest = tmp_path / "packed"
    first = fastload.pack(root, dest, exist_ok=True)
    packed = tree(dest)
    dest.chmod(0o555)  # a finished dataset may be read-only
    again = fastload.pack(root, dest, exist_ok=True)
    dest.chmod(0o755)
    assert (again.n_samples, again.n_shards) == (first.n_samples, first.n_shards) == (60, 1)
    assert again.notes == ("the dataset was packed before",)
    with pytest.raises(ConfigError, match=r"with other options\. Remove it"):
        fastload.pack(root, dest, exist_ok=True, seed=4)
    with pytest.raises(ConfigError, match=r"a finished dataset\. Remove it"):
        fastload.pack(root, dest)
    assert tree(dest) == packed


def test_an_unfinished_pack_is_continued(tmp_path: Path, root: Path) -> None:
    def stop(progress: fastload.PackProgress) -> None:
        if progress.done == 30:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fastload.pack(root, tmp_path, on_progress=stop)
    assert fastload.pack(root, tmp_path, exist_ok=True).n_samples == 60


def test_it_waits_for_the_process_that_packs(tmp_path: Path, root: Path) -> None:
    with ThreadPoolExecutor(2) as executor:
        with PackState(tmp_path):
            waiting = [
                executor.submit(fastload.pack, root, tmp_path, exist_ok=True) for _ in range(2)
            ]
            assert not any(each.done() for each in waiting)
        results = [each.result() for each in waiting]
    assert [each.n_samples for each in results] == [60, 60]
    assert not (tmp_path / ".pack").exists()


def test_all_ranks_at_once(tmp_path: Path, root: Path) -> None:
    fastload.pack(root, tmp_path / "alone")
    code = "import sys, fastload; print(fastload.pack(*sys.argv[1:], exist_ok=True).n_samples)"
    ranks = [
        subprocess.Popen(
            [sys.executable, "-c", code, str(root), str(tmp_path / "packed")],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "RANK": str(rank)},
        )
        for rank in range(4)
    ]
    outcomes = [rank.communicate() for rank in ranks]
    assert outcomes == [("60\n", "")] * 4
    assert tree(tmp_path / "packed") == tree(tmp_path / "alone")
