"""Class folders: ``ROOT/class/*.jpg``, ``ROOT/{train,val,test}/class/*.jpg``, or just images."""

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
    """Images in folders; the first folder level is the class (below the split, where the first level is one).

    ``classes``: names and numbers of the classes (default: the sorted folder names). ``split``: only this one.
    ``labels=False``: images only, whatever the folders.
    """

    name = "folder"
    thread_safe = True

    def __init__(
        self, root: str | Path, *, split: str = "", classes: Sequence[str] = (), labels: bool = True
    ) -> None:
        self.root = Path(root)
        self.ignored: Counter[str] = (
            Counter()
        )  # suffixes of files that are no images, counted by refs()
        inner = _folders(self.root)
        self.splits = _splits(self.root, inner, split)
        self.classes = tuple(classes) or (self._found_classes(inner) if labels else ())
        if len(set(self.classes)) != len(self.classes):
            raise ConfigError(f"{self.root}: a class is named twice in {list(self.classes)!r:.200}")
        self._number = {name: i for i, name in enumerate(self.classes)}
        self.fields = (
            Field("image", "image"),
            *([Field("label", "int", classes=self.classes)] if self.classes else []),
            *([Field("split", "int", classes=self.splits)] if self.splits else []),
        )
        self.info: Info = {}

    def refs(self) -> Iterator[Ref]:
        """Printable paths relative to the root, folder by folder."""
        self.ignored.clear()
        found = False
        for part in self.splits or ("",):
            for entry in walk(self.root, below=part):
                if (ref := self._ref(entry)) is not None:
                    found = True
                    yield ref
        if not found:
            raise ConfigError(
                f"{self.root}: no image found; looked for {' '.join(IMAGE_SUFFIXES)} in any case"
            )

    def load(self, ref: Ref) -> Sample:
        """One image and the class its folder says."""
        raise_if_refused(ref)
        path = str(ref)
        values: dict[str, Value] = {}
        folders = path.split("/")[:-1]
        if self.splits:
            if not folders or folders[0] not in self.splits:
                raise ConfigError(
                    f"{self.root}: {path!r:.80} is in no split; the listing is not of this source"
                )
            values["split"] = self.splits.index(folders.pop(0))
        if self.classes:
            if not folders or folders[0] not in self._number:
                where = (
                    f"{folders[0]!r} is none of {len(self.classes)}"
                    if folders
                    else "it lies beside the folders"
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
        # A folder that happens to be empty keeps its number: the same classes in every copy of the dataset.
        full = any(
            is_image_name(entry.path)
            for top in tops
            for entry in walk(self.root, below=raw_name(top))
        )
        return tuple(sorted({top.split("/")[-1] for top in tops})) if full else ()


def looks_like(root: Path) -> str:
    """Why this is a folder of images, or nothing."""
    for entry in walk(root) if root.is_dir() else ():
        if is_image_name(entry.path):
            return f"images in folders ({printable(entry.path)})"
    return ""


def _folders(root: Path) -> list[str]:
    """Printable names of the real, visible folders of a folder, sorted."""
    try:
        with os.scandir(
            root
        ) as entries:  # knows folders without asking for each: there may be a million images beside
            return sorted(
                printable(entry.name)
                for entry in entries
                if entry.is_dir(follow_symlinks=False) and not entry.name.startswith(".")
            )
    except OSError as error:
        raise ConfigError(f"{root}: cannot be listed: {error.strerror}") from None


def _splits(root: Path, inner: Sequence[str], wanted: str) -> tuple[str, ...]:
    """The split folders, in the usual order; none where any folder is something else."""
    splits = tuple(name for name in SPLITS if name in inner) if set(inner) <= set(SPLITS) else ()
    if wanted and wanted not in splits:
        raise ConfigError(
            f"{root}: no split {wanted!r}; found {', '.join(splits) or 'no folders train, val, test'}"
        )
    return (wanted,) if wanted else splits
