"""Conditions over the columns of a dataset, such as ``label in ("cat", "dog") and width >= 64``.

Grammar, with the precedence of Python:

    either     = both {"or" both}
    both       = negated {"and" negated}
    negated    = "not" negated | "(" either ")" | comparison
    comparison = operand (operator operand {operator operand} | ["not"] "in" list)
    list       = "(" operand {"," operand} ")"
    operand    = column | number | text

A missing value makes a comparison false.
"""

from __future__ import annotations

import difflib
import operator
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fastload._store.dataset import Dataset
from fastload._store.kinds import FieldKind
from fastload.errors import ConfigError

Mask = NDArray[np.bool_]

_TOKEN = re.compile(
    r"""\s*(?:(?P<number>[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?)
        |(?P<text>'[^']*'|"[^"]*")
        |(?P<name>[A-Za-z_][\w.]*)
        |(?P<mark>==|!=|<=|>=|<|>|\(|\)|,)
        |(?P<end>$))""",
    re.VERBOSE,
)
_OPERATORS: dict[str, Callable[[Any, Any], Any]] = {
    "==": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}
_WORDS = ("and", "or", "not", "in")
_MAX_DEPTH = 100  # of parentheses and "not"


@dataclass(frozen=True, slots=True)
class _Token:
    kind: str  # "number", "text", "name", "mark", "word" or "end"
    text: str
    position: int  # from 0


@dataclass(frozen=True, slots=True)
class _Operand:
    token: _Token
    column: str = ""  # "" for a number or a text
    value: float | int | str = 0


def matching(dataset: Dataset, condition: str) -> Mask:
    """Returns which samples match. Raises ConfigError with the position of a mistake."""
    return _Parser(dataset, condition).parse()


class _Parser:
    """Parses and evaluates in one pass: columns are in memory, and a condition is short."""

    def __init__(self, dataset: Dataset, text: str) -> None:
        self._dataset = dataset
        self._text = text
        self._columns = _known_columns(dataset)
        self._position = 0
        self._depth = 0
        self._token = self._next()

    def parse(self) -> Mask:
        found = self._either()
        if self._token.kind != "end":
            raise self._error(f"expected 'and', 'or' or the end, found {self._token.text!r}")
        return found

    def _either(self) -> Mask:
        found = self._both()
        while self._take("or"):
            found = found | self._both()
        return found

    def _both(self) -> Mask:
        found = self._negated()
        while self._take("and"):
            found = found & self._negated()
        return found

    def _negated(self) -> Mask:
        self._depth += 1
        if self._depth > _MAX_DEPTH:
            raise self._error(f"more than {_MAX_DEPTH} nested conditions")
        if self._take("not"):
            found = ~self._negated()
        elif self._take("("):
            found = self._either()
            self._expect(")")
        else:
            found = self._comparison()
        self._depth -= 1
        return found

    def _comparison(self) -> Mask:
        left = self._operand()
        negated = self._take("not")
        if negated or self._token.text == "in":
            self._expect("in")
            found = self._among(left)
            return ~found & self._present(left) if negated else found
        if self._token.text not in _OPERATORS:
            raise self._error(
                f"expected a comparison ({' '.join(_OPERATORS)} in), found "
                f"{self._token.text or 'the end'!r}"
            )
        found = np.ones(len(self._dataset), np.bool_)
        while self._token.text in _OPERATORS and self._token.kind == "mark":
            compare = self._advance().text
            right = self._operand()
            found &= self._compared(left, compare, right)
            left = right
        return found

    def _among(self, left: _Operand) -> Mask:
        self._expect("(")
        found = np.zeros(len(self._dataset), np.bool_)
        while True:
            found |= self._compared(left, "==", self._operand())
            if not self._take(","):
                break
        self._expect(")")
        return found

    def _compared(self, left: _Operand, compare: str, right: _Operand) -> Mask:
        if not left.column and not right.column:
            raise self._error("expected a column on one side", right.token)
        values = [self._values(left, right, compare), self._values(right, left, compare)]
        found = np.asarray(_OPERATORS[compare](*values)) & self._present(left)
        return np.asarray(found & self._present(right))

    def _values(self, one: _Operand, other: _Operand, compare: str) -> Any:
        """Returns the numbers of a column or of a constant. A class name becomes its number."""
        if one.column:
            return self._dataset.column(one.column)
        if not isinstance(one.value, str):
            return one.value
        names = self._dataset.class_names.get(other.column, ())
        if not names:
            raise self._error(f"{other.column or 'a number'} has no class names", one.token)
        if compare not in ("==", "!="):
            raise self._error("class names can be compared with ==, != and in", one.token)
        if one.value not in names:
            raise self._error(
                f"{other.column} has no class {one.value!r}{_similar(one.value, names)}", one.token
            )
        return names.index(one.value)

    def _present(self, operand: _Operand) -> Mask:
        """Returns which samples have the value."""
        kind = self._columns.get(operand.column)
        if kind is None:
            return np.ones(len(self._dataset), np.bool_)
        values = self._dataset.column(operand.column)
        return ~(kind.is_missing(values) if kind.in_column else values == 0)

    def _operand(self) -> _Operand:
        token = self._token
        if token.kind == "number":
            self._advance()
            whole = re.fullmatch(r"[+-]?\d+", token.text)
            return _Operand(token, value=int(token.text) if whole else float(token.text))
        if token.kind == "text":
            self._advance()
            return _Operand(token, value=token.text[1:-1])
        if token.kind == "name":
            self._advance()
            return _Operand(token, column=self._column(token))
        raise self._error(
            f"expected a column, a number or a text in quotes, found {token.text or 'the end'!r}"
        )

    def _column(self, token: _Token) -> str:
        for name in (token.text, f"{_first_image(self._dataset)}.{token.text}"):
            if name in self._columns:
                return name
        known = ", ".join(self._columns)
        raise self._error(f"no column {token.text!r}. The dataset has {known}", token)

    def _take(self, text: str) -> bool:
        if self._token.kind in ("mark", "word") and self._token.text == text:
            self._advance()
            return True
        return False

    def _expect(self, text: str) -> None:
        if not self._take(text):
            raise self._error(f"expected {text!r}, found {self._token.text or 'the end'!r}")

    def _advance(self) -> _Token:
        before = self._token
        self._token = self._next()
        return before

    def _next(self) -> _Token:
        match = _TOKEN.match(self._text, self._position)
        if match is None or match.lastgroup is None:
            start = len(self._text) - len(self._text[self._position :].lstrip())
            token = _Token("mark", self._text[start : start + 1], start)
            hint = ". Write == for a comparison" if token.text == "=" else ""
            raise self._error(f"unexpected {token.text!r}{hint}", token)
        self._position = match.end()
        kind = match.lastgroup
        text = match[kind]
        return _Token("word" if text in _WORDS else kind, text, match.start(kind))

    def _error(self, why: str, token: _Token | None = None) -> ConfigError:
        position = (token or self._token).position
        return ConfigError(f"where {self._text!r:.200}, character {position + 1}: {why}")


def _first_image(dataset: Dataset) -> str:
    return next((each.name for each in dataset.fields if each.kind.is_image and not each.list), "")


def _known_columns(dataset: Dataset) -> dict[str, FieldKind]:
    """Returns the kind of the field of each column that users can name."""
    return {
        name: each.kind
        for each in dataset.fields
        if not each.list
        for name in each.kind.columns(each.name)
    }


def _similar(name: str, names: tuple[str, ...]) -> str:
    close = difflib.get_close_matches(name, names, n=3) or names[:5]
    return f". Did you mean {', '.join(map(repr, close))}?"
