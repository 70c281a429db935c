"""The protocols of a source and the types that it passes to the packer."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, TypeAlias, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from fastload._common.formatting import count
from fastload._common.public import public
from fastload._pack.files import (
    IMAGE_SUFFIXES,
    Entry,
    is_image_data,
    is_image_name,
    open_inside,
    printable,
    printable_or_repr,
    read_bounded,
    walk,
)
from fastload._store.fields import Field, check_references
from fastload.errors import BadImage, ConfigError

if TYPE_CHECKING:
    from PIL.Image import Image
    from typing_extensions import TypeIs

Json: TypeAlias = "str | int | float | bool | list[Json] | dict[str, Json] | None"
Info: TypeAlias = "dict[str, Json]"

# One line in the listing: small, valid JSON, and sufficient to load the sample in another process.
Ref: TypeAlias = "str | int | list[Json] | dict[str, Json]"


@public("fastload.sources")
@dataclass(frozen=True, slots=True)
class Encoded:
    """An image file: JPEG, JPEG 2000, PNG, WebP, BMP, TIFF or GIF. The packer detects the format.

    Args:
        data: Bytes of the file.
        name: Name of the file for error messages.

    Examples:
        >>> encoded = Encoded(Path("cat.jpg").read_bytes(), "cat.jpg")  # doctest: +SKIP
    """

    data: bytes
    name: str


Pixels: TypeAlias = "Encoded | NDArray[np.generic] | Image"
Value: TypeAlias = "Pixels | Sequence[Pixels] | Json | bytes"


@public("fastload.sources")
@dataclass(frozen=True, slots=True)
class Sample:
    """One sample of a source.

    The type of a value depends on the kind of its field:

    - image: ``Encoded``, uint8 or uint16 array (H, W) or (H, W, C), or PIL image
    - mask: ``Encoded`` or integer array (H, W)
    - boxes: float32 (N, 4) with x1, y1, x2, y2
    - points: float32 (N, 2) or (N, 3)
    - matrix: float64 (rows, columns)
    - array: numeric array of any shape
    - int, float, str, bytes: the Python type
    - json: a value that ``json.loads`` can return
    - list fields: a list of these

    Args:
        values: Values by field name. A field that is missing or None is absent in this sample.
        source: Printable path relative to the root, or ``"file.tar!member"`` in an archive.

    Examples:
        >>> sample = Sample({"label": 3}, source="cat/1.jpg")
    """

    values: dict[str, Value]
    source: str


class _Described(Protocol):
    """What both kinds of sources have."""

    @property
    def name(self) -> str:
        """Name of the format, e.g. ``"folder"``."""

    @property
    def fields(self) -> tuple[Field, ...]:
        """Fields of every sample. They must not change."""

    @property
    def info(self) -> Info:
        """Small JSON data about the whole dataset, e.g. category names. Stored in the manifest."""


@public("fastload.sources")
@runtime_checkable
class Source(_Described, Protocol):
    """A source whose samples can be listed first and loaded in any order.

    Examples:
        See the module docstring of ``fastload.sources``.
    """

    @property
    def thread_safe(self) -> bool:
        """Whether several threads may call ``load`` at the same time."""

    def refs(self) -> Iterator[Ref]:
        """Yields one ref per sample in a fixed order, as long as the source does not change."""

    def load(self, ref: Ref) -> Sample:
        """Loads one sample.

        Args:
            ref: A value that ``refs`` yielded.

        Returns:
            The sample.

        Raises:
            BadImage: The sample cannot be used. The error names the file and the reason.
        """


@public("fastload.sources")
@runtime_checkable
class StreamSource(_Described, Protocol):
    """A source whose samples are available or cheap in one order only.

    The packer encodes the samples into a temporary file and shuffles that.
    """

    @property
    def n_samples(self) -> int | None:
        """Number of samples, or None if unknown."""

    def __iter__(self) -> Iterator[Sample | BadImage]:
        """Yields all samples. Yield a BadImage for one bad sample. Raise it to end the pack."""


AnySource: TypeAlias = "Source | StreamSource"


@runtime_checkable
class LeavesOut(Protocol):
    """A source that does not pack every file in its folders."""

    def left_out(self) -> Iterator[tuple[str, str]]:
        """Yields the printable path of each file that is no sample, and the reason."""


@runtime_checkable
class KnowsSplits(Protocol):
    """A listed source with splits that knows the split of a sample without loading it.

    The packer loads the samples of other listed sources with splits one after the other, like a
    stream, before it can order them.
    """

    def split_of(self, ref: Ref) -> int:
        """Returns the number that ``load(ref)`` returns in the field ``split``.

        Any number is correct for a ref that ``load`` refuses.
        """


def is_stream(source: AnySource) -> TypeIs[StreamSource]:
    """Returns whether the source has no ``refs`` and must be iterated."""
    return not isinstance(source, Source)


def read_image(root: str | Path, path: str, named_in: str) -> Encoded:
    """Reads an image file below ``root``. An error message also contains ``named_in``."""
    try:
        return Encoded(read_bounded(root, path), printable_or_repr(path))
    except BadImage as error:
        raise BadImage(f"{error.why} ({named_in})", source=error.source) from None


def refused(path: str, why: str) -> Ref:
    """Returns the ref of a file that is listed but must not be read. See ``raise_if_refused``."""
    return {"path": path, "refused": why}


def entry_refs(entries: Iterable[Entry], none_found: Callable[[], ConfigError]) -> Iterator[Ref]:
    """Yields the printable path or the refusal of each file. Raises ``none_found`` for no file."""
    found = False
    for entry in entries:
        if entry.harmless:
            continue
        found = True
        path = printable(entry.path)
        yield refused(path, entry.refused) if entry.refused else path
    if not found:
        raise none_found()


def raise_if_refused(ref: Ref) -> None:
    """Raises BadImage for a ref of ``refused``. Sources that use it call this first in ``load``."""
    if isinstance(ref, dict) and "refused" in ref:
        raise BadImage(str(ref["refused"]), source=str(ref.get("path", "")))


def ref_path(ref: Ref) -> str:
    """Returns the path in a ref of ``entry_refs``."""
    return str(ref["path"] if isinstance(ref, dict) else ref)


def numbered_categories(names: Iterable[str]) -> Info:
    """Returns the ``info`` of a source whose boxes are labeled with these classes, as in COCO."""
    return {"categories": [{"id": number, "name": name} for number, name in enumerate(names)]}


def with_along(fields: Iterable[Field], along: Mapping[str, str] | None) -> tuple[Field, ...]:
    """Returns the fields with ``along`` set by name. Raises ConfigError for unknown names."""
    found = tuple(fields)
    wanted = dict(along or {})
    names = [each.name for each in found]
    if unknown := [name for name in wanted if name not in names]:
        raise ConfigError(
            f"along {unknown[0]!r:.60}: expected one of the fields {', '.join(names)}"
        )
    found = tuple(
        replace(each, along=wanted[each.name]) if each.name in wanted else each for each in found
    )
    check_references(found)
    return found


# The usual names of splits, in their usual order.
SPLITS = ("train", "training", "val", "valid", "validation", "dev", "test", "testing")


def choose_splits(found: Iterable[str], wanted: str, root: Path) -> tuple[str, ...]:
    """Returns the wanted split, or all splits that were found."""
    names = tuple(found)
    if wanted and wanted not in names:
        raise ConfigError(f"{root}: no split {wanted!r}. Found {', '.join(names) or 'no splits'}")
    return (wanted,) if wanted else names


def visible_folders(root: Path) -> list[str]:
    """Returns the sorted names of the folders that are not hidden, with links to folders."""
    try:
        # scandir knows folders without a stat per entry: there may be a million images.
        with os.scandir(root) as entries:
            return sorted(
                entry.name for entry in entries if entry.is_dir() and not entry.name.startswith(".")
            )
    except OSError as error:
        raise ConfigError(f"{root}: cannot be listed: {error.strerror}") from None


def why_left_out(root: Path, entry: Entry) -> str:
    """Returns why a file is not packed, or "". The content decides for a name without a suffix."""
    if entry.harmless:
        return entry.refused
    if entry.folder or is_image_name(entry.path):
        return ""
    if entry.refused:
        return entry.refused
    _, dot, suffix = entry.path.rpartition("/")[2].rpartition(".")
    if dot:
        return f"suffix .{printable(suffix)} is not an image format that fastload reads"
    try:
        with open_inside(root, entry.path) as file:
            return "" if is_image_data(file.read(12)) else "no suffix, and not an image"
    except (BadImage, OSError) as error:
        return f"no suffix, and cannot be read: {error}"


def files_left_out(root: Path, folders: Iterable[str]) -> Iterator[tuple[str, str]]:
    """Yields the printable path and the reason of each file in the folders that is not packed."""
    for folder in folders:
        for entry in walk(root, below=folder):
            if why := why_left_out(root, entry):
                yield printable(entry.path), why


def no_images(root: Path, folders: Iterable[str] = ("",)) -> ConfigError:
    """Returns the error for folders without any image: an empty folder, or unsupported files."""
    files = [path for path, _ in files_left_out(root, folders)]
    if not files:
        return ConfigError(
            f"{root}: the folder is empty. Files whose name starts with a dot are ignored"
        )
    suffixes = Counter(Path(path).suffix.lower() or "no suffix" for path in files)
    found = ", ".join(f"{n} x {suffix}" for suffix, n in suffixes.most_common(5))
    return ConfigError(
        f"{root}: no image among {count(len(files), 'file')} ({found}; first: {files[0]}). "
        f"Images have the suffix {' '.join(IMAGE_SUFFIXES)}"
    )
