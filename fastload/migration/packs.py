"""How to pack the dataset of a loader: by the command where its folder says all, else from Python."""

from __future__ import annotations

import os
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fastload.errors import FastloadError
from fastload.packing.sources.folder import FolderSource

_MOST_FILES = 200_000           # a folder with more is not listed to compare


@dataclass(frozen=True, slots=True)
class Pack:
    """The command (empty where there is none), the same in Python, what to say about it, and whether images come as RGB."""

    command: str
    code: str
    notes: tuple[str, ...]
    rgb: bool


def how_to_pack(dataset: Any, dest: str, *, same_numbers: bool) -> Pack:
    """``same_numbers``: sample i must stay sample i, for a sampler of the user's own."""
    inner, picked = (dataset.dataset, True) if hasattr(dataset, "dataset") and hasattr(dataset, "indices") else (dataset, False)
    listed = samples_of(inner)
    if listed is None:
        return _generic(dataset, dest, same_numbers=same_numbers)
    classes = tuple(getattr(inner, "classes", ()) or ())
    why = "" if picked or same_numbers else _not_the_folder(inner, listed, classes)
    if not picked and not same_numbers and not why:
        root = str(inner.root)
        command = f"fastload pack {shlex.quote(root)} {shlex.quote(dest)}"
        return Pack(command, f"import fastload\n\nfastload.pack({root!r}, {dest!r})", _FOLDER_NOTES, rgb=True)
    name = "samples" if hasattr(inner, "samples") else "imgs"
    holder = "dataset.dataset" if picked else "dataset"
    field = f"fastload.Field('label', 'int'{f', classes=tuple({holder}.classes)' if classes else ''})"
    source = f"(dataset.dataset.{name}[i] for i in dataset.indices)" if picked else f"dataset.{name}"
    code = ("from pathlib import Path\n\nimport fastload\n\n"
            f"fastload.pack([{{'image': Path(path), 'label': label}} for path, label in {source}], {dest!r},\n"
            f"              fields=[fastload.Field('image', 'image'), {field}]" + (", order='source'" if same_numbers else "") + ")")
    notes: tuple[str, ...] = (why,) if why else ()
    if same_numbers:
        notes += ("order='source': your sampler's numbers stay those of the samples",)
    return Pack("", code, notes + _FOLDER_NOTES, rgb=True)


_FOLDER_NOTES = ("fastload shows images upright (EXIF orientation is applied); torchvision's folder datasets do not",)


def samples_of(dataset: Any) -> Sequence[tuple[str, int]] | None:
    """The (path, class) pairs of a folder-like dataset, as torchvision's have them; None where it is another kind."""
    for name in ("samples", "imgs"):
        found = getattr(dataset, name, None)
        if isinstance(found, list) and found and all(isinstance(each, tuple | list) and len(each) == 2 for each in found[:100]) \
                and isinstance(found[0][0], str | os.PathLike) and isinstance(found[0][1], int):
            return found
    return None


def _not_the_folder(dataset: Any, listed: Sequence[tuple[str, int]], classes: tuple[str, ...]) -> str:
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


def _generic(dataset: Any, dest: str, *, same_numbers: bool) -> Pack:
    """Any map-style dataset: packed item by item, without its transform."""
    lines, notes = ["import fastload", ""], []
    for name in ("transform", "transforms"):
        if getattr(dataset, name, None) is not None:
            lines.append(f"dataset.{name} = None            # images are packed as they are before training changes them")
    if len(lines) == 2:
        notes.append("its items are packed as they come: images must be files, uint8 arrays or PIL images, not normalised tensors")
    lines.append(f"fastload.pack(dataset, {dest!r}" + (", order='source'" if same_numbers else "") + ")")
    notes.append("items of more than an image and a label: name the fields, fastload.pack(..., fields={'image': 'image', ...}); "
                 "decoded images are stored without loss, files (bytes or Path) as they are and smaller")
    return Pack("", "\n".join(lines), tuple(notes), rgb=False)
