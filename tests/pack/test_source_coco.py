"""COCO detection files become boxes, labels and instance masks."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from fastload._pack.sources.base import Encoded
from fastload._pack.sources.coco import CocoSource
from fastload._pack.sources.outlines import decode_runs, instance_mask
from fastload.errors import BadImage, ConfigError
from tests.source_contract import outcome, put_image, samples_of

# 3 x 4 mask in column order: 2 outside, 3 inside, 1 outside, 2 inside, 4 outside
PLAIN = {"size": [3, 4], "counts": [2, 3, 1, 2, 4]}
INSIDE = [[0, 1, 1, 0], [0, 1, 1, 0], [1, 0, 0, 0]]


def _box(
    number: int, image: int, bbox: list[float], *, category: int = 7, **more: object
) -> dict[str, object]:
    return {
        "id": number,
        "image_id": image,
        "category_id": category,
        "bbox": bbox,
        "area": bbox[2] * bbox[3],
        **more,
    }


def _dataset(root: Path, **changes: object) -> Path:
    """Writes images 30 and 10 (in this order) to ROOT/val2017, and the annotation file."""
    for name in ("a.jpg", "b.jpg"):
        put_image(root / "val2017" / name)
    square = [[2, 2, 6, 2, 6, 6, 2, 6]]
    found = [
        _box(1, 30, [1, 2, 3, 4], segmentation=square),
        _box(2, 10, [0, 0, 16, 16], category=3),
        _box(
            3,
            30,
            [0.5, 0.5, 10, 10.25],
            category=3,
            iscrowd=1,
            segmentation={"size": [16, 16], "counts": [0, 160, 96]},
        ),
    ]
    table = {
        "info": {"year": 2017},
        "licenses": [],
        "images": [
            {"id": 30, "file_name": "b.jpg", "width": 16, "height": 16, "note": "ünï"},
            {"id": 10, "file_name": "a.jpg", "width": 16, "height": 16},
        ],
        "annotations": found,
        "categories": [
            {"id": 7, "name": "dog", "supercategory": "animal"},
            {"id": 3, "name": "çat"},
        ],
        **changes,
    }
    path = root / "annotations" / "instances_val2017.json"
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps(table, ensure_ascii=False, indent=1), encoding="utf-8")
    return path


@pytest.mark.parametrize("by", ["folder", "file"])
def test_boxes_and_labels_are_read(tmp_path: Path, by: str) -> None:
    path = _dataset(tmp_path)
    source = CocoSource(tmp_path if by == "folder" else path)
    assert source.info == {
        "categories": [
            {"id": 3, "name": "çat"},
            {"id": 7, "name": "dog", "supercategory": "animal"},
        ]
    }
    first, second = samples_of(source)
    assert list(source.refs()) == [30, 10]
    assert first.values["image"] == Encoded((tmp_path / "val2017" / "b.jpg").read_bytes(), "b.jpg")
    np.testing.assert_array_equal(first.values["boxes"], [[1, 2, 4, 6], [0.5, 0.5, 10.5, 10.75]])
    np.testing.assert_array_equal(first.values["labels"], [1, 0])
    np.testing.assert_array_equal(first.values["iscrowd"], [0, 1])
    np.testing.assert_array_equal(first.values["area"], [12, 102.5])
    np.testing.assert_array_equal(first.values["annotation_ids"], [1, 3])
    assert (first.values["image_id"], second.values["image_id"]) == (30, 10)
    np.testing.assert_array_equal(second.values["labels"], [0])


def test_image_without_annotations_is_kept(tmp_path: Path) -> None:
    _dataset(tmp_path, annotations=[])
    for sample in samples_of(CocoSource(tmp_path, masks=True)):
        assert sample.values["boxes"].shape == (0, 4)
        assert sample.values["labels"].shape == (0,)
        assert not sample.values["instances"].any()
        assert sample.values["instances"].shape == (16, 16)


def test_masks_number_boxes_with_smaller_on_top(tmp_path: Path) -> None:
    _dataset(tmp_path)
    mask = samples_of(CocoSource(tmp_path, masks=True))[0].values["instances"]
    assert mask[4, 4] == 1  # the square, on top of the crowd
    assert mask[0, 0] == 2
    assert mask[0, 9] == 2
    assert mask[0, 10] == 0  # 160 pixels are ten columns of 16
    assert set(np.unique(mask)) == {0, 1, 2}


def test_plain_and_compressed_run_lengths() -> None:
    for counts in (
        PLAIN["counts"],
        "231O3",
    ):  # from the fourth on: 2 - 3 = -1 is "O", 4 - 1 = 3 is "3"
        found = decode_runs({"size": [3, 4], "counts": counts}, width=4, height=3, source="x")  # type: ignore[dict-item]
        np.testing.assert_array_equal(found, np.array(INSIDE, dtype=bool))


def test_compressed_run_lengths_equal_pycocotools() -> None:
    tools = pytest.importorskip("pycocotools.mask", reason="not run: no pycocotools")
    rng = np.random.default_rng(5)
    for _ in range(200):
        height, width = (int(side) for side in rng.integers(1, 60, 2))
        mask = rng.random((height, width)) < rng.choice([0.01, 0.5, 0.99])
        mask[rng.integers(0, height) :] ^= True
        packed = tools.encode(np.asfortranarray(mask.astype(np.uint8)))
        found = decode_runs(
            {"size": [height, width], "counts": packed["counts"].decode()},
            width=width,
            height=height,
            source="x",
        )
        np.testing.assert_array_equal(found, mask)


@pytest.mark.filterwarnings(
    "ignore:__array__ implementation:DeprecationWarning"
)  # pycocotools 2.0.11 on numpy 2
def test_polygons_match_pycocotools_except_at_edges() -> None:
    tools = pytest.importorskip("pycocotools.mask", reason="not run: no pycocotools")
    rng = np.random.default_rng(6)
    for _ in range(50):
        turn = np.sort(rng.uniform(0, 2 * np.pi, 8))
        corners = (
            np.stack([np.cos(turn), np.sin(turn)], 1) * rng.uniform(10, 45, (8, 1)) + 50
        ).round(2)
        ours = np.asarray(
            instance_mask(
                [[list(corners.ravel().tolist())]], [1.0], width=100, height=100, source="x"
            )
            == 1
        )
        theirs = (
            tools.decode(tools.merge(tools.frPyObjects([corners.ravel().tolist()], 100, 100))) > 0
        )
        assert (ours ^ theirs).sum() <= 0.03 * theirs.sum()


def test_polygons_fill_pixels_whose_center_is_inside() -> None:
    def drawn(*corners: float) -> list[list[int]]:
        return instance_mask([[list(corners)]], [1.0], width=4, height=3, source="x").tolist()  # type: ignore[no-any-return]

    assert drawn(1, 0, 3, 0, 3, 2, 1, 2) == [[0, 1, 1, 0], [0, 1, 1, 0], [0, 0, 0, 0]]
    assert drawn(1.6, 0, 3.4, 0, 3.4, 2, 1.6, 2) == [[0, 0, 1, 0], [0, 0, 1, 0], [0, 0, 0, 0]]
    assert drawn(-50, -50, 50, -50, 50, 50, -50, 50) == [[1, 1, 1, 1]] * 3
    assert drawn(10, 10, 20, 10, 20, 20) == [[0, 0, 0, 0]] * 3
    assert drawn(0, 1, 4, 1, 2, 1) == [[0, 0, 0, 0]] * 3
    both = instance_mask(
        [[[0, 0, 2, 0, 2, 3, 0, 3], [3, 0, 4, 0, 4, 3, 3, 3]]], [1.0], width=4, height=3, source="x"
    )
    assert both.tolist() == [[1, 1, 0, 1]] * 3


@pytest.mark.parametrize(
    ("segmentation", "message"),
    [
        ({"size": [3, 4], "counts": [2, 3]}, "do not add up to 4 x 3"),
        ({"size": [4, 3], "counts": [12]}, "expected size [3, 4]"),
        ({"size": [3, 4], "counts": [-1, 13]}, "expected run lengths in 'counts'"),
        ({"size": [3, 4], "counts": "\x01"}, "in run lengths"),
        ({"size": [3, 4], "counts": "PPPP"}, "truncated"),
        ({"size": [3, 4], "counts": "P" * 999 + "0"}, "in run lengths"),
        ([[1, 2, 3, 4]], "at least 3 points"),
        ([[1, 2, 3, 4, 5, "x"]], "at least 3 points"),
        ([[1e30] * 6], "at least 3 points"),
        ("?", "polygons or run lengths"),
    ],
)
def test_invalid_segmentations_are_refused(segmentation: object, message: str) -> None:
    with pytest.raises(BadImage) as caught:
        instance_mask([segmentation], [1.0], width=4, height=3, source="x")  # type: ignore[list-item]
    assert message in str(caught.value)
    np.testing.assert_array_equal(
        instance_mask([PLAIN], [1.0], width=4, height=3, source="x"),  # type: ignore[list-item]
        INSIDE,
    )


def test_too_large_mask_is_refused() -> None:
    with pytest.raises(BadImage, match="at most 16384 per side"):
        instance_mask([], [], width=10**6, height=10**6, source="x")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"category_id": 99},
            "category 99 is not one of the 2 'categories' of instances_val2017.json",
        ),
        ({"bbox": [1, 2, 3]}, "bbox: expected"),
        ({"bbox": [1, 2, -3, 4]}, "negative width or height"),
        ({"bbox": []}, "bbox: expected"),
        ({"area": []}, "area: expected"),
        ({"bbox": None}, "bbox: expected"),
        ({"bbox": [1, 2, "x", 4]}, "bbox: expected numbers"),
        ({"area": float("inf")}, "area: expected finite numbers, found NaN"),
        ({"id": "one"}, "id: expected an integer"),
    ],
)
def test_bad_annotations_are_bad_samples(
    tmp_path: Path, change: dict[str, object], message: str
) -> None:
    _dataset(
        tmp_path, annotations=[{**_box(1, 30, [1, 2, 3, 4]), **change}, _box(2, 10, [0, 0, 1, 1])]
    )
    good, bad = outcome(CocoSource(tmp_path))
    assert [sample.source for sample in good] == ["a.jpg"]
    assert bad[0].startswith("b.jpg: ")
    assert message in bad[0]


@pytest.mark.parametrize(
    ("size", "orientation", "says"),
    [((16, 12), 1, "16x12"), ((16, 12), 6, "12x16"), ((32, 32), 1, "32x32")],
)
def test_boxes_of_a_scaled_or_rotated_image_are_refused(
    tmp_path: Path, size: tuple[int, int], orientation: int, says: str
) -> None:
    path = _dataset(tmp_path)
    exif = Image.Exif()
    exif[0x112] = orientation
    Image.new("RGB", size).save(tmp_path / "val2017" / "b.jpg", exif=exif)
    good, bad = outcome(CocoSource(path))
    assert [sample.source for sample in good] == ["a.jpg"]
    assert bad == [
        f"b.jpg: {says} pixels when upright, but instances_val2017.json says 16x16: boxes would not fit. "
        "Provide the annotated image, or correct width and height"
    ]


def test_boxes_of_the_upright_image_are_accepted(tmp_path: Path) -> None:
    exif = Image.Exif()
    exif[0x112] = 6
    path = _dataset(
        tmp_path,
        images=[
            {"id": 30, "file_name": "b.jpg", "width": 12, "height": 16},
            {"id": 10, "file_name": "a.jpg"},
        ],
    )
    Image.new("RGB", (16, 12)).save(tmp_path / "val2017" / "b.jpg", exif=exif)
    assert len(samples_of(CocoSource(path))) == 2


def test_a_missing_image_is_a_bad_sample(tmp_path: Path) -> None:
    _dataset(tmp_path)
    (tmp_path / "val2017" / "a.jpg").unlink()
    good, bad = outcome(CocoSource(tmp_path))
    assert len(good) == 1
    assert bad == ["a.jpg: no such file: wrong name, broken link, or deleted since it was listed"]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"images": []}, r"no 'images'\. Expected a COCO file"),
        ({"images": [{"id": 1}]}, "no file_name"),
        ({"images": [{"id": 1, "file_name": "a.jpg"}] * 2}, "duplicate id"),
        ({"images": [3]}, "expected objects in 'images'"),
        ({"categories": [{"id": 1}, {"id": 1}]}, "duplicate category id"),
        ({"annotations": [{"id": 1}]}, "image_id: expected an integer"),
        ({"images": [{"id": True, "file_name": "a.jpg"}]}, "id: expected an integer"),
        ({"images": [{"id": 1, "file_name": "z.jpg"}]}, "the first image z.jpg is in none of"),
    ],
)
def test_invalid_annotation_files_are_refused(
    tmp_path: Path, changes: dict[str, object], message: str
) -> None:
    _dataset(tmp_path, **changes)
    with pytest.raises(ConfigError, match=message):
        CocoSource(tmp_path)
    _dataset(tmp_path)
    assert len(samples_of(CocoSource(tmp_path))) == 2


def test_broken_json_is_reported_with_line_and_column(tmp_path: Path) -> None:
    path = _dataset(tmp_path)
    lines = path.read_text(encoding="utf-8").splitlines()
    place = next(i for i, line in enumerate(lines) if '"bbox"' in line)
    lines[place] = '   "bbox": [1, 2,, 3],'
    path.write_text("\n".join(lines), encoding="utf-8")
    with pytest.raises(
        ConfigError, match=rf"instances_val2017\.json: broken JSON at line {place + 1}, column 18"
    ):
        CocoSource(tmp_path)


def test_annotations_without_image_are_counted(tmp_path: Path) -> None:
    _dataset(tmp_path, annotations=[_box(1, 12345, [0, 0, 1, 1]), _box(2, 10, [0, 0, 1, 1])])
    source = CocoSource(tmp_path)
    assert source.info["annotations_without_image"] == 1
    assert [len(sample.values["boxes"]) for sample in samples_of(source)] == [0, 1]


def test_splits_and_folders_are_found(tmp_path: Path) -> None:
    path = _dataset(tmp_path)
    (path.parent / "instances_train2017.json").write_bytes(path.read_bytes())
    (path.parent / "captions_val2017.json").write_text('{"images": [], "annotations": []}')
    with pytest.raises(ConfigError, match=r"found train2017, val2017\. Choose with --split NAME"):
        CocoSource(tmp_path)
    assert len(samples_of(CocoSource(tmp_path, split="val2017"))) == 2
    with pytest.raises(ConfigError, match=r"is in none of .*train2017"):
        CocoSource(tmp_path, split="train2017")
    assert (
        len(samples_of(CocoSource(tmp_path, split="train2017", images=tmp_path / "val2017"))) == 2
    )


def test_roboflow_folders_are_read(tmp_path: Path) -> None:
    path = _dataset(tmp_path / "x")
    for split in ("train", "valid"):
        (tmp_path / "r" / split).mkdir(parents=True)
        (tmp_path / "r" / split / "_annotations.coco.json").write_bytes(path.read_bytes())
        for name in ("a.jpg", "b.jpg"):
            put_image(tmp_path / "r" / split / name)
    assert len(samples_of(CocoSource(tmp_path / "r", split="valid"))) == 2
    with pytest.raises(ConfigError, match="found train, valid"):
        CocoSource(tmp_path / "r")


def test_annotation_file_changed_after_listing_is_refused(tmp_path: Path) -> None:
    path = _dataset(tmp_path)
    source = CocoSource(tmp_path)
    path.write_text(
        path.read_text(encoding="utf-8").replace('"iscrowd": 1', '"iscrowd": 0') + "\n",
        encoding="utf-8",
    )
    with pytest.raises(ConfigError, match="changed since it was listed"):
        source.load(30)
    with pytest.raises(ConfigError, match="no image 77"):
        source.load(77)
