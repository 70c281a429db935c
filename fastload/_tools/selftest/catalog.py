"""The ten stages: their names, numbers, and which of them a machine can run. Imports nothing heavy: the command line reads it."""

from __future__ import annotations

from dataclasses import dataclass

RESULT = "result.json"


@dataclass(frozen=True, slots=True)
class Entry:
    """One stage. ``timeout_s`` is for an idle machine; the user may stretch it."""

    number: int
    name: str
    what: str
    on_cpu: bool = False  # also with --device cpu
    asked_only: bool = False  # only where named with --stage
    timeout_s: float = 120.0
    backends: tuple[str, ...] = ()  # empty: all; roi is about one library


CATALOG = (
    Entry(0, "environment", "driver, GPU, packages", on_cpu=True),
    Entry(1, "decode", "every kind of JPEG, in software, against the CPU", on_cpu=True),
    Entry(2, "engine", "the GPU's JPEG engine against software, 20 shuffled batches"),
    Entry(
        3,
        "roi",
        "regions decoded inside the library (fastload does not use it)",
        asked_only=True,
        backends=("nvjpeg",),
    ),
    Entry(4, "resize", "crop, resize, letterbox, nearest and masks against the CPU", on_cpu=True),
    Entry(5, "streams", "work queued before a decode is left alone", timeout_s=300.0),
    Entry(6, "lagging", "a consumer three batches behind gets the right pixels"),
    Entry(7, "determinism", "again, other batch size, resumed: bit-equal", on_cpu=True),
    Entry(8, "errors", "damaged samples are named, all others are right", on_cpu=True),
    Entry(9, "speed", "images a second, engine on and off", timeout_s=300.0),
)
NAMES = tuple(entry.name for entry in CATALOG)
