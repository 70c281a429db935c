"""Columns are .npy files, written in any order in bounded memory and checked before use."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fastload._common import files
from fastload._store.columns import ColumnWriter, npy_header, open_column
from fastload._store.manifest import COLUMN_HEADER, Column
from fastload.errors import ConfigError, CorruptShard, StoreError


def write(
    folder: Path, rows: object, *, name: str = "label", dtype: str = "<i8", width: int = 1
) -> Column:
    with ColumnWriter(folder, name, dtype, width=width) as out:
        out.append(np.array(rows, dtype))
        return out.finish()


@pytest.mark.parametrize(("dtype", "width"), [("<i8", 1), ("<f8", 1), ("<u2", 1), ("<i8", 2)])
def test_numpy_reads_the_written_columns(tmp_path: Path, dtype: str, width: int) -> None:
    rows = np.arange(14).astype(dtype).reshape((7, 2) if width == 2 else 14)
    column = write(tmp_path, rows, dtype=dtype, width=width)
    path = tmp_path / "columns" / "label.npy"
    loaded = np.load(path, allow_pickle=False)
    assert np.array_equal(loaded, rows)
    assert loaded.dtype == dtype
    mapped = open_column(tmp_path, column)
    assert np.array_equal(mapped, rows)
    assert not mapped.flags.writeable
    assert column.size == path.stat().st_size
    assert os.listdir(tmp_path / "columns") == ["label.npy"]


@given(
    st.sampled_from(["<i8", "<f8", "<u2"]),
    st.lists(st.integers(0, 1 << 40), min_size=1, max_size=2).map(tuple),
)
def test_the_header_is_a_numpy_header_of_128_bytes(dtype: str, shape: tuple[int, ...]) -> None:
    import io

    header = npy_header(dtype, shape)
    assert len(header) == 128
    stream = io.BytesIO(header)
    assert np.lib.format.read_magic(stream) == (1, 0)
    assert np.lib.format.read_array_header_1_0(stream) == (shape, False, np.dtype(dtype))


def test_rows_in_any_order(tmp_path: Path) -> None:
    with ColumnWriter(tmp_path, "label", "<i8") as out:
        for first in (40, 0, 20):
            out.put(first, range(first, first + 10))
        column = out.finish()
    found = open_column(tmp_path, column)
    assert column.shape == (50,)
    assert [int(found[i]) for i in (0, 9, 10, 25, 39, 49)] == [0, 9, 0, 25, 0, 49]


def test_an_unfinished_column_leaves_no_file(tmp_path: Path) -> None:
    with ColumnWriter(tmp_path, "label", "<i8") as out:
        out.append([1, 2])
        (name,) = os.listdir(tmp_path / "columns")
        assert name.startswith("label.npy.tmp-")
        assert files.is_temporary(name)
    assert os.listdir(tmp_path / "columns") == []
    with pytest.raises(StoreError):
        ColumnWriter(tmp_path / "nowhere" / "deep", "label", "<i8")


def test_rows_that_do_not_fit_are_rejected(tmp_path: Path) -> None:
    with (
        ColumnWriter(tmp_path, "a", "<u2") as small,
        ColumnWriter(tmp_path, "b", "<i8", width=2) as pairs,
    ):
        for rows in ([70000], [-1], [1.5]):
            with pytest.raises(ConfigError, match=r"column [ab]: .* at row -?\d+: expected"):
                small.append(rows)
        with pytest.raises(ConfigError, match=r"column [ab]: .* at row -?\d+: expected"):
            pairs.append([1, 2, 3])
        with pytest.raises(ConfigError, match=r"column [ab]: .* at row -?\d+: expected"):
            small.put(-1, [1])
        small.append([65535])
        pairs.append([[1, 2]])
        assert small.finish().shape == (1,)
        assert pairs.finish().shape == (1, 2)


def test_flipped_truncated_and_extended_files_are_rejected(tmp_path: Path) -> None:
    column = write(tmp_path, range(30))
    path = tmp_path / "columns" / "label.npy"
    good = path.read_bytes()
    variants = [good[:end] for end in range(0, len(good), 7)] + [
        good + b"\0",
        b"",
        bytes(len(good)),
    ]
    variants += [
        good[:place] + bytes([good[place] ^ 1 << place % 8]) + good[place + 1 :]
        for place in range(len(good))
    ]
    for damaged in variants:
        path.write_bytes(damaged)
        with pytest.raises(CorruptShard, match="fastload verify") as caught:
            open_column(tmp_path, column)
        assert caught.value.shard == "columns/label.npy"
    path.write_bytes(good)
    assert open_column(tmp_path, column).sum() == sum(range(30))


def test_checked_numbers_do_not_change_with_the_file(tmp_path: Path) -> None:
    column = write(tmp_path, range(30_000))
    opened = open_column(tmp_path, column)
    path = tmp_path / "columns" / "label.npy"
    with path.open("r+b") as file:
        file.seek(COLUMN_HEADER)
        file.write(bytes(80))
    assert opened[:10].tolist() == list(range(10))
    os.truncate(path, 0)
    assert opened.sum() == sum(range(30_000))
    assert not opened.flags.writeable


def test_a_header_of_another_type_is_rejected(tmp_path: Path) -> None:
    """The size and checksum are valid, as in a hostile manifest, but the file has another dtype."""
    column = write(tmp_path, range(30))
    other = write(tmp_path, np.zeros(30), name="other", dtype="<f8")
    (tmp_path / "columns" / "other.npy").rename(tmp_path / "columns" / "label.npy")
    with pytest.raises(CorruptShard, match="header"):
        open_column(tmp_path, Column("label", column.dtype, column.shape, other.size, other.crc32c))


def test_links_and_special_files_are_rejected(tmp_path: Path) -> None:
    column = write(tmp_path, range(30))
    path = tmp_path / "columns" / "label.npy"
    path.rename(tmp_path / "real.npy")
    path.symlink_to(tmp_path / "real.npy")
    with pytest.raises(CorruptShard):
        open_column(tmp_path, column)
    path.unlink()
    os.mkfifo(path)
    with pytest.raises(CorruptShard, match="regular file"):
        open_column(tmp_path, column)
    path.unlink()
    with pytest.raises(CorruptShard, match="No such file"):
        open_column(tmp_path, column)
    (tmp_path / "columns").rename(tmp_path / "elsewhere")
    (tmp_path / "real.npy").rename(tmp_path / "elsewhere" / "label.npy")
    (tmp_path / "columns").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(CorruptShard, match="links are not followed"):
        open_column(tmp_path, column)
    (tmp_path / "columns").unlink()
    (tmp_path / "elsewhere").rename(tmp_path / "columns")
    assert open_column(tmp_path, column).shape == (30,)
