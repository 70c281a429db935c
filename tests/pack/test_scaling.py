"""`--encode`, `--quality`, `--max-side`, `--resize`, `--restart`: sizes, pixels and labels."""

from __future__ import annotations

import io
import math
from fractions import Fraction
from pathlib import Path
from typing import Any
from unittest.mock import ANY

import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image

from fastload._common.native import core
from fastload._pack.options import PackOptions
from fastload._pack.packer import PackResult
from fastload._pack.sources.base import Encoded, Sample
from fastload._pack.state import PackState
from fastload._store.dataset import Dataset, open_dataset
from fastload._store.fields import Field
from fastload._store.record import JPEG, PNG, RAW, RESTART_INDEX
from fastload.errors import BadImage, ConfigError
from tests.packing import IMAGE, Listed, Streamed, file_of, image_sample, pack, pixels

LABELS = (
    IMAGE,
    Field("points", "points"),
    Field("boxes", "boxes"),
    Field("mask", "mask"),
    Field("camera", "matrix"),
    Field("pose", "matrix"),
)


def packed(dest: Path, values: list[Any], **options: Any) -> tuple[PackResult, Dataset]:
    """Packs images, also arrays with one channel, in their order."""
    result = pack(
        Listed([image_sample(value, f"{i}.jpg") for i, value in enumerate(values)], (IMAGE,)),
        dest,
        order="source",
        **options,
    )
    return result, open_dataset(dest)


@pytest.mark.parametrize(
    ("size", "option", "expected"),
    [
        ((400, 300), {"max_side": 100}, (100, 75)),
        ((300, 400), {"max_side": 100}, (75, 100)),
        ((100, 80), {"max_side": 100}, (100, 80)),
        ((99, 100), {"max_side": 100}, (99, 100)),
        ((1000, 3), {"max_side": 100}, (100, 1)),
        ((101, 67), {"max_side": 100}, (100, 66)),
        ((400, 300), {"resize": (64, 48)}, (64, 48)),
        ((30, 20), {"resize": (64, 48)}, (64, 48)),
        ((64, 48), {"resize": (64, 48)}, (64, 48)),
    ],
)
@pytest.mark.parametrize("encode", ["keep", "jpeg", "raw"])
def test_max_side_and_resize_give_the_expected_size(
    tmp_path: Path,
    size: tuple[int, int],
    option: dict[str, Any],
    expected: tuple[int, int],
    encode: str,
) -> None:
    array = pixels(*size)
    values = [file_of(array), array, file_of(array[..., 0]), file_of(array, "PNG")]
    _, dataset = packed(tmp_path / "packed", values, encode=encode, **option)
    for i, channels in enumerate((3, 3, 1, 3)):
        assert dataset[i]["image"].shape == (expected[1], expected[0], channels)
        assert tuple(dataset.sizes()[i]) == expected[::-1]


def test_scaled_pixels_match_the_image(tmp_path: Path) -> None:
    """At half size, each pixel is near the mean of four. An offset of one pixel differs by 20."""
    array = pixels(128, 96, grain=32)
    _, dataset = packed(tmp_path / "packed", [file_of(array, "PNG")], max_side=64, encode="raw")
    mean = array.reshape(48, 2, 64, 2, 3).mean((1, 3))
    assert np.abs(dataset[0]["image"] - mean).max() <= 4


def test_orientation_is_applied_before_scaling(tmp_path: Path) -> None:
    exif = Image.Exif()
    exif[0x0112] = 6
    data = file_of(pixels(200, 100, grain=20), exif=exif, quality=95)
    _, dataset = packed(tmp_path / "packed", [data], max_side=100)
    assert dataset[0]["image"].shape == (100, 50, 3)
    upright = np.asarray(
        Image.fromarray(pixels(200, 100, grain=20))
        .transpose(Image.Transpose.ROTATE_270)
        .resize((50, 100))
    )
    assert np.abs(dataset[0]["image"].astype(int) - upright).mean() < 4


def test_resize_applies_to_the_upright_size(tmp_path: Path) -> None:
    """A file of 200 x 100 with EXIF rotation is 100 x 200 upright: only one size is a change."""
    exif = Image.Exif()
    exif[0x0112] = 6
    data = file_of(pixels(200, 100), exif=exif)
    _, kept = packed(tmp_path / "kept", [data])
    _, same = packed(tmp_path / "same", [data], resize=(100, 200))
    _, other = packed(tmp_path / "other", [data], resize=(200, 100))
    assert other[0]["image"].shape == (100, 200, 3)
    np.testing.assert_array_equal(same[0]["image"], kept[0]["image"])


@pytest.mark.parametrize("size", [(30, 20), (45, 20), (20, 31), (7, 50), (61, 41)])
def test_masks_are_scaled_to_the_nearest_label(tmp_path: Path, size: tuple[int, int]) -> None:
    """The label at the center of the new pixel, exactly. Pillow's NEAREST is wrong at edges."""
    labels = np.random.default_rng(1).integers(0, 256, (20, 30), dtype=np.uint8)
    sample = image_sample(pixels(30, 20), mask=labels)
    pack(Listed([sample], (IMAGE, Field("mask", "mask"))), tmp_path / "packed", resize=size)
    across, down = (
        [math.floor((i + Fraction(1, 2)) * old / new) for i in range(new)]
        for old, new in zip((30, 20), size, strict=True)
    )
    expected = labels[np.ix_(down, across)]
    np.testing.assert_array_equal(open_dataset(tmp_path / "packed")[0]["mask"], expected)


def test_jpeg_quality_changes_size_and_error(tmp_path: Path) -> None:
    array = pixels(160, 120, grain=3)
    sizes, errors = [], []
    for quality in (30, 60, 95):
        _, dataset = packed(
            tmp_path / str(quality), [file_of(array, "PNG")], encode="jpeg", quality=quality
        )
        assert dataset.record(0).parts[0].codec == JPEG
        sizes.append(len(dataset.raw(0, "image")))
        errors.append(np.abs(dataset[0]["image"].astype(int) - array).mean())
    assert sizes == sorted(sizes)
    assert errors == sorted(errors, reverse=True)
    assert errors[2] < 3 < errors[0]


def test_raw_stores_the_decoded_pixels(tmp_path: Path) -> None:
    array, gray = pixels(50, 40), pixels(50, 40, gray=True)
    values = [file_of(array), file_of(gray), array, file_of(gray, "PNG")]
    _, kept = packed(tmp_path / "keep", values)
    _, raw = packed(tmp_path / "raw", values, encode="raw")
    for i, channels in enumerate((3, 1, 3, 1)):
        assert raw.record(i).parts[0].codec == RAW
        assert len(raw.raw(i, "image")) == 50 * 40 * channels
        np.testing.assert_array_equal(raw[i]["image"], kept[i]["image"])


def test_gray_jpegs_stay_gray_when_encoded_again(tmp_path: Path) -> None:
    _, dataset = packed(
        tmp_path / "packed", [file_of(pixels(90, 60, gray=True))], encode="jpeg", max_side=45
    )
    assert dataset[0]["image"].shape == (30, 45, 1)
    assert dataset.record(0).parts[0].channels == 1


@pytest.mark.parametrize("stream", [False, True])
def test_auto_chooses_pixels_for_small_images_and_reports_it(tmp_path: Path, stream: bool) -> None:
    """A 28 x 28 gray JPEG is larger than its pixels, so the choice is the same on every machine."""
    given = [
        image_sample(file_of(pixels(28, 28, seed=i, gray=True, grain=1), quality=95))
        for i in range(70)
    ]
    source = Streamed(given, (IMAGE,)) if stream else Listed(given, (IMAGE,))
    result = pack(source, tmp_path / "packed", encode="auto")
    dataset = open_dataset(tmp_path / "packed")
    assert {dataset.record(i).parts[0].codec for i in range(70)} == {RAW}
    assert len(result.notes) == 1
    assert "chose raw" in result.notes[0]
    assert dataset.manifest.options["encode"] == "auto"
    assert dataset.manifest.options["encoded"] == "raw"


def test_auto_keeps_files_that_are_much_smaller_than_pixels(tmp_path: Path) -> None:
    result, dataset = packed(
        tmp_path / "packed", [file_of(pixels(400, 300, grain=50), quality=60)] * 3, encode="auto"
    )
    assert dataset.record(0).parts[0].codec == JPEG
    assert "chose keep" in result.notes[0]
    assert "more than 3x the space" in result.notes[0]
    assert dataset.manifest.options["encoded"] == "keep"


def test_auto_is_not_measured_again_by_a_resumed_pack(tmp_path: Path) -> None:
    """The choice is stored: a resumed pack uses it even if it differs."""
    source = Listed(
        [
            *(image_sample(file_of(pixels(28, 28, seed=i, gray=True, grain=1))) for i in range(5)),
            BadImage("broken", source="x"),
        ],
        (IMAGE,),
    )
    with pytest.raises(BadImage):
        pack(source, tmp_path / "packed", encode="auto", order="source")
    state = PackState(tmp_path / "packed")
    assert state.read("encode.json") == {"encode": "raw", "reason": ANY}
    state.write("encode.json", {"encode": "keep", "reason": "said so"})
    result = pack(source, tmp_path / "packed", encode="auto", order="source", on_error="skip")
    assert result.notes == ("--encode auto chose keep: said so",)
    assert open_dataset(tmp_path / "packed").record(0).parts[0].codec == JPEG


@pytest.mark.parametrize(("restart", "interval"), [(0, 0), (1, 1), (5, 5), (-1, None)])
def test_restart_option_sets_the_interval(
    tmp_path: Path, restart: int, interval: int | None
) -> None:
    if core() is None:
        pytest.skip("not run: no native core")
    _, dataset = packed(
        tmp_path / "packed", [file_of(pixels(320, 240), subsampling=2)], restart=restart
    )  # 20 x 15 MCUs
    record = dataset.record(0)
    found = record.parts[0].interval
    assert found == interval if interval is not None else 64 <= found * 16 <= 192
    segments = -(-300 // found) if found else 0
    assert bytes(record.raw("image")).count(b"\xff\xdd") == (1 if found else 0)
    roles = [part.role for part in record.parts if part.field == 0]
    assert roles == ([0, RESTART_INDEX] if found else [0])
    if found:
        offsets = np.frombuffer(record.raw("image", role=RESTART_INDEX), "<u4")
        assert len(offsets) == segments + 1
        stored = bytes(record.raw("image"))
        assert stored[offsets[-1] : offsets[-1] + 2] == b"\xff\xd9"
        assert all(stored[at - 2 : at - 1] == b"\xff" for at in offsets[1:-1].tolist())


def marked_image(size: tuple[int, int], points: NDArray[np.float64]) -> NDArray[np.uint8]:
    """Returns black with a white 9 x 9 square around each point (center of pixel 0 is 0.5)."""
    image = np.zeros((size[1], size[0], 3), np.uint8)
    for x, y in points:
        image[int(y) - 4 : int(y) + 5, int(x) - 4 : int(x) + 5] = 255
    return image


def center_of_mass(
    image: NDArray[np.uint8], near: NDArray[np.float64], reach: float
) -> NDArray[np.float64]:
    rows, columns = np.indices(image.shape[:2])
    close = (np.abs(columns + 0.5 - near[0]) < reach) & (np.abs(rows + 0.5 - near[1]) < reach)
    weight = image[..., 0].astype(float) * close
    center: NDArray[np.float64] = (
        np.array([((columns + 0.5) * weight).sum(), ((rows + 0.5) * weight).sum()]) / weight.sum()
    )
    return center


@pytest.mark.parametrize(
    "option", [{"max_side": 150}, {"resize": (128, 128)}, {"resize": (700, 200)}, {}]
)
@pytest.mark.parametrize("as_file", [False, True])
def test_labels_move_with_the_image(tmp_path: Path, option: dict[str, Any], as_file: bool) -> None:
    points = np.array([[60.5, 40.5], [250.5, 30.5], [150.5, 170.5]])
    image = marked_image((300, 200), points)
    boxes = np.concatenate([points - 4.5, points + 4.5], axis=1)
    mask = (image[..., 0] > 0).astype(np.uint8) * np.repeat([[7], [9]], 100, axis=0).astype(
        np.uint8
    )
    camera, pose = (
        np.array([[500.0, 0, 150], [0, 500, 100], [0, 0, 1]]),
        np.arange(16.0).reshape(4, 4),
    )
    sample = image_sample(
        file_of(image, quality=100, subsampling=0) if as_file else image,
        points=points,
        boxes=boxes,
        mask=mask,
        camera=camera,
        pose=pose,
    )
    pack(Listed([sample], LABELS), tmp_path / "packed", **option)
    found = open_dataset(tmp_path / "packed")[0]
    scale = np.array([found["image"].shape[1] / 300, found["image"].shape[0] / 200])
    for point in found["points"]:
        assert (
            np.abs(
                center_of_mass(found["image"], point, reach=max(5 * scale.max(), 2)) - point
            ).max()
            <= 0.5
        )
    np.testing.assert_allclose(found["boxes"], boxes * np.tile(scale, 2), atol=1e-3)
    assert found["mask"].shape == found["image"].shape[:2]
    assert set(np.unique(found["mask"])) == {0, 7, 9}
    inside = [found["mask"][int(y), int(x)] for x, y in found["points"]]
    assert inside == [7, 7, 9]
    in_camera = np.array([0.1, -0.05, 1.0])
    np.testing.assert_allclose(
        (found["camera"] @ in_camera)[:2], (camera @ in_camera)[:2] * scale, atol=1e-9
    )
    np.testing.assert_array_equal(found["pose"], pose)


@pytest.mark.parametrize("option", [{}, {"max_side": 20}])
@pytest.mark.parametrize("nothing", [[], np.zeros((0, 4), np.float32), np.zeros((0,))])
def test_images_without_objects_have_empty_labels(
    tmp_path: Path, option: dict[str, Any], nothing: Any
) -> None:
    points: Any = nothing[:, :2] if np.ndim(nothing) == 2 else nothing
    sample = Sample({"image": pixels(40, 30), "boxes": nothing, "points": points}, source="a")
    pack(Listed([sample], LABELS), tmp_path / "packed", **option)
    found = open_dataset(tmp_path / "packed")[0]
    assert found["boxes"].shape == (0, 4)
    assert found["points"].shape == (0, 2)
    assert found["mask"] is None


@pytest.mark.parametrize("option", [{}, {"max_side": 20}])
@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("boxes", np.zeros((2, 5))),
        ("boxes", "many"),
        ("points", [["a", "b"]]),
        ("points", 3.0),
        ("camera", [1, 2, 3]),
        ("camera", {"fx": 1}),
        ("boxes", [[1, 2], [3]]),
        ("mask", "cat"),
        ("mask", np.zeros((30, 40, 3), np.uint8)),
        ("mask", np.full((30, 40), -1)),
    ],
)
def test_labels_of_the_wrong_shape_are_a_bad_sample(
    tmp_path: Path, option: dict[str, Any], field: str, value: Any
) -> None:
    """With and without scaling, the bad sample is named and skipped, and the next one is packed."""
    bad, good = (
        Sample({"image": pixels(40, 30), field: given}, source=name)
        for given, name in ((value, "bad"), (None, "good"))
    )
    with pytest.raises(BadImage, match=f"bad: .*{field}"):
        pack(Listed([bad], LABELS), tmp_path / "one", **option)
    result = pack(Listed([bad, good], LABELS), tmp_path / "two", on_error="skip", **option)
    assert (result.n_samples, result.skipped) == (1, 1)
    assert open_dataset(tmp_path / "two").source(0) == "good"


def test_each_of_several_images_scales_its_own_labels(tmp_path: Path) -> None:
    fields = (
        Field("cams", "image", list=True),
        Field("rear", "image"),
        Field("seen", "points", list=True, image="cams"),
        Field("rear_points", "points", image="rear"),
    )
    cameras: list[Any] = [pixels(100, 50), pixels(40, 40)]
    sample = Sample(
        {
            "cams": cameras,
            "rear": pixels(50, 200),
            "seen": [np.array([[100.0, 50.0]])] * 2,
            "rear_points": np.array([[50.0, 200.0]]),
        },
        source="a",
    )
    pack(Listed([sample], fields), tmp_path / "packed", max_side=50, encode="raw")
    found = open_dataset(tmp_path / "packed")[0]
    assert [image.shape for image in found["cams"]] == [(25, 50, 3), (40, 40, 3)]
    np.testing.assert_allclose(found["seen"][0], [[50, 25]])
    np.testing.assert_allclose(found["seen"][1], [[100, 50]])  # its image was small enough
    np.testing.assert_allclose(found["rear_points"], [[12, 50]])  # 50 x 200 became 12 x 50
    assert found["rear"].shape[:2] == (50, 12)


@pytest.mark.parametrize("kind", ["PNG", "BMP", "TIFF"])
def test_masks_from_files_keep_label_numbers(tmp_path: Path, kind: str) -> None:
    labels = np.random.default_rng(0).integers(0, 256, (30, 40), dtype=np.uint8)
    palette = Image.fromarray(labels, "P")
    palette.putpalette([i * 7 % 256 for i in range(768)])
    out = io.BytesIO()
    palette.save(out, kind)
    fields = (IMAGE, Field("mask", "mask"))
    pack(
        Listed(
            [
                Sample(
                    {"image": pixels(40, 30), "mask": Encoded(out.getvalue(), "m.png")}, source="a"
                )
            ],
            fields,
        ),
        tmp_path / "packed",
    )
    np.testing.assert_array_equal(open_dataset(tmp_path / "packed")[0]["mask"], labels)


@pytest.mark.parametrize(
    "options",
    [
        {"encode": "gif"},
        {"quality": 0},
        {"quality": 101},
        {"max_side": -1},
        {"restart": 70_000},
        {"order": "random"},
        {"seed": -1},
        {"shard_size": 1000},
        {"block_size": 0},
        {"block_size": 1 << 30, "shard_size": 1 << 20},
        {"on_error": "ignore"},
        {"max_bad": -1},
        {"jobs": -1},
        {"resize": (0, 10)},
        {"resize": (10, 10), "max_side": 5},
        {"max_side": True},
        {"quality": 90.0},
        {"resize": 224},
        {"resize": (3,)},
        {"max_bad": 3},
    ],
)
def test_options_out_of_range_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(ConfigError) as caught:
        PackOptions(**options)
    assert any(name in str(caught.value) for name in options)
    PackOptions(quality=1, max_side=16_384, restart=65_535, jobs=3)
    PackOptions(resize=(3, 4), on_error="skip", max_bad=3)


def test_large_arrays_become_png_by_default(tmp_path: Path) -> None:
    _, dataset = packed(tmp_path / "packed", [file_of(pixels(400, 300), "BMP")])
    assert dataset.record(0).parts[0].codec == PNG
