"""The format of a path is detected from its content. Ambiguous paths are refused."""

from __future__ import annotations

import inspect
import json
import subprocess
import sys
import tarfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest

import fastload
from fastload._pack.sources.base import Info, Ref, Sample, is_stream
from fastload._pack.sources.detect import detect, open_source
from fastload._pack.sources.registry import FORMATS, names, source_options
from fastload._store.fields import Field
from fastload.errors import BadImage, ConfigError
from tests.source_contract import put_image, samples_of
from tools.makedata import captcha, gray

COCO = {"images": [{"id": 1, "file_name": "a.jpg"}], "annotations": [], "categories": []}
LANES = {"lane_lines": [], "file_path": "training/a.jpg"}


def _text(path: Path, content: object) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    return path


def _tar(path: Path) -> Path:
    with tarfile.open(path, "w") as tar:
        tar.addfile(tarfile.TarInfo("1.jpg"))
    return path


# format, files created below the root, path to detect
LAYOUTS: dict[str, tuple[str, Callable[[Path], object], str]] = {
    "class folders": ("folder", lambda r: put_image(r / "cat" / "1.jpg"), ""),
    "splits": ("folder", lambda r: put_image(r / "train" / "cat" / "1.png"), ""),
    "flat": ("folder", lambda r: put_image(r / "1.webp"), ""),
    "csv file": ("lists", lambda r: _text(r / "l.csv", "a\n1\n"), "l.csv"),
    "tsv file": ("lists", lambda r: _text(r / "l.TSV", "a\n1\n"), "l.TSV"),
    "jsonl file": ("lists", lambda r: _text(r / "l.jsonl", "{}"), "l.jsonl"),
    "csv beside images": (
        "lists",
        lambda r: (_text(r / "l.csv", "a\n1\n"), put_image(r / "images" / "1.jpg")),
        "",
    ),
    "csv among images": (
        "lists",
        lambda r: (_text(r / "metadata.csv", "a\n1\n"), put_image(r / "1.jpg")),
        "",
    ),
    "csv among folders, named": (
        "lists",
        lambda r: (
            _text(r / "l.csv", "a\n1\n"),
            put_image(r / "a" / "1.jpg"),
            put_image(r / "b" / "1.jpg"),
        ),
        "l.csv",
    ),
    "coco file": ("coco", lambda r: _text(r / "x.json", COCO), "x.json"),
    "coco folder": (
        "coco",
        lambda r: (
            _text(r / "annotations" / "instances_val.json", COCO),
            put_image(r / "val" / "a.jpg"),
        ),
        "",
    ),
    "coco of roboflow": (
        "coco",
        lambda r: (
            _text(r / "train" / "_annotations.coco.json", COCO),
            put_image(r / "train" / "a.jpg"),
        ),
        "",
    ),
    "coco beside images": (
        "coco",
        lambda r: (_text(r / "labels.json", COCO), put_image(r / "images" / "a.jpg")),
        "",
    ),
    "yolo of ultralytics": (
        "yolo",
        lambda r: (
            _text(r / "labels" / "train" / "a.txt", "0 0.5 0.5 1 1\n"),
            put_image(r / "images" / "train" / "a.jpg"),
        ),
        "",
    ),
    "yolo of roboflow": (
        "yolo",
        lambda r: (
            _text(r / "train" / "labels" / "a.txt", "0 0.5 0.5 1 1\n"),
            put_image(r / "train" / "images" / "a.jpg"),
        ),
        "",
    ),
    "yolo file": ("yolo", lambda r: _text(r / "data.yaml", "names: [a]\n"), "data.yaml"),
    "voc": (
        "voc",
        lambda r: (
            _text(r / "VOC2012" / "Annotations" / "a.xml", "<annotation/>"),
            put_image(r / "VOC2012" / "JPEGImages" / "a.jpg"),
        ),
        "",
    ),
    "openlane": (
        "openlane",
        lambda r: (
            _text(r / "lane3d_1000" / "training" / "a.json", LANES),
            put_image(r / "images" / "training" / "a.jpg"),
        ),
        "",
    ),
    "openlane made": (
        "openlane",
        lambda r: (
            _text(r / "annotations" / "training" / "a.json", LANES),
            put_image(r / "images" / "training" / "a.jpg"),
        ),
        "",
    ),
    "nuscenes": (
        "nuscenes",
        lambda r: (
            _text(r / "v1.0-mini" / "sample.json", []),
            put_image(r / "samples" / "CAM_FRONT" / "a.jpg"),
        ),
        "",
    ),
    "nuscenes made": (
        "nuscenes",
        lambda r: (
            _text(r / "samples.json", {"samples": [{"cams": {}}]}),
            put_image(r / "samples" / "C" / "a.jpg"),
        ),
        "",
    ),
    "tar": ("webdataset", lambda r: _tar(r / "x.tar"), "x.tar"),
    "tars": ("webdataset", lambda r: (_tar(r / "a-000.tar"), _tar(r / "a-001.tar")), ""),
    "parquet": ("hf", lambda r: _text(r / "x.parquet", "PAR1"), "x.parquet"),
    "parquets": ("hf", lambda r: _text(r / "data" / "train-00000-of-00001.parquet", "PAR1"), ""),
    "saved": ("hf", lambda r: _text(r / "state.json", {}), ""),
    "exported": (
        "exported",
        lambda r: (
            _text(r / "fastload.json", {}),
            _text(r / "samples.jsonl", "{}"),
            put_image(r / "cat" / "1.jpg"),
            put_image(r / "dog" / "1.jpg"),
        ),
        "",
    ),
    "saved dict": ("hf", lambda r: _text(r / "dataset_dict.json", {}), ""),
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_layouts_are_recognized(
    tmp_path: Path, layout: str, capfd: pytest.CaptureFixture[str]
) -> None:
    name, make, target = LAYOUTS[layout]
    make(tmp_path)
    assert detect(tmp_path / target) == name
    assert detect(str(tmp_path / target)) == name
    assert capfd.readouterr() == ("", "")


def test_every_format_has_a_detection_case() -> None:
    assert {name for name, _, _ in LAYOUTS.values()} == set(FORMATS)


def test_unknown_path_lists_the_expected_formats(tmp_path: Path) -> None:
    _text(tmp_path / "a" / "x.heic", "")
    _text(tmp_path / "a" / "y.HEIC", "")
    _text(tmp_path / "notes", "")
    with pytest.raises(ConfigError) as caught:
        detect(tmp_path)
    assert "no image among 3 files (2 x .heic, 1 x no suffix; first: notes)" in str(caught.value)
    assert all(f"{name}: {each.expected}" in str(caught.value) for name, each in FORMATS.items())
    assert "--format nuscenes|openlane|coco|yolo|voc|hf|webdataset|lists|folder" in str(
        caught.value
    )
    (tmp_path / "notes.json").write_text('{"a": 1}')
    with pytest.raises(ConfigError, match="no format recognized"):
        detect(tmp_path / "notes.json")
    with pytest.raises(ConfigError, match="nowhere: No such file"):
        detect(tmp_path / "nowhere")


def test_an_empty_folder_is_called_empty(tmp_path: Path) -> None:
    (tmp_path / "inner").mkdir()
    (tmp_path / ".hidden").touch()
    for format in (None, "folder"):
        with pytest.raises(ConfigError, match=r"the folder is empty\. Files whose name starts"):
            samples_of(open_source(tmp_path, format=format))
    put_image(tmp_path / "inner" / "1.jpg")
    assert detect(tmp_path) == "folder"


def test_a_packed_dataset_is_no_source(tmp_path: Path) -> None:
    put_image(tmp_path / "photos" / "1.jpg")
    fastload.pack(tmp_path / "photos", tmp_path / "packed")
    with pytest.raises(ConfigError, match=r"packed is a packed dataset: expected the data"):
        open_source(tmp_path / "packed")


def test_two_matching_formats_are_refused(tmp_path: Path) -> None:
    _tar(tmp_path / "x.tar")
    _text(tmp_path / "x.csv", "a\n1\n")
    with pytest.raises(
        ConfigError,
        match=r"several formats match: webdataset \(tar shards \(x\.tar\)\); lists \(a list \(x\.csv\)\)\. Choose with --format",
    ):
        detect(tmp_path)
    assert open_source(tmp_path, format="lists").name == "lists"


def test_list_next_to_class_folders_is_refused(tmp_path: Path) -> None:
    for name in ("cat/1.jpg", "dog/1.jpg"):
        put_image(tmp_path / name)
    _text(tmp_path / "scores.csv", "a\n1\n")
    with pytest.raises(ConfigError, match=r"several formats match: lists .* folder"):
        detect(tmp_path)


def test_format_accepts_only_its_own_options(tmp_path: Path) -> None:
    put_image(tmp_path / "cat" / "1.jpg")
    assert open_source(tmp_path, labels=False).fields == (Field("image", "image"),)
    with pytest.raises(
        ConfigError,
        match=r"format 'folder' has no option 'masks'\. Expected one of --split, --classes, --class-order, "
        r"--follow-links \(in Python: split, classes, class_order, labels, follow_links\)",
    ):
        open_source(tmp_path, masks=True)
    with pytest.raises(
        ConfigError, match=r"format 'zip': expected one of nuscenes, openlane, coco"
    ):
        open_source(tmp_path, format="zip")


def test_custom_source_is_returned_unchanged() -> None:
    class Mine:
        name = "mine"
        fields = (Field("n", "int"),)
        info: ClassVar[Info] = {}
        thread_safe = True

        def refs(self) -> Iterator[Ref]:
            yield from range(3)

        def load(self, ref: Ref) -> Sample:
            return Sample({"n": int(str(ref))}, source=f"number {ref}")

    class Flow:
        name = "flow"
        fields = (Field("n", "int"),)
        info: ClassVar[Info] = {}
        n_samples = None

        def __iter__(self) -> Iterator[Sample | BadImage]:
            yield Sample({"n": 1}, source="one")

    mine, flow = Mine(), Flow()
    assert open_source(mine) is mine
    assert not is_stream(open_source(mine))
    assert open_source(flow) is flow
    assert is_stream(open_source(flow))
    assert len(samples_of(mine)) == 3


def test_generated_team_data_is_recognized(tmp_path: Path) -> None:
    """Data of tools/makedata for teams C and D. The tests of the formats cover A and B."""
    gray.make(tmp_path / "gray", n=8)
    source = open_source(tmp_path / "gray")
    assert source.name == "folder"
    assert len(samples_of(source)) == 9  # and one for val
    captcha.make(tmp_path / "captcha", n=2)
    source = open_source(tmp_path / "captcha", points={"keypoints": ["x1", "y1", "x2", "y2"]})
    assert source.name == "lists"
    assert {field.name: field.kind.name for field in source.fields} == {
        "path": "image",
        "label": "int",
        "keypoints": "points",
    }
    assert np.asarray(samples_of(source)[0].values["keypoints"]).shape == (2, 2)


@pytest.mark.parametrize(
    ("name", "of"), [("list.CSV", "lists"), ("part.tar", "webdataset"), ("train.parquet", "hf")]
)
def test_format_is_found_through_a_link_and_in_upper_case(
    tmp_path: Path, name: str, of: str
) -> None:
    (tmp_path / "there").write_bytes(b"path,label\n")
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / name).symlink_to(tmp_path / "there")
    assert detect(tmp_path / "data") == of


def test_a_plain_folder_of_images_imports_no_other_format(tmp_path: Path) -> None:
    (tmp_path / "a.jpg").write_bytes(b"\xff\xd8")
    code = (
        f"import sys; from fastload._pack.sources.detect import detect; assert detect({str(tmp_path)!r}) == 'folder'\n"
        "print(sorted(name for name in sys.modules if name.startswith('fastload._pack.sources.')))"
    )
    said = subprocess.run(
        [sys.executable, "-c", code], check=True, capture_output=True, text=True
    ).stdout
    assert not any(
        f"sources.{name}" in said for name in ("coco", "hf", "lists", "nuscenes", "webdataset")
    ), said


def test_options_on_the_command_line_are_arguments_of_their_source() -> None:
    for each in FORMATS.values():
        reader = getattr(each.module(), each.reader)
        known = list(inspect.signature(reader).parameters)[1:]
        assert {option.argument for option in each.options} <= set(known), each.name
    flags = [option.command_flag for option in source_options()]
    assert len(set(flags)) == len(flags), "an option that formats share is one object"
    assert names(" a, b ,,c") == ["a", "b", "c"]
