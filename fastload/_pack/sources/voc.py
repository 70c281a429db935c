"""Pascal VOC: ``JPEGImages/``, one XML file per image in ``Annotations/``, and ``ImageSets/``."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from xml.etree import ElementTree

import numpy as np

from fastload._pack.files import Entry, as_path, printable, raw_name, read_bounded, walk
from fastload._pack.sources.base import (
    SPLITS,
    Encoded,
    Ref,
    Sample,
    Value,
    choose_splits,
    entry_refs,
    numbered_categories,
    raise_if_refused,
    ref_path,
    why_left_out,
)
from fastload._store.fields import Field
from fastload.errors import BadImage, ConfigError

_ANNOTATIONS = "Annotations"
_IMAGES = "JPEGImages"
_MASKS = "SegmentationClass"
_SETS = "ImageSets/Main"
_MAX_XML_BYTES = 4 << 20
_FLAGS = ("difficult", "truncated")


class VocSource:
    """Images with boxes in pixels (x1 y1 x2 y2), class numbers and the flags of each object.

    VOC counts pixels from 1 and includes the last one. The boxes here count from 0 and end after
    the last pixel, as in COCO.

    Args:
        path: ``VOCdevkit/VOC2012``, or a folder that contains one such folder.
        split: Only the images of ``ImageSets/Main/SPLIT.txt``. Default: all annotated images, with
            the number of their list in the field ``split`` if each image is in one list only.
        classes: Class names in the order of their numbers. Default: the sorted names found.
        masks: Also read the class masks of ``SegmentationClass/`` (field ``mask``).
    """

    name = "voc"
    thread_safe = True

    def __init__(
        self,
        path: str | Path,
        *,
        split: str = "",
        classes: Sequence[str] = (),
        masks: bool = False,
    ) -> None:
        self.root = _voc_folder(as_path(path))
        self.masks = masks
        self._lists = _read_lists(self.root)
        usual = [name for name in SPLITS if name in self._lists]
        listed = [name for each in usual for name in self._lists[each]]
        if split:
            usual = [*choose_splits(self._lists, split, self.root)]
        elif len(set(listed)) < len(listed):
            usual = []  # an image has no single split
        self.splits = tuple(usual)
        self.classes = tuple(classes) or self._found_classes()
        self._numbers = {name: number for number, name in enumerate(self.classes)}
        self.fields = (
            Field("image", "image"),
            Field("boxes", "boxes"),
            *(Field(name, "array", along="boxes") for name in ("labels", *_FLAGS)),
            *([Field("mask", "mask")] if masks else []),
            *([Field("split", "int", classes=self.splits)] if self.splits else []),
        )
        self.info = numbered_categories(self.classes)

    def refs(self) -> Iterator[Ref]:
        """Yields the path of each annotated image of the chosen splits."""
        return entry_refs(
            (entry for entry, why in self._judged_files() if not why),
            lambda: ConfigError(f"{self.root}: no annotated image in {_IMAGES}/"),
        )

    def left_out(self) -> Iterator[tuple[str, str]]:
        """Yields the printable path and the reason of each file that is not packed."""
        return ((printable(entry.path), why) for entry, why in self._judged_files() if why)

    def _judged_files(self) -> Iterator[tuple[Entry, str]]:
        """Yields each file and why it is not packed, or "". Not the files of other splits."""
        wanted = {name for split in self.splits for name in self._lists[split]}
        others = {name for names in self._lists.values() for name in names} - wanted
        for entry in walk(self.root, below=_IMAGES):
            why = why_left_out(self.root, entry)
            stem = Path(entry.path).stem
            if why or entry.folder:
                pass
            elif self.splits and stem not in wanted:
                why = f"in no list of {_SETS}/"
            elif not (self.splits or Path(self.root, _ANNOTATIONS, f"{stem}.xml").is_file()):
                why = f"no annotation in {_ANNOTATIONS}/"
            if not (self.splits and stem in others):
                yield entry, why

    def split_of(self, ref: Ref) -> int:
        """Returns the number of the list in ImageSets that names the image."""
        stem = Path(raw_name(ref_path(ref))).stem
        found = (i for i, split in enumerate(self.splits) if stem in self._lists[split])
        return next(found, 0)  # a folder that cannot be read is in no list

    def load(self, ref: Ref) -> Sample:
        """Returns one image with its objects."""
        raise_if_refused(ref)
        shown = str(ref)
        path = raw_name(shown)
        stem = Path(path).stem
        objects = _objects(self.root, stem)
        values: dict[str, Value] = {
            "image": Encoded(read_bounded(self.root, path), shown),
            "boxes": np.array([_box(each, shown) for each in objects], np.float32).reshape(-1, 4),
            "labels": np.array([self._label(each, shown) for each in objects], np.int64),
        }
        for flag in _FLAGS:
            values[flag] = np.array([each.findtext(flag) == "1" for each in objects], np.uint8)
        mask = f"{_MASKS}/{stem}.png"
        if self.masks and Path(self.root, mask).is_file():
            values["mask"] = Encoded(read_bounded(self.root, mask), printable(mask))
        if self.splits:
            values["split"] = self.split_of(ref)
        return Sample(values, source=shown)

    def _found_classes(self) -> tuple[str, ...]:
        names: set[str] = set()
        for path in Path(self.root, _ANNOTATIONS).glob("*.xml"):
            with contextlib.suppress(BadImage):  # reported when the sample is packed
                names.update(map(_class_name, _objects(self.root, path.stem)))
        return tuple(sorted(names - {""}))

    def _label(self, element: ElementTree.Element, source: str) -> int:
        name = _class_name(element)
        if name not in self._numbers:
            raise BadImage(
                f"class {name!r:.60}: expected one of the {len(self.classes)} class names",
                source=source,
            )
        return self._numbers[name]


def looks_like(path: Path) -> str:
    """Why this is Pascal VOC, or an empty string."""
    found = [folder.name for folder in _candidates(path)]
    return f"Pascal VOC ({found[0]}/{_ANNOTATIONS} and {found[0]}/{_IMAGES})" if found else ""


def _candidates(path: Path) -> list[Path]:
    """The folder itself, or folders inside it, with annotations and images."""
    return [
        folder
        for folder in (path, *sorted(path.glob("VOC*")), *sorted(path.glob("VOCdevkit/VOC*")))
        if (folder / _IMAGES).is_dir() and next((folder / _ANNOTATIONS).glob("*.xml"), None)
    ]


def _voc_folder(path: Path) -> Path:
    found = _candidates(path)
    if len(found) != 1:
        raise ConfigError(
            f"{path}: expected one folder with {_ANNOTATIONS}/ and {_IMAGES}/, "
            f"found {', '.join(map(str, found)) or 'none'}"
        )
    return found[0]


def _read_lists(root: Path) -> dict[str, frozenset[str]]:
    """Returns the image names of each list in ImageSets/Main, without the lists per class."""
    lists = {}
    for path in sorted((root / _SETS).glob("*.txt")):
        if "_" not in path.stem:
            try:
                lines = read_bounded(root, f"{_SETS}/{path.name}").decode().splitlines()
            except (BadImage, UnicodeDecodeError) as error:
                raise ConfigError(f"{path}: cannot be read: {error}") from None
            lists[path.stem] = frozenset(line.split()[0] for line in lines if line.strip())
    return lists


def _objects(root: Path, stem: str) -> list[ElementTree.Element]:
    """The objects in the annotation file of an image. Raises BadImage if it is damaged."""
    name = f"{_ANNOTATIONS}/{stem}.xml"
    data = read_bounded(root, name, limit=_MAX_XML_BYTES)
    if b"<!DOCTYPE" in data or b"<!ENTITY" in data:
        raise BadImage("contains a DOCTYPE or an entity, expected plain XML", source=name)
    try:
        return ElementTree.fromstring(data).findall("object")  # noqa: S314 - without entities
    except (ElementTree.ParseError, ValueError, LookupError) as error:
        raise BadImage(f"not XML: {error}", source=name) from None


def _class_name(element: ElementTree.Element) -> str:
    return (element.findtext("name") or "").strip()


def _box(element: ElementTree.Element, source: str) -> tuple[float, float, float, float]:
    words = [element.findtext(f"bndbox/{key}", "") for key in ("xmin", "ymin", "xmax", "ymax")]
    try:
        x1, y1, x2, y2 = map(float, words)
    except ValueError:
        raise BadImage(f"bndbox: expected 4 numbers, found {words}", source=source) from None
    if not (np.isfinite([x1, y1, x2, y2]).all() and x1 <= x2 and y1 <= y2):
        raise BadImage(
            f"bndbox: expected xmin <= xmax and ymin <= ymax, found {words}", source=source
        )
    return x1 - 1, y1 - 1, x2, y2
