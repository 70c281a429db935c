"""nuScenes: six cameras per sample, their calibration, and optional bird's-eye-view masks.

Reads the original tables (``v1.0-*/sample.json``, ``sample_data.json``,
``calibrated_sensor.json``, ``sensor.json``, ``scene.json``) and a simple index, ``samples.json``
(see docs/sources.md).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fastload._pack.files import as_path, open_inside
from fastload._pack.sources.base import Info, Json, Ref, Sample, Value, read_image
from fastload._pack.sources.jsontext import JsonStream, config_errors
from fastload._pack.sources.numbers import float_array, int_value, rigid
from fastload._store.fields import Field
from fastload.errors import BadImage, ConfigError

# Clockwise from the front. Other cameras follow in sorted order.
CAMERAS = (
    "CAM_FRONT",
    "CAM_FRONT_RIGHT",
    "CAM_BACK_RIGHT",
    "CAM_BACK",
    "CAM_BACK_LEFT",
    "CAM_FRONT_LEFT",
)


@dataclass(frozen=True, slots=True)
class Camera:
    """One image and the calibration of its camera."""

    file: str
    intrinsic: NDArray[np.floating]  # 3 x 3
    to_ego: NDArray[np.floating]  # 4 x 4


@dataclass(frozen=True, slots=True)
class Frame:
    """All cameras at one time."""

    token: str
    timestamp: int
    scene: str
    bev: str = ""
    cameras: dict[str, Camera] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Rig:
    """All frames, their cameras, and the classes of the bird's-eye-view mask."""

    frames: tuple[Frame, ...]
    cameras: tuple[str, ...]
    classes: tuple[str, ...] = ()


class NuScenesSource:
    """Reads six images per sample in the order of ``info["cameras"]``.

    ``intrinsics`` (3 x 3) are transformed with their image. ``sensor2ego`` (4 x 4) is an array, so
    no crop changes it. ``bev_mask`` belongs to all six cameras, so no crop of a camera changes it.

    Args:
        root: Folder of the dataset.
        version: Which tables, e.g. ``v1.0-trainval``. Default: the only version.
        scenes: Names of the scenes to read. The official splits are lists of names. Default: all.
        bev: Folder with TOKEN.png masks for the original tables, which have none.
    """

    name = "nuscenes"
    thread_safe = True

    def __init__(
        self, root: str | Path, *, version: str = "", scenes: Sequence[str] = (), bev: str = "bev"
    ) -> None:
        self.root = as_path(root)
        with config_errors():
            self._rig = self._read(version, frozenset(scenes))
        self._bev = bev if (self.root / bev).is_dir() else ""
        self._order = {frame.token: place for place, frame in enumerate(self._rig.frames)}
        has_bev = bool(self._bev) or any(frame.bev for frame in self._rig.frames)
        self.fields = (
            Field("images", "image", list=True),
            Field("intrinsics", "matrix", list=True, image="images"),
            Field("sensor2ego", "array", list=True),
            Field("token", "str"),
            Field("scene", "str"),
            Field("timestamp", "int"),
            *([Field("bev_mask", "mask")] if has_bev else []),
        )
        self.info: Info = {
            "cameras": [*self._rig.cameras],
            **({"bev_classes": [*self._rig.classes]} if self._rig.classes else {}),
        }

    def refs(self) -> Iterator[Ref]:
        """Yields the sample tokens in table order."""
        yield from self._order

    def load(self, ref: Ref) -> Sample:
        """Loads all cameras of one sample."""
        if ref not in self._order:
            raise ConfigError(
                f"{self.root}: no sample {ref!r:.60}. The tables differ from the listed ones"
            )
        frame = self._rig.frames[self._order[str(ref)]]
        named_in = f"sample {frame.token}"
        for name in self._rig.cameras:
            if name not in frame.cameras:
                raise BadImage(f"no image of camera {name}", source=named_in)
        cameras = [frame.cameras[name] for name in self._rig.cameras]
        images = [read_image(self.root, camera.file, named_in) for camera in cameras]
        values: dict[str, Value] = {
            "images": images,
            "intrinsics": [camera.intrinsic for camera in cameras],
            "sensor2ego": [camera.to_ego for camera in cameras],
            "token": frame.token,
            "scene": frame.scene,
            "timestamp": frame.timestamp,
        }
        if mask := frame.bev or (f"{self._bev}/{frame.token}.png" if self._bev else ""):
            values["bev_mask"] = read_image(self.root, mask, named_in)
        return Sample(values, source=images[0].name)

    def _read(self, version: str, scenes: frozenset[str]) -> Rig:
        versions = sorted(table.parent.name for table in self.root.glob("v1.0-*/sample.json"))
        if version or versions:
            if version not in versions and (version or len(versions) > 1):
                raise ConfigError(
                    f"{self.root}: found tables of {', '.join(versions) or 'no version'}. "
                    "Choose one with --nuscenes-version"
                )
            rig = read_tables(self.root, version or versions[0])
        else:
            rig = read_index(self.root, "samples.json")
        if scenes:
            rig = replace(rig, frames=tuple(each for each in rig.frames if each.scene in scenes))
        if not rig.frames or not rig.cameras:
            raise ConfigError(
                f"{self.root}: no sample with a camera in "
                f"{', '.join(sorted(scenes)) or 'any scene'}"
            )
        return rig


def looks_like(root: Path) -> str:
    """Returns why the path is nuScenes, or an empty string."""
    if any(root.glob("v1.0-*/sample.json")):
        return "nuScenes tables (v1.0-*)"
    try:
        with open_inside(root, "samples.json") as file:
            has_cameras = b'"cams"' in file.read(1 << 16)
    except (BadImage, OSError):
        return ""
    return "an index of cameras (samples.json)" if has_cameras else ""


def read_tables(root: Path, version: str) -> Rig:
    """Reads the original tables.

    sample_data.json (a gigabyte for trainval) is streamed. Only key frames of cameras are kept.
    """

    def table(name: str) -> Iterator[tuple[dict[str, Json], str]]:
        return _rows(root, f"{version}/{name}.json", key="")

    channels = {
        _text(row, "token", at): _text(row, "channel", at)
        for row, at in table("sensor")
        if row.get("modality") == "camera"
    }
    calibrated: dict[str, tuple[str, Camera]] = {}  # with the channel
    for row, at in table("calibrated_sensor"):
        if (channel := channels.get(_text(row, "sensor_token", at))) is not None:
            to_ego = rigid(
                row.get("translation"), row.get("rotation"), what="sensor to ego", source=at
            )
            camera = Camera("", _matrix(row, "camera_intrinsic", 3, at), to_ego)
            calibrated[_text(row, "token", at)] = (channel, camera)
    scenes = {_text(row, "token", at): _text(row, "name", at) for row, at in table("scene")}
    listed = [
        Frame(
            _text(row, "token", at),
            int_value(row, "timestamp", at),
            scenes.get(_text(row, "scene_token", at), ""),
        )
        for row, at in table("sample")
    ]
    frames = {frame.token: frame for frame in listed}
    for row, at in table("sample_data"):
        token = _text(row, "calibrated_sensor_token", at)
        if row.get("is_key_frame") is True and token in calibrated:
            sample = _text(row, "sample_token", at)
            if sample not in frames:
                raise BadImage(f"sample {sample!r:.60} is not in sample.json", source=at)
            channel, camera = calibrated[token]
            frames[sample].cameras[channel] = replace(camera, file=_text(row, "filename", at))
    return Rig(tuple(frames.values()), _ordered({channel for channel, _ in calibrated.values()}))


def read_index(root: Path, name: str) -> Rig:
    """Reads the simple index.

    ``{"classes": [], "samples": [{"token", "timestamp", "scene", "cams", "bev_mask"}, ...]}``
    """
    frames: dict[str, Frame] = {}
    for row, at in _rows(root, name, key="samples"):
        token = _text(row, "token", at)
        cams = row.get("cams")
        if token in frames or not isinstance(cams, dict):
            raise BadImage(f"sample {token}: duplicate token, or no 'cams'", source=at)
        mask = row.get("bev_mask")
        frames[token] = Frame(
            token,
            int_value(row, "timestamp", at),
            _text(row, "scene", at),
            mask if isinstance(mask, str) else "",
            {camera: _camera(entry, f"{at}: {token}: {camera}") for camera, entry in cams.items()},
        )
    classes = tuple(str(each) for each in _values(root, name, key="classes"))
    seen = {camera for frame in frames.values() for camera in frame.cameras}
    return Rig(tuple(frames.values()), _ordered(seen), classes)


def _camera(entry: Json, where: str) -> Camera:
    if not isinstance(entry, dict):
        raise BadImage(f"expected an object, found {entry!r:.40}", source=where)
    return Camera(
        _text(entry, "filename", where),
        _matrix(entry, "camera_intrinsic", 3, where),
        _matrix(entry, "sensor2ego", 4, where),
    )


def _rows(root: Path, relative: str, *, key: str) -> Iterator[tuple[dict[str, Json], str]]:
    """Yields the objects of a table with the file name for messages."""
    for value in _values(root, relative, key=key):
        if not isinstance(value, dict):
            raise BadImage(f"expected objects, found {value!r:.40}", source=relative)
        yield value, relative


def _values(root: Path, relative: str, *, key: str) -> Iterator[Json]:
    with open_inside(root, relative) as file:
        for element in JsonStream(file, relative).elements():
            if element.key == key:
                yield element.value(relative)


def _ordered(found: set[str]) -> tuple[str, ...]:
    return (*(name for name in CAMERAS if name in found), *sorted(found - set(CAMERAS)))


def _matrix(row: dict[str, Json], key: str, side: int, source: str) -> NDArray[np.floating]:
    return float_array(row.get(key), shape=(side, side), what=key, source=source, dtype=np.float64)


def _text(row: dict[str, Json], key: str, source: str) -> str:
    value = row.get(key)
    if not isinstance(value, str):
        raise BadImage(f"{key}: expected a string, found {value!r:.40}", source=source)
    return value
