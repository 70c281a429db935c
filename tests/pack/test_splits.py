"""Splits: the packing order, the blocks, and the split of every kind of source."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import fastload
from fastload._pack.packing_order import PackingOrder
from fastload._pack.sources.base import Ref, Sample, refused
from fastload._pack.sources.detect import open_source
from fastload._store.fields import Field
from fastload.errors import BadImage, ConfigError, StoreError
from tests.packing import SMALL_SHARDS, Listed, Streamed, class_folders, log_of, pack, tree
from tests.source_contract import put_image

SPLIT = Field("split", "int", classes=("train", "val", "test"))
FIELDS = (Field("number", "int"), SPLIT, Field("blob", "bytes"))


class Known(Listed):
    """A listed source that knows its splits; ``loaded`` has the refs in the order of loading."""

    def __init__(self, samples: list[Sample | BadImage]) -> None:
        super().__init__(samples, FIELDS)
        self.loaded: list[int] = []

    def split_of(self, ref: Ref) -> int:
        sample = self.samples[int(str(ref))]
        return 0 if isinstance(sample, BadImage) else int(str(sample.values.get("split", 0)))

    def load(self, ref: Ref) -> Sample:
        self.loaded.append(int(str(ref)))
        return super().load(ref)


def made(n: int = 60, size: int = 10) -> list[Sample | BadImage]:
    return [
        Sample({"number": i, "split": (i * 7) % 3, "blob": bytes(size)}, source=f"s{i}")
        for i in range(n)
    ]


def source(kind: str, samples: list[Sample | BadImage]) -> Any:
    if kind == "known":
        return Known(samples)
    return Listed(samples, FIELDS) if kind == "listed" else Streamed(samples, FIELDS)


@pytest.mark.parametrize("order", ["shuffle", "source"])
@pytest.mark.parametrize("kind", ["known", "listed", "stream"])
def test_a_split_is_a_range_of_ids(tmp_path: Path, kind: str, order: str) -> None:
    pack(source(kind, made()), tmp_path / "packed", order=order, seed=3)
    dataset = fastload.open(tmp_path / "packed")
    rows = dataset.column("_source_index")
    splits = dataset.column("split").tolist()
    assert splits == sorted(splits)
    assert splits == [(row * 7) % 3 for row in rows.tolist()]
    assert sorted(rows.tolist()) == list(range(60))
    for name in SPLIT.classes:
        own = rows[dataset.split(name)].tolist()
        assert (own == sorted(own)) == (order == "source")
        assert [dataset[i]["number"] for i in dataset.split(name).tolist()] == own


def test_all_kinds_of_sources_pack_the_same_dataset(tmp_path: Path) -> None:
    found = []
    for kind in ("known", "listed", "stream"):
        pack(source(kind, made()), tmp_path / kind, seed=5)
        found.append([fastload.open(tmp_path / kind)[i] for i in range(60)])
    assert found[0] == found[1] == found[2]


def test_a_source_that_knows_its_splits_is_loaded_once(tmp_path: Path) -> None:
    known = Known(made())
    pack(known, tmp_path / "packed", jobs=1)
    assert sorted(known.loaded) == list(range(60))


def test_no_block_spans_two_splits(tmp_path: Path) -> None:
    pack(Known(made(size=3000)), tmp_path / "packed", **SMALL_SHARDS)
    dataset = fastload.open(tmp_path / "packed")
    splits = dataset.column("split")
    for first, count in dataset.blocks.tolist():
        assert len(set(splits[first : first + count].tolist())) == 1
    assert len(dataset.blocks) == 3


def test_bad_samples_leave_no_hole_between_splits(tmp_path: Path) -> None:
    given = made()
    for i in (0, 20, 41):
        given[i] = BadImage("broken", source=f"s{i}")
    for kind in ("known", "stream"):
        pack(source(kind, given), tmp_path / kind, on_error="skip")
        splits = fastload.open(tmp_path / kind).column("split").tolist()
        assert splits == sorted(splits)
        assert len(splits) == 57


@pytest.mark.parametrize("kind", ["known", "stream"])
def test_a_sample_without_a_split_is_bad(tmp_path: Path, kind: str) -> None:
    given = made(9)
    given[4] = Sample({"number": 4, "blob": b""}, source="s4")
    with pytest.raises(BadImage, match=r"s4: has no split.*expected one of train, val, test"):
        pack(source(kind, given), tmp_path / "packed")
    pack(source(kind, given), tmp_path / "packed", on_error="skip")
    assert [line["source"] for line in log_of(tmp_path / "packed")] == ["s4"]


def test_a_source_that_contradicts_itself_is_refused(tmp_path: Path) -> None:
    class Wrong(Known):
        def split_of(self, ref: Ref) -> int:
            return 1

    with pytest.raises(
        ConfigError, match=r"load\(\) returned split 0, but split_of\(\) returned 1"
    ):
        pack(Wrong(made()), tmp_path / "packed", jobs=1)


@pytest.mark.parametrize("names", [("train", "all"), ("train", "train")])
def test_split_names_that_cannot_be_selected_are_refused(
    tmp_path: Path, names: tuple[str, ...]
) -> None:
    fields = (Field("number", "int"), Field("split", "int", classes=names))
    given = [Sample({"number": 0, "split": 0}, source="a")]
    with pytest.raises(ConfigError, match="expected unique names other than 'all'"):
        pack(Listed(given, fields), tmp_path / "packed")


class Stop(Exception):
    pass


@pytest.mark.parametrize("kind", ["known", "stream"])
def test_a_pack_that_stopped_in_any_split_resumes_to_the_same_bytes(
    tmp_path: Path, kind: str
) -> None:
    given = made(90, size=60_000)
    pack(source(kind, given), tmp_path / "whole", **SMALL_SHARDS)
    for at in (5, 35, 65, 89):

        def stop(progress: Any, at: int = at) -> None:
            if progress.stage == "packing" and progress.done == at:
                raise Stop

        with pytest.raises(Stop):
            pack(source(kind, given), tmp_path / f"{at}", on_progress=stop, **SMALL_SHARDS)
        pack(source(kind, given), tmp_path / f"{at}", **SMALL_SHARDS)
        assert tree(tmp_path / f"{at}") == tree(tmp_path / "whole")


def test_a_damaged_list_of_splits_is_refused(tmp_path: Path) -> None:
    given = made(90, size=60_000)

    def stop(progress: Any) -> None:
        if progress.stage == "packing" and progress.done == 60:
            raise Stop

    with pytest.raises(Stop):
        pack(Known(given), tmp_path / "packed", on_progress=stop, **SMALL_SHARDS)
    file = tmp_path / "packed/.pack/listing.splits"
    good = file.read_bytes()
    for bad in (good[:-1], b"\1" + good[1:]):
        file.write_bytes(bad)
        with pytest.raises(StoreError, match=r"listing\.splits is damaged"):
            pack(Known(given), tmp_path / "packed", **SMALL_SHARDS)
    file.write_bytes(good)
    assert pack(Known(given), tmp_path / "packed", **SMALL_SHARDS).n_samples == 90


def folder(root: Path) -> Path:
    class_folders(root / "val", per_class=3)
    class_folders(root / "train", per_class=8)
    return root


def listed(root: Path) -> Path:
    root.mkdir()
    rows = ["path,split"]
    for i in range(33):
        put_image(root / f"{i}.png", i)
        rows.append(f"{i}.png,{'val' if i % 11 < 3 else 'train'}")
    (root / "list.csv").write_text("\n".join(rows))
    return root / "list.csv"


def jsonl(root: Path) -> Path:
    listed(root)
    rows = [line.split(",") for line in (root / "list.csv").read_text().split()[1:]]
    (root / "list.csv").unlink()
    lines = [json.dumps({"path": path, "split": split}) for path, split in rows]
    (root / "list.jsonl").write_text("\n".join(lines))
    return root / "list.jsonl"


def yolo(root: Path) -> Path:
    for i in range(33):
        split = "val" if i % 11 < 3 else "train"
        put_image(root / f"images/{split}/{i}.png", i)
        label = root / f"labels/{split}/{i}.txt"
        label.parent.mkdir(parents=True, exist_ok=True)
        label.write_text("0 0.5 0.5 0.2 0.2\n")
    return root


def voc(root: Path) -> Path:
    names: dict[str, list[str]] = {"train": [], "val": []}
    for i in range(33):
        put_image(root / f"JPEGImages/{i}.jpg", i)
        names["val" if i % 11 < 3 else "train"].append(f"{i}")
        note = root / f"Annotations/{i}.xml"
        note.parent.mkdir(parents=True, exist_ok=True)
        note.write_text("<annotation></annotation>")
    for name, stems in names.items():
        path = root / f"ImageSets/Main/{name}.txt"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("\n".join(stems))
    return root


def parquet(root: Path) -> Path:
    arrow = pytest.importorskip("pyarrow", reason="not run: no pyarrow")
    files = pytest.importorskip("pyarrow.parquet", reason="not run: no pyarrow")
    (root / "data").mkdir(parents=True)
    images = [{"bytes": put_image(root / f"{i}.png", i), "path": f"{i}.png"} for i in range(33)]
    for name, own in (("val", images[:9]), ("train", images[9:])):
        files.write_table(
            arrow.table({"image": own}), root / "data" / f"{name}-00000-of-00001.parquet"
        )
    return root / "data"


def python(root: Path) -> Any:
    pixels: NDArray[np.uint8] = np.zeros((4, 4, 3), np.uint8)
    return [{"image": pixels, "split": int(i % 11 < 3)} for i in range(33)]


def generator(root: Path) -> Iterator[object]:
    return iter(python(root))


@pytest.mark.parametrize("make", [folder, listed, jsonl, yolo, voc, parquet, python, generator])
def test_every_source_with_splits_is_packed_split_by_split(tmp_path: Path, make: Any) -> None:
    options: dict[str, Any] = {}
    if make in (python, generator):
        options["fields"] = [
            Field("image", "image"),
            Field("split", "int", classes=("train", "val")),
        ]
    fastload.pack(make(tmp_path / "source"), tmp_path / "packed", **options)
    dataset = fastload.open(tmp_path / "packed")
    assert {name: [*dataset.split(name)] for name in dataset.splits} == {
        "train": list(range(24)),
        "val": list(range(24, 33)),
    }
    assert len(dataset.blocks) == 2
    assert dataset.column("_source_index").tolist() != list(range(33))  # shuffled


@pytest.mark.parametrize("order", ["shuffle", "source"])
def test_ranges_of_the_packing_order_join_to_the_whole(order: str) -> None:
    splits = np.random.default_rng(1).integers(0, 4, 1000).astype(np.uint16)
    packing = PackingOrder(1000, splits=splits, order=order, seed=7)
    whole = packing.rows(0, 1000)
    assert sorted(whole.tolist()) == list(range(1000))
    assert (np.diff(splits[whole].astype(int)) >= 0).all()
    for start in (0, 1, 249, 700, 1000):
        assert list(packing.iterate(range(start, packing.n))) == whole[start:].tolist()
        assert packing.rows(0, start).tolist() + packing.rows(start, 1000).tolist() == [*whole]
    with pytest.raises(ConfigError, match="expected 0 to 1000"):
        packing.rows(990, 1001)


def test_an_empty_split_has_no_rows() -> None:
    splits = np.array([2, 0, 2, 0], np.uint16)
    rows = PackingOrder(4, splits=splits, order="shuffle", seed=0).rows(0, 4)
    assert splits[rows].tolist() == [0, 0, 2, 2]


def test_a_folder_that_cannot_be_read_has_a_split(tmp_path: Path) -> None:
    """It is listed as a bad sample, so that the pack names it."""
    for make, path in ((folder, "val"), (yolo, "images/val"), (voc, "JPEGImages/inner")):
        source: Any = open_source(make(tmp_path / make.__name__))
        assert source.split_of(refused(path, "no permission")) in (0, 1)
