"""Formats numbers, sizes and durations for people.

Nothing else in the package formats quantities.
"""

from __future__ import annotations

import math


def seconds(value: float) -> str:
    """0.0581 → ``58 ms``; 4.12 → ``4.1 s``; 723 → ``12 min 3 s``."""
    if math.isnan(value):
        return "?"
    if value < 0.00995:
        return f"{1e3 * value:.2g} ms" if value >= 1e-4 else f"{1e6 * value:.0f} us"
    if value < 0.9995:
        return f"{1e3 * value:.0f} ms"
    if value < 1.995:
        return f"{value:.2f} s"
    if value < 119.5:
        return f"{value:.1f} s" if value < 99.5 else f"{value:.0f} s"
    if value < 7200:
        return f"{round(value) // 60} min {round(value) % 60} s"
    return f"{round(value / 60) // 60} h {round(value / 60) % 60} min"


def percent(share: float) -> str:
    """0.301 → ``30 %``; 0.0042 → ``0.4 %``."""
    value = 100 * share
    if 0 < value < 0.05:
        return "< 0.1 %"
    return f"{value:.0f} %" if abs(value) >= 9.95 or value == 0 else f"{value:.1f} %"


def exact_percent(part: float, whole: float) -> str:
    """1 of 8 → ``12.5 %``. ``0 %`` and ``100 %`` are exact: none and all."""
    share = 100 * part / whole if whole else 0.0
    if 0 < share < 0.05:
        return "< 0.1 %"
    if 99.95 < share < 100:
        return "> 99.9 %"
    return f"{share:.1f} %" if share % 100 else f"{share:.0f} %"


def rate(value: float) -> str:
    """6.78 → ``6.8``; 0.0321 → ``0.032``; 1210.4 → ``1,210``."""
    if value >= 99.5:
        return f"{value:,.0f}"
    if value >= 9.95:
        return f"{value:.1f}"
    return f"{value:.2f}" if value >= 0.995 else f"{value:.2g}"


def count(number: float, noun: str = "") -> str:
    """5000, "step" → ``5,000 steps``."""
    text = f"{number:,.0f}"
    return text if not noun else f"{text} {noun}" + ("" if text == "1" else "s")


def ordinal(number: int) -> str:
    """8 → ``8th``."""
    suffix = "th" if 10 < number % 100 < 14 else {1: "st", 2: "nd", 3: "rd"}.get(number % 10, "th")
    return f"{number:,}{suffix}"


def byte_size(count: float) -> str:
    """1536 → ``1.5 KiB``."""
    if count < 1024:
        return f"{count:.0f} B"
    for unit in ("KiB", "MiB"):
        count /= 1024
        if count < 1024:
            return f"{count:.1f} {unit}"
    return f"{count / 1024:.1f} GiB"


def number(value: float | None, unit: str = "", *, digits: int = 0) -> str:
    """71.96, "C" → ``72 C``; None → ``-``."""
    return "-" if value is None else f"{value:.{digits}f}{' ' + unit if unit else ''}"


def printable(text: str) -> str:
    r"""Escapes control characters: a class name from a file must not move the cursor (``\x1b``)."""
    return "".join(c if c.isprintable() else f"\\x{ord(c):02x}" for c in text)
