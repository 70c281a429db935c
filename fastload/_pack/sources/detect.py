"""Detects the format of a path from its content and opens the source."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

from fastload._pack.files import is_exported, is_packed, walk
from fastload._pack.sources.base import (
    AnySource,
    Source,
    StreamSource,
    no_images,
    visible_folders,
)
from fastload._pack.sources.python import MapStyle, open_python
from fastload._pack.sources.registry import FORMATS
from fastload.errors import ConfigError


def detect(path: str | os.PathLike[str]) -> str:
    """Returns the format of a path. Raises ConfigError if none or several formats match."""
    place = _existing(path)
    if is_packed(place):
        raise ConfigError(f"{place} is a packed dataset: expected the data it was packed from")
    if is_exported(place):
        return "exported"
    marks = _marks(place)
    found = {
        name: why
        for name, each in FORMATS.items()
        if not marks.isdisjoint(each.marks) and (why := each.looks_like(place))
    }
    if not found or (set(found) == {"lists"} and place.is_dir()):
        found |= {
            name: why
            for name, each in FORMATS.items()
            if each.general and (why := each.looks_like(place))
        }
    # A list next to its images is a list. Next to class folders it may be something else, such as
    # a table of scores.
    if set(found) == {"lists", "folder"} and len(visible_folders(place)) < 2:
        return "lists"
    if len(found) == 1:
        return next(iter(found))
    if found:
        matches = "; ".join(f"{name} ({why})" for name, why in found.items())
        raise ConfigError(
            f"{place}: several formats match: {matches}. "
            "Choose with --format, or pass the file itself"
        )
    why = f"{place}: no format recognized"
    if place.is_dir():
        if not any(walk(place)):
            raise no_images(place)  # empty: no format to expect
        why = str(no_images(place))
    expected = "; ".join(f"{each.name}: {each.expected}" for each in FORMATS.values())
    raise ConfigError(
        f"{why}. Expected one of: {expected}. Choose with --format {'|'.join(FORMATS)}"
    )


def open_source(
    source: str | os.PathLike[str] | Iterable[object] | MapStyle | AnySource,
    *,
    format: str | None = None,
    **options: object,
) -> AnySource:
    """Opens a path (format detected or given) or Python samples. Returns a source unchanged.

    ``options`` are the options of the format's class.
    """
    if isinstance(source, (Source, StreamSource)):
        return source
    if not isinstance(source, (str, os.PathLike)):
        unknown = set(options) - {"fields"}
        if unknown or format not in (None, "python"):
            found = ", ".join(sorted(unknown)) or f"format {format}"
            raise ConfigError(f"Python samples: unknown option {found}. Expected only 'fields'")
        return open_python(source, **options)  # type: ignore[arg-type]   # checked there
    name = format or detect(source)
    if name not in FORMATS:
        raise ConfigError(f"format {name!r:.40}: expected one of {', '.join(FORMATS)}")
    return FORMATS[name].open(_existing(source), options)


def _marks(place: Path) -> set[str]:
    """Returns the suffixes of a folder's entries, "/" if one is not a file, or a file's suffix.

    One pass, since a folder may contain a million images.
    """
    if not place.is_dir():
        return {place.suffix.lower()}
    found = set()
    try:
        with os.scandir(place) as entries:
            for entry in entries:
                found.add("." + entry.name.rpartition(".")[2].lower())
                if not entry.is_file(follow_symlinks=False):
                    found.add("/")
    except OSError as error:
        raise ConfigError(f"{place}: cannot be listed: {error.strerror}") from None
    return found


def _existing(path: str | os.PathLike[str]) -> Path:
    place = Path(path)
    try:
        place.stat()
    except OSError as error:
        raise ConfigError(f"{place}: {error.strerror}") from None
    return place
