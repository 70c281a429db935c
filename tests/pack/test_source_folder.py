"""Class folders become images and labels."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import fastload
from fastload._pack.sources.base import Encoded
from fastload._pack.sources.folder import FolderSource
from fastload._store.fields import Field
from fastload.errors import BadImage, ConfigError
from tests.packing import log_of, pixels
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
    (tmp_path / "x.svg").write_bytes(b"<svg>")
    with pytest.raises(ConfigError, match=r"no image among 1 file \(1 x \.svg; first: x\.svg\)"):
        list(FolderSource(tmp_path).refs())
    with pytest.raises(ConfigError, match="nowhere: no such file"):
        FolderSource(tmp_path / "nowhere")


def test_classes_can_be_sorted_as_timm_sorts_them(tmp_path: Path) -> None:
    for name in ("c10", "C2", "b", "7", "c1x", "10"):
        put_image(tmp_path / name / "1.jpg")
    assert FolderSource(tmp_path).classes == ("10", "7", "C2", "b", "c10", "c1x")
    source = FolderSource(tmp_path, class_order="natural")
    assert source.classes == ("7", "10", "b", "c1x", "C2", "c10")
    assert {s.source: s.values["label"] for s in samples_of(source)}["c10/1.jpg"] == 5
    with pytest.raises(ConfigError, match="class_order='size': expected name or natural"):
        FolderSource(tmp_path, class_order="size")


def test_every_supported_format_is_packed_and_other_files_are_named(tmp_path: Path) -> None:
    root = tmp_path / "source"
    image = Image.fromarray(pixels(20, 16))
    for number, (name, kind) in enumerate(
        {
            "a.gif": "GIF",
            "b.jfif": "JPEG",
            "c.webp": "WEBP",
            "d.bmp": "BMP",
            "e.tiff": "TIFF",
            "f.jp2": "JPEG2000",
            "g": "PNG",  # no suffix: found by its content
            "h.ppm": "PPM",
        }.items()
    ):
        (root / f"class{number}").mkdir(parents=True)
        image.save(root / f"class{number}" / name, kind)
    frames = [Image.new("L", (8, 8), value) for value in (10, 200)]
    for name in ("moving.gif", "moving.png"):
        frames[0].save(root / "class0" / name, save_all=True, append_images=frames[1:])
    for name in ("notes.txt", "more.txt", "x.eps", "README"):
        (root / "class1" / name).write_text("%!PS-Adobe-3.0 EPSF-3.0")
    result = fastload.pack(root, tmp_path / "packed", order="source")
    assert result.n_samples == 10
    assert [n for why, n in result.converted.items() if "first frame only" in why] == [1, 1]
    assert sum(result.converted.values()) == 8  # not the JPEG and the still PNG
    packed = fastload.open(tmp_path / "packed")
    assert packed.classes == [f"class{number}" for number in range(8)]
    assert {*packed.column("label")} == {*range(8)}  # no class is empty
    for first_frame in (1, 2):
        assert (np.asarray(packed[first_frame]["image"]) == 10).all()
    assert sum(result.left_out.values()) == 4
    assert result.left_out["suffix .txt is not an image format that fastload reads"] == 2
    assert "Left out 4 files, listed in" in str(result)
    named = {line["source"] for line in log_of(tmp_path / "packed") if line["event"] == "left out"}
    assert named == {f"class1/{name}" for name in ("README", "more.txt", "notes.txt", "x.eps")}


@pytest.mark.parametrize("name", ["evil.jpg", "evil"])
def test_only_listed_formats_are_opened(tmp_path: Path, name: str) -> None:
    put_image(tmp_path / "good.jpg")
    (tmp_path / name).write_bytes(b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n")
    source = FolderSource(tmp_path)
    if name == "evil":
        assert dict(source.left_out()) == {"evil": "no suffix, and not an image"}
    else:
        with pytest.raises(BadImage, match="not a supported image format"):
            fastload.pack(source, tmp_path / "packed")
