"""The formats that ``fastload pack`` reads, and the options of each.

A format is a module in this package with the name of the format, a function ``looks_like(path)``
and a class. This module does not import NumPy, because every start of the command line reads the
options.
"""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

from fastload.errors import ConfigError

if TYPE_CHECKING:
    from fastload._pack.sources.base import AnySource


def names(text: str) -> list[str]:
    """``"a, b"`` → ``["a", "b"]``."""
    return [name.strip() for name in text.split(",") if name.strip()]


def pair(text: str) -> tuple[str, str]:
    """``"name=value"`` → ``("name", "value")``. Raises ValueError."""
    name, equals, value = text.partition("=")
    if not (name and equals and value):
        raise ValueError(f"{text!r}: expected NAME=VALUE")
    return name, value


def named_columns(text: str) -> tuple[str, list[str]]:
    """``"corners=x1,y1"`` → ``("corners", ["x1", "y1"])``. Raises ValueError."""
    name, columns = pair(text)
    return name, names(columns)


def class_names(text: str) -> list[str] | dict[str, list[str]]:
    """Parses ``"cat,dog"``, or ``"label=cat,dog"`` for one column. Raises ValueError."""
    return dict([named_columns(text)]) if "=" in text else names(text)


@dataclass(frozen=True, slots=True)
class SourceOption:
    """An argument of a source's class and its command line option."""

    argument: str
    help: str
    metavar: str | None = None
    flag: str = ""  # "" = "--" and the argument's name
    parse: Callable[[str], object] = str  # raises ValueError
    repeated: bool = False  # may occur several times; ``parse`` returns pairs of a dict
    is_switch: bool = False  # has no value

    @property
    def command_flag(self) -> str:
        return self.flag or f"--{self.argument}"


@dataclass(frozen=True, slots=True)
class Format:
    """A format: its class, what detection expects, and its options."""

    name: str  # also of the module
    reader: str  # class in that module
    expected: str  # description for messages
    # A folder must have an entry with one of these suffixes (lower case); "/" = any folder.
    marks: tuple[str, ...]
    options: tuple[SourceOption, ...] = ()
    general: bool = False  # also matches other formats; tried only if no other format matches

    def looks_like(self, path: Path) -> str:
        """Returns why the path has this format, or "" if it has not."""
        return str(self.module().looks_like(path))

    def open(self, path: Path, options: dict[str, object]) -> AnySource:
        """Opens the source. Raises ConfigError for an unknown option."""
        from fastload._pack.files import LinkedPath

        reader: Callable[..., AnySource] = getattr(self.module(), self.reader)
        known = list(inspect.signature(reader).parameters)[1:]
        given = dict(options)
        follow_links = given.pop(FOLLOW_LINKS.argument, False)
        for option in given:
            if option not in known:
                flags = ", ".join(each.command_flag for each in (*self.options, FOLLOW_LINKS))
                raise ConfigError(
                    f"format {self.name!r} has no option {option!r}. Expected one of {flags} "
                    f"(in Python: {', '.join((*known, FOLLOW_LINKS.argument))})"
                )
        return reader(LinkedPath(path) if follow_links else path, **given)

    def module(self) -> ModuleType:
        return importlib.import_module(f"fastload._pack.sources.{self.name}")


# Of every format. All sources read through fastload._pack.files, which knows the path's class.
FOLLOW_LINKS = SourceOption(
    "follow_links",
    "also read links and paths in lists that lead outside SOURCE (default: refuse and name them)",
    flag="--follow-links",
    is_switch=True,
)
SPLIT = SourceOption("split", "read only this split, e.g. train or val", "NAME")
CLASSES = SourceOption(
    "classes",
    "class names in label order, for lists COLUMN=A,B,...",
    "A,B,...",
    parse=class_names,
)
MASKS = SourceOption(
    "masks", "also store masks: COCO instance masks, VOC class masks", is_switch=True
)
TYPES = SourceOption(
    "types",
    "kind of a column or file extension: int, float, str, class, json, image, mask, ...",
    "NAME=KIND",
    flag="--type",
    parse=pair,
    repeated=True,
)

ALONG = SourceOption(
    "along",
    "field with one entry per box of another field, e.g. labels=boxes: crops drop both",
    "NAME=BOXES",
    parse=pair,
    repeated=True,
)

FORMATS = {
    each.name: each
    for each in (
        Format(
            "nuscenes",
            "NuScenesSource",
            "v1.0-*/sample.json, or samples.json with 'cams'",
            ("/", ".json"),
            (
                SourceOption(
                    "version",
                    "nuScenes: name of the tables, e.g. v1.0-trainval (default: the only one)",
                    "NAME",
                    flag="--nuscenes-version",
                ),
                SourceOption("scenes", "nuScenes: read only these scenes", "A,B,...", parse=names),
                SourceOption("bev", "nuScenes: folder of bird's-eye-view masks", "DIR"),
            ),
        ),
        Format(
            "openlane",
            "OpenLaneSource",
            "images/ and lane3d_1000/, lane3d_300/ or annotations/ with lane_lines",
            ("/",),
            (SPLIT, SourceOption("annotations", "OpenLane: folder of the lane files", "DIR")),
        ),
        Format(
            "coco",
            "CocoSource",
            "a .json file, annotations/instances_*.json or */_annotations.coco.json with images, "
            "annotations, categories",
            ("/", ".json"),
            (
                SPLIT,
                SourceOption("images", "COCO: folder of the images", "DIR", parse=Path),
                MASKS,
            ),
        ),
        Format(
            "yolo",
            "YoloSource",
            "images/ and labels/, or both inside train/, val/ ..., or a data.yaml with names",
            ("/", ".yaml", ".yml"),
            (SPLIT, CLASSES),
        ),
        Format(
            "voc",
            "VocSource",
            "Annotations/*.xml and JPEGImages/",
            ("/",),
            (
                SPLIT,
                CLASSES,
                MASKS,
            ),
        ),
        Format(
            "hf",
            "HuggingFaceSource",
            "dataset_dict.json, state.json, *.arrow, *.parquet",
            ("/", ".json", ".arrow", ".parquet"),
            (
                SPLIT,
                SourceOption(
                    "columns",
                    "Parquet, Hugging Face: columns to read (default: all)",
                    "A,B,...",
                    parse=names,
                ),
            ),
        ),
        Format("webdataset", "WebDatasetSource", "*.tar", (".tar",), (TYPES, CLASSES, ALONG)),
        Format(
            "lists",
            "ListSource",
            "a .csv, .tsv, .jsonl or .ndjson file",
            (".csv", ".tsv", ".jsonl", ".ndjson"),
            (
                TYPES,
                CLASSES,
                ALONG,
                SourceOption(
                    "points",
                    "lists: points field made of these columns",
                    "NAME=X1,Y1,...",
                    parse=named_columns,
                    repeated=True,
                ),
                SourceOption(
                    "boxes",
                    "lists: boxes field made of these columns",
                    "NAME=X1,Y1,X2,Y2",
                    parse=named_columns,
                    repeated=True,
                ),
                SourceOption("drop", "lists: columns to leave out", "A,B,...", parse=names),
                SourceOption(
                    "root",
                    "lists: folder of the relative paths (default: the folder of the list)",
                    "DIR",
                    parse=Path,
                ),
                SourceOption(
                    "paths",
                    "lists: image field whose path is made of columns, "
                    "e.g. image=train/{image_id}.jpg",
                    "NAME=PATTERN",
                    flag="--path",
                    parse=pair,
                    repeated=True,
                ),
            ),
        ),
        Format(
            "folder",
            "FolderSource",
            "images in folders",
            (),
            (
                SPLIT,
                CLASSES,
                SourceOption(
                    "class_order",
                    "folder: sort class folders by name (default, as torchvision) or natural "
                    "(class2 before class10, as timm)",
                    "name|natural",
                    flag="--class-order",
                ),
            ),
            general=True,
        ),
        # Detected before the others, because it also has the format that it was exported to.
        Format("exported", "open_exported", "a folder with the fastload.json of an export", ()),
    )
}


def source_options() -> list[SourceOption]:
    """Returns the options of all formats without duplicates."""
    own = dict.fromkeys(option for each in FORMATS.values() for option in each.options)
    return [*own, FOLLOW_LINKS]
