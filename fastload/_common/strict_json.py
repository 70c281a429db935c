"""Strict JSON for untrusted input.

Python's json accepts NaN, turns 1e400 into inf, and keeps the last of two equal keys. Deep nesting
raises RecursionError or, with a raised recursion limit, crashes the process. Here each of these is
a ValueError.
"""

from __future__ import annotations

import json
import math
import re
from typing import NamedTuple, TypeVar

import numpy as np

Json = None | bool | int | float | str | list["Json"] | dict[str, "Json"]

MAX_DIGITS = 64  # of one number, as many as a digest has; parsing 10^6 digits takes seconds
_DROP = bytes(byte for byte in range(256) if byte not in b'[]{}"')
_CHUNK = 1 << 18
_MANY_DIGITS = b"0" * (MAX_DIGITS + 1)
_ALL_DIGITS_ZERO = bytes.maketrans(b"123456789", b"000000000")
_SURROGATE = re.compile("[\ud800-\udfff]")  # a lone \\ud800 in JSON is not a character
T = TypeVar("T")


def loads(data: bytes, *, max_depth: int) -> Json:
    """Parses UTF-8 JSON; raises ValueError with a readable message."""
    if (
        data.count(b"[") + data.count(b"{") > max_depth
        and nesting(data, enough=max_depth) > max_depth
    ):
        raise ValueError(f"nested deeper than {max_depth}")
    # A hook for integers takes a third of the parsing time; only a long run of digits needs it.
    parse_int = _integer if _MANY_DIGITS in data.translate(_ALL_DIGITS_ZERO) else None
    try:
        value: Json = json.loads(
            data.decode("utf-8"),
            object_pairs_hook=_object,
            parse_int=parse_int,
            parse_float=_real,
            parse_constant=_constant,
        )
    except UnicodeDecodeError as error:
        raise ValueError(f"not UTF-8 at byte {error.start}") from None
    return value


class Row(NamedTuple):
    """One JSON object and its name in messages. Getters check the value and raise ValueError."""

    what: str
    values: dict[str, Json]

    @classmethod
    def of(
        cls, what: str, value: Json, keys: frozenset[str], optional: frozenset[str] = frozenset()
    ) -> Row:
        """Accepts an object with all ``keys`` and no others except ``optional``."""
        values = typed(what, value, dict)
        if values.keys() != keys:
            missing = sorted(keys - values.keys())
            unknown = sorted(values.keys() - keys - optional)
            if missing or unknown:
                raise ValueError(
                    f"{what}: missing keys {missing!r:.200}, unknown keys {unknown!r:.200}"
                )
        return cls(what, values)

    def get(self, key: str, kind: type[T]) -> T:
        """Returns a value of exactly this type."""
        return typed(f"{self.what}: {key}", self.values[key], kind)

    def number(self, key: str, top: int) -> int:
        """Returns an integer from 0 to ``top``."""
        value = self.values[key]
        # Checked here first, because building the name for each of 2,200 shards takes time.
        if type(value) is int and 0 <= value <= top:
            return value
        return count(f"{self.what}: {key}", value, top)

    def text(self, key: str, *, most: int) -> str:
        """Returns text of at most ``most`` characters."""
        return text(f"{self.what}: {key}", self.values[key], most)

    def matching(self, key: str, pattern: re.Pattern[str]) -> str:
        """Returns text that matches the whole pattern."""
        value = self.values[key]
        if type(value) is not str or not pattern.fullmatch(value):
            raise ValueError(f"{self.what}: {key}: expected {pattern.pattern}, found {value!r:.80}")
        return value


def typed(what: str, value: object, kind: type[T]) -> T:
    """Returns ``value`` if it is exactly of this type."""
    if type(value) is not kind:  # not isinstance, because True is an instance of int
        raise ValueError(f"{what}: expected {kind.__name__}, found {value!r:.40}")
    return value


def count(what: str, value: Json, top: int) -> int:
    """Returns ``value`` if it is an integer from 0 to ``top``."""
    if type(value) is not int or not 0 <= value <= top:
        raise ValueError(f"{what}: expected an integer from 0 to {top}, found {value!r:.40}")
    return value


def text(what: str, value: Json, most: int) -> str:
    """Returns ``value`` if it is valid text of at most ``most`` characters."""
    if type(value) is not str or len(value) > most or "\0" in value or _SURROGATE.search(value):
        raise ValueError(f"{what}: expected text of at most {most} characters, found {value!r:.40}")
    return value


def dumps(value: Json, *, max_depth: int = 64) -> str:
    """Returns one line of JSON, deterministic for equal input.

    Rejects NaN, infinities, keys that are not text, and deep nesting.
    """
    _check_value(value, max_depth)
    return json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))


def nesting(data: bytes, *, enough: int = 1 << 62) -> int:
    """Returns the nesting depth of brackets outside strings; stops once it exceeds ``enough``.

    The result is correct up to the first syntax error, where a parser stops. The input is processed
    in chunks to limit memory.
    """
    deepest = depth = quotes = start = 0
    while start < len(data) and deepest <= enough:
        end = start + _CHUNK
        step = data[start:end]
        # Do not separate a backslash from the character that it escapes.
        if (len(step) - len(step.rstrip(b"\\"))) % 2:
            step += data[end : end + 1]
        start += len(step)
        # After removing escapes, each quote starts or ends a string. A backslash outside a string
        # is a syntax error.
        step = step.replace(b"\\\\", b"").replace(b'\\"', b"").translate(None, _DROP)
        if not step:
            continue
        piece = np.frombuffer(step, np.uint8)
        is_quote = piece == ord('"')
        outside = ((np.cumsum(is_quote) + quotes) & 1 == 0) & ~is_quote
        opening = (piece == ord("[")) | (piece == ord("{"))
        depths = np.cumsum(np.where(outside, np.where(opening, 1, -1), 0)) + depth
        deepest = max(deepest, int(depths.max()))
        depth = int(depths[-1])
        quotes += int(is_quote.sum())
    return deepest


def _object(pairs: list[tuple[str, Json]]) -> dict[str, Json]:
    found = dict(pairs)
    if len(found) != len(pairs):
        seen: set[str] = set()
        twice = next(key for key, _ in pairs if key in seen or seen.add(key))  # type: ignore[func-returns-value]
        raise ValueError(f"key {twice!r:.60} occurs twice in one object")
    return found


def _integer(digits: str) -> int:
    if len(digits) > MAX_DIGITS:
        raise ValueError(f"a number with {len(digits)} digits, expected at most {MAX_DIGITS}")
    return int(digits)


def _real(digits: str) -> float:
    value = float(digits)
    if not math.isfinite(value):
        raise ValueError(f"number {digits:.40} is out of range")
    return value


def _constant(name: str) -> Json:
    raise ValueError(f"{name} is not allowed in JSON")


def _check_value(value: Json, max_depth: int) -> None:
    # json.dumps silently turns {1: ...} into {"1": ...} and raises RecursionError for cyclic input.
    level = [value]
    for _ in range(max_depth + 1):
        below: list[Json] = []
        for found in level:
            if isinstance(found, dict):
                for key in found:
                    if not isinstance(key, str):
                        raise ValueError(
                            f"key {key!r:.60}: expected text, found {type(key).__name__}"
                        )
                below.extend(found.values())
            elif isinstance(found, list | tuple):
                below.extend(found)
        if not below:
            return
        level = below
    raise ValueError(f"nested deeper than {max_depth}")
