"""Images of 16 bits per channel keep all bits, are reduced on request, or are refused by name."""

from __future__ import annotations

import io
import struct
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from PIL import Image

import fastload
from fastload._cli import main
from fastload._pack.images import SMALL_RAW
from fastload._pack.options import PackOptions
from fastload._store.dataset import open_dataset
from fastload._store.record import PNG, RAW
from fastload.errors import BadImage, ConfigError
from tests.packed_datasets import change_parts
from tests.packing import IMAGE, Listed, file_of, image_sample, log_of, pack

RANDOM = np.random.default_rng(0)
COLOR: NDArray[np.uint16] = RANDOM.integers(0, 65536, (90, 130, 3), np.uint16)
GRAY = COLOR[:, :, :1].copy()


def opencv_file(extension: str, image: NDArray[Any], *options: int) -> bytes:
    order = [2, 1, 0, 3][: image.shape[2]] if image.shape[2] > 1 else [0]
    return cv2.imencode(extension, image[:, :, order], options)[1].tobytes()


def tiff_in_big_endian(image: NDArray[np.uint16]) -> bytes:
    """Returns an uncompressed TIFF with the byte order of Motorola processors."""
    height, width, channels = image.shape
    entries = [
        (256, 3, 1, width << 16),
        (257, 3, 1, height << 16),
        (258, 3, channels, 16 << 16 if channels == 1 else 8),
        (262, 3, 1, (1 if channels == 1 else 2) << 16),
        (273, 4, 1, 200),
        (277, 3, 1, channels << 16),
        (278, 3, 1, height << 16),
        (279, 4, 1, image.nbytes),
    ]
    head = b"MM\0*" + struct.pack(">I", 14) + struct.pack(">3H", 16, 16, 16)
    table = struct.pack(">H", len(entries)) + b"".join(
        struct.pack(">HHII", *entry) for entry in entries
    )
    return (head + table).ljust(200, b"\0") + image.astype(">u2").tobytes()


def packed(tmp_path: Path, image: Any, **options: Any) -> Any:
    """Packs one image and returns the result, the part and the pixels."""
    result = pack(Listed([image_sample(image)], (IMAGE,)), tmp_path / "packed", **options)
    dataset = open_dataset(tmp_path / "packed")
    assert fastload.verify(tmp_path / "packed", deep=True).ok
    return result, dataset.record(0).parts[0], dataset[0]["image"]


SOURCES: dict[str, tuple[Any, NDArray[np.uint16], str]] = {
    "gray PNG": (opencv_file(".png", GRAY), GRAY, ""),
    "color PNG": (opencv_file(".png", COLOR), COLOR, ""),
    "color PNG with alpha": (
        opencv_file(".png", np.dstack([COLOR, GRAY])),
        COLOR,
        "RGBA → RGB",
    ),
    "gray TIFF": (opencv_file(".tiff", GRAY), GRAY, "TIFF → PNG"),
    "color TIFF": (opencv_file(".tiff", COLOR), COLOR, "TIFF → PNG"),
    **{
        f"color TIFF, compression {number}": (
            opencv_file(".tiff", COLOR, cv2.IMWRITE_TIFF_COMPRESSION, number),
            COLOR,
            "TIFF → PNG",
        )
        for number in (1, 5, 8, 32773)  # none, LZW, deflate, PackBits
    },
    "big-endian gray TIFF": (tiff_in_big_endian(GRAY), GRAY, "TIFF → PNG"),
    "big-endian color TIFF": (tiff_in_big_endian(COLOR), COLOR, "TIFF → PNG"),
    "PGM": (opencv_file(".pgm", GRAY), GRAY, "PPM → PNG"),
    "gray JPEG 2000": (
        opencv_file(".jp2", GRAY, cv2.IMWRITE_JPEG2000_COMPRESSION_X1000, 1000),
        GRAY,
        "JPEG2000 → PNG",
    ),
    "gray array": (GRAY[:, :, 0], GRAY, ""),
    "color array": (COLOR, COLOR, ""),
    "Pillow I;16": (Image.fromarray(GRAY[:, :, 0]), GRAY, ""),
    "Pillow I": (Image.fromarray(GRAY[:, :, 0].astype(np.int32)), GRAY, ""),
}


@pytest.mark.parametrize("encode", ["keep", "raw"])
@pytest.mark.parametrize("name", SOURCES)
def test_all_bits_are_kept(tmp_path: Path, name: str, encode: str) -> None:
    data, wanted, why = SOURCES[name]
    result, part, found = packed(tmp_path, data, encode=encode)
    assert found.dtype == np.uint16
    np.testing.assert_array_equal(found, wanted)
    assert part.bits == 16
    small = wanted.nbytes <= SMALL_RAW and not name.endswith("PNG")
    assert part.codec == (RAW if encode == "raw" or small else PNG)
    assert result.converted == ({why: 1} if why else {})


def test_torch_tensors_of_uint16_are_packed(tmp_path: Path) -> None:
    tensor = torch.from_numpy(COLOR).permute(2, 0, 1)
    fastload.pack([{"image": tensor}], tmp_path / "packed")
    np.testing.assert_array_equal(open_dataset(tmp_path / "packed")[0]["image"], COLOR)


@pytest.mark.parametrize("name", ["gray PNG", "color PNG"])
def test_a_png_is_stored_as_it_is(tmp_path: Path, name: str) -> None:
    data = SOURCES[name][0]
    _, part, _ = packed(tmp_path, data)
    assert bytes(part.data) == data


def test_other_programs_read_the_stored_png(tmp_path: Path) -> None:
    _, part, _ = packed(tmp_path, COLOR)
    assert part.codec == PNG
    read = cv2.imdecode(np.frombuffer(part.data, np.uint8), cv2.IMREAD_UNCHANGED)
    assert read is not None
    np.testing.assert_array_equal(read[:, :, ::-1], COLOR)


@pytest.mark.parametrize("name", SOURCES)
def test_max_bits_8_keeps_the_upper_8_bits(tmp_path: Path, name: str) -> None:
    data, wanted, why = SOURCES[name]
    result, part, found = packed(tmp_path, data, max_bits=8)
    assert found.dtype == np.uint8
    np.testing.assert_array_equal(found, wanted >> 8)
    assert part.bits == 8
    assert result.converted == {f"{why}, 16 → 8 bit" if why else "16 → 8 bit": 1}


def test_mixed_depths_are_noted(tmp_path: Path) -> None:
    images = [image_sample(GRAY, "wide"), image_sample((GRAY >> 8).astype(np.uint8), "narrow")]
    result = pack(Listed(images, (IMAGE,)), tmp_path / "packed")
    assert "Note: field 'image' has images of 8 and of 16 bits per channel." in str(result)
    assert pack(Listed(images, (IMAGE,)), tmp_path / "reduced", max_bits=8).notes == ()
    assert pack(Listed(images[:1], (IMAGE,)), tmp_path / "wide").notes == ()


def test_max_bits_8_does_not_change_8_bit_images(tmp_path: Path) -> None:
    data = file_of((COLOR >> 8).astype(np.uint8), "PNG")
    result, part, _ = packed(tmp_path, data, max_bits=8)
    assert bytes(part.data) == data
    assert result.converted == {}


@pytest.mark.parametrize("bits", [0, 12, 32, "8"])
def test_other_depths_are_refused(bits: Any) -> None:
    with pytest.raises(ConfigError, match=f"max_bits={bits!r}: expected one of 8, 16"):
        PackOptions(max_bits=bits)


def test_the_command_line_reduces_to_8_bits(tmp_path: Path) -> None:
    (tmp_path / "source").mkdir()
    (tmp_path / "source" / "a.png").write_bytes(SOURCES["gray PNG"][0])
    command = ["pack", str(tmp_path / "source"), str(tmp_path / "packed"), "--max-bits", "8"]
    assert main(command) == 0
    assert open_dataset(tmp_path / "packed")[0]["image"].dtype == np.uint8


def test_jpeg_is_refused_unless_bits_are_reduced(tmp_path: Path) -> None:
    source = Listed([image_sample(COLOR, "depth.png")], (IMAGE,))
    with pytest.raises(BadImage, match=r"depth.png: 16 bits per channel, but JPEG has 8. .*bits 8"):
        pack(source, tmp_path / "packed", encode="jpeg")
    _, part, found = packed(tmp_path / "reduced", COLOR, encode="jpeg", max_bits=8)
    assert part.bits == 8
    assert found.dtype == np.uint8


@pytest.mark.parametrize("image", [GRAY, COLOR], ids=["gray", "color"])
@pytest.mark.parametrize("option", [{"max_side": 65}, {"resize": (50, 70)}], ids=str)
def test_scaled_images_keep_16_bits(
    tmp_path: Path, image: NDArray[np.uint16], option: dict[str, Any]
) -> None:
    _, part, found = packed(tmp_path, image, **option)
    size = (65, 45) if "max_side" in option else (50, 70)
    assert (part.width, part.height, part.bits) == (*size, 16)
    for channel in range(image.shape[2]):
        plane = Image.fromarray(np.ascontiguousarray(image[:, :, channel]))
        wanted = np.asarray(plane.resize(size, Image.Resampling.BILINEAR))
        np.testing.assert_array_equal(found[:, :, channel], wanted)


def test_a_rotated_png_keeps_16_bits(tmp_path: Path) -> None:
    exif = Image.Exif()
    exif[0x0112] = 6
    _, _, found = packed(tmp_path, file_of(GRAY[:, :, 0], "PNG", exif=exif))
    np.testing.assert_array_equal(found, np.rot90(GRAY, -1))


def test_encode_auto_counts_two_bytes_per_value(tmp_path: Path) -> None:
    """Noise does not compress: as files, the images have about the size of their pixels."""
    noise = Listed([image_sample(SOURCES["color PNG"][0], f"{i}.png") for i in range(3)], (IMAGE,))
    result = pack(noise, tmp_path / "packed", encode="auto")
    assert any("68.6 KiB (1.0x) as pixels" in note for note in result.notes), result.notes


LOSSY = {
    "PPM": (opencv_file(".ppm", COLOR), "PPM → PNG, 16 → 8 bit"),
    "JPEG 2000": (opencv_file(".jp2", COLOR), "JPEG2000 → PNG, 16 → 8 bit"),
}


@pytest.mark.parametrize("name", LOSSY)
def test_formats_that_pillow_reads_with_8_bits_are_counted(tmp_path: Path, name: str) -> None:
    data, why = LOSSY[name]
    result, part, _ = packed(tmp_path, data)
    assert part.bits == 8
    assert result.converted == {why: 1}


@pytest.mark.parametrize("name", ["PPM", "JPEG 2000"])
def test_8_bit_files_of_these_formats_are_not_counted(tmp_path: Path, name: str) -> None:
    extension = {"PPM": ".ppm", "JPEG 2000": ".jp2"}[name]
    result, _, _ = packed(tmp_path, opencv_file(extension, (COLOR >> 8).astype(np.uint8)))
    assert result.converted == {f"{name.replace(' ', '')} → PNG": 1}


def tiff(array: NDArray[Any]) -> bytes:
    file = io.BytesIO()
    Image.fromarray(array).save(file, "TIFF")
    return file.getvalue()


REFUSED = {
    "float": (tiff(np.ones((4, 5), np.float32)), r"pixel type F \(float\): expected 8 or 16 bits"),
    "negative": (tiff(np.full((4, 5), -3, np.int32)), "pixel values from -3 to -3"),
    "32 bits": (tiff(np.full((4, 5), 70_000, np.int32)), "pixel values from 70000 to 70000"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_other_pixel_types_are_refused(tmp_path: Path, name: str) -> None:
    data, why = REFUSED[name]
    source = Listed([image_sample(data, "bad.tif"), image_sample(GRAY, "good.tif")], (IMAGE,))
    with pytest.raises(BadImage, match=f"bad.tif: {why}"):
        pack(source, tmp_path / "stopped", order="source")
    pack(source, tmp_path / "packed", on_error="skip")
    assert [line["source"] for line in log_of(tmp_path / "packed")] == ["bad.tif"]
    assert len(open_dataset(tmp_path / "packed")) == 1


def test_32_bit_integers_that_fit_16_bits_are_packed(tmp_path: Path) -> None:
    values = np.arange(20, dtype=np.int32).reshape(4, 5) * 3000
    _, part, found = packed(tmp_path, tiff(values))
    assert part.bits == 16
    np.testing.assert_array_equal(found[:, :, 0], values)


def test_a_damaged_color_png_is_refused(tmp_path: Path) -> None:
    data = SOURCES["color PNG"][0]
    for damaged in (data[:-500], data[:200] + bytes(40) + data[240:]):
        with pytest.raises(BadImage, match="PNG"):
            packed(tmp_path, damaged)
    packed(tmp_path, data)


def test_verify_compares_the_depth_of_a_png(tmp_path: Path) -> None:
    packed(tmp_path, SOURCES["color PNG"][0])
    change_parts(
        tmp_path / "packed",
        0,
        lambda parts: [each._replace(bits=8) if each.codec == PNG else each for each in parts],
    )
    (fault,) = fastload.verify(tmp_path / "packed").faults
    assert "a PNG of 16 bits per sample, but the part table says 8" in fault.what
