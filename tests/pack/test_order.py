"""The packing order, the cut into blocks and shards, and the columns."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fastload
from fastload._order.permutation import Permutation
from fastload._pack.sources.base import Sample
from fastload._store.dataset import Dataset, open_dataset
from fastload._store.fields import Field
from fastload._store.kinds import MISSING_INT
from fastload.errors import BadImage
from tests.packing import (
    IMAGE,
    LABEL,
    SMALL_SHARDS,
    Listed,
    Streamed,
    class_folders,
    image_sample,
    pack,
    pixels,
    samples,
)

BLOB = (Field("number", "int"), Field("blob", "bytes"))


def blobs(sizes: Sequence[int]) -> Listed:
    """Returns samples of these sizes without images."""
    return Listed(
        [
            Sample({"number": i, "blob": bytes([i % 256]) * size}, source=f"s{i}")
            for i, size in enumerate(sizes)
        ],
        BLOB,
    )


def order_of(dest: Path) -> list[int]:
    return list(open_dataset(dest).column("_source_index").tolist())


def test_shuffle_is_a_seeded_permutation(tmp_path: Path) -> None:
    n = 5000  # more than one chunk of positions
    source = blobs([4] * n)
    for name, seed in (("a", 3), ("b", 3), ("c", 4)):
        pack(source, tmp_path / name, seed=seed)
    first, again, other = (order_of(tmp_path / name) for name in "abc")
    assert sorted(first) == list(range(n))
    assert first == again
    assert first != other
    assert first != list(range(n))
    assert np.abs(np.diff(first)).mean() > n / 4  # a random order: n / 3


def test_source_order_is_kept_and_bad_samples_leave_no_hole(tmp_path: Path) -> None:
    given: list[Any] = samples(10)
    given[3] = BadImage("broken", source="three")
    pack(given, tmp_path / "packed", order="source", on_error="skip")
    dataset = open_dataset(tmp_path / "packed")
    assert dataset.column("_source_index").tolist() == [0, 1, 2, 4, 5, 6, 7, 8, 9]
    assert [dataset.source(i) for i in range(9)] == [f"{i:04}.jpg" for i in range(10) if i != 3]


@pytest.mark.parametrize("order", ["shuffle", "source"])
def test_source_index_points_at_the_sample(tmp_path: Path, order: str) -> None:
    source = blobs([10 + i for i in range(300)])
    pack(source, tmp_path / "packed", order=order, seed=11)
    dataset = open_dataset(tmp_path / "packed")
    for i, row in enumerate(dataset.column("_source_index").tolist()):
        assert dataset[i] == {"number": row, "blob": bytes([row % 256]) * (10 + row)}
        assert dataset.source(i) == f"s{row}"


def record_sizes(dataset: Dataset) -> list[int]:
    return [len(dataset.reader(i).get(i)) for i in range(len(dataset))]


@pytest.mark.parametrize(
    ("sizes", "block_size"),
    [
        ([30_000] * 100, 100_000),
        ([100] * 3000, 10_000),
        ([1, 200_000, 1, 300_000, 5, 5] * 8, 150_000),
        ([1_500_000, 10, 2_000_000, 10, 10], 1 << 20),
        ([5000] * 10, 1),
        ([300_000] * 7, 1 << 20),
    ],
)
def test_parts_have_equal_length_and_blocks_are_cut_by_size(
    tmp_path: Path, sizes: list[int], block_size: int
) -> None:
    pack(
        blobs(sizes), tmp_path / "packed", order="source", shard_size=1 << 20, block_size=block_size
    )
    dataset = open_dataset(tmp_path / "packed")
    stored = np.array(record_sizes(dataset))
    starts = {shard.first for shard in dataset.manifest.shards}
    by_name = {shard.name: shard for shard in dataset.manifest.shards}
    per_part = by_name["shard-00001.lmdb"].base if "shard-00001.lmdb" in by_name else len(sizes)
    assert math.ceil(len(sizes) / per_part) >= stored.sum() // (2 << 20)
    for shard, following in zip(
        dataset.manifest.shards, [*dataset.manifest.shards[1:], None], strict=True
    ):
        total = stored[shard.first : shard.first + shard.records].sum()
        assert total <= 2 << 20 or shard.records == 1
        is_piece = "." in shard.name.removesuffix(".lmdb")
        assert is_piece or shard.first == int(shard.name[6:11]) * per_part
        if following is not None and following.first % per_part:  # the part continues
            assert total + stored[following.first] > 2 << 20
    blocks = dataset.blocks.tolist()
    assert [first for first, _ in blocks] == [
        0,
        *np.cumsum([count for _, count in blocks])[:-1].tolist(),
    ]
    assert sum(count for _, count in blocks) == len(sizes)
    for number, (first, count) in enumerate(blocks):
        total = stored[first : first + count].sum()
        assert total <= block_size or count == 1
        assert not any(first < start < first + count for start in starts)  # never across shards
        last = first + count
        if number + 1 < len(blocks) and last not in starts:
            assert total + stored[last] > block_size


def test_columns_equal_sample_values(tmp_path: Path) -> None:
    fields = (
        IMAGE,
        Field("thumb", "image"),
        Field("label", "int", classes=("x", "y")),
        Field("big", "int"),
        Field("score", "float"),
        Field("cams", "image", list=True),
        Field("ids", "int", list=True),
    )
    given: list[Sample | BadImage] = [
        image_sample(
            pixels(10 + i, 20),
            f"{i}",
            thumb=pixels(5, 6),
            label=i % 2,
            big=2**62 + i,
            score=i / 7,
            cams=[pixels(4, 4)],
            ids=[i],
        )
        for i in range(9)
    ]
    given.append(Sample({"image": None, "label": None}, source="nothing"))
    given.append(Sample({}, source="less"))
    pack(Listed(given, fields), tmp_path / "packed", seed=2)
    dataset = open_dataset(tmp_path / "packed")
    assert {column.name for column in dataset.manifest.columns} == {
        "_blocks",
        "_source_index",
        "image.width",
        "image.height",
        "thumb.width",
        "thumb.height",
        "label",
        "big",
        "score",
    }
    for i, row in enumerate(dataset.column("_source_index").tolist()):
        missing = row >= 9
        assert dataset.column("label")[i] == (MISSING_INT if missing else row % 2)
        assert dataset.column("big")[i] == (
            MISSING_INT if missing else 2**62 + row
        )  # more than a float can hold
        np.testing.assert_equal(dataset.column("score")[i], np.nan if missing else row / 7)
        assert (dataset.column("image.width")[i], dataset.column("image.height")[i]) == (
            (0, 0) if missing else (10 + row, 20)
        )
        assert dataset.column("thumb.width")[i] == (0 if missing else 5)
        assert (dataset[i]["label"], dataset[i]["cams"] == []) == (
            (None, True) if missing else (row % 2, False)
        )
    assert dataset.column("big").dtype == np.int64


def sorted_labels(i: int) -> int:
    return i // 40


@pytest.mark.parametrize(
    ("order", "labels", "warned"),
    [
        ("source", sorted_labels, True),
        ("shuffle", sorted_labels, False),
        ("source", lambda i: i % 3, False),
        ("source", lambda i: 0, False),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
def test_note_for_sorted_source_packed_unshuffled(
    tmp_path: Path, order: str, labels: Any, warned: bool, stream: bool
) -> None:
    given = samples(120, size=8, labels=labels)
    result = pack(Streamed(given) if stream else Listed(given), tmp_path / "packed", order=order)
    assert len(result.notes) == int(warned)
    if warned:
        assert "sorted by label" in result.notes[0]
        assert "--order source" in str(result)


def test_no_note_if_shuffle_happens_to_sort(tmp_path: Path) -> None:
    """With four samples of two classes, some seed sorts them."""
    labels = [1, 0, 1, 0]
    seed = next(
        s
        for s in range(100)
        if [labels[i] for i in Permutation(4, seed=s)(np.arange(4))] == [0, 0, 1, 1]
    )
    given = samples(4, size=8, labels=lambda i: labels[i])
    assert pack(given, tmp_path / "shuffled", seed=seed).notes == ()
    in_order = [given[i] for i in Permutation(4, seed=seed)(np.arange(4))]
    assert len(pack(in_order, tmp_path / "sorted", order="source").notes) == 1


def test_no_note_without_classes(tmp_path: Path) -> None:
    assert pack(blobs([10] * 50), tmp_path / "packed", order="source").notes == ()


def test_class_folders(tmp_path: Path) -> None:
    """From files on disk to the packed dataset."""
    root = class_folders(tmp_path / "images", per_class=30)
    result = pack(root, tmp_path / "packed", **SMALL_SHARDS)
    dataset = open_dataset(tmp_path / "packed")
    assert dataset.classes == [*LABEL.classes]
    assert {dataset.source(i): dataset[i]["label"] for i in range(90)} == {
        f"{name}/{i:04}.jpg": number for number, name in enumerate(LABEL.classes) for i in range(30)
    }
    assert result.bytes_in == sum(path.stat().st_size for path in root.rglob("*.jpg"))
    assert result.bytes_out == sum(record_sizes(dataset))
    assert (result.n_samples, result.n_shards, result.resumed_at) == (90, 1, 0)


def test_a_part_that_grows_continues_in_another_shard(tmp_path: Path) -> None:
    """The sizes drift: the last of four parts has nearly all bytes."""
    pack(blobs([100] * 360 + [100_000] * 40), tmp_path / "packed", order="source", **SMALL_SHARDS)
    dataset = open_dataset(tmp_path / "packed")
    shards = dataset.manifest.shards
    last = [shard for shard in shards if shard.name.startswith(shards[-1].name[:11])]
    assert [shard.name[11:] for shard in last] == [".lmdb", ".1.lmdb"]
    assert last[1].base == last[0].base + last[0].records
    assert {first for first, _ in dataset.blocks.tolist()} >= {shard.first for shard in shards}
    assert [dataset[i]["number"] for i in range(400)] == list(range(400))
    assert fastload.verify(tmp_path / "packed").ok
    assert fastload.verify(tmp_path / "packed", shard=len(shards) - 2).n_shards == 2
