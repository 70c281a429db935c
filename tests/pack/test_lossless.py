"""`--encode keep`: the pixels of a packed image equal the original bit for bit."""

from __future__ import annotations

import io
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import simplejpeg
from PIL import Image, ImageOps

from fastload._common.native import core
from fastload._store.dataset import open_dataset
from fastload._store.record import JPEG, PNG, RESTART_INDEX
from tests.corpus import corpus_dir, photos
from tests.packing import IMAGE, Listed, file_of, image_sample, pack, pixels

LONG = os.environ.get("FASTLOAD_LONG") == "1"
SIZES = ((1, 1), (7, 9), (16, 16), (17, 33), (65, 31), (200, 151))
SAMPLINGS = ("444", "422", "420", "440", "411", "gray")


def strict_pixels(data: bytes) -> np.ndarray[tuple[int, ...], np.dtype[np.uint8]]:
    """Decodes with the reference: libjpeg-turbo through simplejpeg, with warnings as errors."""
    gray = Image.open(io.BytesIO(data)).mode == "L"
    return np.asarray(
        simplejpeg.decode_jpeg(data, colorspace="GRAY" if gray else "RGB", strict=True)
    )


def needs_jpegtran() -> None:
    if shutil.which("jpegtran") is None:
        pytest.skip("not run: no jpegtran (Debian: libjpeg-turbo-progs)")


def generated(sampling: str, size: tuple[int, int], *, progressive: bool, restart: int) -> bytes:
    """Pillow writes progressive files and restart markers, simplejpeg the rare samplings."""
    gray = sampling == "gray"
    array = pixels(*size, seed=sum(size), gray=gray, grain=3)
    if sampling in ("444", "422", "420", "gray"):
        options: dict[str, Any] = (
            {} if gray else {"subsampling": {"444": 0, "422": 1, "420": 2}[sampling]}
        )
        return file_of(
            array, quality=83, progressive=progressive, restart_marker_blocks=restart, **options
        )
    data = bytes(
        simplejpeg.encode_jpeg(np.ascontiguousarray(array), quality=83, colorsubsampling=sampling)
    )
    flags = [
        *(["-progressive"] if progressive else []),
        *(["-restart", f"{restart}B"] if restart else []),
    ]
    if not flags:
        return data
    needs_jpegtran()
    return subprocess.run(["jpegtran", *flags], input=data, capture_output=True, check=True).stdout


def assert_same_pixels(dest: Path, originals: dict[str, bytes]) -> None:
    """Packs JPEG files and compares every pixel with the strict decode of the original."""
    result = pack(
        Listed([image_sample(data, name) for name, data in originals.items()], (IMAGE,)), dest
    )
    dataset = open_dataset(dest)
    assert len(dataset) == len(originals)
    assert result.converted == {}
    assert sorted(dataset.source(i) for i in range(len(dataset))) == sorted(originals)
    for i in range(len(dataset)):
        name = dataset.source(i)
        np.testing.assert_array_equal(
            dataset[i]["image"], strict_pixels(originals[name]), err_msg=name
        )


def test_photos_keep_every_pixel(tmp_path: Path) -> None:
    assert_same_pixels(
        tmp_path / "packed", {path.name: path.read_bytes() for path in photos(None if LONG else 60)}
    )


@pytest.mark.parametrize("sampling", SAMPLINGS)
def test_every_sampling_size_and_coding_keeps_every_pixel(tmp_path: Path, sampling: str) -> None:
    originals = {
        f"{sampling} {size} {progressive=} {restart=}": generated(
            sampling, size, progressive=progressive, restart=restart
        )
        for size in SIZES
        for progressive in (False, True)
        for restart in (0, 1, 3)
    }
    assert_same_pixels(tmp_path / "packed", originals)


def test_rewritten_files_are_baseline_without_metadata(tmp_path: Path) -> None:
    """The pixels must not be equal only because the files were stored unmodified."""
    if core() is None:
        pytest.skip("not run: no native core")
    exif = Image.Exif()
    exif[0x010E] = "a secret place"
    data = file_of(
        pixels(200, 100), quality=80, progressive=True, exif=exif, comment=b"hidden words"
    )
    pack(Listed([image_sample(data)], (IMAGE,)), tmp_path / "packed")
    record = open_dataset(tmp_path / "packed").record(0)
    stored = bytes(record.raw("image"))
    assert b"secret" in data
    assert b"secret" not in stored
    assert b"hidden words" not in stored
    assert b"\xff\xc2" not in stored  # no progressive frame
    assert record.parts[0].interval > 0
    assert len(record.raw("image", role=RESTART_INDEX)) > 8


def test_gray_stays_one_channel(tmp_path: Path) -> None:
    gray = pixels(40, 30, gray=True)
    originals = {"a.jpg": file_of(gray), "b.png": file_of(gray, "PNG")}
    pack(
        Listed([image_sample(data, name) for name, data in originals.items()], (IMAGE,)),
        tmp_path / "packed",
        order="source",
    )
    dataset = open_dataset(tmp_path / "packed")
    assert [dataset[i]["image"].shape for i in range(2)] == [(30, 40, 1), (30, 40, 1)]
    assert [dataset.record(i).parts[0].codec for i in range(2)] == [JPEG, PNG]
    np.testing.assert_array_equal(dataset[1]["image"][..., 0], gray)


def oriented_files(pattern: str) -> dict[str, bytes]:
    """Returns corpus files and generated ones whose sides are not multiples of an MCU."""
    files = {
        path.name: path.read_bytes()
        for path in sorted((corpus_dir() / "orientation").glob(pattern))
    }
    for orientation in range(9):
        exif = Image.Exif()
        exif[0x0112] = orientation
        for size in ((32, 48), (37, 21)):
            files[f"made {size} {orientation}"] = file_of(
                pixels(*size, seed=orientation), exif=exif
            )
        files[f"gray {orientation}"] = file_of(pixels(29, 50, gray=True), exif=exif)
    return files


def assert_orientation(dest: Path, pattern: str = "*.jpg") -> None:
    """Packed images are upright, exactly as Pillow rotates them."""
    originals = oriented_files(pattern)
    pack(Listed([image_sample(data, name) for name, data in originals.items()], (IMAGE,)), dest)
    dataset = open_dataset(dest)
    rotated = 0
    for i in range(len(dataset)):
        name = dataset.source(i)
        image = Image.open(io.BytesIO(originals[name]))
        stored = strict_pixels(originals[name])
        strict = Image.fromarray(stored[..., 0] if image.mode == "L" else stored)
        strict.getexif()[0x0112] = image.getexif().get(0x0112, 1)
        shown = np.asarray(ImageOps.exif_transpose(strict))
        expected = shown.reshape(*shown.shape[:2], -1)
        np.testing.assert_array_equal(dataset[i]["image"], expected, err_msg=name)
        np.testing.assert_array_equal(dataset.sizes()[i], expected.shape[:2], err_msg=name)
        rotated += not np.array_equal(expected, stored)
    assert rotated >= 21


def test_exif_orientation_equals_pillow(tmp_path: Path) -> None:
    assert_orientation(tmp_path / "packed")


def test_without_the_native_core_the_pixels_are_the_same(tmp_path: Path) -> None:
    needs_jpegtran()
    code = """
from pathlib import Path
from fastload._common.native import core
from tests.pack import test_lossless as t
assert core() is None
dest = Path(t.sys.argv[1])
t.assert_orientation(dest / "oriented", "Portrait_[67].jpg")
for sampling in t.SAMPLINGS:
    t.assert_same_pixels(dest / sampling, {f"{size} {progressive}": t.generated(sampling, size, progressive=progressive, restart=3)
                                     for size in t.SIZES[1::2] for progressive in (False, True)})
t.assert_same_pixels(dest / "photos", {path.name: path.read_bytes() for path in t.photos(12)})
"""
    run = subprocess.run(
        [sys.executable, "-W", "error", "-c", code, str(tmp_path)],
        env={**os.environ, "FASTLOAD_NATIVE": "off"},
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 0, run.stderr
