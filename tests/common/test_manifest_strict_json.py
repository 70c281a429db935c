"""Strict JSON rejects NaN, duplicate keys and deep nesting."""

from __future__ import annotations

import json
import sys
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fastload._common.strict_json import Row, count, dumps, loads, nesting, text, typed

values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(10**20), 10**20)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)


def depth_of(value: Any) -> int:
    if isinstance(value, dict):
        return 1 + max(map(depth_of, value.values()), default=0)
    return 1 + max(map(depth_of, value), default=0) if isinstance(value, list) else 0


@given(values)
def test_written_values_round_trip(value: Any) -> None:
    written = dumps(value).encode("utf-8", "surrogatepass")
    assert loads(written, max_depth=64) == value
    assert nesting(written) == depth_of(value)
    assert nesting(json.dumps(value, indent=1).encode()) == depth_of(value)


@pytest.mark.parametrize(
    "written",
    [
        b"NaN",
        b"Infinity",
        b"[-Infinity]",
        b"1e400",
        b"-1e999",
        b'{"a": 1, "a": 1}',
        b'{"a": 1, "\\u0061": 2}',
        b"",
        b"{",
        b"1 2",
        b"\xff",
        b'"\xc3"',
        b"\xef\xbb\xbf1",
        b"[1,]",
        b"'a'",
        b"{1: 2}",
        b"9" * 100_000,
        b"9" * 65,
        b"[" * 1_000_000,
        b'{"a":' * 1_000_000,
        b"[" * 65 + b"]" * 65,
        b'["\\"", ' + b"[" * 65,
        '"\ud800"'.encode("utf-8", "surrogatepass"),
        b"\x00",
        "1".encode("utf-16"),
    ],
    ids=lambda written: repr(written[:24]),
)
def test_invalid_json_raises_value_error(written: bytes) -> None:
    limit = sys.getrecursionlimit()
    sys.setrecursionlimit(1 << 30)  # with a raised limit, a deep value crashes the process instead
    try:
        with pytest.raises(ValueError, match=r"."):
            loads(written, max_depth=64)
    finally:
        sys.setrecursionlimit(limit)
    assert loads(b"[[1]]", max_depth=2) == [[1]]
    assert loads(b"9" * 64, max_depth=2) == 10**64 - 1
    assert loads(b'["' + b"9" * 99 + b'", 1]', max_depth=2) == ["9" * 99, 1]


def test_the_depth_ignores_brackets_in_strings() -> None:
    assert nesting(b'["[[[[", "\\"[[", "\\\\", [1], "\\\\\\"[[["]') == 2
    assert nesting(b'{"a\\\\": {"b": [0]}}') == 3
    # Longer than one chunk, with a string across the boundary.
    assert nesting(b"[" + b'"' + b"[" * (3 << 20) + b'", [[]]]') == 3
    assert nesting(b"[" * (5 << 19)) == 5 << 19
    for shift in range(4):  # escapes across the boundary of a chunk
        text = b'["' + b"x" * ((1 << 18) - 6 + shift) + b'\\\\", "\\"[[[", [1], "\\\\\\"[["]'
        json.loads(text)
        assert nesting(text) == 2


def test_a_duplicate_among_many_keys_is_found_quickly() -> None:
    keys = ",".join(f'"{n}":0' for n in range(200_000))
    with pytest.raises(ValueError, match="'199999' occurs twice"):
        loads(f'{{{keys},"199999":1}}'.encode(), max_depth=1)


@pytest.mark.parametrize(
    "value", [{1: 2}, [{None: 1}], float("nan"), [float("inf")], {"a": {(1,): 2}}]
)
def test_values_that_json_would_change_are_rejected(value: Any) -> None:
    with pytest.raises(ValueError, match=r"."):
        dumps(value)


def test_cyclic_values_are_rejected() -> None:
    endless: list[Any] = []
    endless.append(endless)
    with pytest.raises(ValueError, match="nested deeper than 64"):
        dumps(endless)
    assert dumps([[1]]) == "[[1]]"


@pytest.mark.parametrize(
    ("check", "good", "bad"),
    [
        (lambda value: count("n", value, 5), [0, 5], [-1, 6, True, 1.0, "1", None]),
        (lambda value: text("t", value, 3), ["", "abc", "äöü"], ["abcd", "a\0", "\ud800", 1, None]),
        (lambda value: typed("t", value, bool), [True], [1, 0, None, "true"]),
        (
            lambda value: Row.of("r", value, frozenset("a"), frozenset("b")),
            [{"a": 1}, {"a": 1, "b": 2}],
            [{}, {"b": 1}, {"a": 1, "c": 1}, [], None],
        ),
    ],
)
def test_valid_values_pass_the_checks(check: Any, good: list[Any], bad: list[Any]) -> None:
    for value in bad:
        with pytest.raises(ValueError, match=r"expected|missing"):
            check(value)
    for value in good:
        check(value)
