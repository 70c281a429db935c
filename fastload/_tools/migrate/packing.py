"""How to pack the dataset of a loader: with the command if possible, otherwise from Python."""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from fastload._pack.sources.folder import FolderSource
from fastload.errors import FastloadError

_MAX_LISTED = 200_000  # files in a folder that is listed for the comparison with the dataset
_EXIF_NOTE = "fastload applies the EXIF orientation of images; torchvision's folder datasets do not"


@dataclass(frozen=True, slots=True)
class Pack:
    """How to pack a dataset. ``command`` is empty if only Python can pack it."""

    command: str
    code: str
    notes: tuple[str, ...]
    rgb: bool  # the dataset converts its images to RGB


def how_to_pack(dataset: Any, dest: str, *, same_order: bool) -> Pack:
    """``same_order``: sample i must stay sample i, because a custom sampler selects it."""
    inner = dataset
    holder = "dataset"
    index = "i"
    while is_subset(inner):
        index = index if inner is dataset else f"{holder}.indices[{index}]"
        inner = inner.dataset
        holder = f"{holder}.dataset"
    is_subset_of_files = inner is not dataset
    listed = samples_of(inner)
    if listed is None:
        return _pack_items(dataset, dest, same_order=same_order)
    classes = tuple(getattr(inner, "classes", ()) or ())
    why = ""
    if not is_subset_of_files and not same_order:
        why = _why_not_folder(inner, listed, classes)
        if not why:
            root = str(inner.root)
            return Pack(
                f"fastload pack {shlex.quote(root)} {shlex.quote(dest)}",
                f"import fastload\n\nfastload.pack({root!r}, {dest!r})",
                (_EXIF_NOTE,),
                rgb=True,
            )
    name = "samples" if hasattr(inner, "samples") else "imgs"
    source = f"dataset.{name}"
    if is_subset_of_files:
        source = f"({holder}.{name}[{index}] for i in dataset.indices)"
    named = f", classes=tuple({holder}.classes)" if classes else ""
    code = (
        "from pathlib import Path\n\nimport fastload\n\nfastload.pack(\n"
        f"    [{{'image': Path(path), 'label': label}} for path, label in {source}],\n"
        f"    {dest!r},\n"
        f"    fields=[fastload.Field('image', 'image'), fastload.Field('label', 'int'{named})],\n"
        + ("    order='source',\n" if same_order else "")
        + ")"
    )
    keep = "order='source' keeps the sample ids that your sampler uses" if same_order else ""
    return Pack("", code, tuple(note for note in (why, keep, _EXIF_NOTE) if note), rgb=True)


def is_subset(dataset: Any) -> bool:
    """Whether the dataset selects indices of another one, like torch's ``Subset``."""
    return hasattr(dataset, "dataset") and hasattr(dataset, "indices")


def innermost(dataset: Any, name: str = "dataset") -> Iterator[tuple[str, Any]]:
    """Yields the datasets inside a Subset or ConcatDataset with the code that refers to them."""
    if is_subset(dataset):
        yield from innermost(dataset.dataset, f"{name}.dataset")
    elif isinstance(dataset, torch.utils.data.ConcatDataset):
        for number, each in enumerate(dataset.datasets):
            yield from innermost(each, f"{name}.datasets[{number}]")
    else:
        yield name, dataset


def transforms_of(dataset: Any) -> list[tuple[str, Any]]:
    """Returns the image transforms of a dataset by attribute name.

    These are ``transform``, ``transforms``, and a Compose in any other attribute.
    """
    usual = ("transform", "transforms")
    found = {name: getattr(dataset, name, None) for name in usual} | {
        name: value
        for name, value in getattr(dataset, "__dict__", {}).items()
        if type(value).__name__ == "Compose" and name not in (*usual, "target_transform")
    }
    return [(name, value) for name, value in found.items() if value is not None]


def samples_of(dataset: Any) -> Sequence[tuple[str, int]] | None:
    """Returns the (path, class) pairs of a dataset like torchvision's ImageFolder, else None."""
    for name in ("samples", "imgs"):
        found = getattr(dataset, name, None)
        if (
            isinstance(found, list)
            and found
            and all(isinstance(each, tuple | list) and len(each) == 2 for each in found[:100])
            and isinstance(found[0][0], str | os.PathLike)
            and isinstance(found[0][1], int)
        ):
            return found
    return None


def _why_not_folder(
    dataset: Any, listed: Sequence[tuple[str, int]], classes: tuple[str, ...]
) -> str:
    """Returns why the folder has other samples or class ids than the dataset, or ""."""
    root = getattr(dataset, "root", "")
    if not root or not Path(root).is_dir():
        return "packed from the file list: the dataset has no folder on this machine"
    try:
        source = FolderSource(Path(root))
        if source.splits or source.classes != classes:
            return "packed from the file list: the classes are not the sorted folder names"
        for path, label in listed:
            if Path(os.path.relpath(path, root)).parts[0] != classes[label]:
                return f"packed from the file list: {path} is not in the folder of its class"
        if len(listed) <= _MAX_LISTED:
            n = sum(isinstance(ref, str) for ref in source.refs())
            if n != len(listed):
                return (
                    f"packed from the file list: the folder has {n} images, "
                    f"but the dataset lists {len(listed)}"
                )
    except (FastloadError, IndexError) as error:
        return f"packed from the file list: the folder cannot be packed ({error})"
    return ""


def _identity_code(transform: object) -> str:
    """Returns code for a transform that changes nothing.

    None would work for torchvision's datasets. Custom datasets often call their transform
    unconditionally, some of them with the target as well.
    """
    if type(transform).__module__.startswith("albumentations"):
        return "lambda **given: given"
    return "lambda image, *target: (image, *target) if target else image"


def _pack_items(dataset: Any, dest: str, *, same_order: bool) -> Pack:
    """Packs any map-style dataset item by item, without its transforms."""
    notes = []
    parts = {id(each): (holder, each) for holder, each in innermost(dataset)}.values()
    lines = [
        f"{holder}.{name} = {_identity_code(value)}"
        for holder, each in parts
        for name, value in transforms_of(each)
    ]
    if lines:
        lines.insert(0, "# Pack the images without the transforms of the training.")
    else:
        notes.append(
            "the items are packed without changes: images must be files, uint8 arrays or PIL "
            "images, not normalized tensors"
        )
    order = ", order='source'" if same_order else ""
    notes.append(
        "if items have more than an image and a label, name the fields: "
        "fastload.pack(..., fields={'image': 'image', ...}). Decoded images are stored without "
        "loss; files (bytes or Path) are stored unchanged and are smaller"
    )
    code = "\n".join(["import fastload", "", *lines, f"fastload.pack(dataset, {dest!r}{order})"])
    return Pack("", code, tuple(notes), rgb=False)
