"""The contact sheet of `fastload inspect`: positions of labels, lists of images, bad samples."""

from __future__ import annotations

import resource
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from fastload._order.permutation import Permutation
from fastload._store.dataset import Dataset, open_dataset
from fastload._store.fields import Field
from fastload._tools.inspect import sheet
from fastload._tools.inspect.drawing import color, font, shortened
from fastload._tools.inspect.sheet import SampleImages, write_sheet
from fastload.errors import ConfigError
from tests.packed_datasets import pack_samples, spoil_image

GRAY = np.full((80, 100, 3), 90, np.uint8)
Array = np.ndarray[Any, np.dtype[np.uint8]]


def one_sample(
    path: Path, fields: tuple[Field, ...], sample: dict[str, Any], **info: Any
) -> Dataset:
    return open_dataset(pack_samples(path / "packed", fields, [sample], info=info))


def rendered(dataset: Dataset, number: int = 0) -> Array:
    """Panel ``number`` of the first sample, enlarged twice."""
    panel = SampleImages(dataset, dataset[0]).panels()[number]
    assert panel.render is not None
    return np.asarray(panel.render((panel.size[0] * 2, panel.size[1] * 2)))


def page_of(path: Path) -> Array:
    with Image.open(path) as page:
        return np.asarray(page)


def near(pixel: Array, wanted: tuple[int, int, int], tolerance: int = 12) -> bool:
    return bool(np.abs(pixel.astype(int) - wanted).max() <= tolerance)


def test_boxes_have_the_color_and_the_name_of_their_class(tmp_path: Path) -> None:
    fields = (Field("image", "image"), Field("boxes", "boxes"), Field("labels", "array"))
    sample = {"image": GRAY, "boxes": np.array([[10, 30, 60, 70]]), "labels": np.array([1])}
    dataset = one_sample(
        tmp_path, fields, sample, categories=[{"id": 1, "name": "cat"}, {"id": 7, "name": "dog"}]
    )
    image = rendered(dataset)
    for y, x in (
        (100, 22),
        (100, 117),
        (62, 70),
        (137, 70),
    ):  # left, right, top and bottom edge, two pixels inside
        assert near(image[y, x], color(1)), (y, x, image[y, x])
    assert near(image[100, 70], (90, 90, 90)), "nothing inside"
    assert near(image[100, 150], (90, 90, 90)), "nothing outside"
    assert near(image[46, 22], color(1)), "the tag is on the upper edge"
    tag = image[44:60, 20:60]
    assert (tag.max(axis=2) < 80).any(), "the tag has dark letters"


def test_a_mask_is_translucent_and_zero_is_transparent(tmp_path: Path) -> None:
    mask = np.zeros((80, 100), np.uint8)
    mask[20:60, 30:70] = 3
    image = rendered(
        one_sample(
            tmp_path,
            (Field("image", "image"), Field("mask", "mask")),
            {"image": GRAY, "mask": mask},
        )
    )
    inside = image[80, 100].astype(int)
    assert not near(image[80, 100], (90, 90, 90))
    assert not near(image[80, 100], color(3)), "the image is visible through the mask"
    assert near(
        image[80, 100],
        tuple(int(v) for v in (90 + (np.array(color(3)) - 90) * 110 / 255)),  # type: ignore[arg-type]
        3,
    )
    assert near(image[10, 10], (90, 90, 90), 1)
    edge = np.abs(image[80, 60].astype(int) - color(3)).sum()
    assert edge < np.abs(inside - color(3)).sum(), "the edge is more opaque than the inside"


def test_points_and_polylines(tmp_path: Path) -> None:
    fields = (
        Field("image", "image"),
        Field("corners", "points"),
        Field("lanes", "points", list=True),
    )
    sample = {
        "image": GRAY,
        "corners": np.array([[20, 10], [np.nan, 5]]),
        "lanes": [np.array([[5, 40], [95, 40]]), np.array([[5, 70, 1]])],
    }
    image = rendered(one_sample(tmp_path, fields, sample))
    assert near(image[20, 40], color(0)), "a point"
    assert near(image[80, 100], color(0)), "in the middle of the first line"
    assert near(image[140, 10], color(1), 40), "a line of one point is a dot"
    assert near(image[110, 100], (90, 90, 90))


def test_labels_far_outside_the_image_are_clipped(tmp_path: Path) -> None:
    fields = (Field("image", "image"), Field("boxes", "boxes"), Field("lanes", "points", list=True))
    boxes = np.array([[-1e30, -5, 1e30, 40], [50, 50, 50, 50], [60, 60, 20, 20]])
    sample = {"image": GRAY, "boxes": boxes, "lanes": [np.array([[1e20, 3], [4, -1e20]])]}
    assert rendered(one_sample(tmp_path, fields, sample)).shape == (160, 200, 3)
    lanes = [np.array([[5, 30], [1e12, 30]]), np.array([[5, 50], [np.nan, 60], [95, 50]])]
    image = rendered(one_sample(tmp_path / "lanes", fields, {"image": GRAY, "lanes": lanes}))
    assert near(image[60, 190], color(0)), (
        "a line that leaves the image on the right is drawn to its edge"
    )
    assert near(image[100, 100], color(1)), "a point with NaN is skipped"


def test_images_of_a_list_are_side_by_side_with_their_own_labels(tmp_path: Path) -> None:
    fields = (
        Field("cameras", "image", list=True),
        Field("boxes", "boxes", list=True),
        Field("bev", "mask"),
    )
    boxes = [np.zeros((0, 4)), np.array([[10, 30, 60, 70]])]
    sample = {"cameras": [GRAY, GRAY], "boxes": boxes, "bev": np.ones((50, 50), np.uint8)}
    dataset = one_sample(tmp_path, fields, sample, cameras=["FRONT", "BACK"])
    panels = SampleImages(dataset, dataset[0]).panels()
    assert [(panel.size, panel.note) for panel in panels] == [
        ((100, 80), "FRONT"),
        ((100, 80), "BACK"),
        ((50, 50), "bev"),
    ]
    assert near(rendered(dataset, 0)[100, 22], (90, 90, 90))
    assert near(rendered(dataset, 1)[100, 22], color(0))
    assert write_sheet(dataset, tmp_path / "sheet.png") == 1
    assert page_of(tmp_path / "sheet.png").shape[1] > 3 * 200


def test_the_title_starts_with_class_names(tmp_path: Path) -> None:
    fields = (
        Field("count", "int"),
        Field("text", "str"),
        Field("label", "int", classes=("cat", "dog")),
        Field("score", "float"),
        Field("split", "int", classes=("train",)),
    )
    dataset = one_sample(
        tmp_path, fields, {"count": 3, "text": "hello", "label": 1, "score": 0.123456, "split": 0}
    )
    images = SampleImages(dataset, dataset[0])
    assert images.title() == "dog  ·  count 3  ·  text hello"
    assert images.panels() == []
    assert write_sheet(dataset, tmp_path / "no-images.png") == 1


def test_the_same_seed_shows_the_same_samples(packed_folder: Path, tmp_path: Path) -> None:
    sheets = []
    for name, seed in (("a", 1), ("b", 1), ("c", 2)):
        assert (
            write_sheet(open_dataset(packed_folder), tmp_path / f"{name}.png", seed=seed, count=6)
            == 6
        )
        sheets.append(
            page_of(tmp_path / f"{name}.png")[92:].tobytes()
        )  # below the line with the seed
    assert sheets[0] == sheets[1] != sheets[2]
    assert write_sheet(open_dataset(packed_folder), tmp_path / "all.jpg", count=1000) == 40


def test_the_sheet_contains_the_pixels_of_all_images(tmp_path: Path) -> None:
    colors = [(200, 30, 30), (30, 200, 30), (30, 30, 200)]
    samples = [{"image": np.full((80, 100, 3), tint, np.uint8)} for tint in colors]
    path = pack_samples(tmp_path / "packed", (Field("image", "image"),), samples)
    write_sheet(open_dataset(path), tmp_path / "sheet.png")
    page = page_of(tmp_path / "sheet.png")
    for tint in colors:
        assert (page == tint).all(axis=2).sum() > 200 * 200
    gray16 = pack_samples(
        tmp_path / "small", (Field("image", "image"),), [{"image": np.full((4, 4), 77, np.uint8)}]
    )
    write_sheet(open_dataset(gray16), tmp_path / "small.png")
    assert (page_of(tmp_path / "small.png") == 77).all(axis=2).sum() > 150 * 150, (
        "small images are enlarged"
    )


def test_a_damaged_sample_changes_only_its_own_cell(packed_folder: Path, tmp_path: Path) -> None:
    path = Path(shutil.copytree(packed_folder, tmp_path / "packed"))
    spoil_image(path, 5)
    assert write_sheet(open_dataset(path), tmp_path / "sheet.png", count=40) == 40
    damaged = page_of(tmp_path / "sheet.png")
    assert write_sheet(open_dataset(packed_folder), tmp_path / "good.png", count=40) == 40
    good = page_of(tmp_path / "good.png")
    assert good.shape == damaged.shape
    ids = Permutation(40, seed=0)(np.arange(40)).tolist()
    dataset = open_dataset(packed_folder)
    grid = sheet._Grid.of([sheet._cell(dataset, number) for number in ids])
    x, y = grid.corner(ids.index(5))
    differs = (good != damaged).any(axis=2)
    differs[: sheet._HEAD] = False  # the head shows the path, which differs
    cell = differs[y : y + grid.cell[1], x : x + grid.cell[0]]
    assert cell.sum() == differs.sum(), "all other cells are identical"
    assert cell[: sheet._TALL].mean() > 0.5, "the image is replaced by the reason"
    assert cell[sheet._TALL :].any(), "the title is replaced by DAMAGED"


def test_a_sheet_that_cannot_be_written_leaves_nothing(packed_folder: Path, tmp_path: Path) -> None:
    dataset = open_dataset(packed_folder)
    (tmp_path / "folder.png").mkdir()
    for path in (
        tmp_path / "no/folder/a.png",
        tmp_path / "folder.png",
        tmp_path / "a.txt",
        Path("/proc/a.png"),
    ):
        with pytest.raises(ConfigError, match="--sheet"):
            write_sheet(dataset, path, count=2)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, hard))  # behaves like a full disk
    try:
        with pytest.raises(ConfigError, match="cannot write it: File too large"):
            write_sheet(dataset, tmp_path / "large.png", count=2)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert [path.name for path in tmp_path.iterdir()] == ["folder.png"]
    assert write_sheet(dataset, tmp_path / "a.png", count=2) == 2


def test_long_text_is_cut_in_the_middle() -> None:
    letters = font(12)
    assert shortened("short", letters, 100) == "short"
    cut = shortened("images/training/segment-000000/150723473700000.jpg", letters, 120)
    assert cut.startswith("images")
    assert cut.endswith(".jpg")
    assert "..." in cut
    assert letters.getlength(cut) <= 120
    assert len({color(i) for i in range(100)}) == 100
