"""merge joins datasets by linking whole shards. Records are copied only where they change."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fastload
from fastload._store.fields import Field
from fastload.errors import ConfigError, CorruptShard
from tests.every_kind import (
    FIELDS,
    assert_intact,
    assert_same_samples,
    pack_every_kind,
    sample,
)
from tests.packed_datasets import pack_samples
from tests.packing import log_of

SPLITS = Field("split", "int", classes=("train", "val"))


def _label(*classes: str) -> tuple[Field, ...]:
    return tuple(Field("label", "int", classes=classes) if f.name == "label" else f for f in FIELDS)


def test_every_field_kind_is_joined_without_copying_a_record(tmp_path: Path) -> None:
    one = pack_every_kind(tmp_path / "one", range(7), shard_size=1 << 20, block_size=9000)
    two = pack_every_kind(tmp_path / "two", range(20, 25))
    result = fastload.merge([tmp_path / "one", tmp_path / "two"], tmp_path / "both")
    both = assert_intact(tmp_path / "both")
    assert (result.n_samples, result.copied, result.linked) == (12, 0, 2)
    assert_same_samples(both, range(7), one, range(7))
    assert_same_samples(both, range(7, 12), two, range(5))
    assert sorted(both.column("_source_index")) == [*range(12)]
    for shard in both.manifest.shards:
        assert (tmp_path / "both" / shard.name).stat().st_nlink == 2
    assert [path.name for path in tmp_path.iterdir() if "tmp" in path.name] == []
    again = fastload.merge([tmp_path / "both", tmp_path / "one"], tmp_path / "three")
    assert again.n_samples == 19
    assert_intact(tmp_path / "three")


def test_properties_of_the_fields_are_those_of_one_pack(tmp_path: Path) -> None:
    pack_every_kind(tmp_path / "one", range(4))
    pack_every_kind(tmp_path / "two", range(4, 9))
    whole = pack_every_kind(tmp_path / "whole", range(9))
    fastload.merge([tmp_path / "one", tmp_path / "two"], tmp_path / "both")
    assert fastload.open(tmp_path / "both").manifest.properties == whole.manifest.properties


def test_classes_are_united_by_name(tmp_path: Path) -> None:
    one = pack_every_kind(tmp_path / "one", range(6))
    two = pack_every_kind(tmp_path / "two", range(6), fields=_label("dog", "cow", "emu"))
    result = fastload.merge([tmp_path / "one", tmp_path / "two"], tmp_path / "both")
    both = assert_intact(tmp_path / "both")
    assert both.class_names["label"] == ("cat", "dog", "emu", "cow")
    assert result.copied == 6
    names = [
        both.class_names["label"][n] if n >= 0 else None for n in both.column("label").tolist()
    ]
    own = ("dog", "cow", "emu")
    assert names[6:] == [own[n] if n >= 0 else None for n in two.column("label").tolist()]
    assert_same_samples(both, range(6), one, range(6))
    for i in range(6):  # the images are the same bytes
        assert bytes(both.raw(6 + i, "image")) == bytes(two.raw(i, "image"))
    more = pack_every_kind(tmp_path / "more", range(3), fields=_label("cat", "dog", "emu", "fox"))
    assert more.class_names["label"][3] == "fox"
    linked = fastload.merge([tmp_path / "one", tmp_path / "more"], tmp_path / "longer")
    assert linked.copied == 0  # a longer list of classes changes no number
    assert assert_intact(tmp_path / "longer").class_names["label"] == ("cat", "dog", "emu", "fox")


def test_fields_may_be_in_another_order(tmp_path: Path) -> None:
    one = pack_every_kind(tmp_path / "one", range(3))
    two = pack_every_kind(tmp_path / "two", range(3, 6), fields=FIELDS[::-1])
    fastload.merge([tmp_path / "one", tmp_path / "two"], tmp_path / "both")
    both = assert_intact(tmp_path / "both")
    assert_same_samples(both, range(3), one, range(3))
    assert_same_samples(both, range(3, 6), two, range(3))


def _pack_splits(path: Path, splits: list[int], field: Field = SPLITS) -> fastload.Dataset:
    samples = [{"n": 100 * len(splits) + i, "split": split} for i, split in enumerate(splits)]
    pack_samples(path, (Field("n", "int"), field), samples)
    return fastload.open(path)


def test_each_split_stays_one_range_of_ids(tmp_path: Path) -> None:
    one = _pack_splits(tmp_path / "one", [0, 1, 0, 1, 0])
    two = _pack_splits(tmp_path / "two", [1, 0])
    fastload.merge([tmp_path / "one", tmp_path / "two"], tmp_path / "both")
    both = assert_intact(tmp_path / "both")
    assert both.column("split").tolist() == [0, 0, 0, 0, 1, 1, 1]
    train = [*one.column("n")[:3], two.column("n")[0]]
    assert both.column("n").tolist() == [*train, *one.column("n")[3:], two.column("n")[1]]
    firsts = both.blocks[:, 0].tolist()
    assert 4 in firsts  # no block has samples of two splits


def test_only_shards_with_two_splits_are_copied(tmp_path: Path) -> None:
    _pack_splits(tmp_path / "train", [0, 0, 0])
    _pack_splits(tmp_path / "val", [1, 1])
    result = fastload.merge([tmp_path / "val", tmp_path / "train"], tmp_path / "both")
    assert (result.linked, result.copied) == (2, 0)
    assert assert_intact(tmp_path / "both").column("split").tolist() == [0, 0, 0, 1, 1]
    other = _pack_splits(
        tmp_path / "other", [1, 0], Field("split", "int", classes=("test", "train"))
    )
    assert other.class_names["split"] == ("test", "train")
    fastload.merge([tmp_path / "both", tmp_path / "other"], tmp_path / "three")
    three = assert_intact(tmp_path / "three")
    assert three.class_names["split"] == ("train", "val", "test")
    assert three.column("split").tolist() == [0, 0, 0, 0, 1, 1, 2]


def test_another_file_system_gets_checked_copies(tmp_path: Path) -> None:
    shared = Path("/dev/shm")  # a second file system
    if not shared.is_dir() or shared.stat().st_dev == tmp_path.stat().st_dev:
        pytest.skip("not run: no second file system")
    dest = shared / f"fastload-test-{os.getpid()}"
    one = pack_every_kind(tmp_path / "one", range(4))
    try:
        fastload.merge([tmp_path / "one", tmp_path / "one"], dest)
        assert_same_samples(assert_intact(dest), range(4, 8), one, range(4))
    finally:
        for path in sorted(dest.rglob("*"), reverse=True):
            path.rmdir() if path.is_dir() else path.unlink()
        dest.rmdir()


def test_a_damaged_shard_is_refused_and_nothing_is_left(tmp_path: Path) -> None:
    one = pack_every_kind(tmp_path / "one", range(4))
    shard = tmp_path / "one" / one.manifest.shards[0].name
    data = shard.read_bytes()
    shard.write_bytes(data[:-1] + b"x")
    with pytest.raises(CorruptShard, match="differ from the stamp"):
        fastload.merge([tmp_path / "one", tmp_path / "one"], tmp_path / "both")
    assert [path.name for path in tmp_path.iterdir()] == ["one"]
    shard.write_bytes(data)
    assert fastload.merge([tmp_path / "one", tmp_path / "one"], tmp_path / "both").n_samples == 8


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        (FIELDS[:-1], r"field 'blobs' differs: .*one has list of bytes, .*two has no such field"),
        (
            (*FIELDS, Field("extra", "int")),
            r"field 'extra' differs: .*one has no such field, .*two has int",
        ),
        (
            (*FIELDS[:-1], Field("blobs", "str", list=True)),
            r"'blobs' differs: .* has list of bytes, .* has list of str",
        ),
    ],
)
def test_other_fields_are_refused_by_name(
    tmp_path: Path, fields: tuple[Field, ...], message: str
) -> None:
    names = {each.name for each in fields}
    pack_every_kind(tmp_path / "one", range(2))
    values: dict[str, Any] = {k: v for k, v in sample(0).items() if k in names and k != "blobs"}
    pack_samples(tmp_path / "two", fields, [values])
    with pytest.raises(ConfigError, match=message):
        fastload.merge([tmp_path / "one", tmp_path / "two"], tmp_path / "both")
    assert not (tmp_path / "both").exists()


def test_numbers_with_another_meaning_are_refused(tmp_path: Path) -> None:
    fields = (Field("labels", "array"),)
    for name, category in (("one", "cat"), ("two", "dog")):
        pack_samples(
            tmp_path / name,
            fields,
            [{"labels": np.zeros(1, np.int64)}],
            info={"categories": [{"id": 0, "name": category}], "annotations_without_image": 1},
        )
    with pytest.raises(ConfigError, match=r"info\['categories'\] differs: .*'cat'.*'dog'"):
        fastload.merge([tmp_path / "one", tmp_path / "two"], tmp_path / "both")
    assert fastload.merge([tmp_path / "one", tmp_path / "one"], tmp_path / "both").n_samples == 2


def test_the_destination_must_be_new(tmp_path: Path) -> None:
    pack_every_kind(tmp_path / "one", range(2))
    (tmp_path / "both").mkdir()
    (tmp_path / "both" / "x").touch()
    with pytest.raises(ConfigError, match="both is not empty: expected a new or empty folder"):
        fastload.merge([tmp_path / "one", tmp_path / "one"], tmp_path / "both")
    with pytest.raises(ConfigError, match="found 1 dataset, expected two or more"):
        fastload.merge([tmp_path / "one"], tmp_path / "other")
    (tmp_path / "both" / "x").unlink()
    (tmp_path / f"both.tmp-{2**22 + 1}-0123abcd.0").mkdir()  # of a killed process: pids are smaller
    fastload.merge([tmp_path / "one", tmp_path / "one"], tmp_path / "both")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["both", "one"]
    assert log_of(tmp_path / "both") == log_of(tmp_path / "one") * 2
