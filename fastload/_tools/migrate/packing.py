"""How to pack the dataset of a loader: by the command where its folder says all, else from Python."""

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

_MOST_FILES = 200_000  # a folder with more is not listed to compare


@dataclass(frozen=True, slots=True)
class Pack:
    """The command (empty where there is none), the same in Python, what to say about it, and whether images come as RGB."""

    command: str
    code: str
    notes: tuple[str, ...]
    rgb: bool


def how_to_pack(dataset: Any, dest: str, *, same_numbers: bool) -> Pack:
    """``same_numbers``: sample i must stay sample i, for a sampler of the user's own."""
    inner = dataset
    holder = "dataset"
    index = "i"
    while is_subset(inner):
        index = index if inner is dataset else f"{holder}.indices[{index}]"
        inner = inner.dataset
        holder = f"{holder}.dataset"
    picked = inner is not dataset
    listed = samples_of(inner)
    if listed is None:
        return _pack_items(dataset, dest, same_numbers=same_numbers)
    classes = tuple(getattr(inner, "classes", ()) or ())
    why = "" if picked or same_numbers else _why_not_folder(inner, listed, classes)
    if not picked and not same_numbers and not why:
        root = str(inner.root)
        command = f"fastload pack {shlex.quote(root)} {shlex.quote(dest)}"
        return Pack(
            command,
            f"import fastload\n\nfastload.pack({root!r}, {dest!r})",
            _FOLDER_NOTES,
            rgb=True,
        )
    name = "samples" if hasattr(inner, "samples") else "imgs"
    field = (
        f"fastload.Field('label', 'int'{f', classes=tuple({holder}.classes)' if classes else ''})"
    )
    source = f"({holder}.{name}[{index}] for i in dataset.indices)" if picked else f"dataset.{name}"
    code = (
        "from pathlib import Path\n\nimport fastload\n\n"
        f"fastload.pack([{{'image': Path(path), 'label': label}} for path, label in {source}], {dest!r},\n"
        f"              fields=[fastload.Field('image', 'image'), {field}]"
        + (", order='source'" if same_numbers else "")
        + ")"
    )
    notes: tuple[str, ...] = (why,) if why else ()
    if same_numbers:
        notes += ("order='source': your sampler's numbers stay those of the samples",)
    return Pack("", code, notes + _FOLDER_NOTES, rgb=True)


_FOLDER_NOTES = (
    "fastload shows images upright (EXIF orientation is applied); torchvision's folder datasets do not",
)


def is_subset(dataset: Any) -> bool:
    """One of torch's, or made like it: some numbers of another dataset."""
    return hasattr(dataset, "dataset") and hasattr(dataset, "indices")


def innermost(dataset: Any, name: str = "dataset") -> Iterator[tuple[str, Any]]:
    """The datasets that a Subset or a ConcatDataset is made of, and their names in code; else the dataset itself."""
    if is_subset(dataset):
        yield from innermost(dataset.dataset, f"{name}.dataset")
    elif isinstance(dataset, torch.utils.data.ConcatDataset):
        for number, each in enumerate(dataset.datasets):
            yield from innermost(each, f"{name}.datasets[{number}]")
    else:
        yield name, dataset


def transforms_of(dataset: Any) -> list[tuple[str, Any]]:
    """What a dataset does to its images, by the attribute's name: ``transform``, ``transforms``, or a Compose of any name."""
    named = [(name, getattr(dataset, name, None)) for name in ("transform", "transforms")]
    composed = [
        (name, value)
        for name, value in getattr(dataset, "__dict__", {}).items()
        if type(value).__name__ == "Compose"
        and name not in ("transform", "transforms", "target_transform")
    ]
    return [(name, value) for name, value in named + composed if value is not None]


def samples_of(dataset: Any) -> Sequence[tuple[str, int]] | None:
    """The (path, class) pairs of a folder-like dataset, as torchvision's have them; None where it is another kind."""
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
    """Why packing the folder itself would give other samples or other class numbers; empty = it gives the same."""
    root = Path(getattr(dataset, "root", "") or "")
    if not getattr(dataset, "root", "") or not root.is_dir():
        return "the dataset names no folder that is here: packed from its list of files"
    try:
        source = FolderSource(root)
        if source.splits or source.classes != classes:
            return "its classes are not the sorted folder names: packed from its list of files"
        for path, label in listed:
            if Path(os.path.relpath(path, root)).parts[0] != classes[label]:
                return f"{path} is not in the folder of its class: packed from its list of files"
        if len(listed) <= _MOST_FILES:
            n = sum(isinstance(ref, str) for ref in source.refs())
            if n != len(listed):
                return f"the folder holds {n} images, the dataset lists {len(listed)}: packed from its list"
    except (FastloadError, IndexError) as error:
        return f"the folder cannot be packed as it is ({error}): packed from its list of files"
    return ""


def _identity_code(transform: object) -> str:
    """None would do for torchvision's datasets; many people's own call their transform whatever it is, some with the target, too."""
    if type(transform).__module__.startswith("albumentations"):
        return "lambda **given: given"
    return "lambda image, *target: (image, *target) if target else image"


def _pack_items(dataset: Any, dest: str, *, same_numbers: bool) -> Pack:
    """Any map-style dataset: packed item by item, without its transform."""
    lines = ["import fastload", ""]
    notes = []
    for holder, each in {id(each): (holder, each) for holder, each in innermost(dataset)}.values():
        lines += [
            f"{holder}.{name} = {_identity_code(value)}" for name, value in transforms_of(each)
        ]
    if len(lines) > 2:
        lines.insert(2, "# images are packed as they are before training changes them")
    else:
        notes.append(
            "its items are packed as they come: images must be files, uint8 arrays or PIL images, not normalized tensors"
        )
    lines.append(
        f"fastload.pack(dataset, {dest!r}" + (", order='source'" if same_numbers else "") + ")"
    )
    notes.append(
        "items of more than an image and a label: name the fields, fastload.pack(..., fields={'image': 'image', ...}); "
        "decoded images are stored without loss, files (bytes or Path) as they are and smaller"
    )
    return Pack("", "\n".join(lines), tuple(notes), rgb=False)
