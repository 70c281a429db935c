"""The ten stages of the self-test.

This module imports nothing heavy, because the command line reads it for its help text.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Entry:
    """One stage. ``timeout_s`` suits an idle machine; ``--timeout`` multiplies it."""

    name: str
    what: str
    on_cpu: bool = False  # also runs with --device cpu
    optional: bool = False  # runs only if --stage names it
    timeout_s: float = 120.0
    backends: tuple[str, ...] = ()  # empty: all


CATALOG = (
    Entry("environment", "driver, GPU, packages", on_cpu=True),
    Entry("decode", "every kind of JPEG, software decoding compared with the CPU", on_cpu=True),
    Entry("engine", "hardware JPEG engine compared with software, 20 shuffled batches"),
    Entry(
        "roi",
        "regions of interest decoded by the library (not used by fastload)",
        optional=True,
        backends=("nvjpeg",),
    ),
    Entry("resize", "crop, resize, letterbox, masks compared with the CPU", on_cpu=True),
    Entry("streams", "decoding does not overwrite memory of earlier work", timeout_s=300.0),
    Entry("lagging", "a consumer that lags by three batches gets correct pixels"),
    Entry("determinism", "bit-equal: repeated, other batch size, resumed", on_cpu=True),
    Entry("errors", "damaged samples are reported, all others are correct", on_cpu=True),
    Entry("speed", "images/s with the JPEG engine on and off", timeout_s=300.0),
)
NAMES = tuple(entry.name for entry in CATALOG)
