"""Fuzz targets of the source formats: one file of a source has the bytes of the fuzzer."""

from __future__ import annotations

import contextlib
import io
import itertools
import json
import tarfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from fastload._pack.datasets.exporting import export
from fastload._pack.sources import detect
from fastload._pack.sources.base import KnowsSplits, Source, is_stream
from fastload._store.fields import splits_of
from fastload.errors import FastloadError
from tests.every_kind import pack_every_kind
from tests.fuzz.mutations import mutate_json, mutate_json_lines
from tests.fuzz.target import Mutation, Target, folder, new_folder
from tests.source_contract import image_bytes

MAX_SAMPLES = 20
Files = dict[str, bytes]  # relative path and content


@dataclass(frozen=True)
class Layout:
    """A source: the file that the fuzzer writes, other files, and options of the format."""

    file: str
    others: Files = field(default_factory=dict)
    options: dict[str, Any] = field(default_factory=dict)
    export_to: str = ""  # the other files are an export of this kind


def _reads(form: str, *layouts: Layout) -> Callable[[bytes], None]:
    """Returns a target that reads the bytes as a source of each layout."""

    @cache
    def roots() -> list[Path]:
        made = []
        for layout in layouts:
            root = exported(layout.export_to) if layout.export_to else new_folder()
            for name, data in {**layout.others, layout.file: b""}.items():
                (root / name).parent.mkdir(parents=True, exist_ok=True)
                (root / name).write_bytes(data)
            made.append(root)
        return made

    def run(data: bytes) -> None:
        for root, layout in zip(roots(), layouts, strict=True):
            (root / layout.file).write_bytes(data)
            with contextlib.suppress(FastloadError):
                detect.detect(root)
            read_source(root, form, layout.options)

    return run


def read_source(root: Path, form: str, options: dict[str, Any]) -> None:
    """Reads the first samples. Only errors of fastload are allowed."""
    with contextlib.suppress(FastloadError):
        opened = detect.open_source(root, format=form, **options)
        if is_stream(opened):
            for _ in itertools.islice(opened, MAX_SAMPLES):
                pass
            return
        assert isinstance(opened, Source)
        for ref in itertools.islice(opened.refs(), MAX_SAMPLES):
            with contextlib.suppress(FastloadError):
                stored = json.loads(json.dumps(ref))
                if isinstance(opened, KnowsSplits) and splits_of(opened.fields):
                    opened.split_of(stored)
                opened.load(stored)


A = image_bytes(1)
IMAGES = {"a.jpg": A, "b.jpg": image_bytes(2)}


def _lists() -> list[bytes]:
    rows: list[dict[str, Any]] = [
        {"image": "a.jpg", "label": 1, "boxes": [[1, 2, 3, 4]], "split": "train", "x": 1, "y": 2},
        {"image": "b.jpg", "label": 2, "tags": ["x"], "more": ["a.jpg", "b.jpg"], "o": {"a": None}},
        {"image": None, "label": "2", "score": 0.5, "n": 1 << 70, "m": [[1, 2], [3]], "e": []},
    ]
    return [
        b"path,label,score,x1,y1\na.jpg,cat,0.5,1,2\nb.jpg,dog,,3,4\n",
        b'file;text\n"a.jpg";"say ""hi"""\n',
        b"image\tsplit\tx\ty\tmeta\na.jpg\ttrain\t1\t2\t[1]\nb.jpg\tval\t3\t4\t{}\n",
        b"a.jpg,1\nb.jpg,2\n",
        b"id,x,y,x1,y1\na,1,2,3,4\nb,x,,,\n,,,,\na,1,2,,\n",
        b"a,a\n1,2\n",
        b"\xff\xfea\0",
        b"image\nc.jpg\n",
        "\n".join(map(json.dumps, rows)).encode(),
    ]


def _coco() -> list[bytes]:
    annotation: dict[str, Any] = {
        "id": 1,
        "image_id": 1,
        "category_id": 3,
        "bbox": [1, 2, 3, 4],
        "area": 12,
        "iscrowd": 0,
        "segmentation": [[1, 2, 4, 2, 4, 6]],
        "keypoints": [1, 2, 2],
    }
    found: dict[str, Any] = {
        "info": {"year": 2017},
        "images": [{"id": 1, "file_name": "a.jpg", "width": 16, "height": 16}],
        "annotations": [annotation],
        "categories": [{"id": 3, "name": "cat"}],
    }
    runs = [
        {"counts": [10, 5, 241], "size": [16, 16]},
        {"counts": "52d7", "size": [16, 16]},
        {"counts": "P8", "size": [16, 16]},
    ]
    others = [{**found, "annotations": [{**annotation, "segmentation": each}]} for each in runs]
    return [json.dumps(each, indent=1).encode() for each in (found, *others, [], {"images": {}})]


def _voc() -> list[bytes]:
    box = "<bndbox><xmin>1</xmin><ymin>3</ymin><xmax>{}</xmax><ymax>8</ymax></bndbox>"
    return [
        (
            "<annotation><filename>a.jpg</filename><size><width>16</width></size><object><name>dog"
            f"</name><difficult>1</difficult>{box.format(end)}</object></annotation>"
        ).encode()
        for end in ("16", "0", "x")
    ] + [b'<!DOCTYPE a [<!ENTITY b "c">]><annotation>&b;</annotation>', b"a\nb 1\n"]


def _yolo() -> list[bytes]:
    return [
        b"1 0.5 0.5 0.5 0.25\n",
        b"0 0.1 0.1 0.9 0.1 0.9 0.9\n",
        b"0 0.5 0.5 0.5 0.5 0.5 0.5 2 0.1 0.1 1\n",
        b"x 2 2 2 2\n7 0.5 0.5 0.5 0.25\n",
        b"nc: 2\nnames: ['a', 'b']\n",
        b"names:\n  0: a\n  1: b\nkpt_shape: [2, 3]\ntrain: images\n",
        b"names: a\nkpt_shape: 3\n",
    ]


def _openlane() -> list[bytes]:
    eye = np.eye(4).tolist()
    line = {"category": 2, "visibility": [1.0], "uv": [[10.5], [20]], "xyz": [[1], [2], [3]]}
    path = "training/s/a.jpg"
    note = {"intrinsic": eye, "extrinsic": eye, "file_path": path, "lane_lines": [line]}
    others: tuple[dict[str, Any], ...] = (
        {**note, "lane_lines": [1]},
        {**note, "file_path": 3},
        {"lane_lines": []},
    )
    return [json.dumps(each).encode() for each in (note, *others)]


def _nuscenes() -> list[bytes]:
    camera = {
        "filename": "a.jpg",
        "camera_intrinsic": np.eye(3).tolist(),
        "sensor2ego": np.eye(4).tolist(),
    }
    cams = {"CAM_FRONT": camera, "CAM_BACK": camera}
    sample = {"token": "t", "timestamp": 1, "scene": "s", "cams": cams}
    index = {"classes": ["road"], "samples": [sample]}
    return [json.dumps(each).encode() for each in (index, NUSCENES_TABLES, {"samples": [1]})]


NUSCENES_TABLES: dict[str, list[dict[str, Any]]] = {
    "sensor": [{"token": "s", "channel": "CAM_FRONT", "modality": "camera"}],
    "calibrated_sensor": [
        {
            "token": "c",
            "sensor_token": "s",
            "translation": [1.7, 0, 1.5],
            "rotation": [0.5, -0.5, 0.5, -0.5],
            "camera_intrinsic": np.eye(3).tolist(),
        }
    ],
    "scene": [{"token": "sc", "name": "scene-1"}],
    "sample": [{"token": "t", "timestamp": 1, "scene_token": "sc"}],
    "sample_data": [
        {
            "token": "d",
            "sample_token": "t",
            "calibrated_sensor_token": "c",
            "filename": "a.jpg",
            "is_key_frame": True,
        }
    ],
}


def _read_nuscenes() -> Callable[[bytes], None]:
    """The bytes are an index, or an object with one key per table."""
    read_index = _reads("nuscenes", Layout("samples.json", IMAGES), Layout("samples.json"))

    @cache
    def root() -> Path:
        made = new_folder()
        (made / "a.jpg").write_bytes(A)
        (made / "v1.0-mini").mkdir()
        return made

    def run(data: bytes) -> None:
        read_index(data)
        try:
            tables = json.loads(data)
        except (ValueError, RecursionError):
            tables = None
        for name in NUSCENES_TABLES:
            table = tables.get(name) if isinstance(tables, dict) else None
            text = data if table is None else json.dumps(table).encode()
            (root() / "v1.0-mini" / f"{name}.json").write_bytes(text)
        with contextlib.suppress(FastloadError):
            detect.detect(root())
        for options in ({}, {"scenes": ["scene-1"]}, {"version": "v1.0-x"}, {"bev": "masks"}):
            read_source(root(), "nuscenes", options)

    return run


def _tars() -> list[bytes]:
    array = io.BytesIO()
    np.save(array, np.arange(6).reshape(2, 3))
    members = {
        "a.jpg": A,
        "a.cls": b"3",
        "a.json": b'{"a": [1]}',
        "a.npy": array.getvalue(),
        "a.txt": b"text",
        "a.id": b"x",
    }
    found = [
        _tar(form, prefix, members)
        for form, prefix in (
            (tarfile.USTAR_FORMAT, ""),
            (tarfile.GNU_FORMAT, "x" * 110 + "/"),
            (tarfile.PAX_FORMAT, "x" * 110 + "/"),
            (tarfile.PAX_FORMAT, "ä/"),
        )
    ]
    odd = {"a.jpg": A, "a.pyd": b"", "a.cls": b"x", "b.jpg": A, "b.cls": b"1", "a.JPG": A}
    return [*found, _tar(tarfile.USTAR_FORMAT, "", odd), found[0][:700], found[1][:1000]]


def _tar(form: int, prefix: str, members: Files) -> bytes:
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w", format=form) as tar:
        for name, data in members.items():
            info = tarfile.TarInfo(prefix + name)
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
    return stream.getvalue().rstrip(b"\0") + bytes(1024)


def _tables() -> list[bytes]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    image = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
    rows = [{"bytes": A, "path": "a.jpg"}, {"bytes": None, "path": "a.jpg"}, {"path": None}]
    features = {
        "image": {"_type": "Image"},
        "label": {"names": ["cat", "dog"], "_type": "ClassLabel"},
    }
    table = pa.table(
        {
            "image": pa.array(rows, image),
            "label": pa.array([1, 0, None], pa.int64()),
            "tags": pa.array([[0, 2], [], None], pa.list_(pa.int64())),
            "score": pa.array([0.5, 1, 2], pa.float32()),
            "text": pa.array(["a", None, "b"]),
            "blob": pa.array([A, b"", None], pa.binary()),
            "more": pa.array([rows[:1], [], None], pa.list_(image)),
            "box": pa.array([{"x": [[1.0]]}, {"x": []}, None]),
            "day": pa.array([1, 2, 3], pa.date32()),
        }
    ).replace_schema_metadata({"huggingface": json.dumps({"info": {"features": features}})})
    plain = pa.table({"image": pa.array([A]), "when": pa.array([1], pa.duration("s"))})
    found = []
    for each in (table, table.select(["image", "label"]), plain):
        stream = io.BytesIO()
        pq.write_table(each, stream, store_schema=each is table)
        found.append(stream.getvalue())
        for make in (pa.ipc.new_stream, pa.ipc.new_file):
            stream = io.BytesIO()
            with make(stream, each.schema) as writer:
                writer.write_table(each)
            found.append(stream.getvalue())
    infos = (
        {"_data_files": [{"filename": "a.arrow"}]},
        {"splits": ["train", "test"]},
        {"_data_files": [{"filename": "a.arrow"}], "_indices_files": [1]},
        {"_data_files": 3, "splits": 3},
    )
    return [*found, *(json.dumps(each).encode() for each in infos)]


@cache
def _hf_reader() -> Callable[[bytes], None]:
    arrow = _tables()[4]
    state = b'{"_data_files": [{"filename": "a.arrow"}]}'
    splits = b'{"splits": ["train"]}'
    return _reads(
        "hf",
        Layout("a.parquet", {"a.jpg": A}),
        Layout("a.parquet", {"a.jpg": A}, {"columns": ["image", "label"]}),
        Layout("a.arrow", {"a.jpg": A, "state.json": state}),
        Layout("train/a.arrow", {"train/state.json": state, "dataset_dict.json": splits}),
        Layout("state.json", {"a.arrow": arrow}),
        Layout("dataset_dict.json", {"train/state.json": state, "train/a.arrow": arrow}),
    )


def _read_hf(data: bytes) -> None:
    _hf_reader()(data)


def exported(to: str) -> Path:
    """Exports a dataset with every kind of field to a folder."""
    dataset = folder() / "every-kind"
    if not dataset.exists():
        pack_every_kind(dataset, range(2))
    root = new_folder()
    root.rmdir()
    export(dataset, root, to=to)
    return root


EXPORTS = (
    ("files", "fastload.json"),
    ("files", "samples.jsonl"),
    ("webdataset", "fastload.json"),
    ("webdataset", "samples-000000.tar"),
    ("parquet", "fastload.json"),
    ("parquet", "data/train-00000-of-00001.parquet"),
)


def _exported_files() -> list[bytes]:
    found = [(exported(to) / file).read_bytes() for to, file in EXPORTS]
    description = json.loads(found[0])
    wrong = {"version": 9, "to": "x", "fields": description["fields"][:1] * 2, "info": []}
    changed = [{**description, key: value} for key, value in wrong.items()]
    return [*found, *(json.dumps(each).encode() for each in changed)]


def _sources() -> Iterator[tuple[str, Target]]:
    package = "fastload._pack.sources."
    boxed = {"boxes": {"box": ["x", "y", "x1", "y1"]}, "paths": {"photo": "{id}.jpg"}}
    pointed = {"points": {"at": ["x", "y"]}, "types": {"meta": "json", "split": "class"}}
    typed = {"types": {"label": "class", "tags": "str", "boxes": "boxes"}}
    jpeg = {"JPEGImages/a.jpg": A}
    xml = _voc()[0]
    masked = {**jpeg, "SegmentationClass/a.png": image_bytes(3, form="PNG")}
    yolo = {"images/a.jpg": A, "images/b.jpg": A}
    keypoints = b"names: [cat, dog]\nkpt_shape: [2, 3]\n"
    splits = {"train/images/a.jpg": A, "val/images/b.jpg": A, "val/labels/b.txt": b"0 0 0 1 1\n"}
    lane = "lane3d_1000/training/s/a.json"
    lanes = {"images/training/s/a.jpg": A}
    found: tuple[
        tuple[str, Callable[[bytes], None], Any, tuple[str, ...], Mutation | None], ...
    ] = (
        (
            "lists",
            _reads(
                "lists",
                Layout("list.csv", IMAGES),
                Layout("list.csv", IMAGES, boxed),
                Layout("list.tsv", IMAGES, pointed),
                Layout("list.jsonl", IMAGES),
                Layout("list.ndjson", IMAGES, typed),
            ),
            _lists,
            ("rows", "columns"),
            mutate_json_lines,
        ),
        (
            "coco",
            _reads(
                "coco",
                Layout("annotations/instances_train.json", {"train/a.jpg": A}),
                Layout("annotations/instances_train.json", {"train/a.jpg": A}, {"masks": True}),
                Layout("train/_annotations.coco.json", {"train/a.jpg": A}, {"split": "train"}),
            ),
            _coco,
            ("outlines", "jsontext"),
            mutate_json,
        ),
        (
            "voc",
            _reads(
                "voc",
                Layout("Annotations/a.xml", jpeg),
                Layout("Annotations/a.xml", masked, {"masks": True, "classes": ["cat"]}),
                Layout("ImageSets/Main/train.txt", {**jpeg, "Annotations/a.xml": xml}),
                Layout("VOC2012/Annotations/a.xml", {"VOC2012/JPEGImages/a.jpg": A}),
            ),
            _voc,
            (),
            None,
        ),
        (
            "yolo",
            _reads(
                "yolo",
                Layout("labels/a.txt", {**yolo, "data.yaml": b"names: [cat, dog]\n"}),
                Layout("labels/a.txt", {**yolo, "data.yaml": keypoints}),
                Layout("labels/a.txt", yolo, {"classes": ["cat"]}),
                Layout("data.yaml", {**yolo, "labels/a.txt": b"1 0.5 0.5 0.5 0.25\n"}),
                Layout("train/labels/a.txt", splits),
            ),
            _yolo,
            (),
            None,
        ),
        (
            "openlane",
            _reads(
                "openlane",
                Layout(lane, lanes),
                Layout("annotations/s/a.json", lanes, {"annotations": "annotations"}),
                Layout("annotations/s/a.json", {**lanes, "lane3d_300/b.json": b"{}"}),
            ),
            _openlane,
            (),
            mutate_json,
        ),
        ("nuscenes", _read_nuscenes(), _nuscenes, (), mutate_json),
        (
            "webdataset",
            _reads(
                "webdataset",
                Layout("a.tar"),
                Layout("a.tar", options={"types": {"id": "str", "cls": "int"}}),
                Layout("a.tar", options={"classes": ["x", "3"], "types": {"pyd": "bytes"}}),
            ),
            _tars,
            ("numbers:parse_npy",),
            None,
        ),
        ("hf", _read_hf, _tables, (), mutate_json),
        (
            "exported",
            _reads("exported", *(Layout(file, export_to=to) for to, file in EXPORTS)),
            _exported_files,
            (),
            mutate_json_lines,
        ),
    )
    for name, run, seeds, more, mutate in found:
        modules = tuple(f"{package}{each}" for each in (name, *more))
        if name == "exported":
            modules += (
                "fastload._pack.exports:Description",
                "fastload._pack.exports:read_description",
            )
        yield name, Target(run, seeds, modules, _NOT_PARSING, mutate)


# Used by other formats, or for files that are not the annotation file.
_NOT_PARSING = ("left_out", "*.left_out", "*._image_folders", "_pyarrow", "Description.dump")
TARGETS = dict(_sources())
