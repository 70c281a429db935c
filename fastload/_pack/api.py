"""``fastload.pack``: the command, from Python."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from fastload._pack.options import PackOptions
from fastload._pack.packer import Packer, PackProgress, PackResult
from fastload._pack.sources.base import AnySource
from fastload._pack.sources.detect import open_source
from fastload._pack.sources.python import MapStyle
from fastload._store.fields import Field


def pack(
    source: str | os.PathLike[str] | Iterable[object] | MapStyle | AnySource,
    dest: str | os.PathLike[str],
    *,
    fields: Mapping[str, str] | Sequence[Field] | None = None,
    format: str | None = None,
    source_options: Mapping[str, object] | None = None,
    on_progress: Callable[[PackProgress], None] | None = None,
    **options: Any,
) -> PackResult:
    """Packs a path, an iterable of dicts or a map-style torch Dataset into the new folder ``dest``.

    ``fields`` says what Python samples consist of (``{"image": "image", "label": "int"}``); by default the first sample
    tells. ``source_options`` are those of the path's format (docs/sources.md), ``options`` those of PackOptions: ``encode``,
    ``quality``, ``max_side``, ``resize``, ``restart``, ``order``, ``seed``, ``shard_size``, ``block_size``, ``on_error``,
    ``max_bad``, ``jobs``. Killed and called again with the same arguments, it goes on where it was.

        fastload.pack(({"image": pixels, "label": i} for i, pixels in enumerate(arrays)), "packed")
    """
    given = dict(source_options or {})
    if fields is not None:
        given["fields"] = fields
    opened = open_source(source, format=format, **given)
    name = str(Path(source).resolve()) if isinstance(source, str | os.PathLike) else ""
    return Packer(opened, Path(dest), _options(options), name=name, on_progress=on_progress).run()


def _options(given: dict[str, Any]) -> PackOptions:
    from fastload.errors import ConfigError

    unknown = sorted(given.keys() - PackOptions.__dataclass_fields__.keys())
    if unknown:
        raise ConfigError(
            f"pack has no option {', '.join(unknown)}; it has {', '.join(PackOptions.__dataclass_fields__)}"
        )
    return PackOptions(**given)
