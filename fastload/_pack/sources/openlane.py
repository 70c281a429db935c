"""OpenLane: images, and per image a JSON file with 3D lane lines and camera matrices.

``images/SPLIT/SEGMENT/TIME.jpg`` and ``lane3d_1000/SPLIT/SEGMENT/TIME.json`` (or
``lane3d_300``, or ``annotations``).
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fastload._pack.files import as_path, printable, raw_name, walk
from fastload._pack.sources.base import (
    Info,
    Json,
    Ref,
    Sample,
    Value,
    entry_refs,
    raise_if_refused,
    read_image,
    ref_path,
)
from fastload._pack.sources.jsontext import read_json_object
from fastload._pack.sources.numbers import float_array, int_array
from fastload._store.fields import Field
from fastload.errors import BadImage, ConfigError

FOLDERS = ("lane3d_1000", "lane3d_300", "annotations")
# lane3d_*/test/* repeats frames of validation and is read only on request.
SPLITS = ("training", "validation")
CATEGORIES = {
    1: "white-dash",
    2: "white-solid",
    3: "double-white-dash",
    4: "double-white-solid",
    5: "white-ldash-rsolid",
    6: "white-lsolid-rdash",
    7: "yellow-dash",
    8: "yellow-solid",
    9: "double-yellow-dash",
    10: "double-yellow-solid",
    11: "yellow-ldash-rsolid",
    12: "yellow-lsolid-rdash",
    20: "left-curbside",
    21: "right-curbside",
}
_KINDS = {
    "image": "image",
    "lanes": "points",
    "lanes_xyz": "array",
    "visibility": "array",
    "categories": "array",
    "attributes": "array",
    "track_ids": "array",
    "intrinsic": "matrix",
    "extrinsic": "array",
    "pose": "array",
}
_LISTS = ("lanes", "lanes_xyz", "visibility")
MAX_JSON_BYTES = 64 << 20


class OpenLaneSource:
    """Reads one front image with its lane lines per sample.

    ``lanes`` are the pixels (u, v) of each line and are transformed with the image. ``lanes_xyz``
    (3D points in camera coordinates), ``visibility`` and ``extrinsic`` are arrays, so no crop or
    flip changes them. ``categories``, ``attributes`` and ``track_ids`` have one number per line,
    -1 if missing.

    Args:
        root: Folder of the dataset.
        split: Read only this split, e.g. ``validation`` or ``test/curve_case``. Default: training
            and validation.
        annotations: Folder of the JSON files. Default: detected.
    """

    name = "openlane"
    thread_safe = True

    def __init__(self, root: str | Path, *, split: str = "", annotations: str = "") -> None:
        self.root = as_path(root)
        self.folder = annotations or _annotation_folder(self.root)
        self.splits = (
            (split,)
            if split
            else tuple(name for name in SPLITS if (self.root / self.folder / name).is_dir())
        )
        if (
            not all((self.root / self.folder / name).is_dir() for name in self.splits)
            or not self.folder
        ):
            wanted = Path(self.folder or " or ".join(FOLDERS), split)
            raise ConfigError(
                f"{self.root}: no folder {wanted} with lane files. Pass --annotations DIR or "
                "--split NAME"
            )
        self.fields = (
            *(Field(name, kind, list=name in _LISTS) for name, kind in _KINDS.items()),
            *([Field("split", "int", classes=self.splits)] if self.splits else []),
        )
        categories: dict[str, Json] = {str(number): name for number, name in CATEGORIES.items()}
        self.info: Info = {"lane_categories": categories}

    def refs(self) -> Iterator[Ref]:
        """Yields the JSON files relative to the root, split by split."""
        entries = (
            entry
            for split in self.splits or ("",)
            for entry in walk(self.root, below=f"{self.folder}/{split}".rstrip("/"))
            if entry.path.endswith(".json") or entry.folder
        )
        return entry_refs(
            entries,
            lambda: ConfigError(
                f"{self.root / self.folder}: no .json file in {', '.join(self.splits) or 'it'}"
            ),
        )

    def split_of(self, ref: Ref) -> int:
        """Returns the number of the split whose folder contains the file."""
        path = f"{ref_path(ref)}/"  # the ref of an unreadable folder may be the split itself
        return [path.startswith(f"{self.folder}/{split}/") for split in self.splits].index(True)

    def load(self, ref: Ref) -> Sample:
        raise_if_refused(ref)
        path = str(ref)
        note = read_json_object(self.root, raw_name(path), path, limit=MAX_JSON_BYTES)
        lines = note.get("lane_lines")
        file_path = note.get("file_path")
        if not isinstance(lines, list) or not isinstance(file_path, str):
            raise BadImage("expected 'lane_lines' (list) and 'file_path' (string)", source=path)
        values = _lane_values(lines, path)
        for name, shape in (("intrinsic", (3, 3)), ("extrinsic", (4, 4)), ("pose", (4, 4))):
            if name != "pose" or name in note:  # pose: from version 1.2 on
                values[name] = float_array(
                    note.get(name), shape=shape, what=name, source=path, dtype=np.float64
                )
        if self.splits:
            values["split"] = self.split_of(ref)
        image = read_image(self.root, f"images/{file_path}", f"named in {path}")
        return Sample({**values, "image": image}, source=image.name)


def looks_like(root: Path) -> str:
    """Returns why the path is OpenLane, or an empty string."""
    for folder in FOLDERS if (root / "images").is_dir() else ():
        if (root / folder).is_dir():
            first = next(
                (entry.path for entry in walk(root, below=folder) if entry.path.endswith(".json")),
                "",
            )
            if folder.startswith("lane3d") or (first and _has_lanes(root, first)):
                return f"images and lane files ({printable(first) or folder})"
    return ""


def _has_lanes(root: Path, path: str) -> bool:
    try:
        return "lane_lines" in read_json_object(root, path, path, limit=MAX_JSON_BYTES)
    except BadImage:
        return False


def _annotation_folder(root: Path) -> str:
    found = [name for name in FOLDERS if (root / name).is_dir()]
    if len(found) > 1:
        raise ConfigError(
            f"{root}: lane files in {' and '.join(found)}. Choose with --annotations NAME"
        )
    return found[0] if found else ""


def _lane_values(lines: list[Json], source: str) -> dict[str, Value]:
    objects = [line for line in lines if isinstance(line, dict)]
    if len(objects) < len(lines):
        i = next(i for i, line in enumerate(lines) if not isinstance(line, dict))
        raise BadImage(f"lane line {i}: expected an object, found {lines[i]!r:.40}", source=source)

    def arrays(key: str, shape: tuple[int | None, ...]) -> list[NDArray[np.generic]]:
        # The file stores a row of all u and a row of all v.
        return [
            np.ascontiguousarray(
                float_array(
                    line.get(key, [] if key == "visibility" else None),
                    shape=shape,
                    what=f"lane line {i}: {key}",
                    source=source,
                ).T
            )
            for i, line in enumerate(objects)
        ]

    def numbers(key: str) -> NDArray[np.int64]:
        return int_array(
            [line.get(key, -1) for line in objects], what=f"lane lines: {key}", source=source
        )

    return {
        "lanes": arrays("uv", (2, None)),
        "lanes_xyz": arrays("xyz", (3, None)),
        "visibility": arrays("visibility", (None,)),
        "categories": numbers("category"),
        "attributes": numbers("attribute"),
        "track_ids": numbers("track_id"),
    }
