"""Reads Protobuf's wire format without a schema, as far as tests need it."""

from __future__ import annotations

import struct

Value = int | float | bytes


def fields(message: object) -> dict[int, list[Value]]:
    """Returns the values by field number, in order. Raises ValueError for invalid bytes."""
    if not isinstance(message, bytes):
        raise ValueError("a number is no message")
    found: dict[int, list[Value]] = {}
    position = 0
    while position < len(message):
        key, position = _varint(message, position)
        number, kind = key >> 3, key & 7
        value: Value
        if kind == 0:
            value, position = _varint(message, position)
        elif kind in (1, 5):
            size = 8 if kind == 1 else 4
            if position + size > len(message):
                raise ValueError("cut off")
            value, position = (
                struct.unpack("<d" if kind == 1 else "<f", message[position : position + size])[0],
                position + size,
            )
        elif kind == 2:
            size, position = _varint(message, position)
            if position + size > len(message):
                raise ValueError("cut off")
            value, position = message[position : position + size], position + size
        else:
            raise ValueError(f"wire type {kind}")
        if not number:
            raise ValueError("field 0")
        found.setdefault(number, []).append(value)
    return found


def text(value: Value) -> str:
    if not isinstance(value, bytes):
        raise ValueError(f"{value!r} is no text")
    return value.decode()


def _varint(message: bytes, position: int) -> tuple[int, int]:
    value = shift = 0
    while position < len(message):
        byte = message[position]
        value, shift, position = value | (byte & 127) << shift, shift + 7, position + 1
        if not byte & 128:
            return value, position
    raise ValueError("cut off")
