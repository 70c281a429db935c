"""The files of each layout: kinds of JPEG, and labels that agree with the pixels."""

from __future__ import annotations

import csv
import re
from pathlib import Path

import numpy as np
import pytest
from PIL import Image, ImageOps
from PIL.JpegImagePlugin import get_sampling

from fastload._tools.scenes import imagenet
from fastload._tools.scenes.generate import UsageError
from fastload._tools.scenes.subject import class_names
from tools.makedata import captcha, gray

SAMPLING = {0: "444", 1: "422", 2: "420"}


def bits(path: Path) -> float:
    with Image.open(path) as image:
        return 8 * path.stat().st_size / (image.width * image.height)


@pytest.fixture(scope="module")
def classes_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    dest = tmp_path_factory.mktemp("imagenet")
    shares = imagenet.Shares(yuv444=0.3, yuv422=0.2, gray=0.2, progressive=0.3, oriented=0.3)
    made = imagenet.make(dest, n=30, seed=3, n_classes=5, shares=shares)
    assert (made.n_samples, made.n_images) == (36, 36)
    return dest


def test_imagenet_has_class_folders_with_equal_shares(classes_dir: Path) -> None:
    for split, count in (("train", 30), ("val", 6)):
        folders = sorted(path.name for path in (classes_dir / split).iterdir())
        assert folders == class_names(5)
        counts = [len(list((classes_dir / split / name).glob("*.jpg"))) for name in folders]
        assert sum(counts) == count
        assert max(counts) - min(counts) <= 1


def test_imagenet_files_have_the_kind_in_their_name(classes_dir: Path) -> None:
    seen = set()
    for path in classes_dir.rglob("*.jpg"):
        match = re.fullmatch(r"\d{6}_(420|422|444|gray)(p?)(?:_o([2-8]))?\.jpg", path.name)
        assert match, path.name
        kind, progressive, orientation = match.groups()
        with Image.open(path) as image:
            assert image.format == "JPEG"
            found = "gray" if image.mode == "L" else SAMPLING[get_sampling(image)]
            assert (found, image.mode) == (kind, "L" if kind == "gray" else "RGB")
            assert bool(image.info.get("progressive")) == bool(progressive)
            assert image.getexif().get(0x0112, 1) == int(orientation or 1)
        assert 1.5 <= bits(path) <= 5, path.name
        seen |= {kind, progressive, "rotated" if orientation else ""}
    assert seen == {"420", "422", "444", "gray", "p", "", "rotated"}


def test_imagenet_orientation_preserves_the_displayed_image(tmp_path: Path) -> None:
    def first(name: str, oriented: float) -> list[Image.Image]:
        imagenet.make(tmp_path / name, n=10, seed=1, shares=imagenet.Shares(0, 0, 0, 0, oriented))
        paths = sorted((tmp_path / name / "train").rglob("*.jpg"), key=lambda path: path.name)
        return [Image.open(path) for path in paths]

    upright = first("upright", 0.0)
    rotated = first("rotated", 1.0)
    assert {image.getexif()[0x0112] for image in rotated} >= {3, 6}
    for a, b in zip(upright, rotated, strict=True):
        shown = ImageOps.exif_transpose(b)
        assert shown.size == a.size
        # Both were compressed with subsampled chroma, in different directions.
        assert np.abs(np.asarray(a, np.int16) - np.asarray(shown, np.int16)).mean() < 6


def test_imagenet_classes_differ_in_color(tmp_path: Path) -> None:
    imagenet.make(tmp_path / "d", n=50, seed=5, n_classes=5, shares=imagenet.Shares(0, 0, 0, 0, 0))
    rows: dict[str, list[tuple[int, tuple[float, ...]]]] = {"train": [], "val": []}
    for split, found in rows.items():
        for label, name in enumerate(class_names(5)):
            for path in sorted((tmp_path / "d" / split / name).glob("*.jpg")):
                ycc = np.asarray(
                    Image.open(path).convert("YCbCr").resize((32, 32), Image.Resampling.BOX),
                    np.float64,
                )
                found.append((label, tuple(ycc[10:22, 10:22, 1:].mean(axis=(0, 1)))))
    centers = np.array(
        [np.mean([f for k, f in rows["train"] if k == label], axis=0) for label in range(5)]
    )
    right = [label == np.argmin(np.hypot(*(centers - f).T)) for label, f in rows["val"]]
    assert np.mean(right) > 0.6  # by chance 0.2


def test_unknown_number_of_classes_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="n=31: expected 2 to 30 classes"):
        gray.make(tmp_path / "d", n=2, n_classes=31)
    assert not (tmp_path / "d").exists()
    assert gray.make(tmp_path / "d", n=2, n_classes=30).n_samples == 3


def test_gray_is_small_and_has_one_component(tmp_path: Path) -> None:
    gray.make(tmp_path / "d", n=60, seed=2)
    paths = sorted((tmp_path / "d").rglob("*.jpg"))
    assert len(paths) == 72
    assert {path.parent.name for path in paths} == set(class_names(10))
    for path in paths:
        with Image.open(path) as image:
            assert (image.mode, image.size, len(image.layer)) == ("L", (128, 128), 1)  # type: ignore[attr-defined]
        assert 1.5 <= bits(path) <= 5, path.name


def stripe_energy(path: Path) -> np.ndarray[tuple[int, ...], np.dtype[np.float64]]:
    """Energy per direction (10 of them) at the frequency of the stripes, mid-image."""
    part = np.asarray(Image.open(path), np.float64)[32:96, 32:96]
    power = (
        np.abs(np.fft.fft2((part - part.mean()) * np.hanning(64)[:, None] * np.hanning(64))) ** 2
    )
    f = np.fft.fftfreq(64) * 64
    radius, angle = np.hypot(f[:, None], f), np.arctan2(f[:, None], f) % np.pi
    ring = (radius > 4) & (radius < 8)
    direction = ((angle / np.pi * 10 + 0.5).astype(int) % 10)[ring]
    energy = np.bincount(direction, power[ring], minlength=10)
    return np.asarray(energy / energy.sum())


def test_gray_classes_differ_in_their_stripes(tmp_path: Path) -> None:
    gray.make(tmp_path / "d", n=100, seed=4)
    rows = [
        (int(path.parent.name[1:3]) % 5, stripe_energy(path))
        for path in sorted((tmp_path / "d").rglob("*.jpg"))
    ]
    right = [int(np.argmax(energy)) // 2 == group for group, energy in rows]
    assert np.mean(right) > 0.5  # by chance 0.2


def test_captcha_keypoints_are_where_the_table_says(tmp_path: Path) -> None:
    captcha.make(tmp_path / "d", n=40, seed=6)
    with (tmp_path / "d" / "labels.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert list(rows[0]) == ["path", "x1", "y1", "x2", "y2", "label"]
    assert len(rows) == 40
    assert {int(row["label"]) for row in rows} == set(range(6))
    misses = []
    for row in rows:
        path = tmp_path / "d" / row["path"]
        assert 1.5 <= bits(path) <= 5, row
        with Image.open(path) as image:
            assert (image.mode, image.size) == ("RGB", (320, 160))
            pixels = np.asarray(image, np.float64)
        for k, color in enumerate(captcha.COLORS, start=1):
            distance = np.sqrt(((pixels - color) ** 2).sum(axis=2))
            y, x = np.nonzero(distance < 75)
            assert len(x) > 40, f"no icon of color {color}: {row}"
            misses.append((x.mean() - float(row[f"x{k}"]), y.mean() - float(row[f"y{k}"])))
            assert np.hypot(*misses[-1]) < 1.2, row
    # Regression: Pillow truncates fractions, and subsampled chroma can be shifted; both once moved
    # every icon by half a pixel.
    assert np.abs(np.mean(misses, axis=0)).max() < 0.2


def test_bad_arguments_are_refused_and_good_ones_still_work(tmp_path: Path) -> None:
    for n, seed, jobs in ((0, 0, 1), (1, -1, 1), (1, 0, 0)):
        with pytest.raises(UsageError, match=r"expected \d or more"):
            captcha.make(tmp_path / "d", n=n, seed=seed, jobs=jobs)
        assert not (tmp_path / "d").exists()
    assert captcha.make(tmp_path / "d", n=1).n_images == 1
