"""nuScenes: the six cameras of a sample, their calibration, and a bird's eye view mask where there is one.

Reads the real tables (``v1.0-*/sample.json``, ``sample_data.json``, ``calibrated_sensor.json``, ``sensor.json``,
``scene.json``) and a simple index, ``samples.json`` (see docs/sources.md).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from fastload._pack.sources.base import Info, Json, Ref, Sample, Value, read_image
from fastload._pack.sources.jsontext import config_errors
from fastload._pack.sources.rig import Camera, Frame, Rig, read_index, read_tables
from fastload._store.fields import Field
from fastload.errors import BadImage, ConfigError


class NuScenesSource:
    """Six images a sample, in the order of ``info["cameras"]``.

    ``intrinsics``: 3 x 3, moved with their image. ``sensor2ego``: 4 x 4, an array: no crop may change it. ``bev_mask``:
    a mask that is one for all six, so no camera's crop moves it.
    ``version``: which tables (``v1.0-trainval``). ``scenes``: only these, by name (the official splits are lists of
    names). ``bev``: folder with TOKEN.png masks, for the real tables, which have none.
    """

    name = "nuscenes"
    thread_safe = True

    def __init__(
        self, root: str | Path, *, version: str = "", scenes: Sequence[str] = (), bev: str = "bev"
    ) -> None:
        self.root = Path(root)
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
        cameras: list[Json] = list(self._rig.cameras)
        self.info: Info = {"cameras": cameras}
        if self._rig.classes:
            classes: list[Json] = list(self._rig.classes)
            self.info["bev_classes"] = classes

    def refs(self) -> Iterator[Ref]:
        """The tokens of the samples, in table order."""
        yield from self._order

    def load(self, ref: Ref) -> Sample:
        """One sample: all cameras, or BadImage."""
        if ref not in self._order:
            raise ConfigError(
                f"{self.root}: no sample {ref!r:.60}; the tables are not those that were listed"
            )
        frame = self._rig.frames[self._order[str(ref)]]
        cameras = [self._camera(frame, name) for name in self._rig.cameras]
        named_in = f"sample {frame.token}"
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

    def _camera(self, frame: Frame, name: str) -> Camera:
        if name not in frame.cameras:
            raise BadImage(f"no image of camera {name}", source=f"sample {frame.token}")
        return frame.cameras[name]

    def _read(self, version: str, scenes: frozenset[str]) -> Rig:
        versions = sorted(table.parent.name for table in self.root.glob("v1.0-*/sample.json"))
        if version or versions:
            if version not in versions and (version or len(versions) > 1):
                found = ", ".join(versions) or "no version"
                raise ConfigError(f"{self.root}: tables of {found}; choose one (--version NAME)")
            rig = read_tables(self.root, version or versions[0])
        else:
            rig = read_index(self.root, "samples.json")
        rig = rig.only(scenes)
        if not rig.frames or not rig.cameras:
            raise ConfigError(
                f"{self.root}: no sample with a camera in {', '.join(sorted(scenes)) or 'any scene'}"
            )
        return rig


def looks_like(root: Path) -> str:
    """Why this is nuScenes, or nothing."""
    if any(root.glob("v1.0-*/sample.json")):
        return "nuScenes tables (v1.0-*)"
    try:
        head = read_head(root / "samples.json")
    except OSError:
        return ""
    return "an index of cameras (samples.json)" if b'"cams"' in head else ""


def read_head(path: Path) -> bytes:
    """The first 64 KiB of a file the user's folder holds; regular files only."""
    if not path.is_file():
        return b""
    with path.open("rb") as file:
        return file.read(1 << 16)
