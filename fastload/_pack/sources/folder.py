"""Image folders: ``ROOT/class/*.jpg``, ``ROOT/{train,val,test}/class/*.jpg``, or only images."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

from fastload._pack.files import (
    IMAGE_SUFFIXES,
    Entry,
    is_image_name,
    printable,
    raw_name,
    read_bounded,
    walk,
)
from fastload._pack.sources.base import (
    Encoded,
    Info,
    Ref,
    Sample,
    Value,
    raise_if_refused,
    refused,
)
from fastload._store.fields import Field
from fastload.errors import BadImage, ConfigError

SPLITS = ("train", "training", "val", "valid", "validation", "dev", "test", "testing")


class FolderSource:
    """Reads images in folders. The first folder level is the class, or the split above it.

    Args:
        root: Folder to read.
        split: Read only this split. Default: all.
        classes: Class names in label order. Default: the sorted folder names.
        labels: Whether folders are classes. If False, only images are stored.
    """

    name = "folder"
    thread_safe = True

    def __init__(
        self, root: str | Path, *, split: str = "", classes: Sequence[str] = (), labels: bool = True
    ) -> None:
        self.root = Path(root)
        self.ignored: Counter[str] = Counter()  # suffixes of other files, counted by refs()
        inner = _folders(self.root)
        self.splits = _splits(self.root, inner, split)
        self.classes = tuple(classes) or (self._found_classes(inner) if labels else ())
        if len(set(self.classes)) != len(self.classes):
            raise ConfigError(f"{self.root}: duplicate class in {list(self.classes)!r:.200}")
        self._number = {name: i for i, name in enumerate(self.classes)}
        self.fields = (
            Field("image", "image"),
            *([Field("label", "int", classes=self.classes)] if self.classes else []),
            *([Field("split", "int", classes=self.splits)] if self.splits else []),
        )
        self.info: Info = {}

    def refs(self) -> Iterator[Ref]:
        """Yields printable paths relative to the root, folder by folder."""
        self.ignored.clear()
        found = False
        for part in self.splits or ("",):
            for entry in walk(self.root, below=part):
                if (ref := self._ref(entry)) is not None:
                    found = True
                    yield ref
        if not found:
            raise ConfigError(
                f"{self.root}: no images found. Expected files with {' '.join(IMAGE_SUFFIXES)}"
            )

    def load(self, ref: Ref) -> Sample:
        raise_if_refused(ref)
        path = str(ref)
        values: dict[str, Value] = {}
        folders = path.split("/")[:-1]
        if self.splits:
            if not folders or folders[0] not in self.splits:
                raise ConfigError(
                    f"{self.root}: {path!r:.80} is in no split. "
                    "The listing belongs to another source"
                )
            values["split"] = self.splits.index(folders.pop(0))
        if self.classes:
            if not folders or folders[0] not in self._number:
                where = (
                    f"folder {folders[0]!r} is not one of {len(self.classes)} classes"
                    if folders
                    else "it is outside the class folders"
                )
                raise BadImage(f"has no class: {where}", source=path)
            values["label"] = self._number[folders[0]]
        values["image"] = Encoded(read_bounded(self.root, raw_name(path)), path)
        return Sample(values, source=path)

    def _ref(self, entry: Entry) -> Ref | None:
        if entry.refused and (entry.folder or is_image_name(entry.path)):
            return refused(printable(entry.path), entry.refused)
        if is_image_name(entry.path):
            return printable(entry.path)
        self.ignored[Path(entry.path).suffix.lower()] += 1
        return None

    def _found_classes(self, inner: Sequence[str]) -> tuple[str, ...]:
        tops = [f"{split}/{name}" for split in self.splits for name in _folders(self.root / split)]
        if not self.splits:
            tops = list(inner)
        # An empty folder keeps its number, so that every copy of the dataset has the same classes.
        full = any(
            is_image_name(entry.path)
            for top in tops
            for entry in walk(self.root, below=raw_name(top))
        )
        return tuple(sorted({top.split("/")[-1] for top in tops})) if full else ()


def looks_like(root: Path) -> str:
    """Returns why the path is a folder of images, or an empty string."""
    for entry in walk(root) if root.is_dir() else ():
        if is_image_name(entry.path):
            return f"images in folders ({printable(entry.path)})"
    return ""


def _folders(root: Path) -> list[str]:
    """Returns the sorted printable names of the visible folders, without links."""
    try:
        # scandir knows folders without a stat per entry: there may be a million images.
        with os.scandir(root) as entries:
            return sorted(
                printable(entry.name)
                for entry in entries
                if entry.is_dir(follow_symlinks=False) and not entry.name.startswith(".")
            )
    except OSError as error:
        raise ConfigError(f"{root}: cannot be listed: {error.strerror}") from None


def _splits(root: Path, inner: Sequence[str], wanted: str) -> tuple[str, ...]:
    """Returns the split folders in the usual order, or none if any other folder exists."""
    splits = tuple(name for name in SPLITS if name in inner) if set(inner) <= set(SPLITS) else ()
    if wanted and wanted not in splits:
        raise ConfigError(
            f"{root}: no split {wanted!r}. "
            f"Found {', '.join(splits) or 'no folders train, val, test'}"
        )
    return (wanted,) if wanted else splits
