"""Changes inputs without destroying their structure, so that they reach code after the syntax."""

from __future__ import annotations

import copy
import json
import random
from typing import Any

_NUMBERS = (0, 1, -1, 2, 255, 65536, 1 << 31, 1 << 62, 1 << 63, 1 << 64, 0.5, -0.5, 1e30, 1e308)
_TEXTS = ("", "a", "a.jpg", "../a.jpg", "/etc/passwd", "\0", "\ud800", "9" * 5000, "<i8", "cat")
_OTHERS: tuple[Any, ...] = (None, True, False, [], {}, [[]], [0], {"a": 1}, float("nan"), "")


def mutate_json(data: bytes, rng: random.Random) -> bytes:
    """Replaces, removes, repeats or exchanges values. Returns other bytes unchanged."""
    try:
        top = [json.loads(data)]
        for _ in range(rng.choice((1, 1, 2, 4))):
            _change(rng.choice(_places(top)), rng)
        return json.dumps(top[0] if top else None).encode()
    except (ValueError, RecursionError):  # not JSON, or too deep or too many digits to change
        return data


def mutate_json_lines(data: bytes, rng: random.Random) -> bytes:
    """Changes one line as ``mutate_json`` does; sometimes repeats or removes it."""
    lines = data.split(b"\n")
    number = rng.randrange(len(lines))
    changed = mutate_json(lines[number], rng)
    lines[number : number + 1] = rng.choice(([changed], [changed], [changed, changed], []))
    return b"\n".join(lines)


def flip_bytes(data: bytes, rng: random.Random) -> bytes:
    """Changes, removes or repeats a few bytes."""
    found = bytearray(data or b"0")
    for _ in range(rng.choice((1, 4))):
        place = rng.randrange(len(found))
        kind = rng.randrange(3)
        if kind == 0:
            found[place] = rng.choice((0, 0x22, 0x2D, 0x7F, 0xFF, rng.randrange(256)))
        elif kind == 1:
            del found[place : place + rng.choice((1, 8, 64))]
        else:
            found[place:place] = found[place : place + rng.choice((1, 8))]
        found = found or bytearray(b"0")
    return bytes(found)


Place = tuple[Any, Any]  # a list or dict, and an index or key of it


def _places(top: list[Any]) -> list[Place]:
    found: list[Place] = []
    pending: list[Any] = [top]
    while pending:
        container = pending.pop()
        keys = list(container) if isinstance(container, dict) else range(len(container))
        for key in keys:
            found.append((container, key))
            if isinstance(container[key], dict | list):
                pending.append(container[key])
    return found or [([0], 0)]


def _change(place: Place, rng: random.Random) -> None:
    container, key = place
    if key not in (container if isinstance(container, dict) else range(len(container))):
        return  # removed by an earlier change
    kind = rng.randrange(8)
    if kind < 4:
        container[key] = copy.deepcopy(rng.choice((_NUMBERS, _TEXTS, _OTHERS))[rng.randrange(10)])
    elif kind == 4:
        del container[key]
    elif kind == 5:
        if isinstance(container, dict):
            container[rng.choice(("a", "id", "", str(key) * 2))] = copy.deepcopy(container[key])
        else:
            container.insert(key, copy.deepcopy(container[key]))
    elif kind == 6:
        other, at = rng.choice(_places([copy.deepcopy(container)]))
        container[key] = other[at]
    elif isinstance(container[key], int | float):
        step = rng.choice((1, -1, 0.5))
        container[key] += step if abs(container[key]) < 1e300 else int(step)
