"""What was measured on this machine, kept in the user's cache folder: a small JSON file for each question that was asked.

A record speaks for exactly the data, GPU, driver and packages it was made with: for any other there is none.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

_MAX_BYTES = 1 << 20


def record_path(question: Mapping[str, str]) -> Path:
    """Where its record is: ``$XDG_CACHE_HOME/fastload``, else ``~/.cache/fastload``."""
    base = os.environ.get("XDG_CACHE_HOME", "")
    digest = hashlib.sha256(json.dumps(dict(question), sort_keys=True).encode()).hexdigest()[:16]
    return (
        (Path(base) if base.startswith("/") else Path.home() / ".cache")
        / "fastload"
        / f"backend-{digest}.json"
    )


def load(question: Mapping[str, str]) -> dict[str, Any] | None:
    """The record; None where there is none, it is damaged, or it speaks of something else."""
    try:
        path = record_path(question)
        if path.stat().st_size > _MAX_BYTES:
            return None
        found = json.loads(path.read_text())
    except (OSError, ValueError, RuntimeError):  # RuntimeError: there is no home folder
        return None
    return found if isinstance(found, dict) and found.get("for") == dict(question) else None


def store(question: Mapping[str, str], record: Mapping[str, object]) -> Path | None:
    """Writes the record in one step; None where the folder cannot be written, which is nobody's error."""
    new: Path | None = None
    try:
        path = record_path(question)
        new = path.with_name(f".{path.name}.{os.getpid()}")
        path.parent.mkdir(parents=True, exist_ok=True)
        new.write_text(
            json.dumps({"for": dict(question), **record}, indent=1, sort_keys=True) + "\n"
        )
        new.replace(path)
    except (OSError, RuntimeError):
        with contextlib.suppress(OSError):
            if new is not None:
                new.unlink(missing_ok=True)
        return None
    return path
