"""filter copies the samples that a condition, a split or a limit selects."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import fastload
from fastload._pack.datasets.where import matching
from fastload._store.fields import Field
from fastload.errors import ConfigError
from tests.every_kind import FIELDS, assert_intact, assert_same_samples, pack_every_kind
from tests.packed_datasets import encoded, pack_samples
from tests.packing import file_of, pixels


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> fastload.Dataset:
    """12 samples: label 0..2, width 20..31, score n / 4 or missing, count n - 6 or missing."""
    fields = (
        Field("photo", "image"),
        Field("label", "int", classes=("cat", "dog", "emu's")),
        Field("score", "float"),
        Field("count", "int"),
        Field("split", "int", classes=("train", "val")),
    )
    samples = [
        {
            "photo": encoded(file_of(pixels(20 + n, 16, seed=n))),
            "label": n % 3,
            "score": None if n == 4 else n / 4,
            "count": None if n == 5 else n - 6,
            "split": int(n >= 8),
        }
        for n in range(12)
    ]
    path = tmp_path_factory.mktemp("table") / "packed"
    pack_samples(path, fields, samples)
    return fastload.open(path)


N = range(12)


@pytest.mark.parametrize(
    ("where", "expected"),
    [
        ("label == 1", [n for n in N if n % 3 == 1]),
        ("label == 'dog'", [n for n in N if n % 3 == 1]),
        ('label in ("cat", "emu\'s")', [n for n in N if n % 3 != 1]),
        ("label not in ('cat')", [n for n in N if n % 3]),
        ("label in (0, 2) and width >= 28", [n for n in N if n % 3 != 1 and n >= 8]),
        ("photo.width<25 or photo.height>16", [n for n in N if n < 5]),
        ("22 <= width < 25", [2, 3, 4]),
        ("not width < 30", [10, 11]),
        ("not (width < 30 or label == 'cat')", [10, 11]),
        ("label == 0 or label == 1 and width > 28", [0, 3, 6, 9, 10]),
        ("(label == 0 or label == 1) and width > 28", [9, 10]),
        ("score >= 2.5e0", [10, 11]),
        ("score != 1", [n for n in N if n != 4]),  # a missing value matches nothing
        ("count < -4", [0, 1]),
        ("count != 0", [n for n in N if n not in (5, 6)]),
        ("count not in (0, 1)", [n for n in N if n not in (5, 6, 7)]),
        ("not count == 0", [n for n in N if n != 6]),
        ("split == 'val' and 1 < score", [8, 9, 10, 11]),
        ("score > count", [n for n in N if n not in (4, 5) and n / 4 > n - 6]),
        ("+1 == count", [7]),
    ],
)
def test_conditions_select_samples(
    table: fastload.Dataset, where: str, expected: list[int]
) -> None:
    assert np.flatnonzero(matching(table, where)).tolist() == expected


@pytest.mark.parametrize(
    ("where", "message"),
    [
        ("", "character 1: expected a column, a number or a text in quotes, found 'the end'"),
        ("label", r"character 6: expected a comparison \(== != < <= > >= in\), found 'the end'"),
        ("label = 1", r"character 7: unexpected '='\. Write == for a comparison"),
        ("label == ", "character 10: expected a column, a number or a text"),
        (
            "lable == 1",
            r"character 1: no column 'lable'\. The dataset has photo.width, photo.heigh",
        ),
        ("label == 'cow'", r"character 10: label has no class 'cow'\. Did you mean 'cat', 'dog'"),
        ("label == 'dgo'", r"Did you mean 'dog'\?"),
        ("label < 'dog'", "character 9: class names can be compared with ==, != and in"),
        ("width == 'dog'", "character 10: photo.width has no class names"),
        ("label in 1", r"character 10: expected '\(', found '1'"),
        ("label in (1", r"character 12: expected '\)', found 'the end'"),
        (
            "label in ()",
            r"character 11: expected a column, a number or a text in quotes, found '\)'",
        ),
        ("label == 1 label", "character 12: expected 'and', 'or' or the end, found 'label'"),
        ("label == 1 and", "character 15: expected a column"),
        ("label not 1", "character 11: expected 'in', found '1'"),
        ("1 == 1", "character 6: expected a column on one side"),
        ("label == 1; import os", "character 11: unexpected ';'"),
        ("__import__('os')", "character 1: no column '__import__'"),
        ("label == 'cat", 'character 10: unexpected "\'"'),
        ("(" * 101 + "label == 1", "more than 100 nested conditions"),
        ("not " * 101 + "label == 1", "more than 100 nested conditions"),
        ("_blocks == 1", "no column '_blocks'"),
    ],
)
def test_a_mistake_is_reported_with_its_position(
    table: fastload.Dataset, where: str, message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        matching(table, where)
    assert matching(table, "label == 1").sum() == 4


def test_every_field_kind_is_copied_unchanged(tmp_path: Path) -> None:
    packed = pack_every_kind(tmp_path / "packed", range(12), order="shuffle")
    result = fastload.filter_dataset(tmp_path / "packed", tmp_path / "some", where="label != 'cat'")
    some = assert_intact(tmp_path / "some")
    chosen = np.flatnonzero(packed.column("label") == 1).tolist()  # each third has no label
    assert result.n_samples == len(chosen) == 4
    assert_same_samples(some, range(4), packed, chosen)
    assert sorted(some.column("_source_index")) == [*range(4)]
    assert some.fields == FIELDS
    assert some.manifest.properties[0].lengths == {1: 4}
    for i, n in enumerate(chosen):  # the same bytes, with the restart index
        assert [part.data for part in some.parts(i)] == [part.data for part in packed.parts(n)]


def test_a_split_becomes_the_only_split(table: fastload.Dataset, tmp_path: Path) -> None:
    fastload.filter_dataset(table.path, tmp_path / "val", split="val", where="label != 'cat'")
    val = assert_intact(tmp_path / "val")
    assert val.class_names["split"] == ("val",)
    assert val.column("split").tolist() == [0, 0, 0]
    assert val.column("photo.width").tolist() == [28, 30, 31]
    fastload.filter_dataset(table.path, tmp_path / "all", split="all", where="width < 30")
    assert assert_intact(tmp_path / "all").split_sizes() == {"train": 8, "val": 2}
    with pytest.raises(ConfigError, match=r"split='test': expected one of 'train', 'val', 'all'"):
        fastload.filter_dataset(table.path, tmp_path / "none", split="test")


def test_a_limit_takes_the_first_samples(table: fastload.Dataset, tmp_path: Path) -> None:
    fastload.filter_dataset(table.path, tmp_path / "two", limit=2, where="label == 'dog'")
    assert assert_intact(tmp_path / "two").column("photo.width").tolist() == [21, 24]
    with pytest.raises(ConfigError, match="limit=0: expected an integer of at least 1"):
        fastload.filter_dataset(table.path, tmp_path / "none", limit=0)
    with pytest.raises(ConfigError, match="no sample matches"):
        fastload.filter_dataset(table.path, tmp_path / "none", where="width > 100")
    assert not (tmp_path / "none").exists()


def test_large_results_have_several_shards_and_blocks(tmp_path: Path) -> None:
    samples = [{"n": n, "blob": bytes([n]) * 300_000} for n in range(10)]
    fields = (Field("n", "int"), Field("blob", "bytes"))
    pack_samples(tmp_path / "packed", fields, samples, shard_size=1 << 20, block_size=700_000)
    fastload.filter_dataset(tmp_path / "packed", tmp_path / "some", where="n >= 1")
    some = assert_intact(tmp_path / "some")
    assert some.column("n").tolist() == [*range(1, 10)]
    assert len(some.manifest.shards) > 1
    assert some.blocks[:, 1].max() == 2
