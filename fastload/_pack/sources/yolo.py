"""YOLO detection: images, one text file of boxes per image, and a ``data.yaml`` with class names.

Two layouts are supported: ``images/[split/]NAME.jpg`` with ``labels/[split/]NAME.txt``
(Ultralytics), and ``split/images/NAME.jpg`` with ``split/labels/NAME.txt`` (Roboflow).
"""

from __future__ import annotations

import reprlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fastload._pack.files import as_path, is_image_name, raw_name, read_bounded, walk
from fastload._pack.pillow import upright_size
from fastload._pack.sources.base import (
    SPLITS,
    Encoded,
    Ref,
    Sample,
    Value,
    choose_splits,
    entry_refs,
    files_left_out,
    no_images,
    numbered_categories,
    raise_if_refused,
    ref_path,
    visible_folders,
    why_left_out,
)
from fastload._store.fields import Field
from fastload.errors import BadImage, ConfigError, MissingPart

_MAX_LABEL_BYTES = 4 << 20
_MAX_YAML_BYTES = 1 << 20
# PyYAML raises these for a value that does not fit its tag, such as 2001-99-99 or !!bool x.
_YAML_MISTAKES = (ValueError, KeyError, TypeError, AttributeError)
_LAST_CLASS = 2**31 - 1  # without a list of names
_TOLERANCE = 0.01  # of the image: rounding puts edges slightly outside


@dataclass(frozen=True, slots=True)
class _Split:
    name: str  # "" if the dataset has no splits
    images: str  # folder, raw and relative to the root
    labels: str


class YoloSource:
    """Images with boxes in pixels (x1 y1 x2 y2) and class numbers.

    An image without a label file has no boxes. A polygon (segmentation label) becomes its bounding
    box. Keypoints become a list of points, one entry per box.

    Args:
        path: Folder of the dataset, or its ``data.yaml``.
        split: Only this split. Default: all splits, with their number in the field ``split``.
        classes: Class names in the order of their numbers. Default: ``names`` in ``data.yaml``.
    """

    name = "yolo"
    thread_safe = True

    def __init__(self, path: str | Path, *, split: str = "", classes: Sequence[str] = ()) -> None:
        place = as_path(path)
        self.root = place.parent if place.is_file() else place
        config = _read_config(_config_file(place), needed=not classes)
        self.classes = tuple(classes) or _class_names(config)
        self._keypoint_shape = _keypoint_shape(config)
        found = _find_splits(self.root)
        if not found:
            raise ConfigError(
                f"{self.root}: no images and labels found. Expected images/ and labels/, or these "
                "two inside train/, val/ and test/"
            )
        names = choose_splits((each.name for each in found if each.name), split, self.root)
        self._splits = [each for each in found if not names or each.name in names]
        self.fields = (
            Field("image", "image"),
            Field("boxes", "boxes"),
            Field("labels", "array", along="boxes"),
            *(
                [Field("keypoints", "points", list=True, along="boxes")]
                if self._keypoint_shape
                else []
            ),
            *([Field("split", "int", classes=names)] if names else []),
        )
        self.info = numbered_categories(self.classes)

    def refs(self) -> Iterator[Ref]:
        """Yields the path of each image."""
        entries = (
            entry
            for split in self._splits
            for entry in walk(self.root, below=split.images)
            if not why_left_out(self.root, entry)
        )
        return entry_refs(entries, lambda: no_images(self.root, self._image_folders()))

    def left_out(self) -> Iterator[tuple[str, str]]:
        """Yields the printable path and the reason of each file that is not packed."""
        return files_left_out(self.root, self._image_folders())

    def _image_folders(self) -> list[str]:
        return [split.images for split in self._splits]

    def split_of(self, ref: Ref) -> int:
        """Returns the number of the split whose folder contains the image."""
        path = f"{raw_name(ref_path(ref))}/"  # an unreadable folder may be the split itself
        for number, each in enumerate(self._splits):
            if path.startswith(f"{each.images}/"):
                return number
        raise ConfigError(f"{self.root}: {ref!r:.60} is not a sample of this source")

    def load(self, ref: Ref) -> Sample:
        """Returns one image with its boxes."""
        raise_if_refused(ref)
        shown = str(ref)
        path = raw_name(shown)
        number = self.split_of(ref)
        split = self._splits[number]
        image = Encoded(read_bounded(self.root, path), shown)
        rows = self._label_rows(split, path)
        # Without a size the image cannot be decoded, and the packer reports the reason.
        size = (upright_size(image.data) if rows else None) or (1, 1)
        values: dict[str, Value] = {"image": image, **self._labels(rows, size, shown)}
        if split.name:
            values["split"] = number
        return Sample(values, source=shown)

    def _label_rows(self, split: _Split, path: str) -> list[list[str]]:
        """The words of each line in the label file of an image."""
        image = Path(split.labels, path.removeprefix(f"{split.images}/"))
        file = image.with_suffix(".txt").as_posix()
        if not Path(self.root, file).is_file() or not Path(self.root, file).stat().st_size:
            return []
        try:
            text = read_bounded(self.root, file, limit=_MAX_LABEL_BYTES).decode()
        except UnicodeDecodeError:
            raise BadImage("not UTF-8 text, expected one box per line", source=file) from None
        return [line.split() for line in text.splitlines() if line.strip()]

    def _labels(
        self, rows: list[list[str]], size: tuple[int, int], source: str
    ) -> dict[str, Value]:
        parsed = [self._parse_row(row, source) for row in rows]
        boxes = np.clip([box for _, box, _ in parsed], 0, 1).reshape(-1, 4)
        values: dict[str, Value] = {
            "boxes": (boxes * np.tile(size, 2)).astype(np.float32),
            "labels": np.asarray([number for number, _, _ in parsed], np.int64),
        }
        if self._keypoint_shape:
            scale = (*size, 1)[: self._keypoint_shape[1]]
            values["keypoints"] = [(points * scale).astype(np.float32) for _, _, points in parsed]
        return values

    def _parse_row(
        self, row: list[str], source: str
    ) -> tuple[int, NDArray[np.float64], NDArray[np.float64]]:
        """Class number, box and keypoints of a line, in shares of the image size."""
        shown = f"label line {' '.join(row)!r:.60}"
        try:
            number = int(row[0])
            values = np.array([float(word) for word in row[1:]])
        except ValueError:
            raise BadImage(f"{shown}: expected numbers", source=source) from None
        last = len(self.classes) - 1 if self.classes else _LAST_CLASS
        if not 0 <= number <= last:
            raise BadImage(f"{shown}: class {row[0]:.20}, expected 0 to {last}", source=source)
        points = np.empty((0, 2))
        if self._keypoint_shape:
            count, width = self._keypoint_shape
            if len(values) != 4 + count * width:
                raise BadImage(
                    f"{shown}: {len(row)} values, expected {5 + count * width} "
                    f"(a box and {count} keypoints of {width} values)",
                    source=source,
                )
            points = values[4:].reshape(count, width)
            values = values[:4]
        if len(values) != 4 and (len(values) < 6 or len(values) % 2):
            raise BadImage(
                f"{shown}: {len(row)} values, expected 5 (class, center x, center y, width, "
                "height) or a polygon",
                source=source,
            )
        if not ((values >= -_TOLERANCE) & (values <= 1 + _TOLERANCE)).all():
            raise BadImage(
                f"{shown}: expected coordinates between 0 and 1 (shares of the image size)",
                source=source,
            )
        if len(values) == 4:
            center = values[:2]
            half = values[2:] / 2
            corners = np.stack([center - half, center + half])
        else:
            corners = values.reshape(-1, 2)
        return number, np.concatenate([corners.min(axis=0), corners.max(axis=0)]), points


def looks_like(path: Path) -> str:
    """Why this is a YOLO dataset, or an empty string."""
    if path.is_file():
        return f"YOLO ({path.name} with names)" if _is_config(path) else ""
    for split in _find_splits(path):
        if next(Path(path, split.labels).rglob("*.txt"), None) is not None:
            return f"YOLO ({split.images} and {split.labels})"
    return ""


def _find_splits(root: Path) -> list[_Split]:
    if not root.is_dir():
        return []
    if (root / "images").is_dir() and (root / "labels").is_dir():
        inner = _folders(root / "images")
        mirrored = any((root / "labels" / name).is_dir() for name in inner)
        # Images next to the folders belong to no split: the folders are then not splits.
        if not mirrored or any(is_image_name(each.name) for each in (root / "images").iterdir()):
            return [_Split("", "images", "labels")]
        return [_Split(name, f"images/{name}", f"labels/{name}") for name in inner]
    names = [name for name in _folders(root) if (root / name / "images").is_dir()]
    # One labeled split is enough: a test split often has no labels.
    if not any((root / name / "labels").is_dir() for name in names):
        return []
    return [_Split(name, f"{name}/images", f"{name}/labels") for name in names]


def _folders(root: Path) -> list[str]:
    """Names of the visible subfolders: splits in the usual order first, then by name."""
    return sorted(
        visible_folders(root),
        key=lambda name: SPLITS.index(name) if name in SPLITS else len(SPLITS),
    )


def _config_file(place: Path) -> Path | None:
    if place.is_file():
        return place
    files = sorted(place.glob("*.yaml")) + sorted(place.glob("*.yml")) if place.is_dir() else []
    named = [file for file in files if _is_config(file)]
    if len(named) > 1:
        raise ConfigError(
            f"{place}: {', '.join(file.name for file in named)} all have names. "
            "Pass the path of one of them"
        )
    return named[0] if named else None


def _is_config(path: Path) -> bool:
    if path.suffix.lower() not in (".yaml", ".yml"):
        return False
    try:
        data = read_bounded(path.resolve().parent, path.resolve().name, limit=_MAX_YAML_BYTES)
    except BadImage:
        return False
    return any(line.startswith(b"names:") for line in data.splitlines())


def _read_config(path: Path | None, *, needed: bool) -> dict[str, Any]:
    if path is None:
        return {}
    try:
        import yaml
    except ImportError:
        if not needed:
            return {}
        raise MissingPart(
            f"reading {path} needs PyYAML. Run: pip install pyyaml, or pass the class names with "
            "--classes A,B,..."
        ) from None
    real = path.resolve()
    try:
        config = yaml.safe_load(read_bounded(real.parent, real.name, limit=_MAX_YAML_BYTES))
    except (BadImage, yaml.YAMLError, RecursionError, *_YAML_MISTAKES) as error:
        raise ConfigError(f"{path}: cannot be read as YAML: {error}") from None
    return config if isinstance(config, dict) else {}


def _class_names(config: dict[str, Any]) -> tuple[str, ...]:
    names = config.get("names", ())
    if isinstance(names, dict):
        if set(names) != set(range(len(names))):
            raise ConfigError(f"data.yaml: names: expected the keys 0 to {len(names) - 1}")
        names = [names[number] for number in range(len(names))]
    if not isinstance(names, (list, tuple)):
        raise ConfigError(f"data.yaml: names={reprlib.repr(names)}: expected a list or a mapping")
    # A list of aliases of lists of aliases is short in the file and endless as text.
    nested = next((each for each in names if isinstance(each, (list, tuple, dict, set))), None)
    if nested is not None:
        raise ConfigError(f"data.yaml: names: {reprlib.repr(nested)}: expected a name")
    return tuple(map(str, names))


def _keypoint_shape(config: dict[str, Any]) -> tuple[int, int] | None:
    match config.get("kpt_shape"):
        case None:
            return None
        case [int(count), (2 | 3) as width] if count > 0:
            return count, width
        case other:
            raise ConfigError(
                f"data.yaml: kpt_shape={reprlib.repr(other)}: expected [count, 2 or 3]"
            )
