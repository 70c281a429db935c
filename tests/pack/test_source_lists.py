"""Rows of CSV and JSONL lists become samples, and columns become fields of the right kind."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from fastload._pack.sources.base import Encoded
from fastload._pack.sources.columns import field_name, infer_kind
from fastload._pack.sources.lists import ListSource
from fastload._store.fields import Field
from fastload.errors import BadImage, ConfigError
from tests.source_contract import outcome, put_image, samples_of


def _csv(folder: Path, text: str, name: str = "labels.csv", images: int = 3) -> Path:
    for i in range(images):
        put_image(folder / "img" / f"{i}.jpg", i)
    (folder / name).write_text(text, encoding="utf-8")
    return folder / name


def _kinds(source: ListSource) -> dict[str, str]:
    return {field.name: field.kind.name for field in source.fields}


def test_kinds_of_csv_columns_are_inferred(tmp_path: Path) -> None:
    path = _csv(
        tmp_path,
        "id,path,label,score,count,flag,zip,note,extra\n"
        'a1,img/0.jpg,dog,0.5,3,true,00123,"says ""hi""\nin two lines",{}\n'
        "a2,img/1.jpg,cat,1e-3,-4,False,07001,,\n"
        'a3,img/2.jpg,dog,2,,true,12345,ça,"[1, 2]"\n',
    )
    source = ListSource(path)
    assert _kinds(source) == {
        "path": "image",
        "id_": "str",
        "label": "int",
        "score": "float",
        "count": "int",
        "flag": "int",
        "zip": "str",
        "note": "str",
        "extra": "json",
    }
    assert source.info == {"columns": {"id_": "id"}}
    first, second, third = samples_of(source)
    assert first.source == "img/0.jpg"
    assert first.values["path"] == Encoded((tmp_path / "img/0.jpg").read_bytes(), "img/0.jpg")
    assert first.values["note"] == 'says "hi"\nin two lines'
    assert (first.values["label"], second.values["label"]) == (1, 0)
    assert [field.classes for field in source.fields if field.name == "label"] == [("cat", "dog")]
    assert (second.values["score"], second.values["count"], second.values["flag"]) == (0.001, -4, 0)
    assert (third.values["score"], third.values["count"], third.values["zip"]) == (
        2.0,
        None,
        "12345",
    )
    assert third.values["extra"] == [1, 2]


def test_points_and_boxes_are_made_of_columns(tmp_path: Path) -> None:
    path = _csv(
        tmp_path,
        "path,x1,y1,x2,y2,l,t,r,b\nimg/0.jpg,1,2,3.5,4,0,0,8,9\nimg/1.jpg,,,,,1,1,2,2\nimg/2.jpg,1,,2,3,0,0,1,1\n",
    )
    source = ListSource(
        path, points={"kp": ["x1", "y1", "x2", "y2"]}, boxes={"bbox": ["l", "t", "r", "b"]}
    )
    assert _kinds(source) == {"path": "image", "kp": "points", "bbox": "boxes"}
    good, bad = outcome(source)
    np.testing.assert_array_equal(good[0].values["kp"], [[1, 2], [3.5, 4]])
    np.testing.assert_array_equal(good[0].values["bbox"], [[0, 0, 8, 9]])
    assert good[1].values["kp"] is None
    assert bad == ["labels.csv:4: field 'kp': some of its columns are empty"]
    with pytest.raises(ConfigError, match=r"no column 'x9'\. Found path, x1"):
        ListSource(path, points={"kp": ["x9", "y1"]})
    with pytest.raises(
        ConfigError,
        match=r"points 'kp': 3 columns \(x1, y1, x2\): expected a multiple of 2, x and y of each point",
    ):
        ListSource(path, points={"kp": ["x1", "y1", "x2"]})
    with pytest.raises(
        ConfigError,
        match=r"boxes 'bbox': 2 columns \(l, t\): expected a multiple of 4, x1, y1, x2, y2 of each box",
    ):
        ListSource(path, boxes={"bbox": ["l", "t"]})


def test_jsonl_keeps_types_and_lists(tmp_path: Path) -> None:
    rows = [
        {
            "image": "img/0.jpg",
            "views": ["img/1.jpg", "img/2.jpg"],
            "boxes": [[1, 2, 3, 4]],
            "n": 1,
            "f": 1,
            "v": [1.5, 2.0],
            "meta": {"a": [None]},
            "ok": True,
            "label": 3,
        },
        {
            "image": "img/1.jpg",
            "views": [],
            "boxes": [],
            "n": 2,
            "f": 0.5,
            "v": [1, 2, 3],
            "meta": [],
            "ok": False,
            "label": 7,
        },
    ]
    path = _csv(tmp_path, "\n".join(map(json.dumps, rows)) + "\n\n", "rows.jsonl")
    source = ListSource(path, types={"boxes": "boxes"})
    assert _kinds(source) == {
        "image": "image",
        "views": "image",
        "boxes": "boxes",
        "n": "int",
        "f": "float",
        "v": "array",
        "meta": "json",
        "ok": "int",
        "label": "int",
    }
    assert Field("views", "image", list=True) in source.fields
    one, two = samples_of(source)
    assert [image.name for image in one.values["views"]] == ["img/1.jpg", "img/2.jpg"]
    assert (one.values["f"], one.values["ok"], one.values["meta"], two.values["label"]) == (
        1.0,
        1,
        {"a": [None]},
        7,
    )
    np.testing.assert_array_equal(two.values["v"], [1, 2, 3])
    assert two.values["boxes"].shape == (0, 4)


def test_types_can_be_given(tmp_path: Path) -> None:
    path = _csv(tmp_path, "path,x,label\nimg/0.jpg,1,b\nimg/1.jpg,2,a\n")
    source = ListSource(path, types={"path": "str", "x": "float", "label": "str"})
    assert _kinds(source) == {"path": "str", "x": "float", "label": "str"}
    assert samples_of(source)[0].source == "labels.csv:2"
    assert _kinds(ListSource(path, types={"x": "class"})) == {
        "path": "image",
        "x": "int",
        "label": "int",
    }
    assert samples_of(ListSource(path, classes={"label": ["a", "b", "c"]}))[0].values["label"] == 1
    assert (
        samples_of(ListSource(path, types={"path": "mask"}))[1].values["path"].name == "img/1.jpg"
    )
    assert _kinds(ListSource(path, drop=["x"])) == {"path": "image", "label": "int"}
    with pytest.raises(ConfigError, match=r"kind 'number': expected one of image, mask"):
        ListSource(path, types={"x": "number"})
    with pytest.raises(ConfigError, match=r"no column 'y'\. Found path, x, label"):
        ListSource(path, types={"y": "int"})


def test_paths_are_made_of_columns(tmp_path: Path) -> None:
    path = _csv(tmp_path, "image_id,fold\n0,img\n1,img\n,img\n")
    source = ListSource(path, paths={"image": "{fold}/{image_id}.jpg"})
    good, bad = outcome(source)
    assert [sample.source for sample in good] == ["img/0.jpg", "img/1.jpg"]
    assert bad == [
        "labels.csv:4: path '{fold}/{image_id}.jpg': column 'image_id' is missing or empty"
    ]
    with pytest.raises(ConfigError, match=r"no column 'number'\. Found "):
        ListSource(path, paths={"image": "img/{number}.jpg"})


def test_root_may_be_another_folder(tmp_path: Path) -> None:
    put_image(tmp_path / "data" / "x.jpg")
    (tmp_path / "lists").mkdir()
    path = tmp_path / "lists" / "l.csv"
    path.write_text("path\nx.jpg\n./x.jpg\n")
    assert len(samples_of(ListSource(path, root=tmp_path / "data"))) == 2
    with pytest.raises(
        ConfigError,
        match=r"column 'path': contains image names, but none of the first 2 exists \('x.jpg'\)\. Pass their folder",
    ):
        ListSource(path)


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("path;n\nimg/0.jpg;1\n", "l.csv"),
        ("path\tn\nimg/0.jpg\t1\n", "l.tsv"),
        ("\ufeffpath,n\r\nimg/0.jpg,1\r\n", "l.csv"),
        ('{"path": "img/0.jpg", "n": 1}', "l.jsonl"),
        ('\ufeff{"path": "img/0.jpg", "n": 1}\r\n', "l.ndjson"),
        ('path,n\n\n\n"img/0.jpg",1', "l.csv"),
    ],
)
def test_csv_and_jsonl_variants_are_read(tmp_path: Path, text: str, name: str) -> None:
    (sample,) = samples_of(ListSource(_csv(tmp_path, text, name)))
    assert (sample.source, sample.values["n"]) == ("img/0.jpg", 1)


def test_later_value_that_does_not_fit_is_reported(tmp_path: Path) -> None:
    rows = (
        ["path,label,x"]
        + [f"img/{i % 3}.jpg,{i},1.5" for i in range(1200)]
        + ["img/0.jpg,cat,1.5", "img/1.jpg,5,wide", "img/2.jpg,6,2"]
    )
    source = ListSource(_csv(tmp_path, "\n".join(rows)))
    good, bad = outcome(source)
    assert len(good) == 1201
    hint = "Correct it, or choose another type, e.g. --type"
    assert bad == [
        f"labels.csv:1202: column 'label': expected int, found 'cat'. {hint} label=str",
        f"labels.csv:1203: column 'x': expected float, found 'wide'. {hint} x=str",
    ]


def test_number_after_a_control_character_is_read(tmp_path: Path) -> None:
    """Fuzzing found it: float() does not strip every character that str.strip() removes."""
    source = ListSource(_csv(tmp_path, "p,x\nimg/0.jpg,\x1f0.5\nimg/1.jpg,1.5\x1e\n"))
    assert [sample.values["x"] for sample in samples_of(source)] == [0.5, 1.5]


def test_integer_above_every_float_is_reported(tmp_path: Path) -> None:
    rows = [f'{{"p": "img/{i}.jpg", "x": {x}}}' for i, x in enumerate(("1.5", "1" + "0" * 400))]
    good, bad = outcome(ListSource(_csv(tmp_path, "\n".join(rows), "l.jsonl")))
    assert [sample.values["x"] for sample in good] == [1.5]
    assert bad[0].startswith("l.jsonl:2: column 'x': expected float, found 1000")


def test_broken_rows_are_reported_and_others_are_read(tmp_path: Path) -> None:
    path = _csv(
        tmp_path,
        '{"p": "img/0.jpg"}\n{"p": "img/1.jpg", }\n[1]\n{"p": "img/9.jpg"}\n{"p": "img/2.jpg"}\n'
        '{"p": "img/2.jpg", "q": 1}\n',
        "l.jsonl",
    )
    good, bad = outcome(ListSource(path, types={"p": "image"}, drop=["q"]))
    assert [sample.source for sample in good] == ["img/0.jpg", "img/2.jpg", "img/2.jpg"]
    assert bad[0].startswith("l.jsonl: broken JSON at line 2, column ")
    assert bad[1] == "l.jsonl:3: expected a JSON object, found '[1]'"
    assert (
        bad[2]
        == "img/9.jpg: no such file: wrong name, broken link, or deleted since it was listed (named in l.jsonl:4)"
    )
    path = _csv(tmp_path, "p,n\nimg/0.jpg,1\nimg/1.jpg\nimg/2.jpg,3\n")
    good, bad = outcome(ListSource(path))
    assert [sample.values["n"] for sample in good] == [1, 3]
    assert bad == ["labels.csv:3: expected 2 values, found 1"]


def test_late_key_is_reported(tmp_path: Path) -> None:
    rows = [json.dumps({"n": i}) for i in range(1000)] + [json.dumps({"n": 1, "late": 2})]
    _, bad = outcome(ListSource(_csv(tmp_path, "\n".join(rows), "l.jsonl")))
    assert len(bad) == 1
    assert "l.jsonl:1001: key 'late' is not in the first 1000 rows" in bad[0]
    assert (
        samples_of(ListSource(tmp_path / "l.jsonl", types={"late": "json"}))[1000].values["late"]
        == 2
    )
    assert len(samples_of(ListSource(tmp_path / "l.jsonl", drop=["late"]))) == 1001


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "header row that names every column"),
        ("a,b\n", "no readable row"),
        ("a,,c\n1,2,3\n", "that names every column"),
        ("a,b,a\n1,2,3\n", "duplicate column 'a'"),
        ('a,b\n1,"2\n', "broken CSV"),
        (
            "img/0.jpg,cat\nimg/1.jpg,dog\n",
            "labels.csv:1: 'img/0.jpg' is an image, not a column name: the header row is missing",
        ),
        ("A b,a-B\n1,2\n", "two columns have the field name 'a_b'"),
    ],
)
def test_invalid_lists_are_refused(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        list(ListSource(_csv(tmp_path, text)).refs())


def test_labels_after_comma_and_space_are_integers(tmp_path: Path) -> None:
    source = ListSource(
        _csv(tmp_path, "path, label, score\nimg/0.jpg, 2, 0.5\nimg/1.jpg, 10, \nimg/2.jpg, , 1\n")
    )
    assert source.fields == (Field("path", "image"), Field("label", "int"), Field("score", "float"))
    assert [(sample.values["label"], sample.values["score"]) for sample in samples_of(source)] == [
        (2, 0.5),
        (10, None),
        (None, 1.0),
    ]


def test_list_without_readable_rows_reports_the_first_error(tmp_path: Path) -> None:
    path = _csv(tmp_path, json.dumps([{"image": "img/0.jpg"}], indent=1), "rows.jsonl")
    with pytest.raises(
        ConfigError,
        match=r"rows.jsonl: no readable row\. First error: rows.jsonl: broken JSON at line 2",
    ):
        ListSource(path)


def test_list_changed_after_listing_is_refused(tmp_path: Path) -> None:
    path = _csv(tmp_path, "path,n\nimg/0.jpg,1\nimg/1.jpg,2\n")
    source = ListSource(path)
    refs = list(source.refs())
    path.write_text("path,n\nimg/2.jpg,1\nimg/1.jpg,22\n")
    with pytest.raises(ConfigError, match="changed since it was listed"):
        source.load(refs[0])
    fresh = ListSource(path)
    assert fresh.load(next(fresh.refs())).source == "img/2.jpg"


def test_file_name_that_is_not_utf8_is_read(tmp_path: Path) -> None:
    (tmp_path / "caf\udce9.jpg").write_bytes(put_image(tmp_path / "x.jpg"))
    (tmp_path / "l.csv").write_bytes(b"path,t\ncaf\xe9.jpg,ok\nx.jpg,caf\xe9\n")
    good, bad = outcome(ListSource(tmp_path / "l.csv"))
    assert [sample.source for sample in good] == [r"caf\xe9.jpg"]
    assert bad == [r"l.csv:3: column 't': not UTF-8 text: 'caf\udce9'"]


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (
            b"path,label\nx.jpg,caf\xe9\n",
            r"the name of a column or class is not UTF-8 text: 'caf\\udce9'\. Save the list as UTF-8",
        ),
        (
            b"path,caf\xe9\nx.jpg,1\n",
            r"the name of a column or class is not UTF-8 text: 'caf\\udce9'\. Save the list as UTF-8",
        ),
        (
            "path,label\nx.jpg,1\n".encode("utf-16"),
            r"l.csv: UTF-16 text, as written by Excel\. Save it as UTF-8",
        ),
    ],
)
def test_column_and_class_names_that_are_not_utf8_are_refused(
    tmp_path: Path, data: bytes, message: str
) -> None:
    put_image(tmp_path / "x.jpg")
    (tmp_path / "l.csv").write_bytes(data)
    with pytest.raises(ConfigError, match=message):
        ListSource(tmp_path / "l.csv")


def test_file_names_must_be_text(tmp_path: Path) -> None:
    image = "img/0.jpg"
    rows = [
        {"p": image, "v": [image]},
        {"p": [], "v": []},
        {"p": None, "v": image},
        {"p": "", "v": None},
    ]
    path = _csv(tmp_path, "\n".join(map(json.dumps, rows)), "l.jsonl")
    good, bad = outcome(ListSource(path, types={"p": "image", "v": "list of image"}))
    assert [sample.values["v"] and len(sample.values["v"]) for sample in good] == [1, None]
    assert bad == [
        "l.jsonl:2: column 'p': expected a file name, found []",
        "l.jsonl:3: column 'v': expected a list of file names, found 'img/0.jpg'",
    ]
    with pytest.raises(ConfigError, match="kind 'list of int'"):
        ListSource(path, types={"p": "list of int"})


def test_field_names() -> None:
    assert [
        field_name(name) for name in ("Image Path", "x.1", "2d", "source", "ÄÖ", "__a__", "ok_1")
    ] == [
        "image_path",
        "x_1",
        "c_2d",
        "source_",
        "column",
        "a",
        "ok_1",
    ]


@pytest.mark.parametrize(
    ("values", "kind"),
    [
        (["1", "2", ""], "int"),
        (["1", "2.0"], "float"),
        (["nan", "1"], "float"),
        ([" 1", "-2 ", " "], "int"),
        ([" 1.5", "2"], "float"),
        ([" ", "  "], "str"),
        (["007", "8"], "str"),
        (["1_000"], "str"),
        (["99999999999999999999"], "float"),
        (["", ""], "str"),
        ([None], "str"),
        ([1, None], "int"),
        ([1, 2.5], "float"),
        ([[1, [2]]], "json"),
        ([[[1, 2], [3, 4]], []], "array"),
        ([["a"]], "json"),
        ([1, "a"], "json"),
        (['{"a": 1}'], "json"),
        (["{a"], "str"),
    ],
)
def test_kind_is_inferred_from_values(values: list[object], kind: str) -> None:
    assert infer_kind("x", values, lambda _: True) == kind  # type: ignore[arg-type]


def test_good_value_after_bad_value_is_read(tmp_path: Path) -> None:
    source = ListSource(_csv(tmp_path, "path,n\nimg/0.jpg,1\nimg/1.jpg,2\n"), types={"n": "json"})
    first, second = source.refs()
    put_image(tmp_path / "img" / "0.jpg").join([b""])
    (tmp_path / "img" / "0.jpg").unlink()
    with pytest.raises(BadImage):
        source.load(first)
    assert source.load(second).values["n"] == 2
