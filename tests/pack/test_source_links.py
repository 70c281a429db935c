"""Links and paths that lead outside the root are refused unless --follow-links allows them."""

from __future__ import annotations

import json
import subprocess
import sys
import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest

import fastload
from fastload._pack.sources.base import Encoded
from fastload._pack.sources.detect import open_source
from fastload.errors import BadImage, ConfigError
from tests.packing import log_of
from tests.source_contract import outcome, put_image, samples_of

Made = dict[str, str]  # options of the source


def _folder(root: Path, outside: Path) -> Made:
    (root / "cat").symlink_to(outside / "cat")
    return {}


def _csv(root: Path, outside: Path) -> Made:
    (root / "l.csv").write_text(f"path,label\n{outside}/cat/1.jpg,a\n{outside}/cat/2.jpg,b\n")
    return {}


def _jsonl_with_root(root: Path, outside: Path) -> Made:
    (root / "l.jsonl").write_text('{"image": "../outside/cat/1.jpg"}\n' * 2)
    return {"root": str(root)}


def _coco(root: Path, outside: Path) -> Made:
    images = [{"id": i, "file_name": f"{outside}/cat/{i}.jpg"} for i in (1, 2)]
    file = root / "annotations" / "instances_all.json"
    file.parent.mkdir()
    file.write_text(json.dumps({"images": images, "annotations": [], "categories": []}))
    return {}


def _yolo(root: Path, outside: Path) -> Made:
    (root / "images").symlink_to(outside / "cat")
    (root / "labels").mkdir()
    (root / "labels" / "1.txt").write_text("0 0.5 0.5 1 1\n")
    return {}


def _voc(root: Path, outside: Path) -> Made:
    (root / "JPEGImages").symlink_to(outside / "cat")
    (root / "Annotations").mkdir()
    for name in ("1", "2"):
        (root / "Annotations" / f"{name}.xml").write_text("<annotation/>")
    return {}


def _openlane(root: Path, outside: Path) -> Made:
    (root / "images").symlink_to(outside)
    (root / "lane3d_300" / "training").mkdir(parents=True)
    for name in ("1", "2"):
        lanes = {
            "lane_lines": [],
            "file_path": f"cat/{name}.jpg",
            "intrinsic": [[1, 0, 0]] * 3,
            "extrinsic": [[1, 0, 0, 0]] * 4,
        }
        (root / "lane3d_300" / "training" / f"{name}.json").write_text(json.dumps(lanes))
    return {}


def _nuscenes(root: Path, outside: Path) -> Made:
    (root / "samples").symlink_to(outside)
    (root / "samples.json").write_text(
        json.dumps(
            {
                "samples": [
                    {
                        "token": name,
                        "timestamp": 1,
                        "scene": "s",
                        "cams": {
                            "CAM": {
                                "filename": f"samples/cat/{name}.jpg",
                                "camera_intrinsic": [[1, 0, 0]] * 3,
                                "sensor2ego": [[1, 0, 0, 0]] * 4,
                            }
                        },
                    }
                    for name in ("1", "2")
                ]
            }
        )
    )
    return {}


def _webdataset(root: Path, outside: Path) -> Made:
    with tarfile.open(outside / "a.tar", "w") as tar:
        for name in ("1.jpg", "2.jpg"):
            tar.add(outside / "cat" / name, name)
    (root / "a.tar").symlink_to(outside / "a.tar")
    return {}


def _parquet(root: Path, outside: Path) -> Made:
    arrow = pytest.importorskip("pyarrow")
    images = [(outside / "cat" / f"{name}.jpg").read_bytes() for name in (1, 2)]
    table = arrow.table({"image": arrow.array([{"bytes": data, "path": None} for data in images])})
    pytest.importorskip("pyarrow.parquet").write_table(table, outside / "x.parquet")
    (root / "x.parquet").symlink_to(outside / "x.parquet")  # as in the cache of the Hub
    return {}


SOURCES: list[Callable[[Path, Path], Made]] = [
    *(_folder, _csv, _jsonl_with_root, _coco, _yolo, _voc, _openlane, _nuscenes, _webdataset),
    _parquet,
]


@pytest.fixture
def outside(tmp_path: Path) -> Path:
    for name in (1, 2):
        put_image(tmp_path / "outside" / "cat" / f"{name}.jpg", name)
    (tmp_path / "root").mkdir()
    return tmp_path / "outside"


@pytest.mark.parametrize("make", SOURCES)
def test_every_source_names_the_option_and_reads_with_it(
    outside: Path, make: Callable[[Path, Path], Made]
) -> None:
    root = outside.parent / "root"
    options = make(root, outside)
    try:
        good, messages = outcome(open_source(root, **options))
    except ConfigError as error:  # the link leads to a file of the whole dataset
        good, messages = [], [str(error)]
    assert good == []
    assert messages
    for message in messages:
        assert "leads outside the root" in message
        assert "Pass --follow-links (in Python: source_options={'follow_links': True})" in message
    assert len(samples_of(open_source(root, follow_links=True, **options))) == 2


def test_the_command_line_has_the_option(outside: Path) -> None:
    root = outside.parent / "root"
    _folder(root, outside)
    dest = outside.parent / "packed"
    command = [sys.executable, "-m", "fastload", "pack", str(root), str(dest)]
    refused = subprocess.run(command, capture_output=True, text=True, check=False)
    assert refused.returncode == 2
    assert "cat: not read: its path or a link leads outside the root" in refused.stderr
    subprocess.run([*command, "--follow-links"], check=True, capture_output=True)
    assert fastload.open(dest).classes == ["cat"]


def test_linked_classes_and_files_inside_the_root_are_packed(tmp_path: Path) -> None:
    data = put_image(tmp_path / "cat" / "1.jpg", 1)
    (tmp_path / "kitten").symlink_to("cat")
    (tmp_path / "cat" / "2.jpg").symlink_to("1.jpg")
    (tmp_path / "dog").mkdir()
    (tmp_path / "dog" / "parts").symlink_to(tmp_path / "cat")
    samples = samples_of(open_source(tmp_path))
    assert [(sample.source, sample.values["label"]) for sample in samples] == [
        ("cat/1.jpg", 0),
        ("cat/2.jpg", 0),
        ("dog/parts/1.jpg", 1),
        ("dog/parts/2.jpg", 1),
        ("kitten/1.jpg", 2),
        ("kitten/2.jpg", 2),
    ]
    assert all(sample.values["image"].data == data for sample in samples)


def test_a_linked_split_has_its_classes(tmp_path: Path) -> None:
    put_image(tmp_path / "train" / "cat" / "1.jpg")
    (tmp_path / "val").symlink_to("train")
    samples = samples_of(open_source(tmp_path))
    assert [sample.source for sample in samples] == ["train/cat/1.jpg", "val/cat/1.jpg"]
    assert [sample.values["split"] for sample in samples] == [0, 1]


def test_links_below_an_allowed_root_may_loop(outside: Path) -> None:
    root = outside.parent / "root"
    _folder(root, outside)
    (outside / "cat" / "back").symlink_to(root)
    (outside / "cat" / "up").symlink_to("..")
    source = open_source(root, follow_links=True)
    assert {sample.source for sample in samples_of(source)} >= {"cat/1.jpg", "cat/2.jpg"}


@pytest.mark.parametrize("inside", ["/", "\\"])
def test_absolute_paths_and_backslashes_in_lists_work(tmp_path: Path, inside: str) -> None:
    data = put_image(tmp_path / "img" / "a b.jpg", 1)
    odd = put_image(tmp_path / "back\\slash.jpg", 2)  # a legal name here
    rows = [f"{tmp_path}{inside}img{inside}a b.jpg", f"img{inside}a b.jpg", "back\\slash.jpg"]
    (tmp_path / "l.csv").write_text("path\n" + "\n".join(rows) + "\n")
    found = samples_of(open_source(tmp_path / "l.csv"))
    assert [sample.values["path"].data for sample in found] == [data, data, odd]
    coco = {
        "images": [{"id": 1, "file_name": f"img{inside}a b.jpg"}],
        "annotations": [],
        "categories": [],
    }
    (tmp_path / "c.json").write_text(json.dumps(coco))
    (sample,) = samples_of(open_source(tmp_path / "c.json"))
    assert isinstance(sample.values["image"], Encoded)


def test_backslashes_do_not_leave_the_root(outside: Path) -> None:
    root = outside.parent / "root"
    put_image(root / "a.jpg")
    (root / "l.csv").write_text("path\na.jpg\n..\\outside\\cat\\1.jpg\n")
    good, bad = outcome(open_source(root / "l.csv"))
    assert [sample.source for sample in good] == ["a.jpg"]
    assert "leads outside the root" in bad[0]


def test_a_destination_inside_the_source_is_refused(tmp_path: Path) -> None:
    put_image(tmp_path / "photos" / "cat" / "1.jpg")
    (tmp_path / "way").symlink_to("photos")
    for dest in ("photos/packed", "photos", "photos/cat/new/deep", "way/packed"):
        with pytest.raises(ConfigError, match=r"is inside the source .*photos: a second pack"):
            fastload.pack(tmp_path / "photos", tmp_path / dest)
    assert [path.name for path in (tmp_path / "photos").iterdir()] == ["cat"]
    assert fastload.pack(tmp_path / "photos", tmp_path / "photos2").n_samples == 1
    (tmp_path / "photos" / "l.csv").write_text("path\ncat/1.jpg\n")  # the source is one file
    assert fastload.pack(tmp_path / "photos/l.csv", tmp_path / "photos/listed").n_samples == 1


def test_a_packed_dataset_in_the_source_is_skipped_and_named(tmp_path: Path) -> None:
    put_image(tmp_path / "photos" / "cat" / "1.jpg")
    fastload.pack(tmp_path / "photos", tmp_path / "packed")
    (tmp_path / "packed").rename(tmp_path / "photos" / "packed")
    (tmp_path / "photos" / "unfinished" / ".pack").mkdir(parents=True)
    (tmp_path / "photos" / "unfinished" / ".pack" / "plan.json").touch()
    result = fastload.pack(tmp_path / "photos", tmp_path / "again")
    assert result.left_out == {"a packed dataset": 2}
    assert fastload.open(tmp_path / "again").classes == ["cat"]
    assert [line["source"] for line in log_of(tmp_path / "again")] == ["packed", "unfinished"]
    with pytest.raises(BadImage):  # an image inside is not found by another name either
        open_source(tmp_path / "photos").load("packed/manifest.json")  # type: ignore[union-attr]
