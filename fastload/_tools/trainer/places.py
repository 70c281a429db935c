"""Where in the user's code something happens: the innermost frame that is neither torch's nor ours."""

from __future__ import annotations

import sys
from pathlib import Path
from types import FrameType

import torch

_TORCH = str(Path(torch.__file__).parent)
_OURS = str(Path(__file__).parent)
# A scalar that an optimizer or a gradient scaler reads is its own business: `step` of Adam lives on the CPU, found_inf is by design.
_THEIR_OWN = tuple(str(Path(_TORCH, part)) for part in ("optim", "amp", "utils/data"))


def user_line() -> str | None:
    """``file.py:41 in train_step``; None where torch does it for reasons of its own."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        name = frame.f_code.co_filename
        if name.startswith(_THEIR_OWN):
            return None
        if not name.startswith((_TORCH, _OURS)) and not name.startswith("<frozen"):
            return f"{_short(name)}:{frame.f_lineno} in {frame.f_code.co_name}"
        frame = frame.f_back
    return None


def _short(name: str) -> str:
    try:
        return str(Path(name).relative_to(Path.cwd()))
    except ValueError:
        return name
