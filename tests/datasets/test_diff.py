"""diff names the samples that two datasets do not share."""

from __future__ import annotations

from pathlib import Path

import fastload
from fastload._store.fields import Field
from tests.every_kind import FIELDS, pack_every_kind
from tests.packed_datasets import pack_samples
from tests.packing import class_folders, file_of, pixels


def test_samples_are_matched_by_source_and_bytes(tmp_path: Path) -> None:
    class_folders(tmp_path / "photos", per_class=4)
    fastload.pack(tmp_path / "photos", tmp_path / "monday")
    (tmp_path / "photos" / "ant" / "0000.jpg").unlink()
    (tmp_path / "photos" / "ant" / "new.jpg").write_bytes(file_of(pixels(9, 9)))
    (tmp_path / "photos" / "bee" / "0001.jpg").write_bytes(file_of(pixels(9, 9)))
    (tmp_path / "photos" / "ant" / "0002.jpg").rename(tmp_path / "photos" / "bee" / "moved.jpg")
    fastload.pack(
        tmp_path / "photos", tmp_path / "tuesday", seed=5, shard_size=1 << 20, block_size=999
    )
    found = fastload.diff(tmp_path / "monday", tmp_path / "tuesday")
    assert found.added == ("ant/new.jpg", "bee/moved.jpg")
    assert found.removed == ("ant/0000.jpg", "ant/0002.jpg")
    assert found.changed == ("bee/0001.jpg",)
    assert found.fields == ()
    assert not found.equal
    assert "9 equal samples, 2 added, 2 removed, 1 changed" in str(found)
    back = fastload.diff(tmp_path / "tuesday", tmp_path / "monday")
    assert (back.added, back.removed) == (found.removed, found.added)


def test_order_shards_and_class_numbers_do_not_matter(tmp_path: Path) -> None:
    fields = tuple(
        Field("label", "int", classes=("emu", "cat", "dog")) if each.name == "label" else each
        for each in FIELDS[::-1]
    )
    pack_every_kind(tmp_path / "one", range(9))
    pack_every_kind(tmp_path / "same", range(9), order="shuffle", seed=3)
    assert fastload.diff(tmp_path / "one", tmp_path / "same").equal
    assert fastload.diff(tmp_path / "one", tmp_path / "one").n_equal == 9
    pack_every_kind(tmp_path / "two", range(9), fields=fields)  # the numbers mean other classes
    changed = fastload.diff(tmp_path / "one", tmp_path / "two").changed
    assert len(changed) == 6  # every third sample has no label
    fastload.merge([tmp_path / "one", tmp_path / "two"], tmp_path / "both")
    found = fastload.diff(tmp_path / "one", tmp_path / "both")
    assert (found.n_equal, len(found.added), found.removed, found.changed) == (9, 9, (), ())


def test_fields_are_compared(tmp_path: Path) -> None:
    one = (Field("n", "int", classes=("a", "b")), Field("x", "float"), Field("old", "str"))
    two = (Field("n", "int", classes=("a", "c")), Field("x", "str"), Field("new", "str"))
    pack_samples(tmp_path / "one", one, [{"n": 0}])
    pack_samples(tmp_path / "two", two, [{"n": 0}])
    found = fastload.diff(tmp_path / "one", tmp_path / "two")
    assert found.fields == (
        "field n: classes - b + c",
        "field new: only in the second dataset",
        "field old: only in the first dataset",
        "field x: float → str",
    )
    assert not found.equal
    assert (found.added, found.removed, found.changed) == ((), (), ())


def test_repeated_sources_are_counted(tmp_path: Path) -> None:
    pack_every_kind(tmp_path / "one", range(2))
    fastload.merge([tmp_path / "one", tmp_path / "one"], tmp_path / "twice")
    found = fastload.diff(tmp_path / "one", tmp_path / "twice")
    assert found.added == ("samples/000", "samples/001")
    assert found.n_equal == 2
