"""Class folders become images and labels."""

from __future__ import annotations

from pathlib import Path

import pytest

from fastload._pack.sources.base import Encoded
from fastload._pack.sources.folder import FolderSource
from fastload._store.fields import Field
from fastload.errors import ConfigError
from tests.source_contract import outcome, put_image, samples_of


def test_folders_are_classes(tmp_path: Path) -> None:
    cat = put_image(tmp_path / "cat" / "1.jpg", 1)
    put_image(tmp_path / "cat" / "deep" / "er" / "2.PNG", 2)
    put_image(tmp_path / "dog" / "3.webp", 3)
    (tmp_path / "dog" / "notes.txt").write_text("no image")
    source = FolderSource(tmp_path)
    assert source.fields == (Field("image", "image"), Field("label", "int", classes=("cat", "dog")))
    found = samples_of(source)
    assert [(sample.source, sample.values["label"]) for sample in found] == [
        ("cat/1.jpg", 0),
        ("cat/deep/er/2.PNG", 0),
        ("dog/3.webp", 1),
    ]
    assert found[0].values["image"] == Encoded(cat, "cat/1.jpg")


def test_splits_share_the_classes(tmp_path: Path) -> None:
    for name in ("train/b/1.jpg", "train/a/2.jpg", "val/b/3.jpg", "test/a/4.jpg"):
        put_image(tmp_path / name)
    source = FolderSource(tmp_path)
    assert source.fields[1:] == (
        Field("label", "int", classes=("a", "b")),
        Field("split", "int", classes=("train", "val", "test")),
    )
    assert [(s.source, s.values["label"], s.values["split"]) for s in samples_of(source)] == [
        ("train/a/2.jpg", 0, 0),
        ("train/b/1.jpg", 1, 0),
        ("val/b/3.jpg", 1, 1),
        ("test/a/4.jpg", 0, 2),
    ]
    assert [s.source for s in samples_of(FolderSource(tmp_path, split="val"))] == ["val/b/3.jpg"]
    with pytest.raises(ConfigError, match=r"no split 'dev'\. Found train, val, test"):
        FolderSource(tmp_path, split="dev")


def test_flat_folders_have_no_label(tmp_path: Path) -> None:
    put_image(tmp_path / "flat" / "b.jpg")
    put_image(tmp_path / "flat" / "a.tif")
    source = FolderSource(tmp_path / "flat")
    assert source.fields == (Field("image", "image"),)
    assert [sample.source for sample in samples_of(source)] == ["a.tif", "b.jpg"]
    put_image(tmp_path / "two" / "train" / "x.jpg")
    split = FolderSource(tmp_path / "two")
    assert [field.name for field in split.fields] == ["image", "split"]
    assert len(samples_of(split)) == 1
    put_image(tmp_path / "classes" / "c" / "x.jpg")
    assert [field.name for field in FolderSource(tmp_path / "classes", labels=False).fields] == [
        "image"
    ]


def test_given_classes_define_the_labels(tmp_path: Path) -> None:
    for name in ("cat/1.jpg", "dog/1.jpg", "other/1.jpg", "stray.jpg"):
        put_image(tmp_path / name)
    good, bad = outcome(FolderSource(tmp_path, classes=["dog", "cat", "cow"]))
    assert [(sample.source, sample.values["label"]) for sample in good] == [
        ("cat/1.jpg", 1),
        ("dog/1.jpg", 0),
    ]
    assert bad == [
        "stray.jpg: has no class: it is outside the class folders",
        "other/1.jpg: has no class: folder 'other' is not one of 3 classes",
    ]
    with pytest.raises(ConfigError, match="duplicate class"):
        FolderSource(tmp_path, classes=["dog", "dog"])


def test_an_empty_class_keeps_its_number(tmp_path: Path) -> None:
    put_image(tmp_path / "x" / "b" / "1.jpg")
    (tmp_path / "x" / "a").mkdir()
    assert samples_of(FolderSource(tmp_path / "x"))[0].values["label"] == 1
    put_image(tmp_path / "y" / "1.jpg")
    (tmp_path / "y" / "empty").mkdir()  # but folders without any image make no classes
    assert set(samples_of(FolderSource(tmp_path / "y"))[0].values) == {"image"}


def test_folder_without_images_is_refused(tmp_path: Path) -> None:
    (tmp_path / "x.gif").write_bytes(b"GIF89a")
    with pytest.raises(ConfigError, match=r"no images found\. Expected files with \.jpg"):
        list(FolderSource(tmp_path).refs())
    with pytest.raises(ConfigError, match="cannot be listed: No such file"):
        FolderSource(tmp_path / "nowhere")
