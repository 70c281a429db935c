"""``Field.along``: declared by sources and users, checked when a sample is packed."""

from __future__ import annotations

import io
import json
import tarfile
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import fastload
from fastload import Field
from fastload import transforms as T
from fastload._cli import main
from fastload._pack.packer import pack
from fastload._store.manifest import dump, parse, read_manifest
from fastload.errors import BadImage, ConfigError
from tests.packed_datasets import encoded, pack_samples
from tests.source_contract import image_bytes, put_image

IMAGE = Field("image", "image")
BOXES = Field("boxes", "boxes")


@pytest.mark.parametrize(
    ("kind", "is_list"), [("int", False), ("str", False), ("matrix", False), ("mask", True)]
)
def test_a_kind_without_rows_is_refused(kind: str, is_list: bool) -> None:
    with pytest.raises(
        ConfigError,
        match=r"field 'x': along='boxes': expected kind boxes, points, array, json, or a list, found",
    ):
        Field("x", kind, list=is_list, along="boxes")
    assert Field("x", "str", list=True, along="boxes").along == "boxes"


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        (
            (Field("x", "array", along="boxes"),),
            "field 'x': along='boxes': expected the name of a boxes or points field",
        ),
        (
            (Field("y", "array"), Field("x", "array", along="y")),
            "field 'x': along='y': expected the name of a boxes or points field",
        ),
        (
            (BOXES, Field("y", "points", along="boxes"), Field("x", "array", along="y")),
            "along='y': expected the name of a boxes or points field that is along no other field",
        ),
        (
            (Field("x", "boxes", along="x"),),
            "along='x': expected the name of a boxes or points field that is along no other field",
        ),
        (
            (Field("boxes", "boxes", list=True), Field("x", "array", along="boxes")),
            "field 'x': along='boxes', which is a list: expected a list as well",
        ),
        (
            (Field("boxes", "boxes", list=True), Field("x", "int", list=True, along="boxes")),
            "which is a list: expected a list as well, with one array per item",
        ),
        (
            (
                IMAGE,
                Field("other", "image"),
                BOXES,
                Field("x", "points", image="other", along="boxes"),
            ),
            "field 'x': image='other': expected the image of 'boxes', which it is along",
        ),
        ((BOXES, Field("x", "boxes", image="no")), "image='no': expected the name of an image"),
    ],
)
def test_a_reference_to_an_unsuitable_field_is_refused_before_packing(
    tmp_path: Path, fields: Sequence[Field], expected: str
) -> None:
    with pytest.raises(ConfigError, match=expected):
        pack_samples(tmp_path / "packed", fields, [{}])


def values(boxes: int, labels: Any) -> dict[str, Any]:
    return {"image": encoded(image_bytes()), "boxes": np.zeros((boxes, 4)), "x": labels}


@pytest.mark.parametrize(
    ("kind", "good", "bad", "found"),
    [
        ("array", np.arange(2), np.arange(3), "3"),
        ("array", np.zeros((2, 5)), np.zeros((5, 2)), "5"),
        ("array", np.arange(2), np.array(7), "a single value"),
        ("array", np.arange(2), None, "0"),
        ("json", ["a", {"b": 1}], ["a"], "1"),
        ("json", [1, 2], {"a": 1, "b": 2}, "a single value"),
        ("list of str", ["a", "b"], ["a", "b", "c"], "3"),
        ("list of int", [1, 2], [1], "1"),
        ("list of points", [np.zeros((3, 2))] * 2, [np.zeros((3, 2))] * 6, "6"),
        ("boxes", np.zeros((2, 4)), np.zeros((1, 4)), "1"),
    ],
)
def test_a_wrong_number_of_entries_is_an_error_that_names_the_sample(
    tmp_path: Path, kind: str, good: Any, bad: Any, found: str
) -> None:
    fields = (
        IMAGE,
        BOXES,
        Field("x", kind.removeprefix("list of "), list=kind.startswith("list"), along="boxes"),
    )
    samples = [values(2, good), values(2, bad), values(0, None)]
    with pytest.raises(
        BadImage,
        match=rf"samples/001.*field 'x': found {found}, expected 2, one entry per row of 'boxes'",
    ):
        pack_samples(tmp_path / "stopped", fields, samples)
    packed = pack_samples(tmp_path / "skipped", fields, samples, on_error="skip")
    assert len(fastload.open(packed)) == 2


def test_keypoints_in_one_array_are_refused_with_advice(tmp_path: Path) -> None:
    fields = (IMAGE, BOXES, Field("x", "points", along="boxes"))
    with pytest.raises(BadImage, match=r"found 34, expected 2, .*as a list of points"):
        pack_samples(tmp_path / "packed", fields, [values(2, np.zeros((34, 3)))])


def test_the_manifest_keeps_along(tmp_path: Path) -> None:
    fields = (IMAGE, BOXES, Field("x", "array", along="boxes"))
    packed = pack_samples(tmp_path / "packed", fields, [values(1, [4])])
    found = read_manifest(packed)
    assert found.fields == fields
    text = dump(found)
    assert b'"along":"boxes"' in text
    assert parse(text) == found
    with pytest.raises(ConfigError, match=r"manifest.json: field 'x': along='boxes': expected"):
        dump(replace(found, fields=(IMAGE, Field("other", "boxes"), fields[2])))
    assert "x: array along boxes" in repr(fastload.open(packed))


def test_a_pack_does_not_resume_with_another_along(tmp_path: Path) -> None:
    plain = (IMAGE, BOXES, Field("x", "array"))
    with pytest.raises(BadImage):
        pack_samples(tmp_path / "packed", plain, [values(1, [4]), {"image": encoded(b"no image")}])
    fields = (IMAGE, BOXES, Field("x", "array", along="boxes"))
    with pytest.raises(ConfigError):
        pack_samples(tmp_path / "packed", fields, [values(1, [4])])


def test_python_samples_declare_it_by_text_or_field(tmp_path: Path) -> None:
    items = [
        {
            "image": np.zeros((8, 8, 3), np.uint8),
            "boxes": [[0, 0, 4, 4], [1, 1, 5, 5]],
            "labels": [3, 4],
            "keypoints": [np.zeros((3, 2))] * 2,
        }
    ]
    kinds = {
        "image": "image",
        "boxes": "boxes",
        "labels": "array along boxes",
        "keypoints": "list of points along boxes",
    }
    expected = (
        IMAGE,
        BOXES,
        Field("labels", "array", along="boxes"),
        Field("keypoints", "points", list=True, along="boxes"),
    )
    fastload.pack(items, tmp_path / "text", fields=kinds)
    fastload.pack(items, tmp_path / "fields", fields=expected)
    for name in ("text", "fields"):
        assert fastload.open(tmp_path / name).fields == expected
    with pytest.raises(ConfigError, match=r"along='box': expected the name of a boxes or points"):
        fastload.pack(items, tmp_path / "typo", fields={**kinds, "labels": "array along box"})


def listed(root: Path) -> Path:
    put_image(root / "a.jpg")
    path = root / "list.jsonl"
    row = {"image": "a.jpg", "bbox": [[0, 0, 4, 4], [1, 1, 5, 5]], "labels": [3, 4]}
    path.write_text(json.dumps(row))
    return path


def test_lists_declare_it_on_the_command_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = str(listed(tmp_path / "source"))
    options = ["--type", "bbox=boxes", "--along", "labels=bbox"]
    assert main(["pack", path, str(tmp_path / "packed"), *options]) == 0
    assert fastload.open(tmp_path / "packed").fields[2] == Field("labels", "array", along="bbox")
    capsys.readouterr()
    assert main(["inspect", str(tmp_path / "packed")]) == 0
    assert "array along bbox" in capsys.readouterr().out
    assert main(["inspect", str(tmp_path / "packed"), "--json"]) == 0
    fields = json.loads(capsys.readouterr().out)["fields"]
    assert [each["along"] for each in fields] == ["", "", "bbox"]
    for wrong in ("classes=bbox", "labels=boxes"):
        dest = str(tmp_path / "wrong")
        assert main(["pack", path, dest, "--type", "bbox=boxes", "--along", wrong]) == 2
        assert "along" in capsys.readouterr().err


def test_webdataset_declares_it(tmp_path: Path) -> None:
    with tarfile.open(tmp_path / "one.tar", "w") as tar:
        members = {"a.jpg": image_bytes(), "a.boxes.json": b"[[0,0,4,4]]", "a.names.json": b'["x"]'}
        for name, data in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
    pack(
        tmp_path / "one.tar",
        tmp_path / "packed",
        source_options={
            "types": {"boxes.json": "boxes"},
            "along": {"names": "boxes"},
        },
    )
    found = {each.name: each for each in fastload.open(tmp_path / "packed").fields}
    assert found["names"].along == "boxes"


# Three boxes from left to right; the crop below keeps the last two.
STRIPES = [(0, 10, 16, 20), (24, 10, 40, 20), (44, 10, 60, 20)]


def write_coco(root: Path) -> dict[str, list[Any]]:
    annotations = [
        {
            "id": 90 + i,
            "image_id": 1,
            "category_id": 10 * i,
            "bbox": [x0, y0, x1 - x0, y1 - y0],
            "area": 100 + i,
            "iscrowd": int(i == 2),
        }
        for i, (x0, y0, x1, y1) in enumerate(STRIPES)
    ]
    image = {"id": 1, "file_name": "a.png", "width": 64, "height": 32}
    categories = [{"id": 10 * i, "name": str(i)} for i in range(3)]
    table = {"images": [image], "annotations": annotations, "categories": categories}
    (root / "all.json").write_text(json.dumps(table))
    Image.new("RGB", (64, 32)).save(root / "a.png")
    return {"labels": [1, 2], "area": [101, 102], "iscrowd": [0, 1], "annotation_ids": [91, 92]}


def write_yolo(root: Path) -> dict[str, list[Any]]:
    for folder in ("images", "labels"):
        (root / folder).mkdir()
    Image.new("RGB", (64, 32)).save(root / "images" / "a.png")
    lines = []
    for i, (x0, y0, x1, y1) in enumerate(STRIPES):
        center = ((x0 + x1) / 128, (y0 + y1) / 64)
        lines.append(" ".join(map(str, (i, *center, (x1 - x0) / 64, (y1 - y0) / 32, *center))))
    (root / "labels" / "a.txt").write_text("\n".join(lines))
    (root / "data.yaml").write_text("names: [a, b, c]\nkpt_shape: [1, 2]\n")
    return {"labels": [1, 2], "keypoints": [[[16.0, 15.0]], [[36.0, 15.0]]]}


def write_voc(root: Path) -> dict[str, list[Any]]:
    for folder in ("JPEGImages", "Annotations"):
        (root / folder).mkdir()
    Image.new("RGB", (64, 32)).save(root / "JPEGImages" / "a.png")
    objects = [
        f"<object><name>{'abc'[i]}</name><difficult>{i % 2}</difficult><truncated>{i // 2}"
        f"</truncated><bndbox><xmin>{x0 + 1}</xmin><ymin>{y0 + 1}</ymin><xmax>{x1}</xmax>"
        f"<ymax>{y1}</ymax></bndbox></object>"
        for i, (x0, y0, x1, y1) in enumerate(STRIPES)
    ]
    text = f"<annotation>{''.join(objects)}</annotation>"
    (root / "Annotations" / "a.xml").write_text(text)
    return {"labels": [1, 2], "difficult": [1, 0], "truncated": [0, 1]}


@pytest.mark.parametrize("write", [write_coco, write_yolo, write_voc])
def test_detection_sources_declare_the_labels_of_boxes(
    tmp_path: Path, write: Callable[[Path], dict[str, list[Any]]]
) -> None:
    (tmp_path / "source").mkdir()
    expected = write(tmp_path / "source")
    pack(tmp_path / "source", tmp_path / "packed")
    loader = fastload.DataLoader(tmp_path / "packed", transform=[T.Crop(left=16)])
    (batch,) = loader
    assert batch["boxes"][0].tolist() == [[8, 10, 24, 20], [28, 10, 44, 20]]
    for name, entries in expected.items():
        found = batch[name][0]
        assert [np.asarray(each).tolist() for each in found] == entries, name
