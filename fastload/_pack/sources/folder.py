"""Image folders: ``ROOT/class/*.jpg``, ``ROOT/{train,val,test}/class/*.jpg``, or only images."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from fastload._pack.files import as_path, inner_folders, printable, raw_name, read_bounded, walk
from fastload._pack.sources.base import (
    SPLITS,
    Encoded,
    Info,
    Ref,
    Sample,
    Value,
    choose_splits,
    entry_refs,
    files_left_out,
    no_images,
    raise_if_refused,
    ref_path,
    why_left_out,
)
from fastload._store.fields import Field
from fastload.errors import BadImage, ConfigError


def _natural_key(name: str) -> list[tuple[int, str]]:
    """Sorts digits by value and letters without case."""
    return [
        (int(part), "") if part.isdecimal() else (0, part)
        for part in re.split(r"(\d+)", name.lower())
    ]


CLASS_ORDERS: dict[str, Callable[[str], str | list[tuple[int, str]]]] = {
    "name": str,
    "natural": _natural_key,
}


class FolderSource:
    """Reads images in folders. The first folder level is the class, or the split above it.

    Args:
        root: Folder to read.
        split: Read only this split. Default: all.
        classes: Class names in label order. Default: the sorted folder names.
        class_order: How the folder names are sorted: ``"name"`` by character, as in torchvision's
            ``ImageFolder``, or ``"natural"`` by number (class2 before class10), as in timm.
        labels: Whether folders are classes. If False, only images are stored.
    """

    name = "folder"
    thread_safe = True

    def __init__(
        self,
        root: str | Path,
        *,
        split: str = "",
        classes: Sequence[str] = (),
        class_order: str = "name",
        labels: bool = True,
    ) -> None:
        if class_order not in CLASS_ORDERS:
            raise ConfigError(
                f"class_order={class_order!r:.40}: expected {' or '.join(CLASS_ORDERS)}"
            )
        self.root = as_path(root)
        self._sort_key = CLASS_ORDERS[class_order]
        inner = inner_folders(self.root)
        # A folder with any other name means that the folders are classes.
        found = [name for name in SPLITS if name in inner] if set(inner) <= set(SPLITS) else []
        self.splits = choose_splits(found, split, self.root)
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
        entries = (
            entry
            for part in self.splits or ("",)
            for entry in walk(self.root, below=part)
            if not why_left_out(self.root, entry)
        )
        return entry_refs(entries, lambda: no_images(self.root, self.splits or ("",)))

    def left_out(self) -> Iterator[tuple[str, str]]:
        """Yields the printable path and the reason of each file that is not packed."""
        return files_left_out(self.root, self.splits or ("",))

    def split_of(self, ref: Ref) -> int:
        """Returns the number of the split that the path starts with."""
        path = ref_path(ref)
        split = path.partition("/")[0]
        if split not in self.splits:
            raise ConfigError(
                f"{self.root}: {path!r:.80} is in no split. The listing belongs to another source"
            )
        return self.splits.index(split)

    def load(self, ref: Ref) -> Sample:
        raise_if_refused(ref)
        path = str(ref)
        values: dict[str, Value] = {}
        folders = path.split("/")[:-1]
        if self.splits:
            values["split"] = self.split_of(ref)
            del folders[0]
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

    def _found_classes(self, inner: Sequence[str]) -> tuple[str, ...]:
        tops = [
            f"{split}/{name}" for split in self.splits for name in inner_folders(self.root, split)
        ]
        tops = tops if self.splits else [*inner]
        # An empty folder keeps its number, so that every copy of the dataset has the same classes.
        full = any(
            not why_left_out(self.root, entry)
            for top in tops
            for entry in walk(self.root, below=top)
        )
        names = sorted({printable(top.split("/")[-1]) for top in tops})
        return tuple(sorted(names, key=self._sort_key)) if full else ()


def looks_like(root: Path) -> str:
    """Returns why the path is a folder of images, or an empty string."""
    for entry in walk(root) if root.is_dir() else ():
        # A link that leaves the root also counts: the source then names the option to follow it.
        if not why_left_out(root, entry):
            return f"images in folders ({printable(entry.path)})"
    return ""
