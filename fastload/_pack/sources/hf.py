"""Hugging Face: ``datasets`` saved with save_to_disk, and Parquet files with image columns.

Needs only pyarrow, which has no type annotations: its types are read through strings and methods.
This is a stream source: rows are stored in compressed groups of a hundred or
more, so one row costs as much as its group. The packer reads the groups once, in order, and
shuffles the spooled samples.
"""

from __future__ import annotations

import contextlib
import importlib
import itertools
import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple  # Any: pyarrow has no types

import numpy as np

from fastload._pack.files import as_path, open_inside, printable, printable_or_repr, read_bounded
from fastload._pack.sources.base import Encoded, Info, Json, Pixels, Sample, Value
from fastload._pack.sources.columns import field_name
from fastload._pack.sources.jsontext import config_errors, read_json_object
from fastload._pack.sources.objects import checked, infer_field
from fastload._store.fields import Field
from fastload._store.kinds import NUMBERS, STR
from fastload.errors import BadImage, ConfigError, MissingPart

# The first characters of Arrow types.
_FLOATS = ("float", "double", "halffloat")
_NUMBERS = (*_FLOATS, "int", "uint", "bool")
_TEXTS = ("string", "large_string", "dictionary", "timestamp", "date", "time", "decimal")

BATCH_ROWS = 32  # Parquet rows decoded at once: about 4 MB of photos
MAX_INFO_BYTES = 64 << 20


@dataclass(frozen=True, slots=True)
class TableFile:
    path: str  # relative to the root
    split: str


class _Table(NamedTuple):
    schema: Any
    batches: Iterable[Any]
    n_rows: int | None = None


class TableFiles:
    """Arrow or Parquet files below a folder."""

    def __init__(self, root: Path, files: Sequence[TableFile]) -> None:
        self.root = root
        self.files = files
        self._arrow = pyarrow("pyarrow")

    def batches(self, file: TableFile, columns: list[str]) -> Iterator[Any]:
        with self.open(file, columns) as table:
            for batch in table.batches:
                # pyarrow trusts the offsets in an Arrow file: a wrong one ends the process.
                batch.validate(full=True)
                yield batch

    @contextlib.contextmanager
    def open(self, file: TableFile, columns: list[str] | None = None) -> Iterator[_Table]:
        with config_errors(), open_inside(self.root, file.path) as handle:
            try:
                yield _read_table(handle, file.path, columns)
            except (self._arrow.ArrowException, OSError, UnicodeDecodeError) as error:
                why = str(error)
            except MemoryError:
                why = "it has a buffer that does not fit into memory"
            else:
                return
            raise ConfigError(
                f"{printable(file.path)}: not a readable Arrow or Parquet file: {why}"
            )

    def count(self) -> int | None:
        total = 0
        for file in self.files:
            with self.open(file) as table:
                if table.n_rows is None:
                    return None
                total += table.n_rows
        return total


class HuggingFaceSource:
    """Reads rows of Arrow or Parquet files.

    Image columns (bytes and path) become images, ClassLabel becomes an int field with its names,
    numbers in lists become arrays, and other nested values become json.

    Args:
        path: Saved dataset, Arrow file, Parquet file, or folder of Parquet files.
        split: Read only this split. Default: all.
        columns: Read only these columns. Default: all.
    """

    name = "hf"

    def __init__(self, path: str | Path, *, split: str = "", columns: Sequence[str] = ()) -> None:
        given = as_path(path)
        self.root = given if given.is_dir() else given.parent
        self._tables = TableFiles(self.root, _files(given, split))
        files = self._tables.files
        self.splits = tuple(dict.fromkeys(file.split for file in files if file.split))
        with self._tables.open(files[0]) as table:
            self._columns = _columns_of(table.schema, columns, self._first_row, str(given))
        self.n_samples = self._tables.count()
        self.fields = (
            *(column.field for column in self._columns),
            *([Field("split", "int", classes=self.splits)] if self.splits else []),
        )
        classes: dict[str, Json] = {
            each.field.name: list(each.item_names) for each in self._columns if each.item_names
        }
        self.info: Info = {"classes": classes} if classes else {}

    def __iter__(self) -> Iterator[Sample | BadImage]:
        for file in self._tables.files:
            rows = itertools.count()
            for batch in self._tables.batches(file, [column.name for column in self._columns]):
                arrays = [batch.column(column.name) for column in self._columns]
                for i in range(batch.num_rows):
                    yield self._sample(file, arrays, i, next(rows))

    def _sample(
        self, file: TableFile, arrays: Sequence[Any], i: int, row: int
    ) -> Sample | BadImage:
        where = f"{printable(file.path)}!{row}"
        values: dict[str, Value] = {"split": self.splits.index(file.split)} if self.splits else {}
        source = where
        try:
            for column, cells in zip(self._columns, arrays, strict=True):
                value = _as_python(cells[i], column.name, where)
                if column.field.kind.is_image and value is not None:
                    items = value if column.field.list else [value]
                    images: list[Pixels] = [self._image(item, where) for item in items]
                    values[column.field.name] = images if column.field.list else images[0]
                    named = images[0].name if images and isinstance(images[0], Encoded) else where
                    source = f"{where} ({named})" if named != where and source == where else source
                else:
                    values[column.field.name] = _row_value(value, column.field, where)
        except BadImage as error:
            return error
        return Sample(values, source=source)

    def _image(self, cell: object, where: str) -> Encoded:
        """Returns an image cell: a struct of bytes and path, or bytes. A path alone is a file."""
        data, path = (
            (cell.get("bytes"), cell.get("path")) if isinstance(cell, dict) else (cell, None)
        )
        name = printable_or_repr(path) if isinstance(path, str) else where
        if isinstance(data, bytes):
            return Encoded(data, name)
        if isinstance(path, str):
            return Encoded(read_bounded(self.root, path), name)
        raise BadImage("image with neither bytes nor path", source=where)

    def _first_row(self, name: str) -> object:
        """Returns the first value in a column that is not null, to detect image bytes."""
        batch = next(self._tables.batches(self._tables.files[0], [name]), None)
        values = [] if batch is None else batch.column(name).to_pylist()
        return next((value for value in values if value is not None), None)


def looks_like(path: Path) -> str:
    """Returns why the path is a Hugging Face dataset, or an empty string."""
    if path.is_file():
        return {".parquet": "a Parquet file", ".arrow": "an Arrow file"}.get(path.suffix, "")
    for name in ("dataset_dict.json", "state.json"):
        if (path / name).is_file():
            return f"datasets saved to disk ({name})"
    return f"Parquet files ({found[0]})" if (found := parquet_files(path)) else ""


def pyarrow(name: str) -> ModuleType:
    try:
        return importlib.import_module(name)
    except ImportError:
        raise MissingPart(
            "Hugging Face datasets and Parquet files need pyarrow: pip install pyarrow"
        ) from None


def _read_table(handle: Any, path: str, columns: list[str] | None) -> _Table:
    if path.endswith(".parquet"):
        # With a buffer, columns are read in pieces instead of a whole group (up to a gigabyte).
        reader = pyarrow("pyarrow.parquet").ParquetFile(
            handle, buffer_size=1 << 20, pre_buffer=False
        )
        batches = reader.iter_batches(batch_size=BATCH_ROWS, columns=columns)
        return _Table(reader.schema_arrow, batches, int(reader.metadata.num_rows))
    is_file_format = handle.read(6) == b"ARROW1"  # otherwise the streaming format
    handle.seek(0)
    if is_file_format:
        reader = pyarrow("pyarrow.ipc").open_file(handle)
        return _Table(reader.schema, map(reader.get_batch, range(reader.num_record_batches)))
    reader = pyarrow("pyarrow.ipc").open_stream(handle)
    return _Table(reader.schema, reader)


def parquet_files(root: Path) -> list[str]:
    return sorted(
        path.relative_to(root).as_posix()
        for pattern in ("*.parquet", "*/*.parquet")
        for path in root.glob(pattern)
    )


def _files(given: Path, split: str) -> list[TableFile]:
    if not given.is_dir():
        found = [TableFile(given.name, "")]
    elif (given / "dataset_dict.json").is_file():
        listed = _read_info(given, "dataset_dict.json").get("splits")
        splits = [str(name) for name in listed] if isinstance(listed, list) else []
        found = [
            TableFile(f"{name}/{file}", name)
            for name in splits
            for file in _saved(given, f"{name}/")
        ]
    elif (given / "state.json").is_file():
        found = [TableFile(file, "") for file in _saved(given, "")]
    else:
        # "train" in data/train-00000-of-00008.parquet
        named = [(file, Path(file).stem) for file in parquet_files(given)]
        has_splits = all("-of-" in stem for _, stem in named)
        found = [TableFile(file, stem.split("-")[0] if has_splits else "") for file, stem in named]
    wanted = [file for file in found if split in ("", file.split)]
    if not wanted:
        names = (
            ", ".join(dict.fromkeys(file.split or "no splits" for file in found)) or "no data files"
        )
        raise ConfigError(
            f"{given}: expected {f'split {split!r}' if split else 'Arrow or Parquet files'}, "
            f"found {names}"
        )
    return wanted


def _as_python(cell: Any, column: str, where: str) -> Any:
    try:
        return cell.as_py()
    except (OverflowError, ValueError) as error:  # such as a date in the year 10,000
        raise BadImage(f"column {column!r}: {error}", source=where) from None


def _read_info(folder: Path, name: str) -> dict[str, Json]:
    with config_errors():
        return read_json_object(folder, name, f"{folder.name}/{name}", limit=MAX_INFO_BYTES)


def _saved(root: Path, folder: str) -> list[str]:
    """Returns the Arrow files in the order of state.json in a folder ("" or "train/")."""
    name = f"{folder}state.json"
    state = _read_info(root, name)
    listed = state.get("_data_files")
    names = (
        [entry.get("filename") for entry in listed if isinstance(entry, dict)]
        if isinstance(listed, list)
        else []
    )
    if not names or not all(isinstance(name, str) for name in names):
        raise ConfigError(
            f"{root}: {printable_or_repr(name)}: expected '_data_files' with file names"
        )
    if state.get("_indices_files") or state.get("_indices_data_files"):
        raise ConfigError(
            f"{root}: {printable_or_repr(name)}: saved with an indices mapping. "
            "Call flatten_indices() before save_to_disk()"
        )
    return [str(name) for name in names]


@dataclass(frozen=True, slots=True)
class Column:
    """A column, its field, and the class names of the numbers in its lists."""

    name: str
    field: Field
    item_names: tuple[str, ...] = ()


def _columns_of(
    schema: Any, wanted: Sequence[str], first: Callable[[str], object], where: str
) -> tuple[Column, ...]:
    """Returns the columns as fields, images first.

    ``first`` returns the first value of a column. It is called if the type is ambiguous.
    """
    names = list(wanted) or list(schema.names)
    for name in names:
        if name not in schema.names:
            raise ConfigError(f"{where}: no column {name!r}. Found {', '.join(schema.names)}")
    features = _features(schema)
    made = [
        _column(name, schema.field(name).type, features.get(name), first, where) for name in names
    ]
    if len({column.field.name for column in made}) != len(made):
        raise ConfigError(
            f"{where}: two columns have the same field name. Select columns with --columns"
        )
    return tuple(sorted(made, key=lambda column: not column.field.kind.is_image))


def _row_value(value: object, field: Field, where: str) -> Value:
    """Returns one cell as the value of its field."""
    if field.kind is NUMBERS and value == []:
        return np.zeros(0, dtype=np.float32)
    if field.kind is STR and value is not None and not isinstance(value, str):
        return str(value)  # dates, decimals
    return checked(value, field, where)


def _column(
    name: str, kind: Any, feature: Json, first: Callable[[str], object], where: str
) -> Column:
    made = field_name(name)
    description = feature if isinstance(feature, dict) else {}
    if _is_image(kind) or description.get("_type") == "Image":
        return Column(name, Field(made, "image"))
    text = str(kind)
    if _is_list(text):
        if _is_image(kind.value_type):
            return Column(name, Field(made, "image", list=True))
        if not _innermost(kind).startswith(_NUMBERS):
            return Column(name, Field(made, "json"))
        inner = feature[0] if isinstance(feature, list) and feature else description.get("feature")
        return Column(name, Field(made, "array"), _class_names(inner))
    if text.startswith(_FLOATS):
        return Column(name, Field(made, "float"))
    if text.startswith(_NUMBERS):
        return Column(name, Field(made, "int", classes=_class_names(description)))
    if text.startswith(_TEXTS):
        return Column(name, Field(made, "str"))
    if text.startswith(("binary", "large_binary", "fixed_size_binary")):
        value = first(name)
        return Column(
            name, infer_field(made, value) if isinstance(value, bytes) else Field(made, "bytes")
        )
    if text.startswith("struct"):
        return Column(name, Field(made, "json"))
    raise ConfigError(
        f"{where}: column {name!r} has the unsupported type {text:.60}. "
        "Select the other columns with --columns"
    )


def _features(schema: Any) -> dict[str, Json]:
    """Returns the column descriptions that ``datasets`` stored, or {}."""
    try:
        loaded = json.loads((schema.metadata or {}).get(b"huggingface", b"{}"))
    except ValueError:
        return {}
    match loaded:
        case {"info": {"features": dict(features)}}:
            return features
    return {}


def _class_names(feature: Json) -> tuple[str, ...]:
    match feature:
        case {"_type": "ClassLabel", "names": [*names]}:
            return tuple(map(str, names))
    return ()


def _is_image(kind: Any) -> bool:
    return str(kind).startswith("struct<") and {
        kind.field(i).name for i in range(kind.num_fields)
    } == {
        "bytes",
        "path",
    }


def _is_list(text: str) -> bool:
    return text.startswith(("list", "large_list", "fixed_size_list", "extension"))


def _innermost(kind: Any) -> str:
    while _is_list(str(kind)):
        kind = kind.storage_type if hasattr(kind, "storage_type") else kind.value_type
    return str(kind)
