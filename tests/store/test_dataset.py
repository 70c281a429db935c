"""``fastload.open``: decoded samples, columns, classes, splits, sources, and wrong input."""

from __future__ import annotations

import io
import os
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from fastload._common import files
from fastload._pack.sources.base import Info
from fastload._store import manifest
from fastload._store.dataset import Dataset, open_dataset
from fastload._store.fields import Field
from fastload._store.kinds import MISSING_INT
from fastload._store.manifest import Shard, expected_columns
from fastload._store.properties import Properties
from fastload._store.record import Part, encode_record
from fastload._store.writer import ShardWriter, shard_name
from fastload.errors import BadImage, ConfigError, CorruptManifest, CorruptShard, StoreError
from tests.packed_datasets import pack_samples
from tests.small_dataset import FIELDS, same, simple_samples, write_dataset

ALL = (
    Field("image", "image"),
    Field("mask", "mask"),
    Field("boxes", "boxes", image="image"),
    Field("points", "points"),
    Field("matrix", "matrix"),
    Field("array", "array"),
    Field("label", "int", classes=("cat", "dog")),
    Field("score", "float"),
    Field("note", "str"),
    Field("meta", "json"),
    Field("blob", "bytes"),
    Field("cameras", "image", list=True),
    Field("tags", "str", list=True),
    Field("split", "int", classes=("train", "val")),
)


def full_sample(i: int) -> dict[str, Any]:
    rng = np.random.default_rng(i)
    return {
        "image": rng.integers(0, 255, (6 + i, 8, 3), dtype=np.uint8),
        "mask": rng.integers(0, 9, (6, 8), dtype=np.uint8),
        "boxes": rng.random((i, 4), dtype=np.float32),
        "points": rng.random((i + 1, 3), dtype=np.float32),
        "matrix": rng.random((3, 3)),
        "array": rng.integers(0, 9, (i, 2, 2)),
        "label": i % 2,
        "score": i / 3,
        "note": f"nº {i}",
        "meta": {"a": [i, None, True]},
        "blob": bytes([i]) * i,
        "cameras": [rng.integers(0, 255, (4, 4, 1), dtype=np.uint8) for _ in range(i % 7)],
        "tags": ["x"] * i,
        "split": i % 2,
    }


@pytest.fixture
def simple(tmp_path: Path) -> tuple[Path, list[dict[str, Any]]]:
    samples = simple_samples(20)
    write_dataset(tmp_path / "ds", samples)
    return tmp_path / "ds", samples


Simple = tuple[Path, list[dict[str, Any]]]


def pixels(data: bytes) -> np.ndarray[Any, Any]:
    with Image.open(io.BytesIO(data)) as image:
        return np.asarray(image)


def test_every_field_kind_round_trips(tmp_path: Path) -> None:
    samples = [full_sample(i) for i in range(10)]
    samples.append(dict.fromkeys(samples[0]))
    write_dataset(tmp_path, samples, fields=ALL, per_shard=4, per_block=3)
    ds = open_dataset(tmp_path, verify="full")
    for i in range(10):
        assert same(ds[i], samples[i])
    assert same(ds[10], {field.name: [] if field.list else None for field in ALL})
    assert ds.column("label").tolist() == [i % 2 for i in range(10)] + [MISSING_INT]
    assert ds.column("score")[:10].tolist() == [i / 3 for i in range(10)]
    assert np.isnan(ds.column("score")[10])
    assert ds.sizes().tolist() == [[6 + i, 8] for i in range(10)] + [[0, 0]]
    assert ds.fields == ALL
    assert ds.class_names == {"label": ("cat", "dog"), "split": ("train", "val")}
    assert ds.blocks.tolist() == [[0, 3], [3, 1], [4, 3], [7, 1], [8, 3]]


def test_indexing_returns_decoded_samples(simple: Simple) -> None:
    folder, samples = simple
    ds = open_dataset(str(folder))
    assert len(ds) == 20
    for i in (0, 7, 8, 19, -1, -20, np.int64(3)):
        assert np.array_equal(ds[i]["image"], pixels(samples[i]["image"]))
        assert (ds[i]["label"], ds[i]["note"]) == (samples[i]["label"], samples[i]["note"])
    for wrong in (20, -21, 1 << 70):
        with pytest.raises(IndexError, match="the dataset has 20 samples"):
            ds[wrong]
    with pytest.raises(TypeError):
        ds[1:3]  # type: ignore[index]
    assert len(list(ds)) == 20  # type: ignore[call-overload]
    assert [sample["note"] for sample in ds.__getitems__([3, 1])] == ["note 3", "note 1"]
    assert "20 samples of image: image, label: int, note: str" in repr(ds)


def test_records_are_the_stored_bytes(simple: Simple) -> None:
    folder, samples = simple
    ds = open_dataset(folder)
    record = ds.record(-2)
    assert record.id == 18
    assert record.source == ds.source(18) == "images/0018.jpg"
    assert bytes(record.raw("image")) == bytes(ds.raw(18, "image")) == samples[18]["image"]
    for field, item in (("nothing", 0), ("image", 1)):
        with pytest.raises(KeyError, match="sample 18: no field"):
            record.raw(field, item)
    view = record.raw("image")
    del ds, record
    assert bytes(view) == samples[18]["image"]


def test_columns_are_mapped_read_only_and_kept(simple: Simple) -> None:
    ds = open_dataset(simple[0])
    labels = ds.column("label")
    assert labels is ds.column("label")
    assert labels.tolist() == [i % 3 for i in range(20)]
    with pytest.raises(ValueError, match="read-only"):
        labels[0] = 1
    assert ds.column("_source_index").tolist() == list(range(20))
    for wrong in ("note", "../manifest", "image"):
        with pytest.raises(
            ConfigError,
            match=r"has _blocks, _source_index, image\.width, image\.height, label \(int and float fields, and image sizes",
        ):
            ds.column(wrong)


def test_a_sample_without_a_source_has_an_empty_one(tmp_path: Path) -> None:
    write_dataset(tmp_path, simple_samples(2), sources=["", "x"])
    ds = open_dataset(tmp_path)
    assert (ds.source(0), ds.source(1), ds.record(0).source, ds.splits) == ("", "x", "", ())


def test_an_empty_dataset(tmp_path: Path) -> None:
    write_dataset(tmp_path, [])
    ds = open_dataset(tmp_path)
    assert len(ds) == 0
    assert ds.blocks.shape == (0, 2)
    with pytest.raises(IndexError):
        ds[0]


def test_two_datasets_on_the_same_files(simple: Simple) -> None:
    folder, _ = simple
    a, b = open_dataset(folder), open_dataset(folder, verify="full")
    assert same(a[3], b[3])
    del a
    assert b[4]["note"] == "note 4"


def test_a_dataset_pickles_as_its_path(simple: Simple, monkeypatch: pytest.MonkeyPatch) -> None:
    folder, _ = simple
    monkeypatch.chdir(folder.parent)
    ds = open_dataset("ds", verify="full")
    ds[0], ds.column("label")
    data = pickle.dumps(ds)
    assert len(data) < 500
    monkeypatch.chdir("/")
    other = pickle.loads(data)
    assert (other.path, other.verify) == (folder, "full")
    assert same(other[5], ds[5])


def test_unpickling_rejects_a_dataset_that_was_packed_again(simple: Simple) -> None:
    folder, samples = simple
    data = pickle.dumps(open_dataset(folder))
    write_dataset(folder, samples[::-1])
    with pytest.raises(StoreError, match="was packed again"):
        pickle.loads(data)
    assert open_dataset(folder)[0]["note"] == "note 19"


def test_each_wrong_path_has_its_own_message(tmp_path: Path, simple: Simple) -> None:
    with pytest.raises(StoreError, match="no such folder"):
        open_dataset(tmp_path / "nowhere")
    with pytest.raises(StoreError, match="found a file, expected a folder"):
        open_dataset(simple[0] / "manifest.json")
    (tmp_path / "photos").mkdir()
    with pytest.raises(
        CorruptManifest, match=r"not a fastload dataset\. Create one with 'fastload pack"
    ):
        open_dataset(tmp_path / "photos")
    (simple[0] / "manifest.json").unlink()
    with pytest.raises(
        CorruptManifest, match=r"has not finished\. Run the same 'fastload pack' command again"
    ):
        open_dataset(simple[0])
    with pytest.raises(ConfigError, match="verify='maybe'"):
        open_dataset(simple[0], verify="maybe")


@pytest.mark.parametrize("damage", ["cut", "longer", "missing", "link", "swapped"])
def test_a_wrong_shard_is_found_when_opening(simple: Simple, damage: str) -> None:
    folder, _ = simple
    last = folder / "shard-00002.lmdb"
    good = last.read_bytes()
    if damage == "cut":
        last.write_bytes(good[:-4096])
    elif damage == "longer":
        last.write_bytes(good + bytes(4096))
    elif damage == "swapped":
        last.write_bytes((folder / "shard-00000.lmdb").read_bytes())
    else:
        last.unlink()
        if damage == "link":
            last.symlink_to(folder / "shard-00001.lmdb")
    with pytest.raises(CorruptShard, match=r"shard-00002\.lmdb") as caught:
        open_dataset(folder)
    assert caught.value.shard == "shard-00002.lmdb"
    last.unlink(missing_ok=True)
    last.write_bytes(good)
    assert open_dataset(folder)[19]["note"] == "note 19"


def one_record(folder: Path, record: bytes, fields: tuple[Field, ...]) -> Dataset:
    """Writes a dataset with one given record and valid digests."""
    sample: dict[str, Any] = {}
    made = write_dataset(folder, [sample], fields=fields)
    with ShardWriter(folder, shard_name(0), base=0) as writer:
        writer.add(0, record)
        shard: Shard = writer.publish()
    files.write_atomically(
        folder / manifest.NAME,
        manifest.dump(
            manifest.Manifest(
                n_samples=1,
                fields=fields,
                properties=made.properties,
                shards=(shard,),
                columns=made.columns,
                content=made.content,
            )
        ),
    )
    return open_dataset(folder, verify="full")


@pytest.mark.parametrize(
    ("part", "match"),
    [
        (Part(0, b"\xff"), "field 'note': text of 'note' is not UTF-8"),
        (Part(1, b"x"), "field number is 1, expected below 1"),
        (Part(0xFFFE, b""), "field number is 65534"),
    ],
)
def test_a_record_that_does_not_fit_the_fields_is_named(
    tmp_path: Path, part: Part, match: str
) -> None:
    ds = one_record(tmp_path, encode_record(0, [part]), (Field("note", "str"),))
    with pytest.raises(CorruptShard, match=match) as caught:
        ds[0]
    assert (caught.value.shard, caught.value.record) == ("shard-00000.lmdb", 0)


def test_an_image_that_does_not_decode_is_named(tmp_path: Path) -> None:
    samples = simple_samples(3)
    data = samples[1]["image"]
    samples[1]["image"] = data[:-100] + b"\xff\xd9"
    write_dataset(tmp_path, samples, sources=["a.jpg", "b.jpg", "c.jpg"])
    ds = open_dataset(tmp_path)
    with pytest.raises(BadImage, match=r"^b\.jpg: sample 1, field 'image': ") as caught:
        ds[1]
    assert (caught.value.source, caught.value.image_id) == ("b.jpg", 1)
    assert ds[2]["note"] == "note 2"


@pytest.mark.parametrize(
    "blocks",
    [
        [(0, 4), (4, 4), (8, 8), (16, 3)],
        [(0, 20)],
        [(0, 4), (8, 4), (4, 4), (12, 4), (16, 4)],
        [(0, 8), (8, 8), (16, 0), (16, 4)],
        [(0, 8), (8, 9), (16, 4)],
        [],
    ],
)
def test_blocks_that_do_not_cover_the_shards_are_rejected(
    simple: Simple, blocks: list[tuple[int, int]]
) -> None:
    from dataclasses import replace

    from fastload._store.columns import ColumnWriter

    folder, _ = simple
    found = open_dataset(folder).manifest
    with ColumnWriter(folder, "_blocks", "<i8", width=2) as writer:
        writer.append(np.array(blocks, np.int64).reshape(-1, 2))
        column = writer.finish()
    changed = replace(
        found, columns=tuple(column if each.name == "_blocks" else each for each in found.columns)
    )
    files.write_atomically(folder / manifest.NAME, manifest.dump(changed))
    ds = open_dataset(folder)
    with pytest.raises(CorruptShard, match="blocks do not cover"):
        _ = ds.blocks


def test_the_store_does_not_import_torch() -> None:
    import subprocess
    import sys

    code = "import sys, fastload._store.dataset; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"


def identity(batch: list[Any]) -> list[Any]:
    return batch


@pytest.mark.parametrize(
    ("context", "opened", "workers"),
    [
        ("fork", "before", 2),
        ("fork", "after", 2),
        ("spawn", "before", 1),
        ("forkserver", "before", 1),
    ],
)
def test_a_torch_dataloader_reads_the_dataset(
    simple: Simple, context: str, opened: str, workers: int
) -> None:
    torch_data = pytest.importorskip("torch.utils.data")
    folder, _ = simple
    ds = open_dataset(folder)
    expected = [open_dataset(folder)[i] for i in range(20)] if opened == "before" else []
    if opened == "before":
        ds[0], ds[19], ds.column("label")
    loader = torch_data.DataLoader(
        ds, batch_size=6, num_workers=workers, multiprocessing_context=context, collate_fn=identity
    )
    found = [sample for batch in loader for sample in batch]
    assert same(found, expected or [ds[i] for i in range(20)])


def test_opening_ten_million_samples_takes_little_memory(tmp_path: Path) -> None:
    """Writes shards and columns as sparse files, because opening a dataset does not read them."""
    import subprocess
    import sys

    folder = tmp_path / "big"
    (folder / "columns").mkdir(parents=True)
    n_samples, per_shard = 10_000_000, 4546
    firsts = range(0, n_samples, per_shard)
    shards = tuple(
        Shard(
            f"shard-{i:05d}.lmdb",
            512 << 20,
            min(per_shard, n_samples - first),
            first,
            first,
            4096,
            "0" * 8,
            f"{i:064x}",
            "0" * 64,
        )
        for i, first in enumerate(firsts)
    )
    for shard in shards:
        with (folder / shard.name).open("wb") as file:
            os.truncate(file.fileno(), shard.size)
    columns = tuple(
        manifest.Column(
            name,
            dtype,
            (131_579, 2) if name == "_blocks" else (n_samples,),
            128 + int(dtype[2]) * (263_158 if name == "_blocks" else n_samples),
            "0" * 8,
        )
        for name, dtype in expected_columns(FIELDS).items()
    )
    files.write_atomically(
        folder / manifest.NAME,
        manifest.dump(
            manifest.Manifest(
                n_samples=n_samples,
                fields=FIELDS,
                properties=tuple(Properties() for _ in FIELDS),
                shards=shards,
                columns=columns,
                content="0" * 64,
            )
        ),
    )
    code = f"""
import time
from fastload._store.dataset import open_dataset
def anonymous():
    return next(int(line.split()[1]) for line in open("/proc/self/status") if line.startswith("RssAnon"))
before, start = anonymous(), time.perf_counter()
ds = open_dataset({str(folder)!r})
print(len(ds), anonymous() - before, time.perf_counter() - start)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    count, kib, seconds = done.stdout.split()
    print(f"opened in {float(seconds) * 1000:.1f} ms with {kib} KiB")
    assert int(count) == n_samples
    assert int(kib) < 50_000 // 1.024


def packed_with(folder: Path, *fields: Field, info: Info | None = None) -> Dataset:
    samples = [{field.name: 0 for field in fields}]
    return open_dataset(pack_samples(folder, fields, samples, info=info))


def test_classes_are_those_of_the_only_field_with_class_names(tmp_path: Path) -> None:
    dataset = packed_with(
        tmp_path / "one",
        Field("count", "int"),
        Field("label", "int", classes=("cat", "dog")),
        Field("split", "int", classes=("train", "val")),
    )
    assert dataset.classes == ["cat", "dog"]
    assert dataset.class_to_idx == {"cat": 0, "dog": 1}
    assert dataset.class_names == {"label": ("cat", "dog"), "split": ("train", "val")}


def test_classes_are_the_categories_of_a_detection_dataset(tmp_path: Path) -> None:
    info: Info = {"categories": [{"id": 7, "name": "car"}, {"id": 3, "name": "bus"}]}
    dataset = packed_with(tmp_path / "boxes", Field("count", "int"), info=info)
    assert dataset.class_to_idx == {"car": 0, "bus": 1}


def test_classes_of_several_fields_or_none_are_an_error(tmp_path: Path) -> None:
    """An AttributeError, because frameworks test for the attribute."""
    several = packed_with(
        tmp_path / "several",
        Field("label", "int", classes=("cat", "dog")),
        Field("color", "int", classes=("red", "blue")),
    )
    none = packed_with(tmp_path / "none", Field("count", "int"))
    for dataset, message in (
        (several, r"several fields with class names: label, color. Use class_names\[FIELD\]"),
        (none, "has no fields with class names"),
    ):
        for name in ("classes", "class_to_idx"):
            with pytest.raises(AttributeError, match=message):
                getattr(dataset, name)
            assert not hasattr(dataset, name)
    assert several.class_names["color"] == ("red", "blue")
