"""append adds samples to a dataset in one step. A crash leaves the old or the new dataset."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import fastload
from fastload._pack.sources.base import Sample
from fastload._store.fields import Field
from fastload.errors import BadImage, ConfigError, StoreError
from tests.docs.test_format_doc import read
from tests.every_kind import (
    FIELDS,
    assert_intact,
    assert_same_samples,
    pack_every_kind,
    sample,
)
from tests.packing import Listed, Streamed, class_folders, log_of, tree
from tests.source_contract import put_image


def _source(seeds: range, fields: tuple[Field, ...] = FIELDS) -> Listed:
    return Listed([Sample(sample(seed), source=f"new/{seed}") for seed in seeds], fields)


def test_every_field_kind_is_appended(tmp_path: Path) -> None:
    pack_every_kind(tmp_path / "packed", range(5))
    before = {path: data for path, data in tree(tmp_path / "packed").items() if "shard" in path}
    old = fastload.open(tmp_path / "packed")
    new = pack_every_kind(tmp_path / "new", range(30, 36))
    result = fastload.append(tmp_path / "packed", _source(range(30, 36)))
    assert (result.n_samples, result.n_added, result.copied) == (11, 6, 0)
    both = assert_intact(tmp_path / "packed")
    assert_same_samples(both, range(5), old, range(5))  # ``old`` is still open and readable
    for i in range(6):
        assert both.source(5 + i) == f"new/{30 + i}"
        assert bytes(both.raw(5 + i, "image")) == bytes(new.raw(i, "image"))
    assert len(old) == 5
    after = tree(tmp_path / "packed")
    assert before.items() <= after.items()  # no old shard is rewritten
    assert not (tmp_path / "packed" / ".append").exists()
    assert not (tmp_path / "packed" / ".pack").exists()


def test_a_program_that_has_the_dataset_open_keeps_the_old_columns(tmp_path: Path) -> None:
    pack_every_kind(tmp_path / "packed", range(5))
    old = fastload.open(tmp_path / "packed")  # its columns are not mapped yet
    fastload.append(tmp_path / "packed", _source(range(2)))
    assert len(old.column("label")) == 5
    assert len(fastload.open(tmp_path / "packed").column("label")) == 7
    fastload.append(tmp_path / "packed", _source(range(2)))
    assert len(assert_intact(tmp_path / "packed").column("label")) == 9
    assert read(tmp_path / "packed").stderr == ""  # the reader that follows docs/FORMAT.md
    folders = sorted(path.name for path in (tmp_path / "packed").glob("columns*"))
    assert folders == ["columns-1", "columns-2"]  # only the last version is kept


def test_a_folder_with_new_and_missing_classes_is_appended(tmp_path: Path) -> None:
    class_folders(tmp_path / "one", per_class=3, classes=("cat", "dog"))
    class_folders(tmp_path / "two", per_class=2, classes=("bee", "dog"))
    fastload.pack(tmp_path / "one", tmp_path / "packed", quality=70, encode="jpeg")
    fastload.append(tmp_path / "packed", tmp_path / "two")
    both = assert_intact(tmp_path / "packed")
    assert both.class_names["label"] == ("cat", "dog", "bee")
    for i in range(len(both)):
        assert both.source(i).startswith(both.class_names["label"][both[i]["label"]])
    assert both.manifest.options["quality"] == 70
    assert both.manifest.converted == {}


def test_appended_splits_join_the_existing_ones(tmp_path: Path) -> None:
    for root, splits in (("one", ("train", "val")), ("two", ("train", "val", "test"))):
        for split in splits:
            put_image(tmp_path / root / split / "cat" / f"{root}.jpg")
    fastload.pack(tmp_path / "one", tmp_path / "packed")
    fastload.append(tmp_path / "packed", tmp_path / "two")
    both = assert_intact(tmp_path / "packed")
    assert both.class_names["split"] == ("train", "val", "test")
    assert [both.source(i) for i in range(5)] == [
        "train/cat/one.jpg",
        "train/cat/two.jpg",
        "val/cat/one.jpg",
        "val/cat/two.jpg",
        "test/cat/two.jpg",
    ]
    again = fastload.append(tmp_path / "packed", tmp_path / "one")
    assert again.n_samples == 7
    assert both.column("split").tolist() == [0, 0, 1, 1, 2]
    assert assert_intact(tmp_path / "packed").column("split").tolist() == [0, 0, 0, 1, 1, 1, 2]


def test_a_source_with_other_fields_is_refused_before_packing(tmp_path: Path) -> None:
    pack_every_kind(tmp_path / "packed", range(2))
    before = tree(tmp_path / "packed")
    with pytest.raises(ConfigError, match=r"field 'blobs' differs: .*packed has list of bytes"):
        fastload.append(tmp_path / "packed", _source(range(2), FIELDS[:-1]))
    assert tree(tmp_path / "packed") == before


def test_two_appends_at_the_same_time_are_refused(tmp_path: Path) -> None:
    pack_every_kind(tmp_path / "packed", range(2))

    def samples() -> Iterator[Sample]:
        with pytest.raises(StoreError, match="another fastload pack is running here"):
            fastload.append(tmp_path / "packed", _source(range(1)))
        yield Sample(sample(7), source="seven")

    fastload.append(tmp_path / "packed", Streamed(samples(), FIELDS))
    assert len(assert_intact(tmp_path / "packed")) == 3


def test_a_bad_sample_leaves_the_dataset_unchanged(tmp_path: Path) -> None:
    class_folders(tmp_path / "one", per_class=2)
    fastload.pack(tmp_path / "one", tmp_path / "packed")
    before = tree(tmp_path / "packed")
    class_folders(tmp_path / "two", per_class=2)
    (tmp_path / "two" / "ant" / "bad.jpg").write_bytes(b"no image")
    with pytest.raises(BadImage, match=r"ant/bad\.jpg"):
        fastload.append(tmp_path / "packed", tmp_path / "two")
    now = tree(tmp_path / "packed")
    assert {path: now[path] for path in before} == before
    result = fastload.append(tmp_path / "packed", tmp_path / "two", on_error="skip")
    assert result.n_added == 6
    assert assert_intact(tmp_path / "packed").manifest.skipped == 1
    assert [line["source"] for line in log_of(tmp_path / "packed")] == ["ant/bad.jpg"]


CHILD = """
import os, signal, sys
import fastload
from collections.abc import Iterator
from pathlib import Path

calls = [0]
limit = int(sys.argv[3])
real = {name: getattr(os, name) for name in ("fsync", "rename", "link", "unlink", "rmdir")}

def counted(name):
    def call(*args, **options):
        calls[0] += 1
        if calls[0] == limit:
            os.kill(os.getpid(), signal.SIGKILL)
        return real[name](*args, **options)
    return call

for name in real:
    setattr(os, name, counted(name))
fastload.append(sys.argv[1], sys.argv[2])
"""


def test_kill_9_at_any_step_leaves_the_old_or_the_new_dataset(tmp_path: Path) -> None:
    class_folders(tmp_path / "one", per_class=2, classes=("cat", "dog"))
    class_folders(tmp_path / "two", per_class=2, classes=("cat", "bee"))
    fastload.pack(tmp_path / "one", tmp_path / "packed")
    sizes = []
    limit = 1
    while True:
        child = subprocess.run(
            [sys.executable, "-c", CHILD, tmp_path / "packed", tmp_path / "two", str(limit)],
            check=False,
            capture_output=True,
        )
        found = assert_intact(tmp_path / "packed")
        assert len(found) % 4 == 0
        sizes.append(len(found))
        if child.returncode == 0:
            break
        assert child.returncode == -signal.SIGKILL, child.stderr
        limit += 4
    # Each run that reaches the new manifest adds 4 samples, once.
    assert sizes == sorted(sizes)
    assert set(sizes) == {4, 8}
    assert limit > 40
    left = {path.name for path in (tmp_path / "packed").iterdir() if path.name[0] == "."}
    assert left == set()
