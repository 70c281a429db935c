"""nuScenes tables and the simple index become samples with six cameras."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fastload._pack.sources.numbers import rigid
from fastload._pack.sources.nuscenes import CAMERAS, NuScenesSource
from fastload._store.fields import Field
from fastload.errors import ConfigError
from tests.source_contract import outcome, put_image, samples_of
from tools.makedata import nuscenes

K = [[1266.0, 0, 816], [0, 1266.0, 491], [0, 0, 1]]
TURN = [0.5, -0.5, 0.5, -0.5]  # w x y z: camera z (ahead) to ego x, camera x (right) to ego -y
Tables = dict[str, list[dict[str, Any]]]


def _tables(root: Path, *, n: int = 2) -> Tables:
    """Returns tables like the original ones, with rows of a lidar and of sweeps to ignore."""
    tables: Tables = {
        name: [] for name in ("sensor", "calibrated_sensor", "scene", "sample", "sample_data")
    }
    tables["scene"] = [
        {"token": "sc0", "name": "scene-0001"},
        {"token": "sc1", "name": "scene-0002"},
    ]
    for name in (*CAMERAS, "LIDAR_TOP"):
        camera = name.startswith("CAM")
        tables["sensor"].append(
            {"token": f"s{name}", "channel": name, "modality": "camera" if camera else "lidar"}
        )
        tables["calibrated_sensor"].append(
            {
                "token": f"c{name}",
                "sensor_token": f"s{name}",
                "translation": [1.7, 0, 1.5],
                "rotation": TURN,
                "camera_intrinsic": K if camera else [],
            }
        )
    for i in range(n):
        tables["sample"].append(
            {"token": f"t{i}", "timestamp": 1533151603500000 + i, "scene_token": f"sc{i % 2}"}
        )
        for j, name in enumerate(reversed((*CAMERAS, "LIDAR_TOP"))):
            file = f"samples/{name}/{i}.jpg"
            tables["sample_data"].append(
                {
                    "token": f"d{i}{j}",
                    "sample_token": f"t{i}",
                    "calibrated_sensor_token": f"c{name}",
                    "filename": file,
                    "is_key_frame": True,
                }
            )
            tables["sample_data"].append(
                {
                    "token": f"w{i}{j}",
                    "sample_token": f"t{i}",
                    "calibrated_sensor_token": f"c{name}",
                    "filename": f"sweeps/{name}/{i}.jpg",
                    "is_key_frame": False,
                }
            )
            put_image(root / file, i * 10 + j)
    return tables


def _write(root: Path, tables: Tables, version: str = "v1.0-mini") -> Path:
    (root / version).mkdir(exist_ok=True)
    for name, rows in tables.items():
        (root / version / f"{name}.json").write_text(json.dumps(rows, indent=0))
    return root


def test_original_tables_are_read(tmp_path: Path) -> None:
    source = NuScenesSource(_write(tmp_path, _tables(tmp_path)))
    assert source.fields[:2] == (
        Field("images", "image", list=True),
        Field("intrinsics", "matrix", list=True, image="images"),
    )
    assert source.info == {"cameras": list(CAMERAS)}
    one, two = samples_of(source)
    assert [image.name for image in one.values["images"]] == [
        f"samples/{name}/0.jpg" for name in CAMERAS
    ]
    assert one.values["images"][3].data == (tmp_path / "samples/CAM_BACK/0.jpg").read_bytes()
    assert (one.source, one.values["token"], one.values["scene"], one.values["timestamp"]) == (
        "samples/CAM_FRONT/0.jpg",
        "t0",
        "scene-0001",
        1533151603500000,
    )
    assert two.values["scene"] == "scene-0002"
    np.testing.assert_array_equal(one.values["intrinsics"][0], K)
    expected = np.array([[0, 0, 1, 1.7], [-1, 0, 0, 0], [0, -1, 0, 1.5], [0, 0, 0, 1]])
    np.testing.assert_allclose(one.values["sensor2ego"][0], expected, atol=1e-12)
    assert "bev_mask" not in one.values


def test_quaternions_become_rotation_matrices() -> None:
    rng = np.random.default_rng(0)
    for _ in range(20):
        quaternion = rng.normal(size=4)
        matrix = rigid([1, 2, 3], quaternion / np.linalg.norm(quaternion), what="x", source="x")
        np.testing.assert_allclose(matrix[:3, :3] @ matrix[:3, :3].T, np.eye(3), atol=1e-12)
        assert np.linalg.det(matrix[:3, :3]) == pytest.approx(1)
    half = np.sqrt(0.5)  # 90 degrees about z takes x to y
    np.testing.assert_allclose(
        rigid([0, 0, 0], [half, 0, 0, half], what="x", source="x")[:3, :3] @ [1, 0, 0],
        [0, 1, 0],
        atol=1e-12,
    )


def test_scenes_versions_and_masks(tmp_path: Path) -> None:
    root = _write(tmp_path, _tables(tmp_path))
    assert [
        sample.values["token"] for sample in samples_of(NuScenesSource(root, scenes=["scene-0002"]))
    ] == ["t1"]
    with pytest.raises(ConfigError, match="no sample with a camera in scene-9"):
        NuScenesSource(root, scenes=["scene-9"])
    for token in ("t0", "t1"):
        put_image(root / "bev" / f"{token}.png", mode="L")
    assert samples_of(NuScenesSource(root))[1].values["bev_mask"].name == "bev/t1.png"
    _write(root, _tables(root), "v1.0-trainval")
    with pytest.raises(
        ConfigError,
        match=r"tables of v1\.0-mini, v1\.0-trainval\. Choose one with --nuscenes-version",
    ):
        NuScenesSource(root)
    assert len(samples_of(NuScenesSource(root, version="v1.0-mini"))) == 2
    with pytest.raises(ConfigError, match="Choose one"):
        NuScenesSource(root, version="v2.0")


def test_a_missing_camera_or_image_is_a_bad_sample(tmp_path: Path) -> None:
    tables = _tables(tmp_path, n=3)
    tables["sample_data"] = [
        row for row in tables["sample_data"] if row["filename"] != "samples/CAM_BACK/0.jpg"
    ]
    (tmp_path / "samples/CAM_FRONT_LEFT/1.jpg").unlink()
    good, bad = outcome(NuScenesSource(_write(tmp_path, tables)))
    assert [sample.values["token"] for sample in good] == ["t2"]
    assert bad[0] == "sample t0: no image of camera CAM_BACK"
    assert bad[1].startswith("samples/CAM_FRONT_LEFT/1.jpg: no such file")
    assert bad[1].endswith("(sample t1)")


@pytest.mark.parametrize(
    ("table", "change", "message"),
    [
        (
            "calibrated_sensor",
            {"camera_intrinsic": []},
            "calibrated_sensor.json: camera_intrinsic: expected 3 x 3",
        ),
        ("calibrated_sensor", {"rotation": [0, 0, 0, 0]}, "expected a unit quaternion"),
        (
            "sample_data",
            {"sample_token": "nowhere"},
            "sample_data.json: sample 'nowhere' is not in sample.json",
        ),
        ("sample_data", {"filename": 5}, "sample_data.json: filename: expected a string, found 5"),
        ("sample", {"timestamp": 1.5}, "sample.json: timestamp: expected an integer"),
    ],
)
def test_invalid_tables_are_refused(
    tmp_path: Path, table: str, change: dict[str, object], message: str
) -> None:
    tables = _tables(tmp_path)
    row = next(row for row in tables[table] if "LIDAR" not in json.dumps(row))
    row.update(change)
    with pytest.raises(ConfigError, match=message):
        NuScenesSource(_write(tmp_path, tables))


def test_missing_or_broken_table_is_refused(tmp_path: Path) -> None:
    root = _write(tmp_path, _tables(tmp_path))
    (root / "v1.0-mini" / "scene.json").write_text('[{"token": "sc0",\n "name": }]')
    with pytest.raises(
        ConfigError, match=r"v1\.0-mini/scene\.json: broken JSON at line 2, column 10"
    ):
        NuScenesSource(root)
    (root / "v1.0-mini" / "scene.json").unlink()
    with pytest.raises(ConfigError, match=r"v1\.0-mini/scene\.json: no such file"):
        NuScenesSource(root)


def test_generated_data_is_read(tmp_path: Path) -> None:
    nuscenes.make(tmp_path / "d", n=1)
    source = NuScenesSource(tmp_path / "d")
    assert source.info == {"cameras": list(CAMERAS), "bev_classes": list(nuscenes.CLASSES)}
    (sample,) = samples_of(source)
    assert len(sample.values["images"]) == 6
    assert sample.values["bev_mask"].name.startswith("bev/")
    for name, matrix in zip(CAMERAS, sample.values["sensor2ego"], strict=True):
        ahead = matrix[:3, 2]  # the viewing direction in the frame of the car
        assert (ahead[0] > 0) == ("FRONT" in name)
    with pytest.raises(ConfigError, match="The tables differ from the listed ones"):
        source.load("another token")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"cams": None}, "no 'cams'"),
        ({"cams": {"CAM_FRONT": 3}}, "CAM_FRONT: expected an object"),
        (
            {"cams": {"CAM_FRONT": {"filename": "a.jpg", "camera_intrinsic": K}}},
            "sensor2ego: expected 4 x 4",
        ),
        ({"token": 3}, "token: expected a string"),
    ],
)
def test_invalid_index_is_refused(tmp_path: Path, change: dict[str, object], message: str) -> None:
    camera = {"filename": "a.jpg", "camera_intrinsic": K, "sensor2ego": np.eye(4).tolist()}
    sample = {
        "token": "t",
        "timestamp": 1,
        "scene": "s",
        "cams": {"CAM_FRONT": camera, "CAM_X": camera},
    }
    put_image(tmp_path / "a.jpg")
    (tmp_path / "samples.json").write_text(json.dumps({"samples": [{**sample, **change}]}))
    with pytest.raises(ConfigError, match=message):
        NuScenesSource(tmp_path)
    (tmp_path / "samples.json").write_text(json.dumps({"samples": [sample]}))
    source = NuScenesSource(tmp_path)
    assert source.info == {"cameras": ["CAM_FRONT", "CAM_X"]}
    assert len(samples_of(source)) == 1
