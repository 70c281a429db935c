"""OpenLane images and lane files become lines, points and matrices."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from fastload._pack.sources.openlane import OpenLaneSource
from fastload.errors import ConfigError
from tests.source_contract import outcome, put_image, samples_of
from tools.makedata import openlane

K = [[2000.0, 0, 960], [0, 2000.0, 640], [0, 0, 1]]
E = np.eye(4).tolist()


def _frame(root: Path, folder: str, name: str, **changes: object) -> None:
    """Writes one frame as in the published files: fewer points in uv than in xyz."""
    line = {
        "category": 2,
        "visibility": [1.0, 1.0, 0.0],
        "uv": [[10.5, 20], [30, 40]],
        "xyz": [[1, 2, 3], [4, 5, 6], [7, 8, 9]],
        "attribute": 3,
        "track_id": 11,
    }
    note = {
        "intrinsic": K,
        "extrinsic": E,
        "file_path": f"{name}.jpg",
        "lane_lines": [
            line,
            {"category": 21, "visibility": [], "uv": [[], []], "xyz": [[], [], []]},
        ],
        **changes,
    }
    path = root / folder / f"{name}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(note))
    put_image(root / "images" / f"{name}.jpg")


def test_published_layout_is_read(tmp_path: Path) -> None:
    _frame(tmp_path, "lane3d_1000", "training/segment-1/100")
    _frame(tmp_path, "lane3d_1000", "validation/segment-2/200", pose=E)
    _frame(
        tmp_path,
        "lane3d_1000",
        "test/curve_case/segment-2/200",
        file_path="validation/segment-2/200.jpg",
    )
    source = OpenLaneSource(tmp_path)
    assert '"21": "right-curbside"' in json.dumps(source.info["lane_categories"])
    one, two = samples_of(source)
    assert (one.source, one.values["split"]) == ("images/training/segment-1/100.jpg", 0)
    assert (two.source, two.values["split"]) == ("images/validation/segment-2/200.jpg", 1)
    np.testing.assert_array_equal(one.values["lanes"][0], [[10.5, 30], [20, 40]])
    np.testing.assert_array_equal(one.values["lanes_xyz"][0], [[1, 4, 7], [2, 5, 8], [3, 6, 9]])
    np.testing.assert_array_equal(one.values["visibility"][0], [1, 1, 0])
    assert one.values["lanes"][1].shape == (0, 2)
    assert one.values["lanes_xyz"][1].shape == (0, 3)
    np.testing.assert_array_equal(one.values["categories"], [2, 21])
    np.testing.assert_array_equal(one.values["attributes"], [3, -1])
    np.testing.assert_array_equal(one.values["track_ids"], [11, -1])
    np.testing.assert_array_equal(one.values["intrinsic"], K)
    assert "pose" not in one.values
    np.testing.assert_array_equal(two.values["pose"], E)
    # Fields that a crop must change are points or matrices. Fields that it must not are arrays.
    kinds = {field.name: field.kind.name for field in source.fields}
    assert (kinds["lanes"], kinds["intrinsic"]) == ("points", "matrix")
    assert {kinds[name] for name in ("lanes_xyz", "extrinsic", "pose")} == {"array"}


def test_splits_and_folders_are_found(tmp_path: Path) -> None:
    _frame(tmp_path, "lane3d_1000", "training/s/1")
    _frame(tmp_path, "lane3d_1000", "validation/s/2")
    _frame(tmp_path, "lane3d_1000", "test/night_case/s/2", file_path="validation/s/2.jpg")
    _frame(tmp_path, "lane3d_300", "training/s/1")
    with pytest.raises(
        ConfigError,
        match=r"lane files in lane3d_1000 and lane3d_300\. Choose with --annotations NAME",
    ):
        OpenLaneSource(tmp_path)
    assert len(samples_of(OpenLaneSource(tmp_path, annotations="lane3d_300"))) == 1
    night = OpenLaneSource(tmp_path, annotations="lane3d_1000", split="test/night_case")
    assert [sample.source for sample in samples_of(night)] == ["images/validation/s/2.jpg"]
    with pytest.raises(ConfigError, match=r"no folder lane3d_300/validation with lane files"):
        OpenLaneSource(tmp_path, annotations="lane3d_300", split="validation")
    (tmp_path / "lane3d_300" / "validation").mkdir()
    with pytest.raises(ConfigError, match=r"no \.json file in validation"):
        list(OpenLaneSource(tmp_path, annotations="lane3d_300", split="validation").refs())


def test_folder_without_splits_is_read(tmp_path: Path) -> None:
    _frame(tmp_path, "annotations", "a/1")
    source = OpenLaneSource(tmp_path)
    assert "split" not in {field.name for field in source.fields}
    assert len(samples_of(source)) == 1


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"intrinsic": [[1, 2], [3, 4]]}, "intrinsic: expected 3 x 3 numbers, found 2 x 2"),
        ({"extrinsic": None}, "extrinsic: expected 4 x 4"),
        ({"lane_lines": 5}, "expected 'lane_lines'"),
        ({"file_path": None}, "'file_path'"),
        ({"lane_lines": [7]}, "lane line 0: expected an object"),
        (
            {"lane_lines": [{"uv": [[1, 2]], "xyz": []}]},
            "lane line 0: uv: expected 2 x n numbers, found 1 x 2",
        ),
        (
            {"lane_lines": [{"uv": [[1], [2]], "xyz": [[1], [2], [None]]}]},
            "lane line 0: xyz: expected finite numbers, found NaN, infinity or null",
        ),
        ({"lane_lines": [{"uv": [[1], [2, 3]], "xyz": []}]}, "lane line 0: uv: expected numbers"),
        (
            {"lane_lines": [{"uv": [[1], [2]], "xyz": [[1], [2], [3]], "category": 1.5}]},
            "category: expected a list of integers",
        ),
        (
            {"file_path": "training/s/gone.jpg"},
            "or deleted since it was listed (named in annotations/training/s/1.json)",
        ),
    ],
)
def test_bad_frames_are_reported(tmp_path: Path, changes: dict[str, object], message: str) -> None:
    _frame(tmp_path, "annotations", "training/s/1", **changes)
    _frame(tmp_path, "annotations", "training/s/2")
    good, bad = outcome(OpenLaneSource(tmp_path))
    assert [sample.source for sample in good] == ["images/training/s/2.jpg"]
    assert message in bad[0]


def test_broken_json_is_reported_with_line_and_column(tmp_path: Path) -> None:
    _frame(tmp_path, "annotations", "training/s/1")
    (tmp_path / "annotations" / "training" / "s" / "0.json").write_text('{"lane_lines":\n [}')
    good, bad = outcome(OpenLaneSource(tmp_path))
    assert len(good) == 1
    assert bad[0].startswith("annotations/training/s/0.json: broken JSON at line 2, column 3: ")


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root: Path = tmp_path_factory.mktemp("openlane")
    openlane.make(root / "d", n=1)
    return root / "d"


def test_generated_3d_lanes_project_onto_2d_lanes(made: Path) -> None:
    (sample,) = samples_of(OpenLaneSource(made))
    assert len(sample.values["lanes"]) == len(sample.values["categories"]) > 2
    for uv, xyz in zip(sample.values["lanes"], sample.values["lanes_xyz"], strict=True):
        seen = np.stack([-xyz[:, 1], -xyz[:, 2], xyz[:, 0]])  # OpenLane's camera axis is x
        projected = sample.values["intrinsic"] @ seen
        np.testing.assert_allclose((projected[:2] / projected[2]).T, uv, atol=0.05, rtol=1e-4)
