"""Writes exported samples as files, WebDataset shards or Parquet files, in bounded memory."""

from __future__ import annotations

import dataclasses
import functools
import json
import os
import tarfile
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any, Protocol  # Any: pyarrow has no types

import numpy as np

from fastload._common import files, strict_json
from fastload._common.files import NewFile
from fastload._common.strict_json import Json
from fastload._pack.exports import (
    EXACT,
    SOURCE,
    TABLE,
    JsonValues,
    check_class,
    label_field,
    nested,
    npy_file,
    packed_json,
    primary_image,
    safe_name,
    safe_names,
    split_names,
)
from fastload._pack.sources.hf import pyarrow
from fastload._pack.sources.rows import MAX_ROW_BYTES
from fastload._store.fields import SPLIT, Field, splits_of
from fastload._store.kinds import BYTES, FLOAT, INT, JSON, NUMBERS, STR, FieldKind
from fastload._store.properties import Properties
from fastload.errors import BadImage

MAX_INLINE_BYTES = 1 << 20  # of an array or bytes in the table; larger ones are files
_GROUP_BYTES = 32 << 20  # of a Parquet row group, which a reader decompresses as a whole
_GROUP_ROWS = 1000
_ARROW: dict[FieldKind, str] = {
    INT: "int64",
    FLOAT: "float64",
    STR: "string",
    JSON: "string",
    BYTES: "binary",
}


@dataclass(frozen=True, slots=True)
class ImageFile:
    """An image or mask as a file."""

    suffix: str  # jpg, png or npy
    data: bytes


@dataclass(frozen=True, slots=True)
class ExportSample:
    """A sample for a writer. A field has a list of values, also if it holds only one."""

    id: int
    source: str
    values: dict[str, list[Any]]
    split: int = 0

    @property
    def stem(self) -> str:
        """The name of the original file without folder and suffix, safe to use as a file name."""
        return safe_name(PurePosixPath(self.source).stem) if self.source else f"{self.id:09}"


class Writer(Protocol):
    """Writes samples, which arrive in the order of their ids."""

    n_files: int
    size_bytes: int

    def add(self, sample: ExportSample) -> None:
        """Writes one sample completely, or nothing of it and raises BadImage."""

    def finish(self) -> None:
        """Completes the files."""

    def close(self) -> None:
        """Closes open files without completing them."""


class FilesWriter:
    """Images in ``[FIELD/][SPLIT/][CLASS/]NAME``, and ``samples.jsonl`` with the other values."""

    def __init__(self, folder: Path, fields: Sequence[Field]) -> None:
        self.n_files = 1
        self.size_bytes = 0
        self._folder = folder
        self._fields = fields
        self._json = JsonValues(fields)
        pixel_fields = [each for each in fields if each.kind.decoded_by_pool]
        # Otherwise the masks in a class folder would be further images of the class.
        self._folder_per_field = len(pixel_fields) != 1
        self._label = label_field(fields)
        self._classes = safe_names(self._label.classes if self._label else ())
        self._splits = safe_names(splits_of(fields))
        self._made: set[str] = set()
        self._table = NewFile(folder / TABLE)

    def add(self, sample: ExportSample) -> None:
        pending: dict[str, bytes] = {}
        below = self._below(sample)
        row: dict[str, Json] = {}
        for each in self._fields:
            items: list[Json] = []
            for number, value in enumerate(sample.values.get(each.name, ())):
                suffix, data = _file_of(each, value)
                if not suffix:
                    items.append(self._json.dump(each, value))
                    continue
                name = f"{sample.stem}-{number}" if each.list else sample.stem
                path = f"{self._folder_of(each, below)}{name}.{suffix}"
                while path in pending or os.path.lexists(self._folder / path):
                    name += f"-{sample.id}"
                    path = f"{self._folder_of(each, below)}{name}.{suffix}"
                pending[path] = data
                items.append(path)
            row[each.name] = items if each.list else next(iter(items), None)
        row[SOURCE] = sample.source
        line = (strict_json.dumps(row, max_depth=128) + "\n").encode()
        if len(line) > MAX_ROW_BYTES:
            raise BadImage(
                f"its row has {len(line)} bytes, expected at most {MAX_ROW_BYTES}. Export to "
                "webdataset or parquet"
            )
        for path, data in pending.items():
            with files.writing(self._folder / path, needed=len(data)):
                (self._folder / path).write_bytes(data)
            self.size_bytes += len(data)
        self.n_files += len(pending)
        self._table.write(line)
        self.size_bytes += len(line)

    def finish(self) -> None:
        self._table.publish()
        # One call for all files: a million calls of fsync take hours on a hard disk.
        os.sync()

    def close(self) -> None:
        self._table.__exit__()

    def _below(self, sample: ExportSample) -> list[str]:
        found = [self._splits[sample.split]] if self._splits else []
        if self._label is not None and (labels := sample.values.get(self._label.name)):
            found.append(self._classes[check_class(self._label, labels[0])])
        return found

    def _folder_of(self, each: Field, below: Sequence[str]) -> str:
        """Creates the folder of a file. Returns its relative path with a slash, or ""."""
        own = [each.name] if self._folder_per_field or not each.kind.decoded_by_pool else []
        folder = "".join(f"{name}/" for name in (*own, *below))
        if folder not in self._made:
            with files.writing(self._folder / folder, needed=4096):
                (self._folder / folder).mkdir(parents=True, exist_ok=True)
            self._made.add(folder)
        return folder


def _file_of(each: Field, value: Any) -> tuple[str, bytes]:
    """Returns suffix and content of a value that becomes a file in the target "files"."""
    if isinstance(value, ImageFile):
        return value.suffix, value.data
    if each.kind.is_array and value.nbytes > MAX_INLINE_BYTES:
        return "npy", npy_file(value)
    if each.kind is BYTES and len(value) > MAX_INLINE_BYTES:
        return "bin", value
    return "", b""


class TarWriter:
    """``SPLIT-NNNNNN.tar``: images, ``cls``, ``npy`` and ``bin`` members, the rest in ``json``."""

    def __init__(self, folder: Path, fields: Sequence[Field], *, shard_size: int) -> None:
        self.n_files = 0
        self.size_bytes = 0
        self._folder = folder
        self._fields = fields
        self._shard_size = shard_size
        self._json = JsonValues(fields)
        self._image = primary_image(fields)
        self._label = label_field(fields)
        self._prefixes = split_names(splits_of(fields)) or ["samples"]
        self._split = -1
        self._shards: Counter[int] = Counter()
        self._file: NewFile | None = None

    def add(self, sample: ExportSample) -> None:
        key = f"{sample.id:09}"
        members = b"".join(
            _tar_member(f"{key}.{extension}", data) for extension, data in self._members(sample)
        )
        full = self._file is not None and self._file.size >= self._shard_size
        if full or sample.split != self._split:
            self._end_shard()
        if self._file is None:
            self._split = sample.split
            name = f"{self._prefixes[sample.split]}-{self._shards[sample.split]:06}.tar"
            self._file = NewFile(self._folder / name)
            self._shards[sample.split] += 1
            self.n_files += 1
        self._file.write(members)
        self.size_bytes += len(members)

    def finish(self) -> None:
        self._end_shard()

    def close(self) -> None:
        if self._file is not None:
            self._file.__exit__()

    def _end_shard(self) -> None:
        if self._file is not None:
            self._file.write(bytes(2 * tarfile.BLOCKSIZE))
            self._file.publish()
            self._file = None

    def _members(self, sample: ExportSample) -> Iterator[tuple[str, bytes]]:
        others: dict[str, Json] = {}
        for each in self._fields:
            if each.name == SPLIT and each.classes:
                continue  # the name of the shard has it
            values = sample.values.get(each.name, ())
            if each is self._label and values:
                yield "cls", str(check_class(each, values[0])).encode()
            elif each.kind.decoded_by_pool or each.kind.is_array or each.kind is BYTES:
                for number, value in enumerate(values):
                    suffix, data = _member_of(each, value)
                    middle = f"{each.name}.{number}." if each.list else f"{each.name}."
                    yield f"{'' if each.name == self._image else middle}{suffix}", data
            elif values:
                items = [self._json.dump(each, value) for value in values]
                others[each.name] = items if each.list else items[0]
        others[SOURCE] = sample.source
        yield "json", strict_json.dumps(others, max_depth=128).encode()


def _member_of(each: Field, value: Any) -> tuple[str, bytes]:
    if isinstance(value, ImageFile):
        return value.suffix, value.data
    return ("npy", npy_file(value)) if each.kind.is_array else ("bin", value)


def _tar_member(name: str, data: bytes) -> bytes:
    info = tarfile.TarInfo(name)  # owner, time and mode are fixed: equal input, equal shards
    info.size = len(data)
    padding = bytes(-len(data) % tarfile.BLOCKSIZE)
    return info.tobuf(tarfile.USTAR_FORMAT) + data + padding


@dataclass(slots=True)
class _Column:
    """A column of a Parquet file and the cells of the rows that are not written yet."""

    field: Field
    type: Any  # of Arrow
    item: Callable[[Any], Any]  # value → cell; None if the cell is not exact
    cells: list[Any] = dataclasses.field(default_factory=list)


class ParquetWriter:
    """``data/SPLIT-NNNNN-of-NNNNN.parquet`` with the column types of Hugging Face."""

    def __init__(
        self,
        folder: Path,
        fields: Sequence[Field],
        properties: Sequence[Properties],
        arrays: dict[str, np.ndarray[Any, Any]],
        *,
        shard_size: int,
    ) -> None:
        """``arrays``: a value of each array field, which decides the type of its column."""
        self.n_files = 0
        self.size_bytes = 0
        self._arrow = pyarrow("pyarrow")
        self._parquet = pyarrow("pyarrow.parquet")
        self._folder = folder / "data"
        self._fields = fields
        self._shard_size = shard_size
        self._splits = split_names(splits_of(fields)) or ["train"]  # as Hugging Face names it
        self._columns = [
            self._column(each, arrays.get(each.name))
            for each in fields
            if not (each.name == SPLIT and each.classes)
        ]
        # Columns with few different values. Images would only fill the dictionary.
        self._repeated = [each.name for each in fields if each.kind in (INT, STR) and not each.list]
        self._sources: list[str] = []
        self._exact: list[str | None] = []
        self._schema = self._make_schema(properties)
        self._shards: list[list[Path]] = [[] for _ in self._splits]
        self._split = -1
        self._group_bytes = 0
        self._shard_bytes = 0
        self._writer: Any = None
        self._file: Any = None
        with files.writing(self._folder, needed=4096):
            self._folder.mkdir()

    def add(self, sample: ExportSample) -> None:
        cells: list[Any] = []
        exact: dict[str, Json] = {}
        size = 0
        for column in self._columns:
            each = column.field
            values = sample.values.get(each.name, [])
            items = [
                _image_cell(value, sample.stem)
                if isinstance(value, ImageFile)
                else column.item(value)
                for value in values
            ]
            if each.kind.is_array and any(item is None for item in items):
                exact[each.name] = [packed_json("npy", npy_file(value)) for value in values]
                items = []
            cells.append(items if each.list else next(iter(items), None))
            size += sum(map(_n_bytes, values))
        if self._group_bytes >= _GROUP_BYTES or len(self._sources) >= _GROUP_ROWS:
            self._write_group()
        if sample.split != self._split or self._shard_bytes >= self._shard_size:
            self._end_shard()
            self._split = sample.split
        for column, cell in zip(self._columns, cells, strict=True):
            column.cells.append(cell)
        self._sources.append(sample.source)
        self._exact.append(json.dumps(exact) if exact else None)
        self._group_bytes += size
        self._shard_bytes += size

    def finish(self) -> None:
        self._end_shard()
        for split, paths in zip(self._splits, self._shards, strict=True):
            for number, path in enumerate(paths):
                with files.writing(path, needed=4096):
                    path.rename(self._folder / f"{split}-{number:05}-of-{len(paths):05}.parquet")
        with files.writing(self._folder, needed=4096):
            files.sync_dir(self._folder)

    def close(self) -> None:
        if self._file is not None:
            self._file.close()

    def _write_group(self) -> None:
        if not self._sources:
            return
        pa = self._arrow
        batch = pa.record_batch(
            [
                *(pa.array(column.cells, column.type) for column in self._columns),
                pa.array(self._sources, pa.string()),
                pa.array(self._exact, pa.string()),
            ],
            schema=self._schema,
        )
        with files.writing(self._folder, needed=self._group_bytes):
            if self._writer is None:
                path = self._folder / f"shard-{self.n_files:05}"
                self._shards[self._split].append(path)
                self.n_files += 1
                self._file = path.open("wb", buffering=0)
                self._writer = self._parquet.ParquetWriter(
                    self._file, self._schema, use_dictionary=self._repeated
                )
            self._writer.write_batch(batch)
        for column in self._columns:
            column.cells = []
        self._sources = []
        self._exact = []
        self._group_bytes = 0

    def _end_shard(self) -> None:
        self._write_group()
        self._shard_bytes = 0
        if self._writer is None:
            return
        with files.writing(self._folder, needed=4096):
            self._writer.close()
            os.fsync(self._file.fileno())
            self.size_bytes += self._file.tell()
            self._file.close()
        self._writer = self._file = None

    def _column(self, each: Field, example: np.ndarray[Any, Any] | None) -> _Column:
        pa = self._arrow
        item: Callable[[Any], Any] = lambda value: value  # noqa: E731
        if each.kind.decoded_by_pool:
            kind = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
        elif each.kind.is_array:
            kind, item = _array_column(pa, each, example)
        else:
            kind = getattr(pa, _ARROW[each.kind])()
            if each.classes:
                item = functools.partial(check_class, each)
            elif each.kind is JSON:
                item = strict_json.dumps
        return _Column(each, pa.list_(kind) if each.list else kind, item)

    def _make_schema(self, properties: Sequence[Properties]) -> Any:
        pa = self._arrow
        features: dict[str, Json] = {}
        for each, found in zip(self._fields, properties, strict=True):
            feature: Json = None
            if each.kind.is_image or (each.kind.is_mask and max(found.bits, default=0) <= 16):
                feature = {"_type": "Image"}
            elif (
                each.classes and each.name != SPLIT and len(set(each.classes)) == len(each.classes)
            ):
                feature = {"names": list(each.classes), "_type": "ClassLabel"}
            if feature is not None:
                features[each.name] = [feature] if each.list else feature
        return pa.schema(
            [
                *((column.field.name, column.type) for column in self._columns),
                (SOURCE, pa.string()),
                (EXACT, pa.string()),
            ],
            {"huggingface": json.dumps({"info": {"features": features}})},
        )


def _n_bytes(value: Any) -> int:
    if isinstance(value, ImageFile):
        return len(value.data)
    return int(getattr(value, "nbytes", 0)) or (len(value) if isinstance(value, str | bytes) else 8)


def _image_cell(value: ImageFile, stem: str) -> dict[str, Any]:
    return {"bytes": value.data, "path": f"{stem}.{value.suffix}"}


def _array_column(pa: Any, each: Field, example: Any) -> tuple[Any, Callable[[Any], Any]]:
    """Returns Arrow type and cells of an array column: nested lists of one dtype and depth.

    An array field whose first value has no such type is a column of .npy files.
    """
    if each.kind is not NUMBERS:
        width = (each.kind.row_widths or (2,))[0]
        example = each.kind.decode(each, each.kind.encode(0, 0, each, np.zeros((1, width))))
    elif example is None or not example.ndim or example.dtype == np.float16:
        return pa.binary(), npy_file
    dtype = example.dtype
    kind = pa.from_numpy_dtype(dtype)
    for _ in range(example.ndim):
        kind = pa.list_(kind)

    def cell(value: Any) -> Json:
        same_type = value.dtype == dtype and value.ndim == example.ndim
        return nested(each, value, dtype) if same_type else None

    return kind, cell
