"""Data written by ``fastload export``: ``fastload.json`` describes the fields of the samples."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any  # Any: pyarrow has no types

import numpy as np

from fastload._pack.exports import (
    EXACT,
    SOURCE,
    TABLE,
    Description,
    JsonValues,
    from_nested,
    label_field,
    primary_image,
    read_description,
    split_names,
    unpacked,
)
from fastload._pack.files import as_path, is_exported, printable, read_bounded
from fastload._pack.sources.base import AnySource, Encoded, Json, Ref, Sample, Value, read_image
from fastload._pack.sources.hf import TableFile, TableFiles, parquet_files
from fastload._pack.sources.jsontext import parse_json
from fastload._pack.sources.numbers import parse_npy
from fastload._pack.sources.rows import Place, Row, RowFile
from fastload._pack.sources.webdataset import TarFiles
from fastload._store.fields import SPLIT, Field, splits_of
from fastload._store.kinds import BYTES, JSON
from fastload.errors import BadImage, ConfigError

_NPY = b"\x93NUMPY"


def open_exported(path: str | Path) -> AnySource:
    """Opens the source for the target that the data was exported to.

    Args:
        path: Folder with fastload.json.
    """
    root = as_path(path)
    description = read_description(root)
    if description.to == "files":
        return _ExportedFiles(root, description)
    if description.to == "webdataset":
        return _ExportedTars(root, description)
    return _ExportedParquet(root, description)


def looks_like(path: Path) -> str:
    """Returns why the path is exported data, or an empty string."""
    return "written by fastload export" if is_exported(path) else ""


class _Exported:
    """What the three sources have in common."""

    name = "exported"
    thread_safe = True

    def __init__(self, root: Path, description: Description) -> None:
        self.root = root
        self.fields = description.fields
        self.info = description.info
        self._by_name = {each.name: each for each in self.fields}
        self._json = JsonValues(self.fields)
        # Numbers of the splits by the prefix of their shards.
        self._prefixes = {name: n for n, name in enumerate(split_names(splits_of(self.fields)))}

    def _field(self, name: str, source: str) -> Field:
        if name not in self._by_name:
            raise BadImage(
                f"unknown field {name!r:.60}: expected one of {', '.join(self._by_name)!s:.200}",
                source=source,
            )
        return self._by_name[name]

    def _split_of_shard(self, path: str) -> int:
        """Returns the number of the split of ``train-000000.tar``. Raises ConfigError."""
        prefix = path.rpartition("/")[2].partition("-")[0]
        if prefix not in self._prefixes:
            raise ConfigError(
                f"{self.root / path}: expected a name that starts with a split and '-': "
                f"{', '.join(self._prefixes)!s:.200}. Do not rename exported files"
            )
        return self._prefixes[prefix]


def _pixels(data: bytes, name: str, source: str) -> Value:
    """Returns an image or mask file; masks of 32 bits are .npy files."""
    return parse_npy(data, source) if data.startswith(_NPY) else Encoded(data, name)


def _items(each: Field, cell: Any, load: Callable[[Any], Value], where: str) -> Value:
    """Returns the value of a field, with each item of a list loaded."""
    if not each.list:
        return load(cell)
    if not isinstance(cell, list):
        raise BadImage(f"field {each.name!r}: expected a list, found {cell!r:.60}", source=where)
    items: Any = [load(item) for item in cell]
    return items  # type: ignore[no-any-return]


def _original(value: object, default: str) -> str:
    """Returns the original path of a sample, if it is printable."""
    is_valid = isinstance(value, str) and value and value.isprintable()
    return str(value) if is_valid else default


class _ExportedFiles(_Exported):
    """Reads samples.jsonl and the files that it names."""

    def __init__(self, root: Path, description: Description) -> None:
        super().__init__(root, description)
        self._rows = RowFile(root / TABLE)

    def refs(self) -> Iterator[Ref]:
        splits = self._by_name[SPLIT] if splits_of(self.fields) else None
        if splits is None:
            for place in self._rows.places():
                yield [place.line, place.offset, place.length]
            return
        for place, row in self._rows.rows():
            split: Value = 0
            if row is not None:
                # The pack reports a row without a split when it loads the row.
                with contextlib.suppress(BadImage):
                    split = self._json.load(splits, row.get(SPLIT), "")
            yield [place.line, place.offset, place.length, split if type(split) is int else 0]

    def split_of(self, ref: Ref) -> int:
        return self._checked(ref)[3]

    def _checked(self, ref: Ref) -> list[int]:
        parts = [part for part in ref if isinstance(part, int)] if isinstance(ref, list) else []
        if len(parts) != (4 if splits_of(self.fields) else 3):
            raise ConfigError(
                f"{self.root}: {ref!r:.60} is not a row of {TABLE}. "
                "The listing belongs to another source"
            )
        return parts

    def load(self, ref: Ref) -> Sample:
        place = Place(*self._checked(ref)[:3])
        where = f"{TABLE}:{place.line}"
        row: Row = self._rows.row_at(place)
        values: dict[str, Value] = {}
        for name, cell in row.items():
            if name == SOURCE or cell is None:
                continue
            each = self._field(name, where)
            values[name] = _items(each, cell, partial(self._value, each, where), where)
        return Sample(values, source=_original(row.get(SOURCE), where))

    def _value(self, each: Field, where: str, cell: Json) -> Value:
        if each.kind.decoded_by_pool:
            if not isinstance(cell, str):
                raise BadImage(
                    f"field {each.name!r}: expected a file name, found {cell!r:.60}", source=where
                )
            image = read_image(self.root, cell, f"named in {where}")
            return _pixels(image.data, image.name, where)
        if isinstance(cell, str) and (each.kind.is_array or each.kind is BYTES):
            data = read_bounded(self.root, cell)
            return parse_npy(data, where) if each.kind.is_array else data
        return self._json.load(each, cell, where)


class _ExportedTars(_Exported):
    """Reads tar shards: a field per member, and the others in the member ``json``."""

    def __init__(self, root: Path, description: Description) -> None:
        super().__init__(root, description)
        self._tars = TarFiles(root)
        label = label_field(self.fields)
        image = primary_image(self.fields)
        # Fields of members that are named only by their suffix.
        self._bare = {"jpg": image, "png": image, "cls": label.name if label else ""}
        self._splits = (
            {printable(each): self._split_of_shard(each) for each in self._tars.shards}
            if self._prefixes
            else {}
        )

    def refs(self) -> Iterator[Ref]:
        return self._tars.refs()

    def split_of(self, ref: Ref) -> int:
        shard = ref[0] if isinstance(ref, list) else ""
        return self._splits.get(str(shard), 0)  # ``load`` refuses other refs

    def load(self, ref: Ref) -> Sample:
        where = self._tars.source(ref)
        values: dict[str, Value] = {}
        lists: dict[str, dict[int, Value]] = {}
        source = where
        for extension, member, data in self._tars.read(ref):
            if extension == "json":
                row = parse_json(data, member)
                if not isinstance(row, dict):
                    raise BadImage(f"expected a JSON object, found {row!r:.60}", source=member)
                source = _original(row.pop(SOURCE, None), where)
                values |= self._from_row(row, member)
                continue
            *names, suffix = extension.split(".")
            each = self._field(names[0] if names else self._bare.get(suffix, ""), member)
            value = self._member(each, data, member)
            if not each.list:
                values[each.name] = value
            elif len(names) == 2 and names[1].isdecimal() and len(names[1]) < 5:
                lists.setdefault(each.name, {})[int(names[1])] = value
            else:
                raise BadImage(
                    f"expected {each.name}.NUMBER.SUFFIX for an item of a list", source=member
                )
        for name, items in lists.items():
            if sorted(items) != list(range(len(items))):
                raise BadImage(
                    f"field {name!r}: {len(items)} items, but not 0 to {len(items) - 1}",
                    source=where,
                )
            ordered: Any = [items[n] for n in range(len(items))]
            values[name] = ordered
        if self._splits:
            values[SPLIT] = self.split_of(ref)
        return Sample(values, source=source)

    def _from_row(self, row: dict[str, Json], member: str) -> dict[str, Value]:
        values: dict[str, Value] = {}
        for name, cell in row.items():
            each = self._field(name, member)
            load = partial(self._json.load, each, source=member)
            values[name] = _items(each, cell, load, member)
        return values

    def _member(self, each: Field, data: bytes, member: str) -> Value:
        if each.kind.decoded_by_pool:
            return _pixels(data, member, member)
        if each.kind.is_array:
            return parse_npy(data, member)
        if each.kind is BYTES:
            return data
        text = data.decode("ascii", "replace")
        if not (text.isdecimal() and len(text) < 10):
            raise BadImage(f"expected the number of a class, found {text!r:.60}", source=member)
        return int(text)


class _ExportedParquet(_Exported):
    """Reads Parquet files in order, because rows are stored in compressed groups."""

    def __init__(self, root: Path, description: Description) -> None:
        super().__init__(root, description)
        paths = parquet_files(root)
        if not paths:
            raise ConfigError(f"{root}: no Parquet file. Expected data/*.parquet")
        self._tables = TableFiles(root, [TableFile(path, "") for path in paths])
        self._splits = {path: self._split_of_shard(path) for path in paths if self._prefixes}
        self.n_samples = self._tables.count()
        self._columns = [
            each for each in self.fields if not (each.name == SPLIT and self._prefixes)
        ]

    def __iter__(self) -> Iterator[Sample | BadImage]:
        for file in self._tables.files:
            self._check_columns(file)
            rows = itertools.count()
            names = [*(each.name for each in self._columns), SOURCE, EXACT]
            for batch in self._tables.batches(file, names):
                for i in range(batch.num_rows):
                    where = f"{printable(file.path)}!{next(rows)}"
                    try:
                        yield self._sample(file, batch, i, where)
                    except BadImage as error:
                        yield error

    def _check_columns(self, file: TableFile) -> None:
        with self._tables.open(file) as table:
            found = set(table.schema.names)
        for name in (*(each.name for each in self._columns), SOURCE, EXACT):
            if name not in found:
                raise ConfigError(f"{self.root / file.path}: no column {name!r}")

    def _sample(self, file: TableFile, batch: Any, i: int, where: str) -> Sample:
        exact = batch.column(EXACT)[i].as_py()
        values: dict[str, Value] = self._exact(exact, where) if exact is not None else {}
        if self._prefixes:
            values[SPLIT] = self._splits[file.path]
        for each in self._columns:
            cells = batch.column(each.name)
            cell = cells[i].as_py()
            if cell is None or each.name in values:
                continue
            dtype = _innermost(cells.type) if each.kind.is_array else None
            load = partial(self._value, each, dtype, where)
            values[each.name] = _items(each, cell, load, where)
        return Sample(values, source=_original(batch.column(SOURCE)[i].as_py(), where))

    def _exact(self, text: object, where: str) -> dict[str, Value]:
        row = parse_json(text.encode(), where) if isinstance(text, str) else None
        if not isinstance(row, dict):
            raise BadImage(f"column {EXACT}: expected a JSON object", source=where)
        values: dict[str, Value] = {}
        for name, cells in row.items():
            each = self._field(name, where)
            items = [
                parse_npy(unpacked("npy", cell, where), where)
                for cell in (cells if isinstance(cells, list) else [cells])
            ]
            values[name] = items if each.list else items[0] if items else None
        return values

    def _value(self, each: Field, dtype: np.dtype[Any] | None, where: str, cell: Any) -> Value:
        if each.kind.decoded_by_pool:
            data = cell.get("bytes") if isinstance(cell, dict) else None
            if not isinstance(data, bytes):
                raise BadImage(f"field {each.name!r}: expected an image with bytes", source=where)
            name = cell.get("path")
            return _pixels(data, printable(name) if isinstance(name, str) else where, where)
        if each.kind.is_array:
            if isinstance(cell, bytes):
                return parse_npy(cell, where)
            try:
                return from_nested(each, cell, dtype)
            except ConfigError as error:
                raise BadImage(str(error), source=where) from None
        if each.kind is JSON and isinstance(cell, str):
            return parse_json(cell.encode(), where)
        value: Value = cell
        return value


def _innermost(kind: Any) -> np.dtype[Any] | None:
    """Returns the dtype of the numbers in nested lists, None for other types."""
    while hasattr(kind, "value_type"):
        kind = kind.value_type
    try:
        dtype = np.dtype(kind.to_pandas_dtype())
    except (TypeError, NotImplementedError):
        return None
    return dtype if dtype.kind in "biuf" else None
