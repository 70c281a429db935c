"""CSV and JSONL lists: each row is a sample.

Path columns become images. Other columns become numbers, text or classes.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from fastload._pack.files import as_path, is_image_name, real_path
from fastload._pack.sources.base import (
    Encoded,
    Info,
    Json,
    Ref,
    Sample,
    Value,
    read_image,
    with_along,
)
from fastload._pack.sources.columns import (
    CLASS,
    ColumnType,
    convert,
    field_name,
    grouped,
    infer_kind,
)
from fastload._pack.sources.rows import Place, Row, RowFile
from fastload._store.fields import SPLIT, Field
from fastload._store.kinds import BOXES, POINTS, FieldKind
from fastload.errors import BadImage, ConfigError

SUFFIXES = (".csv", ".tsv", ".jsonl", ".ndjson")
INFERRED_ROWS = 1000
MAX_CLASSES = 1_000_000
_ROWS: dict[FieldKind, str] = {POINTS: "x and y of each point", BOXES: "x1, y1, x2, y2 of each box"}


class ListSource:
    """Reads a CSV file with a header row, or a JSONL file.

    Args:
        path: The list, or a folder that contains one list.
        root: Folder for the paths in the list. Nothing outside is read. Default: the list's folder.
        types: Kind per column: a field kind, or ``"class"`` for text that becomes an int label.
        classes: Class names in label order, per column.
        points: Points fields made of number columns, e.g. ``{"corners": ["x1", "y1"]}``.
        boxes: Boxes fields made of number columns.
        paths: Image fields whose paths are made of columns, e.g.
            ``{"image": "train/{image_id}.jpg"}``.
        along: Fields with one entry per box of another field, e.g. ``{"labels": "boxes"}``.
        drop: Columns to leave out.
        delimiter: CSV delimiter. Default: detected.
    """

    name = "lists"
    thread_safe = True

    def __init__(
        self,
        path: str | Path,
        *,
        root: str | Path = "",
        types: Mapping[str, str] | None = None,
        classes: Mapping[str, Sequence[str]] | None = None,
        points: Mapping[str, Sequence[str]] | None = None,
        boxes: Mapping[str, Sequence[str]] | None = None,
        paths: Mapping[str, str] | None = None,
        along: Mapping[str, str] | None = None,
        drop: Sequence[str] = (),
        delimiter: str = "",
    ) -> None:
        self.path = _list_file(as_path(path))
        self.root = as_path(root, like=self.path) if root else self.path.parent
        self._file = RowFile(self.path, delimiter=delimiter)
        self._paths = dict(paths or {})
        self._groups: dict[str, tuple[FieldKind, tuple[str, ...]]] = {
            name: (POINTS, tuple(columns)) for name, columns in (points or {}).items()
        }
        self._groups |= {name: (BOXES, tuple(columns)) for name, columns in (boxes or {}).items()}
        for name, (kind, columns) in self._groups.items():
            per_row = kind.row_widths[0]
            if not columns or len(columns) % per_row:
                raise ConfigError(
                    f"{kind} {name!r}: {len(columns)} columns ({', '.join(columns)}): "
                    f"expected a multiple of {per_row}, {_ROWS[kind]}"
                )
        self._check_header()
        first = list(itertools.islice(self._file.good_rows(), INFERRED_ROWS))
        if not first:
            raise ConfigError(f"{self.path}: no readable row{self._why_none()}")
        self._columns = tuple(
            self._file.header or dict.fromkeys([*itertools.chain(*first), *(types or {}), *drop])
        )
        self._grouped = tuple(itertools.chain(*(columns for _, columns in self._groups.values())))
        in_paths = itertools.chain(
            *(re.findall(r"\{([^{}]+)\}", pattern) for pattern in self._paths.values())
        )
        for column in (*(types or {}), *(classes or {}), *drop, *self._grouped, *in_paths):
            if column not in self._columns:
                raise ConfigError(
                    f"{self.path}: no column {column!r}. Found {', '.join(self._columns)}"
                )
        known = {**(types or {}), **dict.fromkeys(classes or {}, CLASS)}
        self._types = {
            column: ColumnType.parse(
                column,
                known.get(column)
                or infer_kind(column, [row.get(column) for row in first], self._exists),
            )
            for column in self._columns
            if column not in drop and column not in self._grouped
        }
        self._numbers = self._find_classes(classes or {})
        self._dropped = frozenset(self._columns) - frozenset(self._types)
        self.fields = with_along(self._make_fields(), along)
        self._check_text()
        renamed: Info = {
            field_name(column): column for column in self._types if field_name(column) != column
        }
        self.info: Info = {"columns": renamed} if renamed else {}

    def refs(self) -> Iterator[Ref]:
        """Yields line, offset and length of each row, and its split if there are splits."""
        splits = next(
            (
                (column, numbers)
                for column, numbers in self._numbers.items()
                if field_name(column) == SPLIT
            ),
            None,
        )
        if splits is None:
            for place in self._file.places():
                yield [place.line, place.offset, place.length]
            return
        column, numbers = splits
        for place, row in self._file.rows():
            # The pack reports a row that is broken or has no split when it loads the row.
            split = numbers.get(str(row.get(column)), 0) if row else 0
            yield [place.line, place.offset, place.length, split]

    def split_of(self, ref: Ref) -> int:
        """Returns the number of the split in a ref."""
        return self._checked(ref)[3]

    def _checked(self, ref: Ref) -> list[int]:
        parts = [part for part in ref if isinstance(part, int)] if isinstance(ref, list) else []
        if len(parts) not in (3, 4):
            raise ConfigError(
                f"{self.path}: {ref!r:.60} is not a row of a list. "
                "The listing belongs to another source"
            )
        return parts

    def load(self, ref: Ref) -> Sample:
        place = Place(*self._checked(ref)[:3])
        row = self._file.row_at(place)
        where = f"{self._file.name}:{place.line}"
        for column in row:
            if column not in self._types and column not in self._dropped:
                raise BadImage(
                    f"key {column!r} is not in the first {INFERRED_ROWS} rows. Pass its type "
                    f"(--type {column}=json) or leave it out (--drop {column})",
                    source=where,
                )
        values: dict[str, Value] = {
            name: read_image(self.root, _filled(template, row, where), f"named in {where}")
            for name, template in self._paths.items()
        }
        for column, column_type in self._types.items():
            values[field_name(column)] = self._value(row.get(column), column_type, column, where)
        for name, (kind, columns) in self._groups.items():
            values[name] = grouped([row.get(column) for column in columns], kind, name, where)
        images = (
            value[0] if isinstance(value, list) and value else value for value in values.values()
        )
        first = next((image.name for image in images if isinstance(image, Encoded)), where)
        return Sample(values, source=first)

    def _value(self, value: Json, column_type: ColumnType, column: str, where: str) -> Value:
        numbers = self._numbers.get(column)
        if numbers is None and not column_type.kind.decoded_by_pool:
            return convert(value, column_type.kind, column, where)
        if value in (None, ""):
            return None
        if numbers is not None:
            if str(value) not in numbers:
                raise BadImage(
                    f"column {column!r}: {value!r:.60} is not one of {len(numbers)} classes",
                    source=where,
                )
            return numbers[str(value)]
        if column_type.is_list:
            if not isinstance(value, list) or not all(isinstance(name, str) for name in value):
                raise BadImage(
                    f"column {column!r}: expected a list of file names, found {value!r:.60}",
                    source=where,
                )
            return [read_image(self.root, str(name), f"named in {where}") for name in value]
        if not isinstance(value, str):
            raise BadImage(
                f"column {column!r}: expected a file name, found {value!r:.60}", source=where
            )
        return read_image(self.root, value, f"named in {where}")

    def _check_header(self) -> None:
        for name in self._file.header:
            if is_image_name(name) and self._exists(name):
                raise ConfigError(
                    f"{self.path}:1: {name!r:.80} is an image, not a column name: the header row "
                    "is missing. Add one, e.g. path,label"
                )

    def _check_text(self) -> None:
        """Raises ConfigError before packing for names that the manifest cannot hold."""
        for text in itertools.chain(self._types, *self._numbers.values()):
            try:
                text.encode()
            except UnicodeEncodeError:
                raise ConfigError(
                    f"{self.path}: the name of a column or class is not UTF-8 text: {text!a:.60}. "
                    "Save the list as UTF-8"
                ) from None

    def _why_none(self) -> str:
        for place in self._file.places():
            try:
                self._file.row_at(place)
            except BadImage as error:
                return f". First error: {error}"
        return ""

    def _exists(self, name: str) -> bool:
        try:
            real_path(self.root, name)
        except BadImage:
            return False
        return True

    def _find_classes(self, given: Mapping[str, Sequence[str]]) -> dict[str, dict[str, int]]:
        """Returns the labels of class names per column. Reads the list if names are missing."""
        found: dict[str, set[str]] = {
            column: set()
            for column, each in self._types.items()
            if each.is_class and column not in given
        }
        for row in self._file.good_rows() if found else ():
            for column, names in found.items():
                if row.get(column) not in (None, ""):
                    names.add(str(row[column]))
                    if len(names) > MAX_CLASSES:
                        raise ConfigError(
                            f"{self.path}: column {column!r} has more than {MAX_CLASSES} different "
                            f"texts. Store it as text with --type {column}=str"
                        )
        ordered = {**given, **{column: sorted(names) for column, names in found.items()}}
        return {
            column: {name: number for number, name in enumerate(names)}
            for column, names in ordered.items()
        }

    def _make_fields(self) -> tuple[Field, ...]:
        fields = [
            *(Field(name, "image") for name in self._paths),
            *(
                Field(
                    field_name(column),
                    each.kind,
                    list=each.is_list,
                    classes=tuple(self._numbers.get(column, ())),
                )
                for column, each in self._types.items()
            ),
            *(Field(name, kind) for name, (kind, _) in self._groups.items()),
        ]
        names = [field.name for field in fields]
        for name in names:
            if names.count(name) > 1:
                raise ConfigError(
                    f"{self.path}: two columns have the field name {name!r}. Rename or --drop one"
                )
        return tuple(sorted(fields, key=lambda field: not field.kind.is_image))


def looks_like(path: Path) -> str:
    """Returns why the path is a list, or an empty string."""
    if path.is_file() and path.suffix.lower() in SUFFIXES:
        return f"a {path.suffix.lower()} file"
    lists = _lists_in(path)
    if len(lists) > 1:
        return f"{len(lists)} lists ({lists[0].name}, ...)"
    return f"a list ({lists[0].name})" if lists else ""


def _lists_in(path: Path) -> list[Path]:
    return sorted(
        entry
        for entry in (path.iterdir() if path.is_dir() else ())
        if entry.suffix.lower() in SUFFIXES and not entry.name.startswith(".")
    )


def _list_file(path: Path) -> Path:
    if not path.is_dir():
        return path
    lists = _lists_in(path)
    if len(lists) != 1:
        raise ConfigError(
            f"{path}: expected one list ({' '.join(SUFFIXES)}), "
            f"found {', '.join(entry.name for entry in lists) or 'none'}. Pass the file itself"
        )
    return lists[0]


def _filled(template: str, row: Row, where: str) -> str:
    def value(match: re.Match[str]) -> str:
        if row.get(match[1]) in (None, ""):
            raise BadImage(
                f"path {template!r}: column {match[1]!r} is missing or empty", source=where
            )
        return str(row[match[1]])

    return re.sub(r"\{([^{}]+)\}", value, template)
