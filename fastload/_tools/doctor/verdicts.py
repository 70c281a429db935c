"""What a look at one part of the machine comes to."""

from __future__ import annotations

from dataclasses import dataclass

OK, LOOK, BAD = "ok", "look", "bad"


@dataclass(frozen=True, slots=True)
class Check:
    """One part of the machine: state, what was found, and what to do where it is not ok."""

    name: str
    state: str
    found: str
    do: str = ""
