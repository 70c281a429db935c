"""What a fuzz target consists of, and files for targets whose parser reads files."""

from __future__ import annotations

import os
import random
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from tools.fuzz import memory_folder

Mutation = Callable[[bytes, random.Random], bytes]


@dataclass(frozen=True, slots=True)
class Target:
    """A parser of untrusted bytes.

    ``run`` parses bytes and raises an error only for a finding. ``seeds`` returns valid inputs.
    ``modules`` hold the parser ("module:function" is one function of it). ``skipped`` are patterns
    of their functions that do not parse, such as writers: coverage leaves them out. ``mutate``
    returns a changed input of the same structure.
    """

    run: Callable[[bytes], object]
    seeds: Callable[[], list[bytes]]
    modules: tuple[str, ...]
    skipped: tuple[str, ...] = ()
    mutate: Mutation | None = None


_kept: list[Any] = []


def keep(made: Any) -> Any:
    """Keeps an object until the process ends."""
    _kept.append(made)
    return made


@cache
def folder() -> Path:
    """Returns a folder that exists until the process ends: in $TMPDIR, or in memory."""
    root = os.environ.get("TMPDIR") or memory_folder()
    return Path(keep(tempfile.TemporaryDirectory(prefix="fuzz", dir=root)).name)


def new_folder() -> Path:
    return Path(tempfile.mkdtemp(dir=folder()))
