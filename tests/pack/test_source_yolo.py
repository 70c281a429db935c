"""YOLO datasets become boxes, labels and keypoints."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import fastload
from fastload._pack.sources.detect import detect
from fastload._pack.sources.yolo import YoloSource
from fastload.errors import ConfigError
from tests.source_contract import outcome, put_image, samples_of

pytest.importorskip("yaml", reason="not run: no PyYAML")
CONFIG = "train: ../train/images\nval: ../val/images\nnc: 2\nnames: ['cat', 'dog']\n"

# Text of 2**60 words if all aliases are written out.
BOMB = "a0: &a0 [x, x]\n" + "".join(f"a{i}: &a{i} [*a{i - 1}, *a{i - 1}]\n" for i in range(1, 61))


def make(root: Path, layout: str, *, config: str = CONFIG, **labels: str) -> Path:
    """Images a.jpg (labels from ``a=``) in train and b.jpg (``b=``) in val, 16x16 pixels."""
    for stem, split in (("a", "train"), ("b", "val")):
        images, texts = {
            "ultralytics": (f"images/{split}", f"labels/{split}"),
            "roboflow": (f"{split}/images", f"{split}/labels"),
            "flat": ("images", "labels"),
        }[layout]
        put_image(root / images / f"{stem}.jpg")
        (root / texts).mkdir(parents=True, exist_ok=True)
        if stem in labels:
            (root / texts / f"{stem}.txt").write_text(labels[stem])
    (root / "data.yaml").write_text(config)
    return root


@pytest.mark.parametrize("layout", ["ultralytics", "roboflow", "flat"])
def test_boxes_are_pixels_and_splits_are_found(layout: str, tmp_path: Path) -> None:
    root = make(tmp_path, layout, a="1 0.5 0.5 0.5 0.25\n0 0.25 0.25 0.5 0.5\n")
    assert detect(root) == detect(root / "data.yaml") == "yolo"
    source = YoloSource(root)
    first, second = samples_of(source)
    np.testing.assert_array_equal(first.values["boxes"], [[4, 6, 12, 10], [0, 0, 8, 8]])
    np.testing.assert_array_equal(first.values["labels"], [1, 0])
    assert second.values["boxes"].shape == (0, 4)  # no label file: a background image
    assert source.info == {"categories": [{"id": 0, "name": "cat"}, {"id": 1, "name": "dog"}]}
    if layout != "flat":
        assert [each.values["split"] for each in (first, second)] == [0, 1]
        assert source.fields[-1].classes == ("train", "val")
        assert len(samples_of(YoloSource(root, split="val"))) == 1


@pytest.mark.parametrize("folder", ["images/test", "test/images"])
def test_a_split_without_labels_is_not_lost(folder: str, tmp_path: Path) -> None:
    make(tmp_path, "ultralytics" if folder.startswith("images") else "roboflow")
    put_image(tmp_path / folder / "c.jpg")
    source = YoloSource(tmp_path)
    assert source.fields[-1].classes == ("train", "val", "test")
    assert [each.source for each in samples_of(source)][-1] == f"{folder}/c.jpg"


def test_images_next_to_split_folders_are_not_lost(tmp_path: Path) -> None:
    make(tmp_path, "ultralytics", a="0 0.5 0.5 1 1\n")
    put_image(tmp_path / "images" / "c.jpg")
    samples = samples_of(YoloSource(tmp_path))
    assert [each.source for each in samples] == [
        "images/c.jpg",
        "images/train/a.jpg",
        "images/val/b.jpg",
    ]
    assert [len(each.values["boxes"]) for each in samples] == [0, 1, 0]
    assert "split" not in samples[0].values


def test_images_without_a_suffix_are_found_and_other_files_are_named(tmp_path: Path) -> None:
    make(tmp_path, "ultralytics", a="0 0.5 0.5 1 1\n")
    (tmp_path / "images" / "val" / "b.jpg").rename(tmp_path / "images" / "val" / "b")
    (tmp_path / "images" / "val" / "b.xcf").touch()
    source = YoloSource(tmp_path)
    assert [each.source for each in samples_of(source)] == ["images/train/a.jpg", "images/val/b"]
    assert [path for path, _ in source.left_out()] == ["images/val/b.xcf"]


def test_a_rotated_image_has_boxes_in_its_upright_pixels(tmp_path: Path) -> None:
    make(tmp_path, "flat", a="0 0.5 0.5 1 1\n")
    exif = Image.Exif()
    exif[0x0112] = 6
    Image.new("RGB", (32, 16)).save(tmp_path / "images" / "a.jpg", exif=exif)
    np.testing.assert_array_equal(
        samples_of(YoloSource(tmp_path))[0].values["boxes"], [[0, 0, 16, 32]]
    )


def test_a_polygon_becomes_its_bounding_box(tmp_path: Path) -> None:
    make(tmp_path, "flat", a="0 0.25 0.5 0.75 0.25 0.5 1.0\n")
    np.testing.assert_array_equal(
        samples_of(YoloSource(tmp_path))[0].values["boxes"], [[4, 4, 12, 16]]
    )


def test_keypoints_become_points_per_box(tmp_path: Path) -> None:
    config = CONFIG + "kpt_shape: [2, 3]\n"
    make(tmp_path, "flat", config=config, a="1 0.5 0.5 1 1 0.5 0.25 2 0 0 0\n")
    sample = samples_of(YoloSource(tmp_path))[0]
    np.testing.assert_array_equal(sample.values["keypoints"], [[[8, 4, 2], [0, 0, 0]]])
    np.testing.assert_array_equal(sample.values["boxes"], [[0, 0, 16, 16]])


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("2 0.5 0.5 0.5 0.5", "class 2, expected 0 to 1"),
        ("-1 0.5 0.5 0.5 0.5", "class -1, expected 0 to 1"),
        ("cat 0.5 0.5 0.5 0.5", "expected numbers"),
        ("0 0.5 0.5 0.5", "4 values, expected 5"),
        ("0 0.5 0.5 0.5 0.5 0.9", "6 values, expected 5"),
        ("0 8 8 4 4", "expected coordinates between 0 and 1"),
        ("0 nan 0.5 0.5 0.5", "expected coordinates between 0 and 1"),
    ],
)
def test_an_invalid_label_is_a_bad_sample(line: str, message: str, tmp_path: Path) -> None:
    good, bad = outcome(YoloSource(make(tmp_path, "flat", a=line + "\n", b="0 0.5 0.5 1 1\n")))
    assert [each.source for each in good] == ["images/b.jpg"]
    assert len(bad) == 1
    assert message in bad[0]


def test_a_class_number_is_bounded_without_names(tmp_path: Path) -> None:
    line = "1" * 58 + " 0.5 0.5 0.5 0.5\n"
    source = YoloSource(make(tmp_path, "flat", config="", a=line, b="7 0.5 0.5 1 1\n"))
    assert source.classes == ()
    good, bad = outcome(source)
    assert [each.source for each in good] == ["images/b.jpg"]
    assert f"class {'1' * 20}, expected 0 to 2147483647" in bad[0]


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ("names: {0: cat, 2: dog}\n", "names: expected the keys 0 to 1"),
        ("names: cat\n", "names='cat': expected a list or a mapping"),
        ("names: [a\n", "cannot be read as YAML"),
        ("names: [a]\nkpt_shape: 3\n", "kpt_shape=3: expected"),
        ("names: {0: cat, x: dog}\n", "names: expected the keys 0 to 1"),
        ("names: [a]\nday: 2001-99-99\n", "cannot be read as YAML"),
        ("names: [a]\nx: !!bool maybe\n", "cannot be read as YAML"),
        (f"{BOMB}names: *a60\n", "names: .*: expected a name"),
        (f"{BOMB}names: [a]\nkpt_shape: *a60\n", "kpt_shape=.*: expected"),
    ],
)
def test_an_invalid_config_is_refused(config: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=message):
        YoloSource(make(tmp_path, "flat", config=config))
    assert YoloSource(make(tmp_path, "flat")).classes == ("cat", "dog")


def test_class_names_may_be_a_mapping_or_an_argument(tmp_path: Path) -> None:
    make(tmp_path, "flat", config="names:\n  0: cat\n  1: dog\n")
    assert YoloSource(tmp_path).classes == ("cat", "dog")
    assert YoloSource(tmp_path, classes=["x", "y"]).classes == ("x", "y")
    (tmp_path / "data.yaml").unlink()
    assert YoloSource(tmp_path).classes == ()


def test_missing_splits_and_folders_are_named(tmp_path: Path) -> None:
    make(tmp_path, "roboflow")
    with pytest.raises(ConfigError, match=r"no split 'dev'\. Found train, val"):
        YoloSource(tmp_path, split="dev")
    (tmp_path / "empty").mkdir()
    with pytest.raises(ConfigError, match="no images and labels found"):
        YoloSource(tmp_path / "empty")
    (tmp_path / "other.yaml").write_text("names: [a]\n")
    with pytest.raises(ConfigError, match=r"data.yaml, other.yaml all have names"):
        YoloSource(tmp_path)


def test_it_packs(tmp_path: Path) -> None:
    source = make(tmp_path / "source", "ultralytics", a="1 0.5 0.5 0.5 0.25\n")
    fastload.pack(source, tmp_path / "packed")
    dataset = fastload.open(tmp_path / "packed")
    assert len(dataset) == 2
    assert sorted(len(dataset[i]["boxes"]) for i in range(2)) == [0, 1]
