"""The colours: Okabe and Ito's, which colour-blind readers tell apart. Work is blue and green, waiting is orange, pauses are purple."""

from __future__ import annotations

# name: (light, dark)
COLOURS = {
    "page": ("#f6f7f9", "#0f1419"),
    "card": ("#ffffff", "#181f27"),
    "text": ("#1b2430", "#e8ecf0"),
    "muted": ("#5a6572", "#9aa6b2"),
    "grid": ("#e4e8ed", "#2a333d"),
    "wait": ("#d55e00", "#ff8c42"),
    "copy": ("#e69f00", "#f4b942"),
    "forward": ("#56b4e9", "#72c3f0"),
    "loss": ("#a6d8f5", "#b5dcf3"),
    "backward": ("#0072b2", "#3d94d1"),
    "optimizer": ("#009e73", "#2bbd93"),
    "more": ("#7fc8b2", "#7fc8b2"),
    "other": ("#bcc4cd", "#53606d"),
    "stall": ("#a5407e", "#e58fc4"),
    "good": ("#00795a", "#2bbd93"),
    "look": ("#9a6700", "#f4b942"),
    "bad": ("#b84a00", "#ff8c42"),
}
STAGE_COLOURS = {
    "to_device": "copy",
    "forward": "forward",
    "loss": "loss",
    "backward": "backward",
    "optimizer": "optimizer",
}


def stage_colour(name: str) -> str:
    """Stages that a user named himself share one colour."""
    return STAGE_COLOURS.get(name, "more")


def css_variables(dark: bool) -> str:
    """``--wait: #d55e00; ...``"""
    return " ".join(f"--{name}: {pair[dark]};" for name, pair in COLOURS.items())


def rgb(name: str, *, dark: bool = False) -> tuple[int, int, int]:
    """For Pillow."""
    value = COLOURS[name][dark]
    return int(value[1:3], 16), int(value[3:5], 16), int(value[5:7], 16)
