"""Image folders: ``ROOT/class/*.jpg``, ``ROOT/{train,val,test}/class/*.jpg``, or only images."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from fastload._pack.files import (
    IMAGE_SUFFIXES,
    is_image_name,
    printable,
    raw_name,
    read_bounded,
    walk,
)
from fastload._pack.sources.base import (
    SPLITS,
    Encoded,
    Info,
    Ref,
    Sample,
    Value,
    choose_splits,
    entry_refs,
    raise_if_refused,
    visible_folders,
)
from fastload._store.fields import Field
from fastload.errors import BadImage, ConfigError


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
        inner = visible_folders(self.root, links=False)
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
            if is_image_name(entry.path) or entry.folder  # a folder that is refused
        )
        return entry_refs(
            entries, f"{self.root}: no images found. Expected files with {' '.join(IMAGE_SUFFIXES)}"
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

    def _found_classes(self, inner: Sequence[str]) -> tuple[str, ...]:
        tops = [
            f"{split}/{name}"
            for split in self.splits
            for name in visible_folders(self.root / split, links=False)
        ]
        tops = tops if self.splits else [*inner]
        # An empty folder keeps its number, so that every copy of the dataset has the same classes.
        full = any(
            is_image_name(entry.path) for top in tops for entry in walk(self.root, below=top)
        )
        return tuple(sorted({printable(top.split("/")[-1]) for top in tops})) if full else ()


def looks_like(root: Path) -> str:
    """Returns why the path is a folder of images, or an empty string."""
    for entry in walk(root) if root.is_dir() else ():
        if is_image_name(entry.path):
            return f"images in folders ({printable(entry.path)})"
    return ""
