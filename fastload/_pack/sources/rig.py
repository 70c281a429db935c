"""Cameras around a car: nuScenes tables, or a simple index, into one list of frames."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fastload._pack.files import open_inside
from fastload._pack.sources.base import Json
from fastload._pack.sources.jsontext import JsonStream
from fastload._pack.sources.numbers import float_array, int_value, rigid
from fastload.errors import BadImage

# Clockwise from the front, as on the car; others follow, sorted.
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
    """One image and how its camera stands."""

    file: str
    intrinsic: NDArray[np.floating]  # 3 x 3
    to_ego: NDArray[np.floating]  # 4 x 4


@dataclass(frozen=True, slots=True)
class Frame:
    """One moment, all cameras."""

    token: str
    timestamp: int
    scene: str
    bev: str = ""
    cameras: dict[str, Camera] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Rig:
    """All frames, the cameras they have, and the classes of the bird's eye view mask."""

    frames: tuple[Frame, ...]
    cameras: tuple[str, ...]
    classes: tuple[str, ...] = ()

    def only(self, scenes: Collection[str]) -> Rig:
        """Without the frames of other scenes; all where none is named."""
        if not scenes:
            return self
        return replace(self, frames=tuple(each for each in self.frames if each.scene in scenes))


def read_tables(root: Path, version: str) -> Rig:
    """The real tables. sample_data.json (a gigabyte for trainval) is streamed; key frames of cameras are kept."""

    def table(name: str) -> Iterator[tuple[dict[str, Json], str]]:
        return _rows(root, f"{version}/{name}.json", key="")

    channels = {
        _text(row, "token", at): _text(row, "channel", at)
        for row, at in table("sensor")
        if row.get("modality") == "camera"
    }
    calibrated: dict[str, Camera] = {}
    names: dict[str, str] = {}
    for row, at in table("calibrated_sensor"):
        if (channel := channels.get(_text(row, "sensor_token", at))) is not None:
            token = _text(row, "token", at)
            names[token] = channel
            to_ego = rigid(
                row.get("translation"), row.get("rotation"), what="sensor to ego", source=at
            )
            calibrated[token] = Camera("", _matrix(row, "camera_intrinsic", 3, at), to_ego)
    scenes = {_text(row, "token", at): _text(row, "name", at) for row, at in table("scene")}
    frames: dict[str, Frame] = {}
    for row, at in table("sample"):
        token = _text(row, "token", at)
        frames[token] = Frame(
            token, int_value(row, "timestamp", at), scenes.get(_text(row, "scene_token", at), "")
        )
    for row, at in table("sample_data"):
        token = _text(row, "calibrated_sensor_token", at)
        if row.get("is_key_frame") is True and token in calibrated:
            sample = _text(row, "sample_token", at)
            if sample not in frames:
                raise BadImage(f"sample {sample!r:.60} is not in sample.json", source=at)
            frames[sample].cameras[names[token]] = replace(
                calibrated[token], file=_text(row, "filename", at)
            )
    return Rig(tuple(frames.values()), _ordered(set(names.values())))


def read_index(root: Path, name: str) -> Rig:
    """The simple index: ``{"classes": [], "samples": [{"token", "timestamp", "scene", "cams", "bev_mask"}, ...]}``."""
    frames: dict[str, Frame] = {}
    for row, at in _rows(root, name, key="samples"):
        token = _text(row, "token", at)
        cams = row.get("cams")
        if token in frames or not isinstance(cams, dict):
            raise BadImage(
                f"sample {token}: its token is used twice, or 'cams' is missing", source=at
            )
        cameras: dict[str, Camera] = {}
        for camera, entry in cams.items():
            where = f"{at}: {token}: {camera}"
            if not isinstance(entry, dict):
                raise BadImage(f"expected an object, found {entry!r:.40}", source=where)
            cameras[camera] = Camera(
                _text(entry, "filename", where),
                _matrix(entry, "camera_intrinsic", 3, where),
                _matrix(entry, "sensor2ego", 4, where),
            )
        mask = row.get("bev_mask")
        frames[token] = Frame(
            token,
            int_value(row, "timestamp", at),
            _text(row, "scene", at),
            mask if isinstance(mask, str) else "",
            cameras,
        )
    classes = tuple(str(each) for each in _values(root, name, key="classes"))
    seen = {camera for frame in frames.values() for camera in frame.cameras}
    return Rig(tuple(frames.values()), _ordered(seen), classes)


def _rows(root: Path, relative: str, *, key: str) -> Iterator[tuple[dict[str, Json], str]]:
    """The objects of a table, with the file's name for messages."""
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
        raise BadImage(f"{key}: expected a text, found {value!r:.40}", source=source)
    return value
