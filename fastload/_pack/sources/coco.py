"""COCO detection: a JSON file with images, annotations and categories, and a folder of images.

The file is indexed and not kept in memory. Annotations are read again when their image is loaded.
The index takes about 20 bytes per annotation, while a fully parsed train2017 takes gigabytes.
"""

from __future__ import annotations

import array
import contextlib
import functools
import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fastload._pack.files import (
    as_path,
    file_stamp,
    open_inside,
    printable,
    printable_or_repr,
    read_bounded,
    real_path,
    resolve_inside,
)
from fastload._pack.pillow import upright_size
from fastload._pack.sources.base import Encoded, Info, Json, Ref, Sample, Value
from fastload._pack.sources.jsontext import Element, JsonStream, config_errors, parse_json
from fastload._pack.sources.numbers import float_array, int_value
from fastload._pack.sources.outlines import instance_mask
from fastload._store.fields import Field
from fastload.errors import BadImage, ConfigError

_PATTERNS = (
    "annotations/instances_*.json",
    "annotations/*.json",
    "*/_annotations.coco.json",
    "*.json",
)


class CocoSource:
    """Reads images with boxes (x1 y1 x2 y2), labels and more, including images without annotations.

    Labels number the categories in the order of their ids. ``info["categories"]`` has ids and names
    in that order.

    Args:
        path: Annotation file, or a folder that contains it.
        split: Which annotation file of a folder, e.g. ``train2017`` for
            ``annotations/instances_train2017.json``.
        images: Folder of the images. Default: searched in the usual places.
        masks: Whether to add a mask of instance numbers.
    """

    name = "coco"
    thread_safe = True

    def __init__(
        self, path: str | Path, *, split: str = "", images: str | Path = "", masks: bool = False
    ) -> None:
        self.path = _annotation_file(as_path(path), split)
        self.masks = masks
        self._real = self.path.resolve()  # the user passed this path, so links may lead anywhere
        self._name = printable(self.path.name)
        self._stamp, self._index = self._scan()
        self.root = as_path(images, like=self.path) if images else self._find_images(as_path(path))
        per_box = ("labels", "iscrowd", "area", "annotation_ids")
        self.fields = (
            Field("image", "image"),
            Field("boxes", "boxes"),
            *(Field(name, "array", along="boxes") for name in per_box),
            Field("image_id", "int"),
            *([Field("instances", "mask")] if masks else []),
        )
        orphans = self._index.orphans
        self.info: Info = {
            "categories": [*self._index.categories],
            **({"annotations_without_image": orphans} if orphans else {}),
        }

    def refs(self) -> Iterator[Ref]:
        """Yields the image ids in file order."""
        yield from self._index.images

    def load(self, ref: Ref) -> Sample:
        try:
            listed = self._index.images[int(str(ref))]
        except (KeyError, ValueError):
            raise ConfigError(
                f"{self._name}: no image {ref!r:.40}. The file differs from the listed one"
            ) from None
        source = printable_or_repr(listed.file_name)
        annotations = self._annotations(listed.number, source)
        boxes = _corner_boxes(annotations, source)
        areas = float_array(
            [each.get("area", 0) for each in annotations],
            shape=(len(annotations),),
            what="area",
            source=source,
        )
        image = Encoded(read_bounded(self.root, listed.file_name), source)
        if annotations:
            self._check_size(image, listed.width, listed.height)
        values: dict[str, Value] = {
            "image": image,
            "boxes": boxes,
            "labels": np.asarray(
                [self._label(each, source) for each in annotations], dtype=np.int64
            ),
            "iscrowd": np.asarray(
                [bool(each.get("iscrowd")) for each in annotations], dtype=np.uint8
            ),
            "area": areas,
            "annotation_ids": np.asarray(
                [int_value(each, "id", source, default=-1) for each in annotations], np.int64
            ),
            "image_id": int(str(ref)),
        }
        if self.masks:
            values["instances"] = instance_mask(
                [each.get("segmentation") for each in annotations],
                areas.tolist(),
                width=listed.width,
                height=listed.height,
                source=source,
            )
        return Sample(values, source=source)

    def _annotations(self, number: int, source: str) -> list[dict[str, Json]]:
        found: list[dict[str, Json]] = []
        with open_inside(self._real.parent, self._real.name) as file:
            if file_stamp(file) != self._stamp:
                raise ConfigError(
                    f"{self._name}: changed since it was listed. Start the pack again"
                )
            for offset, length in self._index.places(number):
                file.seek(offset)
                annotation = parse_json(file.read(length), source)
                if isinstance(annotation, dict):
                    found.append(annotation)
        return found

    def _check_size(self, image: Encoded, width: int, height: int) -> None:
        """Raises BadImage if the image changed its size after annotation: boxes would not fit."""
        found = upright_size(image.data)
        if found is not None and width > 0 and height > 0 and found != (width, height):
            raise BadImage(
                f"{found[0]}x{found[1]} pixels when upright, but {self._name} says "
                f"{width}x{height}: boxes would not fit. Provide the annotated image, or correct "
                "width and height",
                source=image.name,
            )

    def _label(self, annotation: dict[str, Json], source: str) -> int:
        category = annotation.get("category_id")
        label = self._index.labels.get(category) if type(category) is int else None
        if label is None:
            raise BadImage(
                f"annotation {annotation.get('id')}: category {category!r:.40} is not one of the "
                f"{len(self._index.labels)} 'categories' of {self._name}",
                source=source,
            )
        return label

    def _scan(self) -> tuple[tuple[int, int], _Index]:
        index = _Index()
        with config_errors(), open_inside(self._real.parent, self._real.name) as file:
            stamp = file_stamp(file)
            for element in JsonStream(file, self._name).elements():
                if element.key in ("images", "categories", "annotations"):
                    index.add(element, self._name)
            index.finish(self._name)
        return stamp, index

    def _find_images(self, given: Path) -> Path:
        """Returns the first of the usual folders that contains the first image.

        If none does, but the image exists, loading it fails with the option that allows it.
        """
        stem = self.path.stem.removeprefix("instances_")
        top = given if given.is_dir() else self.path.parent.parent
        first = next(iter(self._index.images.values())).file_name
        near = self.path.parent
        folders = (top / stem, top / "images" / stem, top / "images", near, near / "images", top)
        for find in (resolve_inside, real_path):
            for folder in folders:
                with contextlib.suppress(BadImage):
                    find(folder, first)
                    return folder
        raise ConfigError(
            f"{self.path}: the first image {printable_or_repr(first)} is in none of "
            f"{', '.join(map(str, folders))}. Pass the folder with --images DIR"
        )


class _ListedImage(NamedTuple):
    number: int  # position in the file's list of images
    file_name: str
    width: int
    height: int


_int64s = functools.partial(array.array, "q")


@dataclass
class _Index:
    """The index of the file: images, categories, and the position of each image's annotations."""

    images: dict[int, _ListedImage] = field(default_factory=dict)  # by id
    categories: list[dict[str, Json]] = field(default_factory=list)
    labels: dict[Json, int] = field(default_factory=dict)
    orphans: int = 0
    # Per annotation in file order: the image id, and offset and length of the JSON text.
    _image_ids: array.array[int] = field(default_factory=_int64s)
    _file_offsets: array.array[int] = field(default_factory=_int64s)
    _file_lengths: array.array[int] = field(default_factory=_int64s)

    def add(self, element: Element, name: str) -> None:
        # A second parse of the annotations, with correct text, would take half of the time.
        value = element.rough if element.key == "annotations" else element.value(name)
        if not isinstance(value, dict):
            raise BadImage(f"expected objects in {element.key!r}, found {value!r:.40}", source=name)
        if element.key == "categories":
            int_value(value, "id", name)
            self.categories.append(
                {key: value[key] for key in ("id", "name", "supercategory") if key in value}
            )
        elif element.key == "images":
            number = int_value(value, "id", name)
            if number in self.images or not isinstance(value.get("file_name"), str):
                raise BadImage(f"image {number}: duplicate id, or no file_name", source=name)
            self.images[number] = _ListedImage(
                len(self.images),
                str(value["file_name"]),
                int_value(value, "width", name, default=0),
                int_value(value, "height", name, default=0),
            )
        else:
            self._image_ids.append(int_value(value, "image_id", name))
            self._file_offsets.append(element.offset)
            self._file_lengths.append(len(element.raw))

    def finish(self, name: str) -> None:
        """Sorts the annotations by image."""
        if not self.images:
            raise ConfigError(
                f"{name}: no 'images'. Expected a COCO file with images, annotations and categories"
            )
        self.categories.sort(key=lambda category: int(str(category["id"])))
        self.labels = {category["id"]: label for label, category in enumerate(self.categories)}
        if len(self.labels) != len(self.categories):
            raise ConfigError(f"{name}: duplicate category id")
        orphan = _ListedImage(-1, "", 0, 0)
        numbers = np.asarray(
            [self.images.get(image_id, orphan).number for image_id in self._image_ids], np.int64
        )
        self.orphans = int((numbers < 0).sum())
        order = np.argsort(numbers, kind="stable")
        self._starts = np.searchsorted(numbers[order], np.arange(len(self.images) + 1))
        self._offsets = np.asarray(self._file_offsets)[order]
        self._lengths = np.asarray(self._file_lengths)[order]

    def places(self, number: int) -> Iterator[tuple[int, int]]:
        """Yields offset and length of each annotation of an image in file order."""
        for i in range(self._starts[number], self._starts[number + 1]):
            yield int(self._offsets[i]), int(self._lengths[i])


def _corner_boxes(annotations: list[dict[str, Json]], source: str) -> NDArray[np.float32]:
    """Converts ``bbox`` (x, y, width, height) to (x1, y1, x2, y2)."""
    boxes = float_array(
        [each.get("bbox") for each in annotations],
        shape=(len(annotations), 4),
        what="bbox",
        source=source,
        dtype=np.float64,
    )
    negative = boxes[(boxes[:, 2:] < 0).any(axis=1)]
    if len(negative):
        raise BadImage(f"bbox: negative width or height in {negative[0].tolist()}", source=source)
    boxes[:, 2:] += boxes[:, :2]
    return boxes.astype(np.float32)


def looks_like(path: Path) -> str:
    """Returns why the path is COCO, or an empty string."""
    files = [path] if path.is_file() and path.suffix.lower() == ".json" else _files_in(path)
    return f"a COCO file ({files[0].name})" if any(map(_has_keys, files[:4])) else ""


def _files_in(path: Path) -> list[Path]:
    for pattern in _PATTERNS if path.is_dir() else ():
        if found := sorted(path.glob(pattern)):
            return found
    return []


def _has_keys(path: Path) -> bool:
    """Searches both ends of the file, where every known COCO file has two of the three keys."""
    try:
        with open_inside(path.resolve().parent, path.resolve().name) as file:
            head = file.read(1 << 16)
            file.seek(max(0, os.fstat(file.fileno()).st_size - (1 << 16)))
            ends = head + file.read(1 << 16)
    except (BadImage, OSError):
        return False
    found = sum(key in ends for key in (b'"images"', b'"annotations"', b'"categories"'))
    return head.lstrip()[:1] == b"{" and found >= 2


def _annotation_file(path: Path, split: str) -> Path:
    if not path.is_dir():
        return path
    found = _files_in(path)
    wanted = [
        file
        for file in found
        if split in ("", file.stem.removeprefix("instances_"), file.stem, file.parent.name)
    ]
    if len(wanted) != 1:
        names = [
            file.parent.name if file.stem.startswith("_") else file.stem.removeprefix("instances_")
            for file in wanted or found
        ]
        raise ConfigError(
            f"{path}: expected one annotation file, found {', '.join(names) or 'none'}. "
            "Choose with --split NAME"
        )
    return wanted[0]
