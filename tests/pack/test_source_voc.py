"""Pascal VOC annotations become boxes, labels, flags and masks."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import fastload
from fastload._pack.sources.detect import detect
from fastload._pack.sources.voc import VocSource
from fastload.errors import ConfigError
from tests.source_contract import outcome, put_image, samples_of

DOG = """<object><name>dog</name><difficult>1</difficult><truncated>0</truncated>
<bndbox><xmin>1</xmin><ymin>3</ymin><xmax>16</xmax><ymax>8</ymax></bndbox></object>"""
CAT = """<object><name>cat</name>
<bndbox><xmin>2.5</xmin><ymin>1</ymin><xmax>4</xmax><ymax>4</ymax></bndbox></object>"""


def make(root: Path, **objects: str) -> Path:
    """One 16x16 image per keyword, annotated with these objects; a in train, the others in val."""
    for name, text in (objects or {"a": DOG + CAT, "b": ""}).items():
        put_image(root / "JPEGImages" / f"{name}.jpg")
        file = root / "Annotations" / f"{name}.xml"
        file.parent.mkdir(exist_ok=True)
        file.write_text(f"<annotation><filename>{name}.jpg</filename>{text}</annotation>")
    sets = root / "ImageSets" / "Main"
    sets.mkdir(parents=True, exist_ok=True)
    (sets / "train.txt").write_text("a\n")
    (sets / "val.txt").write_text("b\n")
    (sets / "trainval.txt").write_text("a\nb\n")
    (sets / "cat_train.txt").write_text("a  1\n")
    return root


def test_boxes_count_from_zero_and_labels_are_sorted_names(tmp_path: Path) -> None:
    root = make(tmp_path / "VOCdevkit" / "VOC2012")
    for path in (root, root.parent, tmp_path):
        assert detect(path) == "voc"
        source = VocSource(path)
        first, second = samples_of(source)
        np.testing.assert_array_equal(first.values["boxes"], [[0, 2, 16, 8], [1.5, 0, 4, 4]])
        np.testing.assert_array_equal(first.values["labels"], [1, 0])
        np.testing.assert_array_equal(first.values["difficult"], [1, 0])
        np.testing.assert_array_equal(first.values["truncated"], [0, 0])
        assert second.values["boxes"].shape == (0, 4)
        assert source.classes == ("cat", "dog")
        assert [each.values["split"] for each in (first, second)] == [0, 1]


def test_one_split(tmp_path: Path) -> None:
    make(tmp_path)
    assert [each.source for each in samples_of(VocSource(tmp_path, split="val"))] == [
        "JPEGImages/b.jpg"
    ]
    assert len(samples_of(VocSource(tmp_path, split="trainval"))) == 2
    with pytest.raises(ConfigError, match=r"no split 'test'\. Found train, trainval, val"):
        VocSource(tmp_path, split="test")


def test_images_that_are_not_packed_are_named(tmp_path: Path) -> None:
    make(tmp_path)
    put_image(tmp_path / "JPEGImages" / "extra.jpg")
    (tmp_path / "JPEGImages" / "notes.txt").touch()
    no_image = "suffix .txt is not an image format that fastload reads"
    expected = {
        "JPEGImages/extra.jpg": "in no list of ImageSets/Main/",
        "JPEGImages/notes.txt": no_image,
    }
    assert dict(VocSource(tmp_path).left_out()) == expected
    assert dict(VocSource(tmp_path, split="val").left_out()) == expected  # not those of train
    for file in (tmp_path / "ImageSets" / "Main").iterdir():
        file.unlink()
    expected["JPEGImages/extra.jpg"] = "no annotation in Annotations/"
    assert dict(VocSource(tmp_path).left_out()) == expected


def test_masks_are_read_where_they_exist(tmp_path: Path) -> None:
    make(tmp_path)
    (tmp_path / "SegmentationClass").mkdir()
    mask = Image.fromarray(np.full((16, 16), 15, np.uint8)).convert("P")
    mask.save(tmp_path / "SegmentationClass" / "a.png")
    first, second = samples_of(VocSource(tmp_path, masks=True))
    assert "mask" in first.values
    assert "mask" not in second.values


@pytest.mark.parametrize(
    ("objects", "message"),
    [
        (DOG.replace("dog", "horse"), "class 'horse'"),
        (DOG.replace("<xmin>1</xmin>", ""), "bndbox: expected 4 numbers"),
        (DOG.replace("<xmax>16", "<xmax>0"), "expected xmin <= xmax"),
        (DOG.replace("<xmax>16", "<xmax>nan"), "expected xmin <= xmax"),
        (DOG.replace("<name>dog</name>", ""), "class '': expected one of"),
        ("<object>", "not XML"),
    ],
)
def test_a_damaged_annotation_is_a_bad_sample(objects: str, message: str, tmp_path: Path) -> None:
    make(tmp_path, a=objects, b=CAT)
    good, bad = outcome(VocSource(tmp_path, classes=["cat", "dog"]))
    assert [each.source for each in good] == ["JPEGImages/b.jpg"]
    assert len(bad) == 1
    assert message in bad[0]


def test_an_object_without_a_name_is_a_bad_sample(tmp_path: Path) -> None:
    make(tmp_path, a="<object/>", b=CAT)
    source = VocSource(tmp_path)
    assert source.classes == ("cat",)
    assert len(outcome(source)[1]) == 1


def test_entities_are_never_expanded(tmp_path: Path) -> None:
    make(tmp_path)
    file = tmp_path / "Annotations" / "a.xml"
    file.write_text('<!DOCTYPE a [<!ENTITY b "c">]><annotation>&b;</annotation>')
    good, bad = outcome(VocSource(tmp_path))
    assert len(good) == 1
    assert "expected plain XML" in bad[0]


def test_several_years_must_be_chosen(tmp_path: Path) -> None:
    make(tmp_path / "VOC2007")
    make(tmp_path / "VOC2012")
    with pytest.raises(ConfigError, match=r"VOC2007, .*VOC2012"):
        VocSource(tmp_path)


def test_it_packs(tmp_path: Path) -> None:
    fastload.pack(make(tmp_path / "source"), tmp_path / "packed")
    dataset = fastload.open(tmp_path / "packed")
    assert sorted(len(dataset[i]["boxes"]) for i in range(len(dataset))) == [0, 2]
