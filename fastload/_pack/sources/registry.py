"""The formats that ``fastload pack`` reads: one line each, with the options of the format.

A format is a module in this package, named like the format, with ``looks_like(path)`` and a class.
Nothing here imports NumPy: the command line asks for the options at every start.
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
    """``"name=value"`` → ``("name", "value")``; raises ValueError."""
    name, equals, value = text.partition("=")
    if not (name and equals and value):
        raise ValueError(f"{text!r}: expected NAME=VALUE")
    return name, value


def named_columns(text: str) -> tuple[str, list[str]]:
    """``"corners=x1,y1"`` → ``("corners", ["x1", "y1"])``; raises ValueError."""
    name, columns = pair(text)
    return name, names(columns)


def class_names(text: str) -> list[str] | dict[str, list[str]]:
    """``"cat,dog"``, or for one column ``"label=cat,dog"``; raises ValueError."""
    return dict([named_columns(text)]) if "=" in text else names(text)


@dataclass(frozen=True, slots=True)
class SourceOption:
    """An argument of a source's class, and how it is given on the command line."""

    argument: str
    help: str
    metavar: str | None = None
    flag: str = ""  # "" = the argument's name
    parse: Callable[[str], object] = str  # raises ValueError
    repeated: bool = False  # may be given several times; ``parse`` returns pairs, together a dict
    is_switch: bool = False  # given or not, without a value

    @property
    def command_flag(self) -> str:
        return self.flag or f"--{self.argument}"


@dataclass(frozen=True, slots=True)
class Format:
    """A format: the class that reads it, what detection expects, and its options."""

    name: str  # of the module too
    reader: str  # class in that module
    expected: str  # in words
    # Suffixes (lower case) of entries of a folder, one of which it must have; "/" = any folder.
    marks: tuple[str, ...]
    options: tuple[SourceOption, ...] = ()
    general: bool = False  # fits the files of other formats too: asked only when none is found

    def looks_like(self, path: Path) -> str:
        """Why the path is of this format, or ""."""
        found: str = self.module().looks_like(path)
        return found

    def open(self, path: Path, options: dict[str, object]) -> AnySource:
        """The source; ConfigError for an option it does not have."""
        reader: Callable[..., AnySource] = getattr(self.module(), self.reader)
        known = list(inspect.signature(reader).parameters)[1:]
        for option in options:
            if option not in known:
                raise ConfigError(
                    f"format {self.name!r} has no option {option!r}; it has {', '.join(known) or 'none'}"
                )
        return reader(path, **options)

    def module(self) -> ModuleType:
        return importlib.import_module(f"fastload._pack.sources.{self.name}")


SPLIT = SourceOption("split", "one split of a source that has several: train, val ...")
CLASSES = SourceOption(
    "classes",
    "class names in label order; for a list COLUMN=A,B,...",
    "A,B,...",
    parse=class_names,
)
TYPES = SourceOption(
    "types",
    "kind of a column or file extension: int, float, str, class, json, image, mask ...",
    "NAME=KIND",
    flag="--type",
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
                    "nuScenes: which of several v1.0-* folders",
                    "V",
                    flag="--nuscenes-version",
                ),
                SourceOption("scenes", "nuScenes: these scenes only", "A,B,...", parse=names),
                SourceOption("bev", "nuScenes: the folder of bird's-eye masks"),
            ),
        ),
        Format(
            "openlane",
            "OpenLaneSource",
            "images/ beside lane3d_1000/, lane3d_300/ or annotations/ with lane_lines",
            ("/",),
            (SPLIT, SourceOption("annotations", "OpenLane: the folder of the lane files")),
        ),
        Format(
            "coco",
            "CocoSource",
            "a .json file, annotations/instances_*.json or */_annotations.coco.json with images, "
            "annotations, categories",
            ("/", ".json"),
            (
                SPLIT,
                SourceOption("images", "COCO: the folder of the images", parse=Path),
                SourceOption("masks", "COCO: instance masks too", is_switch=True),
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
                    "Parquet, Hugging Face: columns to take (default: all)",
                    "A,B,...",
                    parse=names,
                ),
            ),
        ),
        Format("webdataset", "WebDatasetSource", "*.tar", (".tar",), (TYPES, CLASSES)),
        Format(
            "lists",
            "ListSource",
            "a .csv, .tsv, .jsonl or .ndjson file",
            (".csv", ".tsv", ".jsonl", ".ndjson"),
            (
                TYPES,
                CLASSES,
                SourceOption(
                    "points",
                    "columns that make up a points field",
                    "NAME=X1,Y1,...",
                    parse=named_columns,
                    repeated=True,
                ),
                SourceOption(
                    "boxes",
                    "columns that make up a boxes field",
                    "NAME=X1,Y1,X2,Y2",
                    parse=named_columns,
                    repeated=True,
                ),
                SourceOption("drop", "columns of a list to leave out", "A,B,...", parse=names),
                SourceOption(
                    "root",
                    "folder that a list's paths start from (default: the list's own)",
                    parse=Path,
                ),
                SourceOption(
                    "paths",
                    "lists: an image field whose file names are made of columns, "
                    "e.g. image=train/{image_id}.jpg",
                    "NAME=PATTERN",
                    flag="--path",
                    parse=pair,
                    repeated=True,
                ),
            ),
        ),
        Format("folder", "FolderSource", "images in folders", (), (SPLIT, CLASSES), general=True),
    )
}


def source_options() -> list[SourceOption]:
    """The options of all formats; one that several formats share comes once."""
    return list(dict.fromkeys(option for each in FORMATS.values() for option in each.options))
