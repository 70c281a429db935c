"""JsonStream yields the elements of json.loads with exact offsets and error positions."""

from __future__ import annotations

import io
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fastload._pack.sources import jsontext
from fastload._pack.sources.jsontext import JsonStream, parse_json
from fastload.errors import BadImage

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=4), inner, max_size=4)
    ),
    max_leaves=12,
)


class Slow(io.BytesIO):
    """Returns a few bytes per read, so that every element crosses a chunk boundary."""

    def __init__(self, data: bytes, step: int) -> None:
        super().__init__(data)
        self.step = step

    def read(self, size: int | None = -1) -> bytes:
        return super().read(self.step)


@given(st.lists(VALUES, max_size=6), st.integers(1, 7), st.sampled_from([None, 1]), st.booleans())
def test_array_is_streamed_completely(
    values: list[object], step: int, indent: int | None, ascii_only: bool
) -> None:
    data = json.dumps(values, indent=indent, ensure_ascii=ascii_only).encode(
        "utf-8", "surrogatepass"
    )
    try:
        data.decode()
    except UnicodeDecodeError:
        return  # lone surrogates: not JSON that a file can hold
    elements = list(JsonStream(Slow(data, step), "x").elements())
    assert [element.value("x") for element in elements] == values
    for element in elements:
        assert data[element.offset : element.offset + len(element.raw)] == element.raw


@given(st.dictionaries(st.text(max_size=5), VALUES, max_size=5), st.integers(1, 7))
def test_arrays_of_an_object_are_streamed_and_the_rest_is_skipped(
    table: dict[str, object], step: int
) -> None:
    data = json.dumps(table).encode()
    found: dict[str, list[object]] = {
        key: [] for key, value in table.items() if isinstance(value, list)
    }
    for element in JsonStream(Slow(data, step), "x").elements():
        found[element.key].append(element.value("x"))
    assert found == {key: value for key, value in table.items() if isinstance(value, list)}


@pytest.mark.parametrize(
    ("text", "line", "column"),
    [
        ('[{"a": 1},\n {"a": }]', 2, 8),
        ("[1, 2", 1, 6),
        ("[1 2]", 1, 4),
        ('{"a": [1],\n\n "b" [2]}', 3, 6),
        ("", 1, 1),
        ("3", 1, 1),
        ("[1]\n x", 2, 2),
        ('{"a": [1], b: 2}', 1, 12),
        ('[{"a": "x', 1, 8),
    ],
)
@pytest.mark.parametrize("step", [1, 100])
def test_errors_have_line_and_column(text: str, line: int, column: int, step: int) -> None:
    with pytest.raises(
        BadImage, match=rf"table\.json: broken JSON at line {line}, column {column}: "
    ):
        list(JsonStream(Slow(text.encode(), step), "table.json").elements())
    assert len(list(JsonStream(io.BytesIO(b"[1, 2]"), "x").elements())) == 2


def test_byte_order_mark_is_skipped() -> None:
    assert [
        element.value("x")
        for element in JsonStream(io.BytesIO(b'\xef\xbb\xbf[{"a": 1}]'), "x").elements()
    ] == [{"a": 1}]


def test_too_long_element_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jsontext, "MAX_ELEMENT_BYTES", 10_000)
    monkeypatch.setattr(jsontext, "_CHUNK_BYTES", 1000)
    stream = io.BytesIO(b'["' + b"x" * 1_000_000)
    with pytest.raises(BadImage, match="Unterminated string"):
        list(JsonStream(stream, "x").elements())
    assert stream.tell() < 50_000


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b'{"a":\n 1,}', "broken JSON at line 2, column 4"),
        (b'{"a": "\xff"}', "byte 7 after the start of line 1 is not UTF-8"),
        (b"[" * 100_000, "nested too deeply"),
        (b"1" * 5000, "broken JSON: Exceeds the limit"),
    ],
)
def test_parse_json_reports_the_error(data: bytes, message: str) -> None:
    with pytest.raises(BadImage, match=f"^x: .*{message}"):
        parse_json(data, "x")
    assert parse_json(b"[1]", "x") == [1]
