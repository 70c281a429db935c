"""Labels of boxes stay with their boxes: a crop drops both or none.

Every label contains the number of its box, ``100 * sample + row``. The number leads to the stored
box, and the matrix of the batch says where that box must be.
"""

from __future__ import annotations

import pickle
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from fastload import transforms as T
from fastload._load.loader import DataLoader
from fastload._store.fields import Field, encode_value
from fastload._store.verify import verify
from fastload.errors import ConfigError, CorruptShard
from tests.loading import backends, png, same_batch
from tests.packed_datasets import change_parts, encoded, pack_samples

SIDE, N, CAMERAS = 64, 14, 3
FIELDS = (
    Field("image", "image"),
    Field("labels", "array", along="boxes"),
    Field("boxes", "boxes"),
    Field("area", "array", along="boxes"),
    Field("ids", "int", list=True, along="boxes"),
    Field("names", "str", list=True, along="boxes"),
    Field("notes", "json", along="boxes"),
    Field("heads", "boxes", along="boxes"),
    Field("centers", "points", along="boxes"),
    Field("keypoints", "points", list=True, along="boxes"),
)
CROPS = [
    pytest.param([T.RandomResizedCrop(24, scale=(0.1, 0.5)), T.HorizontalFlip()], id="crop"),
    pytest.param([T.Crop(left=0.9, top=0.9), T.Resize(16, 16)], id="almost nothing"),
    pytest.param([T.RandomCrop(30), T.RandomAffine(40, (0.4, 0.4))], id="rotated"),
    pytest.param(None, id="untouched"),
]


def stored_boxes(sample: int) -> NDArray[np.float32]:
    """Returns 0 to 4 small boxes; every fourth sample also has one without area."""
    rng = np.random.default_rng(sample)
    first = rng.uniform(0, SIDE - 20, (sample % 5, 2))
    boxes = np.concatenate([first, first + rng.uniform(4, 20, first.shape)], axis=1)
    if sample % 4 == 3 and len(boxes):
        boxes[0, 2] = boxes[0, 0]
    return boxes.astype(np.float32)


def sample_values(sample: int) -> dict[str, Any]:
    boxes = stored_boxes(sample)
    numbers = 100 * sample + np.arange(len(boxes))
    centers = (boxes[:, :2] + boxes[:, 2:]) / 2
    return {
        "boxes": boxes,
        "labels": numbers,
        "area": numbers.astype(np.float32) + 0.5,
        "ids": numbers.tolist(),
        "names": [f"box {number}" for number in numbers],
        "notes": [{"number": int(number)} for number in numbers],
        "heads": boxes,
        "centers": centers,
        "keypoints": [np.tile(center, (3, 1)) for center in centers],
    }


@pytest.fixture(scope="module")
def packed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    image = encoded(png(np.zeros((SIDE, SIDE, 3), np.uint8)))
    samples = [{"image": image, **sample_values(i)} for i in range(N)]
    return pack_samples(tmp_path_factory.mktemp("along") / "packed", FIELDS, samples)


def unpadded(batch: dict[str, Any], name: str, place: int) -> Any:
    value = batch[name][place]
    return value[batch[f"{name}.mask"][place]] if f"{name}.mask" in batch else value


def expected_box(number: int, matrix: NDArray[np.float64]) -> NDArray[np.float64]:
    """Returns the moved box before it is clipped."""
    x0, y0, x1, y1 = stored_boxes(number // 100)[number % 100]
    corners = matrix @ np.array([[x0, x1, x0, x1], [y0, y0, y1, y1], [1, 1, 1, 1]])
    return np.concatenate([corners[:2].min(axis=1), corners[:2].max(axis=1)])


def assert_labels_belong_to_boxes(batch: dict[str, Any]) -> int:
    """Returns the number of boxes."""
    height, width = batch["image"].shape[-2:]
    total = 0
    for place, sample in enumerate(batch["id"].tolist()):
        boxes = unpadded(batch, "boxes", place).numpy()
        numbers = unpadded(batch, "labels", place).tolist()
        assert len(boxes) == len(numbers)
        matrix = batch["image.matrix"][place].double().numpy()
        area = np.array([[0, 0, width, height]])
        for box, number in zip(boxes, numbers, strict=True):
            assert number // 100 == sample
            expected = expected_box(number, matrix)
            # A rotated box is clipped to the rotated image, which is inside of the canvas.
            assert (box >= np.maximum(expected[[0, 1, 0, 1]], 0) - 1e-3).all()
            assert (box <= np.minimum(expected[[2, 3, 2, 3]], area[0, [2, 3, 2, 3]]) + 1e-3).all()
            if not matrix[0, 1]:
                assert box == pytest.approx(np.clip(expected, 0, [width, height] * 2), abs=1e-3)
        assert unpadded(batch, "area", place).tolist() == [each + 0.5 for each in numbers]
        assert unpadded(batch, "ids", place).tolist() == numbers
        assert batch["names"][place] == [f"box {each}" for each in numbers]
        assert batch["notes"][place] == [{"number": each} for each in numbers]
        heads = unpadded(batch, "heads", place)
        assert torch.equal(heads, torch.from_numpy(boxes))
        centers = unpadded(batch, "centers", place).double().numpy()
        keypoints = batch["keypoints"][place]
        assert len(keypoints) == len(batch["keypoints.visible"][place]) == len(centers)
        assert len(unpadded(batch, "centers.visible", place)) == len(centers)
        for number, center, points in zip(numbers, centers, keypoints, strict=True):
            x0, y0, x1, y1 = stored_boxes(number // 100)[number % 100]
            moved = matrix @ [(x0 + x1) / 2, (y0 + y1) / 2, 1]
            assert center == pytest.approx(moved[:2], abs=1e-3)
            assert points.numpy() == pytest.approx(np.tile(center, (3, 1)), abs=1e-3)
        total += len(boxes)
    return total


@pytest.mark.parametrize("backend", backends())
@pytest.mark.parametrize("ragged", ["list", "pad", {"boxes": "pad"}])
@pytest.mark.parametrize("transform", CROPS)
def test_labels_belong_to_their_boxes_after_any_crop(
    packed: Path, transform: Any, ragged: Any, backend: str
) -> None:
    names = (*(field.name for field in FIELDS), "id")
    found = []
    for seed in range(3):
        loader = DataLoader(
            packed,
            5,
            shuffle=True,
            seed=seed,
            transform=transform,
            ragged=ragged,
            backend=backend,
            fields=names,
            return_matrix=True,
        )
        found.append(sum(map(assert_labels_belong_to_boxes, loader)))
    stored = sum(len(stored_boxes(i)) for i in range(N))
    without_area = sum(i % 4 == 3 and i % 5 > 0 for i in range(N))
    assert all(each <= stored - without_area for each in found)
    if transform is None:
        assert found == [stored - without_area] * 3
    else:
        assert sum(found) < 3 * (stored - without_area), "no box was removed: the test sees nothing"


def test_fields_along_boxes_are_padded_like_the_boxes(packed: Path) -> None:
    transform = [T.RandomCrop(24)]
    (batch,) = DataLoader(packed, N, transform=transform, ragged="pad")
    for name in ("labels", "area", "ids", "heads", "centers"):
        assert torch.equal(batch[f"{name}.mask"], batch["boxes.mask"]), name
    (listed,) = DataLoader(packed, N, transform=transform, ragged={"boxes": "pad", "area": "list"})
    assert torch.equal(listed["labels.mask"], listed["boxes.mask"])
    assert [len(each) for each in listed["area"]] == listed["boxes.mask"].sum(1).tolist()


def test_a_batch_without_any_box_left(packed: Path) -> None:
    transform = [T.Crop(left=63, top=63), T.Resize(8, 8)]
    for ragged in ("list", "pad"):
        for batch in DataLoader(packed, 4, transform=transform, ragged=ragged, min_visible=1.0):
            n = len(batch["image"])
            assert [len(unpadded(batch, "labels", place)) for place in range(n)] == [0] * n
            assert batch["names"] == [[]] * n
            assert batch["keypoints"] == [[]] * n


@pytest.mark.parametrize("ragged", ["list", "pad"])
def test_samples_without_boxes_may_lack_the_labels(tmp_path: Path, ragged: str) -> None:
    image = encoded(png(np.zeros((SIDE, SIDE, 3), np.uint8)))
    samples = [{"image": image, **(sample_values(i) if i % 2 else {})} for i in range(6)]
    packed = pack_samples(tmp_path / "packed", FIELDS, samples)
    (batch,) = DataLoader(packed, 6, ragged=ragged, transform=[T.RandomCrop(24)])
    counts = [len(unpadded(batch, "boxes", place)) for place in range(6)]
    assert counts[::2] == [0, 0, 0]
    assert [len(each) for each in batch["keypoints"]] == counts
    assert [len(each) for each in batch["names"]] == counts
    if ragged == "pad":
        assert torch.equal(batch["labels.mask"], batch["boxes.mask"])
        assert batch["labels"].dtype == torch.int64
    else:
        assert batch["labels"][::2] == [None] * 3  # a missing array has no dtype


def test_labels_are_the_same_without_the_boxes(packed: Path) -> None:
    options: dict[str, Any] = {"transform": [T.RandomCrop(24)], "seed": 3, "shuffle": True}
    whole = list(DataLoader(packed, 4, **options))
    alone = list(DataLoader(packed, 4, fields=("labels", "names"), **options))
    assert [batch.keys() for batch in alone] == [{"labels": 0, "names": 0}.keys()] * len(whole)
    for batch, expected in zip(alone, whole, strict=True):
        assert same_batch(batch["labels"], expected["labels"])
        assert batch["names"] == expected["names"]


def test_labels_alone_need_neither_a_transform_nor_images_of_one_size(tmp_path: Path) -> None:
    samples = [
        {
            "image": encoded(png(np.zeros((20 + i, 30, 3), np.uint8))),
            "boxes": [[1, 1, 5, 5]] * i,
            "labels": np.arange(i),
        }
        for i in range(4)
    ]
    fields = (FIELDS[0], Field("boxes", "boxes"), Field("labels", "array", along="boxes"))
    packed = pack_samples(tmp_path / "packed", fields, samples)
    (batch,) = DataLoader(packed, 4, fields=("labels",))
    assert [each.tolist() for each in batch["labels"]] == [[*range(i)] for i in range(4)]
    (cropped,) = DataLoader(packed, 4, fields=("labels",), transform=[T.Resize(8, 8)], min_side=9)
    assert [each.tolist() for each in cropped["labels"]] == [[]] * 4


def test_the_dataset_view_and_plain_loaders_return_the_same_labels(packed: Path) -> None:
    loader = DataLoader(packed, 4, transform=[T.RandomCrop(24)], seed=3, ragged={"boxes": "pad"})
    batches = list(loader)
    loader.set_epoch(0)
    plain: Any = torch.utils.data.DataLoader(
        pickle.loads(pickle.dumps(loader.dataset)),
        batch_sampler=[[*range(first, min(first + 4, N))] for first in range(0, N, 4)],
        collate_fn=loader.collate_fn,
    )
    assert [batch["names"] for batch in plain] == [batch["names"] for batch in batches]
    sample = loader.dataset[4]
    first = {name: value[0] for name, value in batches[1].items()}
    assert sample["names"] == first["names"]
    assert same_batch(
        sample["labels"][: len(sample["names"])], first["labels"][: len(first["names"])]
    )


@pytest.mark.parametrize("limits", [{"min_visible": 0.6}, {"min_side": 9}, {"min_visible": 1.0}])
def test_limits_drop_boxes_and_their_labels(packed: Path, limits: dict[str, Any]) -> None:
    names = (*(field.name for field in FIELDS), "id")
    options: dict[str, Any] = {
        "transform": [T.RandomCrop(24)],
        "fields": names,
        "return_matrix": True,
    }
    dropped = 0
    for batch, every in zip(
        DataLoader(packed, 5, **options, **limits), DataLoader(packed, 5, **options), strict=True
    ):
        assert_labels_belong_to_boxes(batch)
        for place in range(len(batch["id"])):
            expected = []
            for number, box in zip(
                every["labels"][place].tolist(), every["boxes"][place].numpy(), strict=True
            ):
                width, height = box[2:] - box[:2]
                x0, y0, x1, y1 = stored_boxes(number // 100)[number % 100]
                share = width * height / ((x1 - x0) * (y1 - y0))
                if share > limits.get("min_visible", 0) - 1e-4 and min(width, height) >= limits.get(
                    "min_side", 0
                ):
                    expected.append(number)
            assert batch["labels"][place].tolist() == expected
            dropped += len(every["labels"][place]) - len(expected)
    assert dropped > 0


@pytest.mark.parametrize(
    ("option", "expected"),
    [
        ({"min_visible": 1.5}, r"min_visible=1.5: expected a fraction from 0 to 1"),
        ({"min_visible": "half"}, r"min_visible='half': expected a fraction"),
        ({"min_visible": float("nan")}, r"min_visible=nan: expected a fraction"),
        ({"min_side": -1}, r"min_side=-1: expected a number of pixels, 0 or more"),
        ({"min_side": float("inf")}, r"min_side=inf: expected a number of pixels"),
    ],
)
def test_limits_out_of_range_are_refused(
    packed: Path, option: dict[str, Any], expected: str
) -> None:
    with pytest.raises(ConfigError, match=expected):
        DataLoader(packed, 4, **option)
    assert len(DataLoader(packed, 4, min_visible=1, min_side=0)) == 4


def test_a_state_with_other_limits_is_refused(packed: Path) -> None:
    state = DataLoader(packed, 4, min_visible=0.25).state_dict()
    with pytest.raises(ConfigError, match=r"min_visible=0\.25"):
        DataLoader(packed, 4).load_state_dict(state)
    DataLoader(packed, 4, min_visible=0.25).load_state_dict(state)
    labels_only = DataLoader(packed, 4, fields=("ids",), min_visible=0.25).state_dict()
    with pytest.raises(ConfigError, match=r"min_visible=0\.25"):
        DataLoader(packed, 4, fields=("ids",)).load_state_dict(labels_only)


def test_boxes_of_several_cameras(tmp_path: Path) -> None:
    image = encoded(png(np.zeros((SIDE, SIDE, 3), np.uint8)))
    fields = (
        Field("images", "image", list=True),
        Field("boxes", "boxes", list=True, image="images"),
        Field("labels", "array", list=True, along="boxes"),
        Field("notes", "json", list=True, along="boxes"),
    )
    samples: list[dict[str, Any]] = []
    for i in range(6):
        boxes = [stored_boxes(i + camera) for camera in range(CAMERAS)]
        numbers = [100 * (i + camera) + np.arange(len(own)) for camera, own in enumerate(boxes)]
        samples.append(
            {
                "images": [image] * CAMERAS,
                "boxes": boxes,
                "labels": numbers,
                "notes": [each.tolist() for each in numbers],
            }
        )
    samples.append({"images": [image] * CAMERAS})  # without boxes, labels and notes
    packed = pack_samples(tmp_path / "rig", fields, samples)
    dropped = 0
    for ragged in ("list", "pad"):
        loader = DataLoader(
            packed, 3, transform=[T.RandomCrop(24)], return_matrix=True, ragged=ragged
        )
        for number, batch in enumerate(loader):
            for place in range(len(batch["images"])):
                if 3 * number + place == 6:
                    assert not any(len(each) for each in batch["boxes"][place])
                    continue
                for camera in range(CAMERAS):
                    matrix = batch["images.matrix"][place, camera].double().numpy()
                    boxes = batch["boxes"][place][camera].numpy()
                    labels = batch["labels"][place][camera].tolist()
                    assert batch["notes"][place][camera] == labels
                    assert len(labels) == len(boxes)
                    for box, label in zip(boxes, labels, strict=True):
                        moved = np.clip(expected_box(label, matrix), 0, 24)
                        assert box == pytest.approx(moved, abs=1e-3)
                    dropped += len(stored_boxes(3 * number + place + camera)) - len(boxes)
    assert dropped > 0


def test_labels_along_points_are_all_kept(tmp_path: Path) -> None:
    image = encoded(png(np.zeros((SIDE, SIDE, 3), np.uint8)))
    fields = (
        Field("image", "image"),
        Field("corners", "points"),
        Field("occluded", "array", along="corners"),
    )
    samples = [
        {"image": image, "corners": np.full((i, 2), 60.0), "occluded": np.arange(i)}
        for i in range(4)
    ]
    packed = pack_samples(tmp_path / "packed", fields, samples)
    (batch,) = DataLoader(packed, 4, transform=[T.Crop(right=0.5)], fields=("occluded",))
    assert [each.tolist() for each in batch["occluded"]] == [[*range(i)] for i in range(4)]


def test_one_box_per_sample_is_not_stacked_because_a_crop_may_remove_it(tmp_path: Path) -> None:
    image = encoded(png(np.zeros((SIDE, SIDE, 3), np.uint8)))
    fields = (
        Field("image", "image"),
        Field("boxes", "boxes"),
        Field("labels", "array", along="boxes"),
    )
    samples = [
        {"image": image, "boxes": [[4 * i, 0, 4 * i + 4, 4]], "labels": [i]} for i in range(8)
    ]
    packed = pack_samples(tmp_path / "packed", fields, samples)
    (batch,) = DataLoader(packed, 8, transform=[T.Crop(left=0.25)])
    assert [each.tolist() for each in batch["labels"]] == [[]] * 4 + [[4], [5], [6], [7]]


def test_a_damaged_sample_is_named_and_its_substitute_keeps_its_own_labels(
    packed: Path, tmp_path: Path
) -> None:
    damaged = shutil.copytree(packed, tmp_path / "damaged")
    labels = Field("labels", "array")
    change_parts(
        damaged,
        7,
        lambda parts: [
            encode_value(1, labels, np.arange(1))[0] if part.field == 1 else part for part in parts
        ],
    )
    names = (*(field.name for field in FIELDS), "id")
    options: dict[str, Any] = {"fields": names, "return_matrix": True}
    with pytest.raises(
        CorruptShard,
        match=r"sample 7: field 'labels': found 1, expected 2, one entry per row of 'boxes'",
    ):
        list(DataLoader(damaged, 5, **options))
    loader = DataLoader(damaged, 5, on_error="substitute", **options)
    batches = list(loader)
    assert loader.stats().bad == 1
    for batch in batches:
        assert_labels_belong_to_boxes(batch)
        assert 7 not in batch["id"].tolist()
    report = verify(damaged)
    assert [(fault.record, fault.what) for fault in report.faults] == [
        (7, "field 'labels': found 1, expected 2, one entry per row of 'boxes'")
    ]
