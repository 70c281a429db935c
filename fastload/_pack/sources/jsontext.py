"""Parses JSON files of sources with exact error positions, and streams large ones."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from fastload._pack.files import read_bounded
from fastload._pack.sources.base import Json
from fastload.errors import BadImage, ConfigError

MAX_ELEMENT_BYTES = 64 << 20  # one element of a streamed array
_CHUNK_BYTES = 1 << 20
_SPACE = " \t\r\n"
_DELIMITERS = (" ", "\t", "\r", "\n", ",", "]", "}")


def parse_json(data: bytes, name: str, *, line: int = 1) -> Json:
    """Parses JSON text. Raises BadImage with line and column. ``line`` is where the text starts."""
    try:
        value: Json = json.loads(data)
    except json.JSONDecodeError as error:
        raise BadImage(
            f"broken JSON at line {line + error.lineno - 1}, column {error.colno}: {error.msg}",
            source=name,
        ) from None
    except UnicodeDecodeError as error:
        raise BadImage(
            f"broken JSON: byte {error.start} after the start of line {line} is not UTF-8",
            source=name,
        ) from None
    except RecursionError:
        raise BadImage("broken JSON: nested too deeply", source=name) from None
    except ValueError as error:  # a number of more than 4,300 digits
        raise BadImage(f"broken JSON: {error}", source=name) from None
    return value


def read_json_object(root: Path, relative: str, name: str, *, limit: int) -> dict[str, Json]:
    """Reads a JSON file whose outermost value is an object."""
    value = parse_json(read_bounded(root, relative, limit=limit), name)
    if not isinstance(value, dict):
        raise BadImage(f"expected a JSON object, found {type(value).__name__}", source=name)
    return value


@contextmanager
def config_errors() -> Iterator[None]:
    """Raises a BadImage about a file of the whole dataset as a ConfigError."""
    try:
        yield
    except BadImage as error:
        raise ConfigError(str(error)) from None


@dataclass(frozen=True, slots=True)
class Element:
    """One element of a streamed array: its position in the file and its bytes."""

    key: str  # in the outermost object, "" if the file is an array
    offset: int
    raw: bytes
    rough: Json  # parsed with text as Latin-1: numbers are exact, text may not be

    def value(self, name: str) -> Json:
        return parse_json(self.raw, name)


class JsonStream:
    """Streams the elements of the arrays in a JSON file. The largest element bounds the memory.

    Reads ``[element, ...]`` and ``{"key": [element, ...], "other": anything, ...}``. Values at the
    second level that are not arrays are skipped. The text is decoded as Latin-1, so a position in
    the text equals a position in the file.
    """

    def __init__(self, file: BinaryIO, name: str) -> None:
        self._file = file
        self._name = name
        self._text = ""
        self._position = 0  # in _text
        self._text_offset = 0  # of _text[0] in the file
        self._line = 1  # of _text[0]
        self._column = 1
        self._value: Json = None  # the last decoded value
        self._decoder = json.JSONDecoder()

    def elements(self) -> Iterator[Element]:
        """Yields all elements in file order. Raises BadImage with line and column."""
        if self._next_char() == "\xef":  # a UTF-8 byte order mark
            self._position += 3
        first = self._next_char()
        if first not in ("[", "{"):
            raise self._broken("expected '[' or '{'")
        yield from self._array("") if first == "[" else self._object()
        if self._next_char():
            raise self._broken("text after the end")

    def _object(self) -> Iterator[Element]:
        for char in self._items("}"):
            if char != '"':
                raise self._broken("expected a name in double quotes")
            start = self._decode_value()
            key = parse_json(self._text[start : self._position].encode("latin-1"), self._name)
            if self._next_char() != ":":
                raise self._broken("expected ':'")
            self._position += 1
            if self._next_char() == "[":
                yield from self._array(str(key))
            else:
                self._decode_value()

    def _array(self, key: str) -> Iterator[Element]:
        for _ in self._items("]"):
            start = self._decode_value()
            raw = self._text[start : self._position].encode("latin-1")
            yield Element(key, self._text_offset + start, raw, self._value)

    def _items(self, end: str) -> Iterator[str]:
        """Yields the first character of each item and consumes brackets and commas around them."""
        self._position += 1
        found = self._next_char()
        if found == end:
            self._position += 1
        while found != end:
            yield self._next_char()
            found = self._next_char()
            if found not in (",", end):
                raise self._broken(f"expected ',' or '{end}'")
            self._position += 1

    def _next_char(self) -> str:
        """Returns the next character that is not white space, or "" at the end of the file."""
        while True:
            while self._position < len(self._text) and self._text[self._position] in _SPACE:
                self._position += 1
            if self._position < len(self._text):
                return self._text[self._position]
            if not self._read_more():
                return ""

    def _decode_value(self) -> int:
        """Skips the value at the current position. Returns its start in the current text."""
        while True:
            try:
                self._value, end = self._decoder.raw_decode(self._text, self._position)
            except json.JSONDecodeError as error:
                if len(self._text) - self._position > MAX_ELEMENT_BYTES or not self._read_more():
                    raise self._broken(error.msg, error.pos) from None
                continue
            except (RecursionError, ValueError) as error:
                raise self._broken(f"{error}") from None
            # A number may continue in the next chunk ("0" of "0.5") unless a delimiter follows.
            is_bare = self._text[self._position] not in '{["'
            if is_bare and self._text[end : end + 1] not in _DELIMITERS and self._read_more():
                continue
            start = self._position
            self._position = end
            return start

    def _read_more(self) -> bool:
        """Drops consumed text and reads as much as remains, so a long element costs O(n log n)."""
        chunk = self._file.read(max(_CHUNK_BYTES, len(self._text) - self._position))
        if not chunk:
            return False
        self._line, self._column = self._line_and_column(self._position)
        self._text_offset += self._position
        self._text = self._text[self._position :] + chunk.decode("latin-1")
        self._position = 0
        return True

    def _line_and_column(self, position: int) -> tuple[int, int]:
        lines = self._text.count("\n", 0, position)
        if lines:
            return self._line + lines, position - self._text.rfind("\n", 0, position)
        return self._line, self._column + position

    def _broken(self, why: str, position: int | None = None) -> BadImage:
        line, column = self._line_and_column(self._position if position is None else position)
        return BadImage(f"broken JSON at line {line}, column {column}: {why}", source=self._name)
