"""`--encode copy`: files are stored byte for byte, and load with the same pixels as with `keep`."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import fastload
from fastload import transforms as T
from fastload._pack.options import PackOptions
from fastload._pack.sources.base import Encoded, Sample
from fastload._store.dataset import Dataset, open_dataset
from fastload._store.record import JPEG, RESTART_INDEX
from fastload.errors import BadImage, ConfigError
from tests.packing import IMAGE, Listed, file_of, log_of, pack, pixels


def jpeg(seed: int, *, orientation: int = 1, gray: bool = False, **options: Any) -> bytes:
    exif = Image.Exif()
    exif[0x0112] = orientation
    array = pixels(90, 61, seed=seed, gray=gray, grain=4)
    return file_of(array, quality=88, exif=exif, **options)


FILES = {
    "baseline.jpg": jpeg(1),
    "progressive.jpg": jpeg(2, progressive=True),
    "rotated.jpg": jpeg(3, orientation=6),
    "flipped.jpg": jpeg(4, orientation=4),
    "gray.jpg": jpeg(5, gray=True),
    "markers.jpg": jpeg(6, restart_marker_blocks=3),
    "trailing.jpg": jpeg(7) + b"bytes after the end marker",
}


def packed(folder: Path, files: dict[str, bytes], **options: Any) -> Dataset:
    samples = [Sample({"image": Encoded(data, name)}, name) for name, data in files.items()]
    pack(Listed(samples, (IMAGE,)), folder, order="source", **options)
    return open_dataset(folder)


def test_bytes_are_unchanged_and_pixels_are_those_of_keep(tmp_path: Path) -> None:
    copied = packed(tmp_path / "copy", FILES, encode="copy")
    kept = packed(tmp_path / "keep", FILES)
    assert len(copied) == len(FILES)
    for i, (name, data) in enumerate(FILES.items()):
        assert bytes(copied.raw(i, "image")) == data, name
        np.testing.assert_array_equal(copied[i]["image"], kept[i]["image"], err_msg=name)
        parts = copied.record(i).parts
        assert [part.codec for part in parts if part.field == 0] == [JPEG]
        assert not any(part.role == RESTART_INDEX or part.interval for part in parts)
    assert copied.manifest.options["encode"] == "copy"
    assert not copied.manifest.converted


def test_loader_returns_the_same_batches_as_with_keep(tmp_path: Path) -> None:
    batches = []
    for encode in ("copy", "keep"):
        packed(tmp_path / encode, FILES, encode=encode)
        loader = fastload.DataLoader(
            tmp_path / encode,
            batch_size=len(FILES),
            transform=[T.RandomResizedCrop(32)],
            seed=3,
            exact=True,
        )
        batches += [batch["image"].numpy() for batch in loader]
    copied, kept = batches
    np.testing.assert_array_equal(copied, kept)


def test_files_that_need_a_conversion_are_converted_and_counted(tmp_path: Path) -> None:
    file = io.BytesIO()
    Image.fromarray(pixels(40, 30, seed=8)).convert("CMYK").save(file, "JPEG")
    files = {"cmyk.jpg": file.getvalue(), "photo.jpg": jpeg(9)}
    copied = packed(tmp_path / "copy", files, encode="copy")
    kept = packed(tmp_path / "keep", files)
    assert copied.manifest.converted == kept.manifest.converted == {"CMYK JPEG → RGB": 1}
    np.testing.assert_array_equal(copied[0]["image"], kept[0]["image"])
    assert bytes(copied.raw(1, "image")) == files["photo.jpg"]


def test_png_is_stored_unmodified(tmp_path: Path) -> None:
    file = io.BytesIO()
    Image.fromarray(pixels(40, 30, seed=8)).save(file, "PNG")
    copied = packed(tmp_path / "copy", {"a.png": file.getvalue()}, encode="copy")
    assert bytes(copied.raw(0, "image")) == file.getvalue()


def wide(data: bytes) -> bytes:
    """Sets the size in the frame header to 16000x16000."""
    at = data.index(b"\xff\xc0") + 5
    return data[:at] + (16000).to_bytes(2, "big") * 2 + data[at + 4 :]


@pytest.mark.parametrize(
    ("bad", "why"),
    [
        (jpeg(1)[:-2], "truncated JPEG: the end marker is missing"),
        (wide(jpeg(1)), "16000x16000 pixels: at most 64 megapixels"),
        (jpeg(1)[:60], "cut off in marker 0xFF"),
        (b"\xff\xd8\xff\xd9", "no frame header"),
    ],
    ids=["no end", "too large", "cut in a marker", "no frame"],
)
def test_damaged_headers_are_refused(tmp_path: Path, bad: bytes, why: str) -> None:
    files = {"bad.jpg": bad, "good.jpg": jpeg(2)}
    with pytest.raises(BadImage, match=why):
        packed(tmp_path / "stop", files, encode="copy")
    found = packed(tmp_path / "skip", files, encode="copy", on_error="skip")
    assert bytes(found.raw(0, "image")) == files["good.jpg"]
    assert [event["source"] for event in log_of(tmp_path / "skip")] == ["bad.jpg"]


@pytest.mark.parametrize("options", [{"max_side": 64}, {"resize": (8, 8)}, {"restart": 4}])
def test_options_that_change_the_file_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="encode='copy' stores files unmodified"):
        PackOptions(encode="copy", **options)
    assert PackOptions(encode="copy", restart=0).encode == "copy"
