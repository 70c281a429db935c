"""Reads rows of CSV and JSONL files, and their positions to read one row again later."""

from __future__ import annotations

import codecs
import contextlib
import csv
import io
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, TypeAlias

from fastload._pack.files import file_stamp, open_inside, printable
from fastload._pack.sources.base import Json
from fastload._pack.sources.jsontext import config_errors, parse_json
from fastload.errors import BadImage, ConfigError

MAX_ROW_BYTES = 16 << 20
_DELIMITERS = ",;\t"

Row: TypeAlias = "dict[str, Json]"


@dataclass(frozen=True, slots=True)
class Place:
    """The position of a row: its first line (from 1) and its bytes in the file."""

    line: int
    offset: int
    length: int


class RowFile:
    """A CSV file with a header row, or a JSONL file with one object per line.

    CSV values are text, "" if empty. Text that is not UTF-8 keeps its bytes (surrogateescape),
    because it may be a file name.
    """

    def __init__(self, path: Path, *, delimiter: str = "") -> None:
        self._real = path.resolve()  # the user passed this path, so links may lead anywhere
        self.name = printable(path.name)
        self.is_csv = path.suffix.lower() in (".csv", ".tsv")
        self.header: list[str] = []
        self.delimiter = delimiter
        with config_errors(), self._open() as file:
            self._stamp = file_stamp(file)
            if file.peek(2)[:2] in (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE):
                raise ConfigError(
                    f"{self.name}: UTF-16 text, as written by Excel. Save it as UTF-8"
                )
            if self.is_csv:
                self._read_header(file)

    def places(self) -> Iterator[Place]:
        """Yields row positions in file order. Raises ConfigError for unmatched quotes."""
        return (place for place, _ in self._records())

    def good_rows(self) -> Iterator[Row]:
        """Yields the rows in file order, without broken rows, which ``row_at`` reports."""
        return (row for _, row in self.rows() if row is not None)

    def rows(self) -> Iterator[tuple[Place, Row | None]]:
        """Yields position and content of each row, None for a broken row."""
        for place, record in self._records():
            row = None
            with contextlib.suppress(BadImage):
                row = self._row(place, record)
            yield place, row

    def row_at(self, place: Place) -> Row:
        """Reads one row again. Raises BadImage if it is broken, ConfigError if the file changed."""
        with config_errors(), self._open() as file:
            if file_stamp(file) != self._stamp:
                raise ConfigError(f"{self.name}: changed since it was listed. Start the pack again")
            file.seek(place.offset)
            found = self._next_record(
                _LineReader(file, self.name, line=place.line, stop=place.length)
            )
        if found is None:
            raise ConfigError(
                f"{self.name}:{place.line}: no row here. The file differs from the listed one"
            )
        return self._row(place, found[1])

    def _records(self) -> Iterator[tuple[Place, str | list[str]]]:
        with config_errors(), self._open() as file:
            lines = _LineReader(file, self.name)
            if self.is_csv:
                self._csv_record(lines)  # the header
            while (found := self._next_record(lines)) is not None:
                yield found

    def _open(self) -> io.BufferedReader:
        return io.BufferedReader(open_inside(self._real.parent, self._real.name))

    def _read_header(self, file: io.BufferedReader) -> None:
        first = _text(file.readline(MAX_ROW_BYTES), first=True)
        file.seek(0)
        self.delimiter = self.delimiter or max(_DELIMITERS, key=first.count)
        header = self._csv_record(_LineReader(file, self.name))
        if not header or not all(header):
            raise ConfigError(
                f"{self.name}:1: expected a header row that names every column, "
                f"found {first.strip()!r:.120}"
            )
        if len(set(header)) != len(header):
            duplicate = next(name for name in header if header.count(name) > 1)
            raise ConfigError(f"{self.name}:1: duplicate column {duplicate!r} in the header row")
        self.header = header

    def _next_record(self, lines: _LineReader) -> tuple[Place, str | list[str]] | None:
        """Returns the next row unparsed: the text of a JSON line, or the values of a CSV record."""
        while True:
            line = lines.line + 1
            offset = lines.offset
            record = self._csv_record(lines) if self.is_csv else next(lines, None)
            if record is None:
                return None
            if record if isinstance(record, list) else record.strip():  # else: an empty line
                return Place(line, offset, lines.offset - offset), record

    def _row(self, place: Place, record: str | list[str]) -> Row:
        where = f"{self.name}:{place.line}"
        if isinstance(record, str):
            value = parse_json(os.fsencode(record), self.name, line=place.line)
            if not isinstance(value, dict):
                raise BadImage(
                    f"expected a JSON object, found {record.strip()!r:.60}", source=where
                )
            return value
        if len(record) != len(self.header):
            raise BadImage(f"expected {len(self.header)} values, found {len(record)}", source=where)
        return dict(zip(self.header, record, strict=True))

    def _csv_record(self, lines: _LineReader) -> list[str] | None:
        """Parses with a new reader, which consumes only one record, so offsets are exact."""
        line = lines.line + 1
        try:
            return next(csv.reader(lines, delimiter=self.delimiter or ",", strict=True), None)
        except csv.Error as error:
            raise BadImage(f"broken CSV: {error}", source=f"{self.name}:{line}") from None


class _LineReader:
    """Yields the lines of a file as text and counts lines and bytes."""

    def __init__(self, file: BinaryIO, name: str, *, line: int = 1, stop: int = 0) -> None:
        self._file = file
        self._name = name
        self._stop = stop  # maximum number of bytes, 0 = all
        self.line = line - 1  # lines taken so far
        self.offset = 0  # bytes taken so far

    def __iter__(self) -> _LineReader:
        return self

    def __next__(self) -> str:
        if self._stop and self.offset >= self._stop:
            raise StopIteration
        data = self._file.readline(MAX_ROW_BYTES + 1)
        if len(data) > MAX_ROW_BYTES:
            raise BadImage(
                f"line has more than {MAX_ROW_BYTES} bytes", source=f"{self._name}:{self.line + 1}"
            )
        if not data:
            raise StopIteration
        self.line += 1
        self.offset += len(data)
        return _text(data, first=self.line == 1)


def _text(data: bytes, *, first: bool) -> str:
    return (data.removeprefix(b"\xef\xbb\xbf") if first else data).decode(
        "utf-8", "surrogateescape"
    )
