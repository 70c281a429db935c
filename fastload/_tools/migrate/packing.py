"""How to pack the dataset of a loader: with the command if possible, otherwise from Python."""

from __future__ import annotations

import copy
import os
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from PIL import Image

from fastload._pack.files import is_image_name
from fastload._pack.sources.folder import FolderSource
from fastload._tools.doctor.loader.timing import restored_random
from fastload.errors import FastloadError

_MAX_LISTED = 200_000  # files in a folder that is listed for the comparison with the dataset
_EXIF_NOTE = "fastload applies the EXIF orientation of images; torchvision's folder datasets do not"


@dataclass(frozen=True, slots=True)
class Pack:
    """How to pack a dataset. ``command`` is empty if only Python can pack it."""

    command: str
    code: str
    notes: tuple[str, ...]
    color: str = ""  # "rgb" or "gray" if the dataset converts its images
    refused: str = ""  # why the dataset cannot be packed


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
    if type(dataset).__module__.startswith("datasets.") and hasattr(dataset, "cast_column"):
        return _pack_hugging_face(dataset, dest, same_order=same_order)
    listed = samples_of(inner)
    if listed is None:
        return _pack_items(dataset, dest, same_order=same_order)
    changes_labels = getattr(inner, "target_transform", None) is not None
    classes = tuple(getattr(inner, "classes", ()) or ())
    why = ""
    if not is_subset_of_files and not same_order:
        why = (
            "packed from the file list: target_transform changes the labels"
            if changes_labels
            else _why_not_folder(inner, listed, classes)
        )
        if not why:
            root = str(inner.root)
            return Pack(
                f"fastload pack {shlex.quote(root)} {shlex.quote(dest)}",
                f"import fastload\n\nfastload.pack({root!r}, {dest!r})",
                (_EXIF_NOTE,),
                color="rgb",
            )
    name = "samples" if hasattr(inner, "samples") else "imgs"
    source = f"dataset.{name}"
    if is_subset_of_files:
        source = f"({holder}.{name}[{index}] for i in dataset.indices)"
    named = f", classes=tuple({holder}.classes)" if classes else ""
    label = f"{holder}.target_transform(label)" if changes_labels else "label"
    fields = (
        f"    fields=[fastload.Field('image', 'image'), fastload.Field('label', 'int'{named})],\n"
    )
    code = (
        "from pathlib import Path\n\nimport fastload\n\nfastload.pack(\n"
        f"    [{{'image': Path(path), 'label': {label}}} for path, label in {source}],\n"
        f"    {dest!r},\n"
        + ("" if changes_labels else fields)
        + ("    order='source',\n" if same_order else "")
        + ")"
    )
    keep = "order='source' keeps the sample ids that your sampler uses" if same_order else ""
    return Pack("", code, tuple(note for note in (why, keep, _EXIF_NOTE) if note), color="rgb")


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
    probed = [_raw_items(each) for _, each in parts]
    items = [found for found, _ in probed]
    notes += [f"an item could not be read: {error}" for _, error in probed if error]
    refused = next((why for why in map(_why_not_packable, items) if why), "")
    if refused:
        return Pack("", _raise(f"the dataset cannot be packed: {refused}"), (), refused=refused)
    images = [_image_of(item) for found in items for item in found]
    if items and all(image is None for image in images):
        notes.append(
            "no image was found in the items: images must be files, uint8 or uint16 arrays, or PIL "
            "images"
        )
    if any(map(_is_wide, images)):
        notes.append(
            "the images have 16 bits: fastload delivers uint16, or values from 0 to 1 after "
            "ToDtype and Normalize, while torchvision's ToTensor keeps values from 0 to 65535"
        )
    order = ", order='source'" if same_order else ""
    name, why = _file_list(dataset, items[0]) if len(items) == 1 else ("", "it has several parts")
    if name:
        code, color = _pack_files(name, items[0][0])
        notes.append(f"packs the files in dataset.{name}: {why}")
        lines += [code.replace("DEST", repr(dest) + order)]
        return Pack(
            "",
            "\n".join(["from pathlib import Path", "", "import fastload", "", *lines]),
            (*notes, _EXIF_NOTE),
            color=color,
        )
    notes.append(
        f"packs decoded images, which are stored as PNG and decode more slowly: {why}. If you have "
        "the files, pack dicts with pathlib.Path(...) instead"
    )
    code = "\n".join(["import fastload", "", *lines, f"fastload.pack(dataset, {dest!r}{order})"])
    return Pack("", code, tuple(notes))


def _raise(reason: str) -> str:
    return f"raise NotImplementedError({'fastload.migrate: ' + reason!r})"


def _raw_items(dataset: Any) -> tuple[list[Any], str]:
    """Returns up to three items without their transforms, or the error of the dataset.

    The dataset is copied, and the random generators are restored.
    """
    if isinstance(dataset, torch.utils.data.IterableDataset) or not hasattr(dataset, "__len__"):
        return [], ""
    try:
        with restored_random(dataset):
            raw = copy.copy(dataset)
            for name, _ in transforms_of(dataset):
                setattr(raw, name, _unchanged)
            return [raw[index] for index in _probed(len(dataset))], ""
    except Exception as error:  # noqa: BLE001 - unknown code may raise any class; it is reported
        return [], f"{type(error).__name__}: {error!s:.200}"


def _unchanged(*values: Any, **named: Any) -> Any:
    """A transform that changes nothing, for the usual ways to call one."""
    if named:
        return named
    return values if len(values) > 1 else values[0]


def _probed(length: int) -> list[int]:
    return sorted({0, length // 2, length - 1}) if length else []


def _why_not_packable(items: list[Any]) -> str:
    for item in items[:1]:
        values = list(item.values()) if isinstance(item, dict) else _listed(item)
        if isinstance(item, tuple | list) and any(isinstance(each, dict) for each in values[1:]):
            return (
                "its items are (image, dict). Return one dict with the image and the targets as "
                "entries, and change collate_fn accordingly"
            )
        floats = [each for each in values if _is_float_image(each)]
        if floats:
            return (
                f"its images are {floats[0].dtype}. Return the uint8 image or the file, and pass "
                "the conversion as transform= of the loader"
            )
    return ""


def _is_float_image(value: Any) -> bool:
    shape = getattr(value, "shape", ())
    return "float" in str(getattr(value, "dtype", "")) and len(shape) == 3 and min(shape) in (1, 3)


def _is_wide(image: Any) -> bool:
    return str(getattr(image, "mode", "")).startswith("I") or "uint16" in str(
        getattr(image, "dtype", "")
    )


def _listed(value: Any) -> list[Any]:
    return list(value) if isinstance(value, tuple | list) else [value]


def _image_of(item: Any) -> Any:
    """Returns the PIL image of an item: its first value, or the first image in a dict."""
    values = item.values() if isinstance(item, dict) else _listed(item)[:1]
    return next((each for each in values if hasattr(each, "tobytes")), None)


def _file_list(dataset: Any, items: list[Any]) -> tuple[str, str]:
    """Returns the attribute with the file of each item and why, or "" and why there is none."""
    images = [_image_of(item) for item in items]
    if is_subset(dataset) or not images or not all(hasattr(image, "mode") for image in images):
        return "", "the items are not PIL images of one dataset"
    n = len(dataset)
    why = "no attribute lists the files"
    for name, value in vars(dataset).items():
        if (
            isinstance(value, list | tuple)
            and len(value) == n
            and all(isinstance(path, str | os.PathLike) for path in value)
            and is_image_name(str(value[0]))
        ):
            paths = [value[index] for index in _probed(n)]
            if all(map(_same_pixels, paths, images)):
                return name, f"items {', '.join(map(str, _probed(n)))} have the same pixels"
            why = f"the images differ from the files in dataset.{name}"
    return "", why


def _same_pixels(path: str | os.PathLike[str], image: Any) -> bool:
    try:
        with Image.open(path) as file:
            decoded = file.convert(image.mode)
    except OSError:
        return False
    return bool(decoded.size == image.size and decoded.tobytes() == image.tobytes())


def _pack_files(name: str, item: Any) -> tuple[str, str]:
    """Returns the code that packs dataset.<name> with the other values, and the color option."""
    if isinstance(item, dict):
        key = next(key for key, value in item.items() if value is _image_of(item))
        sample = f"{{**dataset[i], {key!r}: Path(dataset.{name}[i])}}"
    else:
        sample = f"(Path(dataset.{name}[i]), *dataset[i][1:])"
        if not isinstance(item, tuple | list):
            sample = f"{{'image': Path(dataset.{name}[i])}}"
    color = {"RGB": "rgb", "L": "gray"}.get(_image_of(item).mode, "")
    return f"fastload.pack(\n    [{sample} for i in range(len(dataset))],\n    DEST,\n)", color


def _pack_hugging_face(dataset: Any, dest: str, *, same_order: bool) -> Pack:
    """Packs the encoded images of a Hugging Face dataset, without decoding them."""
    features = dataset.features
    images = [name for name, kind in features.items() if type(kind).__name__ == "Image"]
    if (dataset.format or {}).get("type") == "custom":
        why = (
            "set_transform(function) runs Python on each row. Translate the function to transform= "
            "and call reset_format() before migrate"
        )
        return Pack("", _raise(why), (), refused=why)
    casts = "".join(f".cast_column({name!r}, Image(decode=False))" for name in images)
    entries = "".join(
        f", {name!r}: row[{name!r}]['bytes'] or Path(row[{name!r}]['path'])" for name in images
    )
    fields = [_hugging_face_field(name, kind) for name, kind in features.items()]
    given = "".join(f"        {field},\n" for field in fields)
    code = (
        "from pathlib import Path\n\nimport fastload\nfrom datasets import Image\n\n"
        f"rows = dataset.with_format(None){casts}\nfastload.pack(\n"
        f"    ({{**row{entries}}} for row in rows),\n    {dest!r},\n"
        + (f"    fields=[\n{given}    ],\n" if all(fields) else "")
        + ("    order='source',\n" if same_order else "")
        + ")"
    )
    modes = {features[name].mode for name in images}
    note = f"packs the encoded images of {', '.join(images)} (bytes or path), not decoded pixels"
    return Pack("", code, (note,) if images else (), color="rgb" if modes == {"RGB"} else "")


def _hugging_face_field(name: str, feature: Any) -> str:
    """Returns the code of the field, or "" if its kind must be inferred."""
    kind = type(feature).__name__
    if kind == "ClassLabel":
        return f"fastload.Field({name!r}, 'int', classes=tuple(dataset.features[{name!r}].names))"
    dtype = str(getattr(feature, "dtype", "")).rstrip("0123456789")
    kinds = {"int": "int", "uint": "int", "float": "float", "string": "str"}
    found = "image" if kind == "Image" else kinds.get(dtype, "") if kind == "Value" else ""
    return f"fastload.Field({name!r}, {found!r})" if found else ""
