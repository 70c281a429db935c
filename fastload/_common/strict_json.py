"""JSON without its traps. Pure.

Python's json takes NaN, turns 1e400 into inf, keeps the last of two equal keys, and dies on deep nesting: with
RecursionError, or, where somebody raised the recursion limit, with the process. Here each of them is a ValueError.
"""

from __future__ import annotations

import json
import math
import re
from typing import NamedTuple, TypeVar

import numpy as np

Json = None | bool | int | float | str | list["Json"] | dict[str, "Json"]

MAX_DIGITS = (
    64  # of one number, as many as a digest has; an integer of 10^6 digits costs Python seconds
)
_KEEP = b'[]{}"'
_DROP = bytes(byte for byte in range(256) if byte not in _KEEP)
_CHUNK = 1 << 18
_MANY_DIGITS = b"0" * (MAX_DIGITS + 1)
_ALL_DIGITS_ZERO = bytes.maketrans(b"123456789", b"000000000")
_SURROGATE = re.compile("[\ud800-\udfff]")  # JSON's \\ud800 alone is no character
T = TypeVar("T")


def loads(data: bytes, *, max_depth: int) -> Json:
    """Parses UTF-8 JSON; raises ValueError (UnicodeDecodeError is one) with a message fit for people."""
    if (
        data.count(b"[") + data.count(b"{") > max_depth
        and nesting(data, enough=max_depth) > max_depth
    ):
        raise ValueError(f"nested more than {max_depth} deep")
    # A hook for every integer costs a third of the parse; only what has a run of so many digits needs it.
    whole = _integer if _MANY_DIGITS in data.translate(_ALL_DIGITS_ZERO) else None
    try:
        value: Json = json.loads(
            data.decode("utf-8"),
            object_pairs_hook=_object,
            parse_int=whole,
            parse_float=_real,
            parse_constant=_constant,
        )
    except UnicodeDecodeError as error:
        raise ValueError(f"not UTF-8 at byte {error.start}") from None
    return value


class Row(NamedTuple):
    """One JSON object and its name in messages; every getter checks what it hands out, and raises ValueError."""

    what: str
    values: dict[str, Json]

    @classmethod
    def of(
        cls, what: str, value: Json, keys: frozenset[str], optional: frozenset[str] = frozenset()
    ) -> Row:
        """Takes an object that has all ``keys`` and no others but ``optional``."""
        values = typed(what, value, dict)
        if values.keys() != keys:
            missing = sorted(keys - values.keys())
            unknown = sorted(values.keys() - keys - optional)
            if missing or unknown:
                raise ValueError(f"{what}: missing {missing!r:.200}, unknown {unknown!r:.200}")
        return cls(what, values)

    def get(self, key: str, kind: type[T]) -> T:
        """The value, if it is exactly of this type."""
        return typed(f"{self.what}: {key}", self.values[key], kind)

    def number(self, key: str, top: int) -> int:
        """An integer from 0 to ``top``."""
        value = self.values[key]
        if (
            type(value) is int and 0 <= value <= top
        ):  # first, as a message is not built for each of 2,200 shards
            return value
        return count(f"{self.what}: {key}", value, top)

    def text(self, key: str, *, most: int) -> str:
        """Text of at most ``most`` characters."""
        return text(f"{self.what}: {key}", self.values[key], most)

    def matching(self, key: str, pattern: re.Pattern[str]) -> str:
        """Text of this form and no more."""
        value = self.values[key]
        if type(value) is not str or not pattern.fullmatch(value):
            raise ValueError(f"{self.what}: {key}: expected {pattern.pattern}, found {value!r:.80}")
        return value


def typed(what: str, value: object, kind: type[T]) -> T:
    """``value``, if it is exactly of this type."""
    if type(value) is not kind:  # `type is`: True is an int to isinstance
        raise ValueError(f"{what}: expected {kind.__name__}, found {value!r:.40}")
    return value


def count(what: str, value: Json, top: int) -> int:
    """``value``, if it is an integer from 0 to ``top``."""
    if type(value) is not int or not 0 <= value <= top:
        raise ValueError(f"{what}: expected an integer from 0 to {top}, found {value!r:.40}")
    return value


def text(what: str, value: Json, most: int) -> str:
    """``value``, if it is valid text of at most ``most`` characters."""
    if type(value) is not str or len(value) > most or "\0" in value or _SURROGATE.search(value):
        raise ValueError(f"{what}: expected text of at most {most} characters, found {value!r:.40}")
    return value


def dumps(value: Json, *, max_depth: int = 64) -> str:
    """One line, stable for equal input; refuses NaN, infinities, keys that are not text, and deep nesting."""
    _check_value(value, max_depth)
    return json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))


def nesting(data: bytes, *, enough: int = 1 << 62) -> int:
    """How deep brackets nest, strings left out; looks no further once it is more than ``enough``.

    Right up to the first syntax error, where a parser stops anyway. In steps, so that memory stays small.
    """
    deepest = depth = quotes = start = 0
    while start < len(data) and deepest <= enough:
        end = start + _CHUNK
        step = data[start:end]
        if (
            len(step) - len(step.rstrip(b"\\"))
        ) % 2:  # do not part a backslash from what it escapes
            step += data[end : end + 1]
        start += len(step)
        # Without escapes the quotes that are left end strings. A backslash outside of a string is a syntax error.
        step = step.replace(b"\\\\", b"").replace(b'\\"', b"").translate(None, _DROP)
        if not step:
            continue
        piece = np.frombuffer(step, np.uint8)
        is_quote = piece == ord('"')
        outside = ((np.cumsum(is_quote) + quotes) & 1 == 0) & ~is_quote
        opening = (piece == ord("[")) | (piece == ord("{"))
        levels = np.cumsum(np.where(outside, np.where(opening, 1, -1), 0)) + depth
        deepest = max(deepest, int(levels.max()))
        depth = int(levels[-1])
        quotes += int(is_quote.sum())
    return deepest


def _object(pairs: list[tuple[str, Json]]) -> dict[str, Json]:
    found = dict(pairs)
    if len(found) != len(pairs):
        seen: set[str] = set()
        twice = next(key for key, _ in pairs if key in seen or seen.add(key))  # type: ignore[func-returns-value]
        raise ValueError(f"key {twice!r:.60} comes twice in one object")
    return found


def _integer(digits: str) -> int:
    if len(digits) > MAX_DIGITS:
        raise ValueError(f"a number of {len(digits)} digits, at most {MAX_DIGITS}")
    return int(digits)


def _real(digits: str) -> float:
    value = float(digits)
    if not math.isfinite(value):
        raise ValueError(f"number {digits:.40} is out of range")
    return value


def _constant(name: str) -> Json:
    raise ValueError(f"{name} is not JSON")


def _check_value(value: Json, max_depth: int) -> None:
    # json.dumps would turn {1: ...} into {"1": ...} without a word, and dies of RecursionError on endless input.
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
    raise ValueError(f"nested more than {max_depth} deep")
