"""Which stages have passed here: a small JSON file in the cache, one entry per GPU, driver and versions, backend by backend.

The loader asks ``hardware_passed`` before it lets the GPU's JPEG engine decode. Another GPU, driver or version has passed nothing.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import TypedDict

import torch

from fastload._common import files
from fastload._decode.gpu import requirements
from fastload._version import __version__

Key = dict[str, str]

HARDWARE_STAGES = (
    "decode",
    "engine",
    "streams",
    "lagging",
)  # what the JPEG engine must have passed, besides not crashing
_VERSION, _MOST_ENTRIES = 1, 64


class Entry(TypedDict):
    """What has passed on one kind of machine: backend → stages."""

    key: Key
    passed: dict[str, list[str]]


def cache_folder() -> Path:
    """Where fastload keeps what it found out about this machine."""
    cache = os.environ.get("XDG_CACHE_HOME", "")
    return (Path(cache) if cache.startswith("/") else Path.home() / ".cache") / "fastload"


def path() -> Path:
    """The record's file."""
    return cache_folder() / "selftest.json"


def key(device: str | torch.device) -> Key:
    """All that a pass holds for: GPU model, driver, and the versions of everything in between."""
    wanted = requirements.checked_device(device)
    facts = requirements.read_facts(wanted)
    found = {name: requirements.installed_version(name) for name in requirements.packages()}
    versions = {name: version for name, version in found.items() if version}
    gpu = facts.gpu if wanted.type == "cuda" else "cpu"
    return {
        "gpu": gpu,
        "driver": facts.driver,
        "mig": str(facts.mig),
        "torch": torch.__version__,
        "fastload": __version__,
        **versions,
    }


def passed(stage: str, device: str | torch.device, *, backend: str) -> bool:
    """Whether this stage, by name, has passed for this backend on a machine like this one. False where nothing is known."""
    return stage in _passes(backend, key(device))


def hardware_passed(backend: str, device: str | torch.device) -> bool:
    """Whether the GPU's JPEG engine may decode for this backend: every stage that could show it wrong has passed."""
    return torch.device(device).type == "cuda" and set(HARDWARE_STAGES) <= set(
        _passes(backend, key(device))
    )


def save(device: str | torch.device, results: Mapping[str, Mapping[str, bool]]) -> Path:
    """Notes how stages went, ``{backend: {stage: passed}}``; a stage that was not run keeps what was known of it."""
    here, entries = key(device), _entries()
    known: dict[str, list[str]] = next(
        (entry["passed"] for entry in entries if entry["key"] == here), {}
    )
    merged = {
        backend: sorted(_after(known.get(backend, []), results.get(backend, {})))
        for backend in {*known, *results}
    }
    others = [entry for entry in entries if entry["key"] != here]
    target = path()
    target.parent.mkdir(parents=True, exist_ok=True)
    text = json.dumps(
        {
            "version": _VERSION,
            "entries": [*others, {"key": here, "passed": merged}][-_MOST_ENTRIES:],
        },
        indent=1,
    )
    files.write_atomically(target, text.encode())
    return target


def _after(known: list[str], results: Mapping[str, bool]) -> set[str]:
    return {stage for stage in {*known, *results} if results.get(stage, stage in known)}


def _passes(backend: str, here: Key) -> list[str]:
    return next(
        (entry["passed"].get(backend, []) for entry in _entries() if entry["key"] == here), []
    )


def _entries() -> list[Entry]:
    """What the file holds; nothing where it is missing, damaged or of another version: then nothing has passed."""
    try:
        found = json.loads(path().read_bytes())
        entries = found["entries"] if found["version"] == _VERSION else []
        good: list[Entry] = [
            entry
            for entry in entries
            if isinstance(entry["key"], dict)
            and all(isinstance(stages, list) for stages in entry["passed"].values())
        ]
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return []
    return good
