"""Images that must be converted have correct pixels and a counted reason. Others are refused."""

from __future__ import annotations

import io
import json
import shutil
import struct
import subprocess
import sys
import warnings
import zlib
from collections import Counter
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest
import simplejpeg
from numpy.typing import NDArray
from PIL import Image, ImageOps

from fastload._common.native import core
from fastload._pack.sources.base import Encoded, Sample
from fastload._store.dataset import Dataset, open_dataset
from fastload._store.fields import Field
from fastload._store.record import JPEG, PNG, RAW
from fastload.errors import BadImage
from tests.corpus import corpus_dir
from tests.packing import IMAGE, Listed, file_of, image_sample, log_of, pack, pixels

RGB, GRAY = pixels(60, 44, grain=4), pixels(60, 44, gray=True, grain=4)
WIDE: NDArray[np.uint16] = RGB.astype(np.uint16) * 256 + RGB[::-1, ::-1]


def png(array: NDArray[Any], mode: str, **options: Any) -> bytes:
    out = io.BytesIO()
    Image.fromarray(array).convert(mode).save(out, "PNG", **options)
    return out.getvalue()


def opencv_file(extension: str, array: NDArray[Any], *options: int) -> bytes:
    """Encodes what Pillow cannot write: 16-bit color."""
    order = [2, 1, 0, 3][: array.shape[2]]
    return cv2.imencode(extension, array[..., order], options)[1].tobytes()


def decoded(data: bytes) -> NDArray[Any]:
    """Returns upright pixels (H, W, 1 or 3) without transparency, by Pillow.

    OpenCV reads PNGs of 16 bits, because Pillow drops the lower bits of color.
    """
    if data[:4] == b"\x89PNG" and data[24] == 16:
        wide = cv2.imdecode(np.frombuffer(data, np.uint8), cv2.IMREAD_UNCHANGED)
        assert wide is not None
        channels = 1 if data[25] in (0, 4) else 3
        return np.atleast_3d(wide)[:, :, :3][:, :, ::-1][:, :, :channels]
    with warnings.catch_warnings(), Image.open(io.BytesIO(data)) as image:
        warnings.simplefilter("ignore")
        upright = ImageOps.exif_transpose(image)
        if image.mode.startswith("I"):
            return np.asarray(upright).astype(np.uint16)[..., None]
        array = np.asarray(upright.convert("L" if image.mode in ("1", "L", "LA") else "RGB"))
    return array.reshape(*array.shape[:2], -1)


def cmyk_files() -> dict[str, bytes]:
    inks = np.concatenate([RGB, pixels(60, 44, seed=9, gray=True)[..., None] // 2], axis=2)
    out = io.BytesIO()
    Image.fromarray(inks, "CMYK").save(out, "JPEG", quality=90)
    return {
        "cmyk": out.getvalue(),
        "ycck": bytes(simplejpeg.encode_jpeg(np.ascontiguousarray(inks), colorspace="CMYK")),
    }


def gray_alpha_png() -> bytes:
    """Returns a 16-bit PNG of gray and alpha, which neither Pillow nor OpenCV can write."""
    rows = b"".join(b"\0" + row.astype(">u2").tobytes() for row in WIDE[..., :2])
    height, width = WIDE.shape[:2]
    chunks = (
        b"IHDR" + struct.pack(">IIBBBBB", width, height, 16, 4, 0, 0, 0),
        b"IDAT" + zlib.compress(rows),
        b"IEND",
    )
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(each) - 4) + each + struct.pack(">I", zlib.crc32(each))
        for each in chunks
    )


def rotated_png() -> bytes:
    exif = Image.Exif()
    exif[0x0112] = 6
    return file_of(RGB, "PNG", exif=exif)


def arithmetic_jpeg(*, gray: bool) -> bytes:
    if shutil.which("cjpeg") is None:
        pytest.skip("not run: no cjpeg (libjpeg-turbo-progs)")
    return subprocess.run(
        ["cjpeg", "-arithmetic", *(["-grayscale"] if gray else [])],
        input=file_of(RGB, "PPM"),
        capture_output=True,
        check=True,
    ).stdout


CONVERTED: dict[str, tuple[bytes, str]] = {
    **{name: (data, "CMYK JPEG → RGB") for name, data in cmyk_files().items()},
    "webp": (file_of(RGB, "WEBP", quality=80), "WEBP → PNG"),
    "webp with alpha": (
        file_of(np.dstack([RGB, GRAY]), "WEBP", lossless=True),
        "WEBP → PNG, RGBA → RGB",
    ),
    "bmp": (file_of(RGB, "BMP"), "BMP → PNG"),
    "gray bmp": (file_of(GRAY, "BMP"), "BMP → PNG"),
    "tiff": (file_of(RGB, "TIFF"), "TIFF → PNG"),
    "gif": (file_of(GRAY, "GIF"), "GIF → PNG"),
    "palette png": (png(RGB, "P"), "P → RGB"),
    "palette png with transparency": (png(RGB, "P", transparency=3), "P → RGB"),
    "alpha png": (png(np.dstack([RGB, GRAY]), "RGBA"), "RGBA → RGB"),
    "gray alpha png": (png(np.dstack([GRAY, GRAY]), "LA"), "LA → L"),
    "1 bit png": (png(GRAY, "1"), "1 → L"),
    "gray png with transparency": (png(GRAY, "L", transparency=7), "transparency"),
    "16 bit gray tiff": (file_of(GRAY.astype(np.uint16) * 256 + 77, "TIFF"), "TIFF → PNG"),
    "16 bit alpha png": (opencv_file(".png", np.dstack([WIDE, WIDE[..., :1]])), "RGBA → RGB"),
    "16 bit gray alpha png": (gray_alpha_png(), "LA → L"),
}
KEPT = {
    "png": file_of(RGB, "PNG"),
    "gray png": file_of(GRAY, "PNG"),
    "16 bit gray png": file_of(WIDE[..., 0], "PNG"),
    "16 bit color png": opencv_file(".png", WIDE),
    "optimized png": file_of(RGB, "PNG", optimize=True),
    "rotated png": rotated_png(),
    "rgb jpeg": bytes(simplejpeg.encode_jpeg(RGB, colorsubsampling="444")),
}


@pytest.mark.parametrize("name", CONVERTED)
def test_converted_images_have_correct_pixels_and_a_reason(tmp_path: Path, name: str) -> None:
    data, why = CONVERTED[name]
    result = pack(Listed([image_sample(data, "named.jpg")], (IMAGE,)), tmp_path / "packed")
    dataset = open_dataset(tmp_path / "packed")
    np.testing.assert_array_equal(dataset[0]["image"], decoded(data))
    assert len(result.converted) == 1
    assert why in next(iter(result.converted))
    assert dataset.manifest.converted == result.converted
    assert log_of(tmp_path / "packed") == [
        {"event": "converted", "source": "named.jpg", "why": next(iter(result.converted))}
    ]


@pytest.mark.parametrize("name", KEPT)
def test_ordinary_files_are_not_converted(tmp_path: Path, name: str) -> None:
    result = pack(Listed([image_sample(KEPT[name])], (IMAGE,)), tmp_path / "packed")
    dataset = open_dataset(tmp_path / "packed")
    np.testing.assert_array_equal(dataset[0]["image"], decoded(KEPT[name]))
    np.testing.assert_array_equal(dataset.sizes()[0], dataset[0]["image"].shape[:2])
    assert result.converted == {}
    assert log_of(tmp_path / "packed") == []


@pytest.mark.parametrize("gray", [False, True])
def test_arithmetic_coded_jpeg_is_converted(tmp_path: Path, gray: bool) -> None:
    data = arithmetic_jpeg(gray=gray)
    result = pack(Listed([image_sample(data)], (IMAGE,)), tmp_path / "packed")
    np.testing.assert_array_equal(open_dataset(tmp_path / "packed")[0]["image"], decoded(data))
    assert result.converted == {f"arithmetic-coded JPEG → {'L' if gray else 'RGB'}": 1}


def test_counts_add_up_over_many_samples(tmp_path: Path) -> None:
    names = ["webp", "bmp", "webp", "cmyk", "webp", "png", "alpha png"]
    source = Listed(
        [
            image_sample(CONVERTED[name][0] if name in CONVERTED else KEPT[name], f"{i}-{name}")
            for i, name in enumerate(names)
        ],
        (IMAGE,),
    )
    result = pack(source, tmp_path / "packed")
    assert result.converted == {
        "WEBP → PNG": 3,
        "BMP → PNG": 1,
        "CMYK JPEG → RGB": 1,
        "RGBA → RGB": 1,
    }
    assert open_dataset(tmp_path / "packed").manifest.converted == result.converted
    assert Counter(line["why"] for line in log_of(tmp_path / "packed")) == result.converted
    assert {line["source"] for line in log_of(tmp_path / "packed")} == {
        f"{i}-{name}" for i, name in enumerate(names) if name != "png"
    }


def twelve_bit_jpeg() -> bytes:
    """Returns a 12-bit JPEG: extended frame (SOF1) with the same Huffman-coded coefficients."""
    data = bytearray(file_of(RGB, quality=60))
    frame = data.index(b"\xff\xc0")
    data[frame + 1], data[frame + 4] = 0xC1, 12
    return bytes(data)


def flipped(data: bytes, at: int) -> bytes:
    changed = bytearray(data)
    changed[at] ^= 4
    return bytes(changed)


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b"RIFF\x10\0\0\0WEBPVP8 xxxx", "not a supported image format"),
        (b"hello", "not a supported image format"),
        (file_of(RGB)[:-700], "truncated"),
        (file_of(RGB, "PNG")[:-60], "damaged PNG"),
        (file_of(RGB, "PNG")[:-12], "truncated PNG: the end chunk is missing"),
        (flipped(file_of(RGB, "PNG"), -30), "damaged PNG: wrong checksum of chunk IDAT"),
        (file_of(RGB, "WEBP")[:-300], "damaged image|not a supported image"),
        (
            file_of(np.full((16, 16), 0.5, np.float32), "TIFF"),
            r"pixel type F \(float\): expected 8 or 16 bits",
        ),
    ],
)
def test_unusable_image_is_refused_and_next_image_is_packed(
    tmp_path: Path, data: bytes, why: str
) -> None:
    with pytest.raises(BadImage, match=why) as caught:
        pack(Listed([image_sample(data, "bad.jpg")], (IMAGE,)), tmp_path / "one")
    assert caught.value.source == "bad.jpg"
    good = file_of(RGB, "PNG")
    result = pack(
        Listed([image_sample(data, "bad.jpg"), image_sample(good)], (IMAGE,)),
        tmp_path / "two",
        on_error="skip",
    )
    np.testing.assert_array_equal(open_dataset(tmp_path / "two")[0]["image"], RGB)
    assert (result.skipped, result.n_samples) == (1, 1)


def test_12_bit_jpeg_without_imagecodecs_is_refused_and_next_image_is_packed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "imagecodecs", None)
    source = Listed(
        [image_sample(twelve_bit_jpeg(), "bad.jpg"), image_sample(file_of(RGB, "PNG"))], (IMAGE,)
    )
    result = pack(source, tmp_path / "packed", on_error="skip")
    np.testing.assert_array_equal(open_dataset(tmp_path / "packed")[0]["image"], RGB)
    assert (result.skipped, result.n_samples) == (1, 1)
    assert "12 bit" in log_of(tmp_path / "packed")[0]["why"]
    assert "pip install imagecodecs" in log_of(tmp_path / "packed")[0]["why"]


@pytest.mark.parametrize("gray", [False, True])
def test_12_bit_jpeg_is_converted(tmp_path: Path, gray: bool) -> None:
    codecs = pytest.importorskip("imagecodecs", reason="not run: no imagecodecs")
    ramp = np.linspace(0, 4095, 96)[None, :] * np.linspace(0.2, 1, 64)[:, None]
    wide = np.round(ramp if gray else np.stack([ramp, ramp[::-1], ramp[:, ::-1]], -1)).astype(
        np.uint16
    )
    data = codecs.jpeg8_encode(wide, level=98, bitspersample=12)
    result = pack(Listed([image_sample(data)], (IMAGE,)), tmp_path / "packed")
    found = open_dataset(tmp_path / "packed")[0]["image"]
    assert found.shape == (64, 96, 1 if gray else 3)
    assert np.abs(found.astype(int) - (wide >> 4).reshape(found.shape)).max() <= 3
    assert result.converted == {f"12-bit JPEG → {'L' if gray else 'RGB'}": 1}


def test_png_suite_is_packed_or_refused(tmp_path: Path) -> None:
    """Pixels equal Pillow's, broken files (x*.png) are refused, every file is packed or logged."""
    files = sorted((corpus_dir() / "png").glob("*.png"))
    assert len(files) > 150
    source = Listed([image_sample(path.read_bytes(), path.name) for path in files], (IMAGE,))
    result = pack(source, tmp_path / "packed", on_error="skip")
    dataset = open_dataset(tmp_path / "packed")
    for i in range(len(dataset)):
        data = (corpus_dir() / "png" / dataset.source(i)).read_bytes()
        np.testing.assert_array_equal(dataset[i]["image"], decoded(data), err_msg=dataset.source(i))
    lines = log_of(tmp_path / "packed")
    skipped = {line["source"] for line in lines if line["event"] == "skipped"}
    assert skipped == {path.name for path in files if path.name.startswith("x")}
    assert len(dataset) + result.skipped == len(files)
    as_they_were = {
        dataset.source(i) for i in range(len(dataset)) if _is_stored_unmodified(dataset, i)
    }
    converted = {line["source"] for line in lines if line["event"] == "converted"}
    assert not as_they_were & converted
    assert all(_is_plain(corpus_dir() / "png" / name) for name in as_they_were)
    assert {
        path.name for path in files if path.name not in skipped and not _is_plain(path)
    } <= converted


def _is_stored_unmodified(dataset: Dataset, i: int) -> bool:
    part = dataset.record(i).parts[0]
    return (
        part.codec == PNG
        and bytes(part.data) == (corpus_dir() / "png" / dataset.source(i)).read_bytes()
    )


def _is_plain(path: Path) -> bool:
    """Returns whether a PNG is opaque gray or RGB of 8 or 16 bits."""
    data = path.read_bytes()
    return data[24] in (8, 16) and data[25] in (0, 2) and b"tRNS" not in data


@pytest.mark.parametrize(
    "name",
    [
        "fox410.jpg",
        "weird_sampling_2.jpeg",
        "sampling_factors.jpg",
        "weid_sampling_factors.jpg",
        "four_components.jpg",
        "cymk.jpg",
        "down_sampled_grayscale_prog.jpg",
        "non_interleaved_420_64x64.jpg",
    ],
)
def test_rare_jpegs_can_be_read_back(tmp_path: Path, name: str) -> None:
    """A JPEG that the loader cannot decode must be converted, even if it can be rewritten."""
    data = (corpus_dir() / "odd" / "unusual" / name).read_bytes()
    if core() is None and name in ("fox410.jpg", "weird_sampling_2.jpeg"):
        with pytest.raises(BadImage, match="needs the native core"):
            pack(Listed([image_sample(data, name)], (IMAGE,)), tmp_path / "packed")
        return
    result = pack(Listed([image_sample(data, name)], (IMAGE,)), tmp_path / "packed")
    dataset = open_dataset(tmp_path / "packed")
    np.testing.assert_array_equal(dataset[0]["image"], decoded(data))
    assert (dataset.record(0).parts[0].codec == JPEG) == (not result.converted)


@pytest.mark.parametrize("kind", ["GIF", "WEBP", "TIFF"])
def test_first_of_several_frames_is_packed_and_reported(tmp_path: Path, kind: str) -> None:
    out = io.BytesIO()
    frames = [Image.fromarray(pixels(20, 20, seed=i)) for i in range(3)]
    frames[0].save(
        out,
        kind,
        save_all=True,
        append_images=frames[1:],
        **({"lossless": True} if kind == "WEBP" else {}),
    )
    result = pack(Listed([image_sample(out.getvalue())], (IMAGE,)), tmp_path / "packed")
    np.testing.assert_array_equal(
        open_dataset(tmp_path / "packed")[0]["image"], decoded(out.getvalue())
    )
    assert [why.endswith("first frame only") for why in result.converted] == [True]


def test_a_damaged_mask_is_a_bad_sample(tmp_path: Path) -> None:
    """One changed bit in a mask's file is a wrong label, which Pillow does not notice."""
    fields = (Field("mask", "mask"),)
    whole = file_of(GRAY, "PNG")
    given = [
        Sample({"mask": Encoded(data, "m.png")}, source=name)
        for name, data in (("bad", flipped(whole, -30)), ("good", whole))
    ]
    with pytest.raises(
        BadImage, match="bad: field 'mask': damaged PNG: wrong checksum of chunk IDAT"
    ):
        pack(Listed(given[:1], fields), tmp_path / "one")
    assert pack(Listed(given, fields), tmp_path / "two", on_error="skip").skipped == 1
    np.testing.assert_array_equal(open_dataset(tmp_path / "two")[0]["mask"], GRAY)


def test_a_jpeg_mask_is_refused(tmp_path: Path) -> None:
    sample = Sample({"mask": Encoded(file_of(GRAY), "m.jpg")}, source="bad")
    with pytest.raises(
        BadImage,
        match="mask is a JPEG, which blurs class numbers at edges: expected PNG or an array",
    ):
        pack(Listed([sample], (Field("mask", "mask"),)), tmp_path / "one")


def test_arrays_and_pillow_images_are_stored_exactly(tmp_path: Path) -> None:
    large = pixels(300, 200)
    given: list[Any] = [
        RGB,
        GRAY,
        GRAY[..., None],
        large,
        Image.fromarray(RGB),
        Image.fromarray(large),
    ]
    pack(
        Listed([image_sample(value, f"{i}") for i, value in enumerate(given)], (IMAGE,)),
        tmp_path / "packed",
        order="source",
    )
    dataset = open_dataset(tmp_path / "packed")
    for i, value in enumerate(given):
        expected = np.asarray(value)
        np.testing.assert_array_equal(
            dataset[i]["image"], expected.reshape(*expected.shape[:2], -1)
        )
    assert [dataset.record(i).parts[0].codec for i in range(6)] == [RAW, RAW, RAW, PNG, RAW, PNG]


def test_log_is_json_lines_for_any_file_name(tmp_path: Path) -> None:
    name = 'ü "quoted"\n\\x.jpg'
    pack(Listed([image_sample(CONVERTED["bmp"][0], name)], (IMAGE,)), tmp_path / "packed")
    line = (tmp_path / "packed" / "pack-log.jsonl").read_text()
    assert json.loads(line)["source"] == name
    assert line.count("\n") == 1
