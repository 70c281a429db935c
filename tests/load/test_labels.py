"""Labels follow their images: painted spots are where points, boxes, masks and matrices say."""

from __future__ import annotations

import io
import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from PIL import Image

from fastload import transforms as T
from fastload._load.loader import DataLoader
from fastload._store.fields import Field
from fastload.errors import BadImage, ConfigError
from tests.loading import backends, centroid, png, spots
from tests.packed_datasets import encoded, pack_samples

WIDTH, HEIGHT, SIGMA, RADIUS = 160, 120, 3.0, 7
FOCAL = np.array([[150.0, 0, 70], [0, 140.0, 66], [0, 0, 1]])
CAMERAS = 6
TRANSFORMS = [
    pytest.param([T.RandomResizedCrop(96, scale=(0.4, 1.0)), T.HorizontalFlip()], id="crop"),
    pytest.param([T.HorizontalFlip(1.0), T.Resize(90, 110)], id="mirrored"),
    pytest.param([T.Crop(left=10), T.Letterbox(128, 128, fill=0)], id="letterbox"),
    pytest.param([T.CenterCrop(200), T.HorizontalFlip(1.0)], id="padded"),
    pytest.param([T.Resize(shorter=100), T.RandomCrop(100), T.HorizontalFlip()], id="random"),
    pytest.param([T.RandomCrop(110, pad=20)], id="pad"),
    pytest.param(None, id="untouched"),
    pytest.param([T.Resize(100, 130), T.VerticalFlip(), T.HorizontalFlip()], id="vertical flip"),
    pytest.param(
        [
            T.Letterbox(128, 140, fill=0),
            T.HorizontalFlip(),
            T.RandomAffine(25, (0.1, 0.1), (0.8, 1.1), (-8, 8, -5, 5)),
            T.HorizontalFlip(),
        ],
        id="rotated",
    ),
]


def jpeg(pixels: NDArray[np.uint8], orientation: int = 1) -> bytes:
    file, exif = io.BytesIO(), Image.Exif()
    exif[0x0112] = orientation
    Image.fromarray(pixels).save(file, "JPEG", quality=97, subsampling=0, exif=exif)
    return file.getvalue()


def places(rng: np.random.Generator) -> NDArray[np.float64]:
    """Returns three points, one per color, far enough from the edges to be completely visible."""
    return rng.uniform([15, 15], [WIDTH - 15, HEIGHT - 15], (3, 2))


def around(points: NDArray[np.float64]) -> NDArray[np.float32]:
    return np.concatenate([points - RADIUS, points + RADIUS], axis=1).astype(np.float32)


def discs(points: NDArray[np.float64], dtype: type = np.uint8, scale: int = 1) -> NDArray[Any]:
    """Returns a mask with discs of value 1, 2, 3 (times ``scale``) around the points."""
    x, y = np.arange(WIDTH) + 0.5, np.arange(HEIGHT) + 0.5
    mask = np.zeros((HEIGHT, WIDTH), dtype)  # type: ignore[var-annotated]
    for number, (across, down) in enumerate(points, 1):
        mask[(x[None, :] - across) ** 2 + (y[:, None] - down) ** 2 <= RADIUS**2] = number * scale
    return mask


def lifted(points: NDArray[np.float64], rng: np.random.Generator) -> NDArray[np.float64]:
    """Returns points in space that FOCAL projects to ``points``."""
    depth = rng.uniform(2, 9, (len(points), 1))
    return (
        np.concatenate([points, np.ones((len(points), 1))], axis=1) @ np.linalg.inv(FOCAL).T * depth
    )


FIELDS = (
    Field("image", "image"),
    Field("points", "points"),
    Field("boxes", "boxes"),
    Field("mask", "mask"),
    Field("fine", "mask"),
    Field("intrinsics", "matrix"),
    Field("lanes", "points", list=True),
    Field("space", "array"),
)
RIG = (
    Field("images", "image", list=True),
    Field("intrinsics", "matrix", list=True, image="images"),
    Field("marks", "points", list=True, image="images"),
    Field("boxes", "boxes", list=True, image="images"),
    Field("masks", "mask", list=True, image="images"),
    Field("space", "array", list=True),
)


@pytest.fixture(scope="module")
def painted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    rng, samples = np.random.default_rng(0), []
    for i in range(12):
        points = places(rng)
        pixels = spots(WIDTH, HEIGHT, [(x, y) for x, y in points], sigma=SIGMA)
        samples.append(
            {
                "image": encoded(png(pixels) if i % 4 == 3 else jpeg(pixels)),
                "points": points,
                "boxes": around(points),
                "mask": discs(points),
                "fine": discs(points, np.uint16, 1000),
                "intrinsics": FOCAL,
                "lanes": [points[:2], points[2:]],
                "space": lifted(points, rng),
            }
        )
    return pack_samples(
        tmp_path_factory.mktemp("painted") / "packed", FIELDS, samples, block_size=100_000
    )


@pytest.fixture(scope="module")
def rig(tmp_path_factory: pytest.TempPathFactory) -> Path:
    rng, samples = np.random.default_rng(1), []
    for _ in range(5):
        points = [places(rng) for _ in range(CAMERAS)]
        images = [
            encoded(jpeg(spots(WIDTH, HEIGHT, [(x, y) for x, y in each], sigma=SIGMA)))
            for each in points
        ]
        samples.append(
            {
                "images": images,
                "intrinsics": [FOCAL] * CAMERAS,
                "marks": points,
                "boxes": [around(each) for each in points],
                "masks": [discs(each) for each in points],
                "space": [lifted(each, rng) for each in points],
            }
        )
    return pack_samples(tmp_path_factory.mktemp("rig") / "packed", RIG, samples)


def planes(image: torch.Tensor) -> NDArray[np.float64]:
    """(3, height, width)."""
    return image.double().numpy()


def whole(x: float, y: float, scale: tuple[float, float], area: NDArray[np.float64]) -> bool:
    """Returns whether the spot at x, y is completely inside the image."""
    reach = 3.2 * SIGMA * np.array(scale) + 1
    return bool(
        ((np.array([x, y]) - reach >= area[:2]) & (np.array([x, y]) + reach <= area[2:])).all()
    )


def area_of(matrix: NDArray[np.float64], size: tuple[int, int]) -> NDArray[np.float64]:
    """Returns the visible area of the source on the canvas."""
    corners = (matrix @ np.array([[0, WIDTH, 0, WIDTH], [0, HEIGHT, HEIGHT, 0], [1, 1, 1, 1]]))[:2]
    low, high = corners.min(axis=1), corners.max(axis=1)
    return np.concatenate([np.maximum(low, 0), np.minimum(high, [size[1], size[0]])])


def assert_sample_fits(
    image: torch.Tensor, points: NDArray[np.float64], matrix: NDArray[np.float64]
) -> list[int]:
    """Asserts that every complete spot is at its point; returns the numbers of these spots."""
    scale = float(np.linalg.norm(matrix[0, :2])), float(np.linalg.norm(matrix[1, :2]))
    area = area_of(matrix, (image.shape[-2], image.shape[-1]))
    checked = [number for number, (x, y) in enumerate(points) if whole(x, y, scale, area)]
    for number in checked:
        assert centroid(planes(image)[number]) == pytest.approx(tuple(points[number]), abs=0.5)
    return checked


@pytest.mark.parametrize("backend", backends())
@pytest.mark.parametrize("transform", TRANSFORMS)
def test_painted_spots_match_all_labels(painted: Path, transform: Any, backend: str) -> None:
    loader = DataLoader(
        painted,
        5,
        shuffle=True,
        transform=transform,
        backend=backend,
        return_matrix=True,
        fields=("image", "points", "boxes", "mask", "fine", "intrinsics", "lanes", "space", "id"),
    )
    seen = 0
    for batch in loader:
        for place in range(len(batch["id"])):
            image, points, matrix = (
                batch["image"][place],
                batch["points"][place].double().numpy(),
                batch["image.matrix"][place].double().numpy(),
            )
            checked = assert_sample_fits(image, points, matrix)
            seen += len(checked)
            assert_boxes(batch, place, points, checked)
            assert_masks(batch, place, points, checked)
            projected = (
                batch["intrinsics"][place].double().numpy() @ batch["space"][place].numpy().T
            )
            assert np.allclose((projected[:2] / projected[2]).T, points, atol=0.02)
            lanes = np.concatenate([line.numpy() for line in batch["lanes"][place]])
            assert np.allclose(lanes, points, atol=1e-3)
            flags = np.concatenate([flags.numpy() for flags in batch["lanes.visible"][place]])
            assert flags.tolist() == batch["points.visible"][place].tolist()
            assert all(flags[number] for number in checked)
    assert seen >= 12


def assert_boxes(
    batch: dict[str, Any], place: int, points: NDArray[np.float64], checked: list[int]
) -> None:
    kept = batch["boxes.kept"][place].tolist()
    assert set(checked) <= set(kept)
    boxes = batch["boxes"][place].numpy()
    assert len(boxes) == len(kept)
    for number, box in zip(kept, boxes, strict=True):
        if number in checked:
            assert ((box[0] + box[2]) / 2, (box[1] + box[3]) / 2) == pytest.approx(
                tuple(points[number]), abs=0.5
            )


def assert_masks(
    batch: dict[str, Any], place: int, points: NDArray[np.float64], checked: list[int]
) -> None:
    mask = batch["mask"][place].numpy()
    assert mask.dtype == np.uint8
    assert batch["fine"].dtype == torch.uint16
    assert np.array_equal(mask.astype(int) * 1000, batch["fine"][place].numpy())
    distance = np.abs(points[:, None] - points[None]).max(axis=2) + 1000 * np.eye(3)
    for number in checked:
        if distance[number].min() > 4 * RADIUS:  # no other disc covers it
            assert centroid(mask == number + 1) == pytest.approx(tuple(points[number]), abs=0.5)


@pytest.mark.parametrize("transform", [TRANSFORMS[0], TRANSFORMS[4], TRANSFORMS[2], TRANSFORMS[8]])
def test_six_cameras_share_one_plan_and_have_their_own_labels(rig: Path, transform: Any) -> None:
    loader = DataLoader(rig, 2, shuffle=True, transform=transform, return_matrix=True)
    seen = 0
    for batch in loader:
        n = len(batch["images"])
        assert batch["images"].shape[:3] == (n, CAMERAS, 3)
        assert batch["intrinsics"].shape == (n, CAMERAS, 3, 3)
        assert batch["images.matrix"].shape == (n, CAMERAS, 3, 3)
        assert batch["masks"].shape[:2] == (n, CAMERAS)
        assert batch["space"].shape == (
            n,
            CAMERAS,
            3,
            3,
        )  # one value per image, which no image moves
        assert torch.equal(
            batch["images.matrix"], batch["images.matrix"][:, :1].expand(-1, CAMERAS, -1, -1)
        )  # one plan
        for place in range(n):
            for camera in range(CAMERAS):
                points = batch["marks"][place][camera].double().numpy()
                checked = assert_sample_fits(
                    batch["images"][place, camera],
                    points,
                    batch["images.matrix"][place, camera].double().numpy(),
                )
                seen += len(checked)
                projected = (
                    batch["intrinsics"][place, camera].double().numpy()
                    @ batch["space"][place][camera].numpy().T
                )
                assert np.allclose((projected[:2] / projected[2]).T, points, atol=0.02)
                assert set(checked) <= set(batch["boxes.kept"][place][camera].tolist())
    assert seen >= 20


def test_arrays_of_a_list_are_stacked_only_with_one_per_image(tmp_path: Path, rig: Path) -> None:
    assert isinstance(
        next(iter(DataLoader(rig, 2, fields=("space",), ragged={"space": "list"})))["space"], list
    )  # as requested
    image = encoded(jpeg(spots(WIDTH, HEIGHT, [])))
    fields = (Field("images", "image", list=True), Field("pose", "array", list=True))

    def batches(name: str, poses: list[list[NDArray[np.float64]]], **options: Any) -> list[Any]:
        packed = pack_samples(
            tmp_path / name, fields, [{"images": [image] * 2, "pose": own} for own in poses]
        )
        return [batch["pose"] for batch in DataLoader(packed, 3, fields=("pose",), **options)]

    one, other = np.zeros((4, 4)), np.ones((3, 4))
    assert batches("same", [[one, one]] * 3)[0].shape == (3, 2, 4, 4)
    for name, poses in (
        ("shapes", [[one, other]] * 3),
        ("counts", [[one, one]] * 2 + [[one]]),
        ("more", [[one] * 3] * 3),
    ):
        assert isinstance(batches(name, poses)[0], list), name
    late = [[one, one]] * 130 + [[one, other]]
    assert isinstance(batches("late", late, shuffle=False)[0], list)
    assert len(batches("late-listed", late, ragged={"pose": "list"})) == 44


@pytest.mark.parametrize("ragged", ["list", "pad", {"tracks": "pad"}])
def test_a_sample_may_have_an_empty_list_of_arrays(tmp_path: Path, ragged: Any) -> None:
    """They are delivered as a list for any ``ragged``, so a missing array is no error."""
    samples = [{"tracks": [np.full((2, 3), i, np.int16)] * i} for i in range(3)]
    packed = pack_samples(tmp_path / "packed", (Field("tracks", "array", list=True),), samples)
    (batch,) = DataLoader(packed, 3, shuffle=False, ragged=ragged)
    assert [[each.tolist() for each in tracks] for tracks in batch["tracks"]] == [
        [[[i] * 3] * 2] * i for i in range(3)
    ]


@pytest.mark.parametrize("kind", ["array", "mask"])
@pytest.mark.parametrize("ragged", ["pad", {"grid": "pad"}])
def test_a_sample_without_a_required_value_is_named(tmp_path: Path, kind: str, ragged: Any) -> None:
    """A mask without an image is stacked like an array."""
    samples = [{"grid": None if i == 31 else np.full((4, 5), i, np.uint8)} for i in range(130)]
    packed = pack_samples(tmp_path / "packed", (Field("grid", kind),), samples)
    (*_, listed) = itertools.islice(DataLoader(packed, 10, shuffle=False), 4)
    assert [None if each is None else int(each[0, 0]) for each in listed["grid"]] == [
        None if i == 31 else i for i in range(30, 40)
    ]
    iterator = iter(DataLoader(packed, 10, shuffle=False, ragged=ragged))
    for number in range(13):
        if number == 3:
            with pytest.raises(
                BadImage,
                match=r"sample 31 in .*, field 'grid': the sample has no value",
            ):
                next(iterator)
        else:
            assert [int(each[0, 0]) for each in next(iterator)["grid"]] == [
                *range(10 * number, 10 * number + 10)
            ]
    batches = list(DataLoader(packed, 10, shuffle=False, ragged=ragged, on_error="substitute"))
    assert batches[3]["grid"][:3, 0, 0].tolist() == [30, 30, 32]
    assert (
        DataLoader(packed, 130, ragged={"grid": "list"}, shuffle=False).dataset[31]["grid"] is None
    )


def test_empty_lists_of_images(tmp_path: Path) -> None:
    """Samples with an empty list are bad; the constructor raises if all lists are empty."""
    image, fields = (
        encoded(jpeg(spots(WIDTH, HEIGHT, []))),
        (Field("images", "image", list=True), Field("label", "int")),
    )

    def pack_lists(name: str, counts: list[int]) -> Path:
        return pack_samples(
            tmp_path / name,
            fields,
            [{"images": [image] * count, "label": i} for i, count in enumerate(counts)],
        )

    some = pack_lists("some", [0, 0, 2, 0])
    with pytest.raises(BadImage, match="field 'images': found 0 images, expected 2"):
        next(iter(DataLoader(some, 4)))
    batch = next(iter(DataLoader(some, 4, on_error="substitute")))
    assert (batch["images"].shape, batch["label"].tolist()) == ((4, 2, 3, HEIGHT, WIDTH), [2] * 4)
    none = pack_lists("none", [0, 0])
    with pytest.raises(ConfigError, match="field 'images': no sample has an image in its list"):
        DataLoader(none, 2)
    assert next(iter(DataLoader(none, 2, fields=("label",))))["label"].tolist() == [0, 1]


def test_image_fields_may_have_their_own_plans(tmp_path: Path) -> None:
    fields = (
        Field("left", "image"),
        Field("right", "image"),
        Field("on_left", "points", image="left"),
        Field("on_right", "points", image="right"),
    )
    rng, samples = np.random.default_rng(2), []
    for _ in range(4):
        left, right = places(rng), places(rng)
        samples.append(
            {
                "left": encoded(jpeg(spots(WIDTH, HEIGHT, [(x, y) for x, y in left]))),
                "on_left": left,
                "right": encoded(jpeg(spots(WIDTH, HEIGHT, [(x, y) for x, y in right]))),
                "on_right": right,
            }
        )
    packed = pack_samples(tmp_path / "packed", fields, samples)
    crop = [T.RandomResizedCrop(80, scale=(0.5, 1.0))]
    own = next(
        iter(DataLoader(packed, 4, transform={"left": crop, "right": crop}, return_matrix=True))
    )
    shared = next(
        iter(DataLoader(packed, 4, transform={("left", "right"): crop}, return_matrix=True))
    )
    one_list = next(iter(DataLoader(packed, 4, transform=crop, return_matrix=True)))
    assert not torch.equal(own["left.matrix"], own["right.matrix"])
    assert torch.equal(shared["left.matrix"], shared["right.matrix"])
    assert torch.equal(one_list["left.matrix"], one_list["right.matrix"])
    for batch in (own, shared):
        for place in range(4):
            for side in ("left", "right"):
                assert_sample_fits(
                    batch[side][place],
                    batch[f"on_{side}"][place].double().numpy(),
                    batch[f"{side}.matrix"][place].double().numpy(),
                )
    # Labels move with their image even if the image is not loaded.
    alone = next(
        iter(
            DataLoader(packed, 4, transform={("left", "right"): crop}, fields=("right", "on_left"))
        )
    )
    assert torch.equal(alone["on_left"], shared["on_left"])


@pytest.mark.parametrize("backend", backends())
def test_labels_refer_to_the_upright_image(tmp_path: Path, backend: str) -> None:
    """Loading applies EXIF orientations that pack could not apply without loss."""
    samples = []
    for orientation in range(1, 9):
        points = np.array([[40.0, 30.0], [100.0, 60.0], [70.0, 90.0]])
        upright = spots(
            151, 117, [(x, y) for x, y in points]
        )  # odd sizes cannot be rotated without loss
        samples.append(
            {"image": encoded(jpeg(stored_as(upright, orientation), orientation)), "points": points}
        )
    packed = pack_samples(
        tmp_path / "packed", (Field("image", "image"), Field("points", "points")), samples
    )
    for transform in (
        [T.Resize(117, 151)],
        [T.CenterCrop(100)],
        [T.HorizontalFlip(1.0), T.Resize(60, 80)],
    ):
        batch = next(iter(DataLoader(packed, 8, transform=transform, backend=backend)))
        for image, points in zip(batch["image"], batch["points"], strict=True):
            for number, point in enumerate(points.tolist()):
                assert centroid(planes(image)[number]) == pytest.approx(tuple(point), abs=0.5)


def stored_as(upright: NDArray[np.uint8], orientation: int) -> NDArray[np.uint8]:
    """Returns the stored pixels of an upright image with this EXIF orientation."""
    undo = {
        1: None,
        2: Image.Transpose.FLIP_LEFT_RIGHT,
        3: Image.Transpose.ROTATE_180,
        4: Image.Transpose.FLIP_TOP_BOTTOM,
        5: Image.Transpose.TRANSPOSE,
        6: Image.Transpose.ROTATE_90,
        7: Image.Transpose.TRANSVERSE,
        8: Image.Transpose.ROTATE_270,
    }[orientation]
    image = Image.fromarray(upright)
    return np.asarray(image if undo is None else image.transpose(undo))


def test_matrices_of_other_shapes_are_rejected(tmp_path: Path) -> None:
    samples = [{"image": encoded(jpeg(spots(32, 32, [(10, 10)]))), "camera": np.eye(4)}]
    packed = pack_samples(
        tmp_path / "packed", (Field("image", "image"), Field("camera", "matrix")), samples
    )
    with pytest.raises(
        ValueError,
        match=r"field 'camera': matrices have shape \(4, 4\): expected \(3, 3\) or \(3, 4\)",
    ):
        next(iter(DataLoader(packed)))
    assert next(iter(DataLoader(packed, fields=("image",))))["image"].shape == (1, 3, 32, 32)


def test_a_mask_of_another_size_than_its_image_is_rejected(tmp_path: Path) -> None:
    samples = [
        {
            "image": encoded(jpeg(spots(32, 32, [(10, 10)]))),
            "mask": np.ones((32, 32 + 8 * (i == 2)), np.uint8),
        }
        for i in range(4)
    ]
    packed = pack_samples(
        tmp_path / "packed", (Field("image", "image"), Field("mask", "mask")), samples
    )
    with pytest.raises(
        ValueError,
        match=r"samples/002: sample 2 in .*, field 'mask': the mask is 40x32: expected .* 32x32",
    ):
        next(iter(DataLoader(packed, 4)))
    batch = next(iter(DataLoader(packed, 4, on_error="substitute", fields=("image", "mask", "id"))))
    assert batch["id"].tolist() == [0, 1, 0, 3]


def test_padding_of_masks_has_its_own_value(painted: Path) -> None:
    transform = [T.CenterCrop(200, fill=90, mask_fill=255)]
    batch = next(iter(DataLoader(painted, 2, transform=transform)))
    assert batch["mask"][0, 0, 0] == batch["fine"].int()[0, 0, 0] == 255
    assert batch["image"][0, :, 0, 0].tolist() == [90, 90, 90]
    with pytest.raises(ConfigError, match=r"mask_fill=256: expected at most 255, .* has 8 bits"):
        DataLoader(painted, 2, transform=[T.CenterCrop(200, mask_fill=256)])
    fine = next(
        iter(DataLoader(painted, 2, transform=[T.CenterCrop(200, mask_fill=513)], fields=("fine",)))
    )
    assert fine["fine"].int()[0, 0, 0] == 513
