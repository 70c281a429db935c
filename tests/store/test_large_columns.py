"""A column that is too large for a copy in each process is read from its file, with checks."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fastload._store import columns
from fastload._store.column_file import PAGE, ColumnFile
from fastload._store.columns import ColumnWriter, open_column, open_rows
from fastload._store.dataset import open_dataset
from fastload._store.manifest import COLUMN_HEADER, Column, read_manifest
from fastload._store.verify import verify
from fastload._tools.inspect.overview import gather
from fastload.errors import CorruptShard
from tests.open_files import open_files
from tests.packed_datasets import change_column, pack_folder

N_ROWS = 3 * PAGE // 8 + 100  # four pages of int64


@pytest.fixture(autouse=True)
def small_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every column counts as large."""
    monkeypatch.setattr(columns, "MAX_COPIED", 0)


def write(folder: Path, rows: Any, dtype: str = "<i8", width: int = 1) -> Column:
    with ColumnWriter(folder, "label", dtype, width=width) as out:
        out.append(np.asarray(rows, dtype))
        return out.finish()


def opened(folder: Path, column: Column) -> ColumnFile:
    found = open_rows(folder, column)
    assert isinstance(found, ColumnFile)
    return found


@pytest.mark.parametrize(("dtype", "width"), [("<i8", 1), ("<f8", 1), ("<u2", 1), ("<i8", 2)])
@pytest.mark.parametrize("n", [1, 500, N_ROWS, 300_000])
def test_indexing_equals_numpy(tmp_path: Path, dtype: str, width: int, n: int) -> None:
    rng = np.random.default_rng(n)
    rows = rng.integers(0, 60_000, (n, 2) if width == 2 else n).astype(dtype)
    found = opened(tmp_path, write(tmp_path, rows, dtype, width))
    assert len(found) == n
    for some in (slice(None), slice(0, 0), slice(n // 3, n // 2), slice(-1, None), slice(5, 3)):
        assert np.array_equal(found[some], rows[some]), some
        assert found[some].dtype == dtype
    for ids in ([], [n - 1], rng.integers(0, n, 300), np.arange(n), [[0], [n - 1]]):
        chosen = np.asarray(ids, np.int64)
        assert np.array_equal(found[chosen], rows[chosen])
    assert np.array_equal(found[n - 1], rows[n - 1])
    view = found.view(n // 4, n // 2)
    del found  # the view keeps the file open
    assert np.array_equal(view[:], rows[n // 4 : n // 2])
    if len(view):
        assert np.array_equal(view[np.array([len(view) - 1])], rows[n // 2 - 1 : n // 2])


def test_rows_out_of_range(tmp_path: Path) -> None:
    found = opened(tmp_path, write(tmp_path, range(10)))
    for wrong in (10, -1, np.array([3, 10])):
        with pytest.raises(IndexError, match="expected 0 to 9"):
            found[wrong]
    with pytest.raises(ValueError, match="step 1"):
        found[::2]
    assert found[9] == 9


def test_the_file_is_not_mapped_and_closed_at_the_end(tmp_path: Path) -> None:
    column = write(tmp_path, range(N_ROWS))
    path = tmp_path / "columns" / "label.npy"
    found = opened(tmp_path, column)
    assert str(path) not in Path("/proc/self/maps").read_text()
    assert open_files().count(str(path)) == 1
    whole = open_column(tmp_path, column)
    assert np.array_equal(whole, found[:])
    del found
    assert str(path) not in open_files()


def test_a_damaged_file_is_not_opened(tmp_path: Path) -> None:
    column = write(tmp_path, range(N_ROWS))
    path = tmp_path / "columns" / "label.npy"
    good = path.read_bytes()
    for damaged in (good[:-1], good + b"\0", good[:-1] + b"\1", b"?" + good[1:]):
        path.write_bytes(damaged)
        with pytest.raises(CorruptShard, match="fastload verify"):
            open_rows(tmp_path, column)
    path.write_bytes(good)
    assert opened(tmp_path, column)[7] == 7


def test_a_change_after_the_check_is_an_error(tmp_path: Path) -> None:
    """The bytes that were checked are the bytes that are used."""
    column = write(tmp_path, range(N_ROWS))
    path = tmp_path / "columns" / "label.npy"
    found = opened(tmp_path, column)
    row = 2 * PAGE // 8  # in the third page
    with path.open("r+b") as file:
        file.seek(COLUMN_HEADER + 8 * row)
        file.write(b"\xff")
    with pytest.raises(CorruptShard, match="changed after it was opened") as caught:
        found[row]
    assert caught.value.shard == "columns/label.npy"
    assert found[0] == 0, "other pages are intact"
    assert found[N_ROWS - 1] == N_ROWS - 1
    os.truncate(path, 2 * PAGE)
    for some in (slice(None), np.array([N_ROWS - 1]), row):
        with pytest.raises(CorruptShard, match=r"ends at byte \d+: it was truncated"):
            found[some]
    assert found[0] == 0


CHILD = """
import os, sys
import fastload
import fastload.transforms
from fastload._store import columns
columns.MAX_COPIED = 0
loader = fastload.DataLoader(
    sys.argv[1], batch_size=4, num_workers=1, transform=fastload.transforms.Resize(32, 32)
)
batches = iter(loader)
print(next(batches)[1].tolist())
os.truncate(sys.argv[1] + "/columns/label.npy", 0)
try:
    for batch in batches:
        pass
    for batch in loader:
        pass
except fastload.errors.CorruptShard as error:
    print(error)
"""


def test_truncating_a_column_while_training_is_an_error(tmp_path: Path) -> None:
    """A mapped column killed the process with SIGBUS."""
    dataset = pack_folder(tmp_path)
    done = subprocess.run(
        [sys.executable, "-c", CHILD, str(dataset)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    labels, error = done.stdout.splitlines()
    assert len(labels.split(",")) == 4
    assert f"reading {dataset}/columns/label.npy: the file ends at byte 0" in error
    assert f"fastload verify {dataset}" in error


def test_datasets_with_large_columns_are_used_as_usual(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    dataset = pack_folder(tmp_path, val=10)
    large = open_dataset(dataset)
    figures = gather(large).as_json()
    with monkeypatch.context() as patch:
        patch.setattr(columns, "MAX_COPIED", 1 << 20)
        small = open_dataset(dataset)
        assert gather(small).as_json() == figures
    for name in (column.name for column in read_manifest(dataset).columns):
        assert np.array_equal(large.column(name), small.column(name))
        for split in ("train", "val"):
            own = large.with_split(split).column(name)
            assert np.array_equal(own, small.with_split(split).column(name))
    assert large.split_sizes() == small.split_sizes() == {"train": 30, "val": 10}
    assert verify(dataset).ok
    change_column(dataset, "label", lambda rows: rows[::-1])
    assert not verify(dataset).ok


@pytest.mark.parametrize("wrong", [[0, 1, 0], [0, 0, 2], [-1, 0, 1], [1, 0, 0]])
def test_splits_must_be_contiguous(tmp_path: Path, wrong: list[int]) -> None:
    dataset = pack_folder(tmp_path, val=10)
    change_column(dataset, "split", lambda rows: np.concatenate((wrong, rows[3:])))
    with pytest.raises(CorruptShard, match="the samples of a split are not contiguous"):
        open_dataset(dataset, split="train")
