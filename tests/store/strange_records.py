"""Changes the parts of records at random."""

from __future__ import annotations

import numpy as np

from fastload._store.record import Part

LIMITS = {
    "codec": 5,
    "role": 1,
    "channels": 255,
    "bits": 255,
    "width": 65_535,
    "height": 65_535,
    "interval": 65_535,
    "orientation": 8,
    "item": 65_535,
}


def strange(parts: list[Part], n_fields: int, rng: np.random.Generator) -> list[Part]:
    """Returns the parts with one to three changes that a record can still represent."""
    parts = list(parts)
    limits = {**LIMITS, "field": n_fields + 1}
    for _ in range(int(rng.integers(1, 4))):
        place = int(rng.integers(len(parts)))
        part = parts[place]
        if rng.random() < 0.5:
            name = str(rng.choice(list(limits)))
            near = max(0, getattr(part, name) + int(rng.integers(-2, 3)))
            number = min(
                near if rng.random() < 0.5 else int(rng.integers(limits[name] + 1)), limits[name]
            )
            changed = Part(**{**part._asdict(), name: number})
        else:
            data = bytearray(part.data)
            for _ in range(int(rng.integers(0, 4))):
                if data:
                    data[
                        int(rng.integers(min(len(data), 64) if rng.random() < 0.5 else len(data)))
                    ] = int(rng.integers(256))
            changed = part._replace(
                data=bytes(data[: int(rng.integers(len(data) + 1))] if rng.random() < 0.3 else data)
            )
        keys = {
            (each.field, each.item, each.role)
            for number, each in enumerate(parts)
            if number != place
        }
        if (changed.field, changed.item, changed.role) not in keys:
            parts[place] = changed
    return parts
