"""The record of passed self-test stages, which decides whether the JPEG engine may be used.

The record is a small JSON file in the cache folder with one entry per GPU model, driver and set of
package versions. An entry is not valid for another GPU, driver or version.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TypedDict

import torch

from fastload._common import files
from fastload._common.public import public
from fastload._decode.gpu import base
from fastload._decode.registry import GPU_BACKENDS
from fastload._version import __version__

Key = dict[str, str]

# The JPEG engine is used only after these stages have passed.
HARDWARE_STAGES = ("decode", "engine", "streams", "lagging")
_VERSION = 1
_MAX_ENTRIES = 64


class Entry(TypedDict):
    """The stages that passed with one GPU model, driver and set of versions."""

    key: Key
    passed: dict[str, list[str]]  # backend → stages


@public()
@dataclass(frozen=True, slots=True)
class SelftestStatus:
    """Results of `fastload selftest` for one device.

    Attributes:
        path: File with the recorded results.
        passed: Names of the passed stages by backend.
        jpeg_engine: Backends that may use the JPEG engine of the GPU.
    """

    path: Path
    passed: dict[str, tuple[str, ...]]
    jpeg_engine: tuple[str, ...]


def selftest_status(device: str | torch.device = "cuda") -> SelftestStatus:
    """Reads the recorded results of `fastload selftest`.

    The results are valid for one GPU model, driver and set of package versions. ``backend="auto"``
    uses the JPEG engine only with the backends in ``jpeg_engine``.

    Args:
        device: Device that the self-test ran on, "cpu" or a CUDA device. Default "cuda".

    Returns:
        The results; empty if the self-test did not run on such a machine.

    Raises:
        ConfigError: ``device`` is neither "cpu" nor a CUDA device.

    Examples:
        >>> import fastload
        >>> fastload.selftest_status("cpu").jpeg_engine
        ()
    """
    passes = _passes(key(device))
    return SelftestStatus(
        path(),
        {backend: tuple(stages) for backend, stages in passes.items()},
        tuple(backend for backend in GPU_BACKENDS if hardware_passed(backend, device)),
    )


def cache_folder() -> Path:
    """Returns the folder for results that are specific to this machine."""
    cache = os.environ.get("XDG_CACHE_HOME", "")
    return (Path(cache) if cache.startswith("/") else Path.home() / ".cache") / "fastload"


def path() -> Path:
    return cache_folder() / "selftest.json"


def key(device: str | torch.device) -> Key:
    """Returns GPU model, driver and versions of all packages that a result is valid for."""
    wanted = base.checked_device(device)
    facts = base.read_facts(wanted)
    found = {name: base.installed_version(name) for name in base.packages()}
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
    """Whether a stage passed with this backend, GPU model, driver and versions."""
    return stage in _passes(key(device)).get(backend, [])


def hardware_passed(backend: str, device: str | torch.device) -> bool:
    """Whether the JPEG engine may be used: all HARDWARE_STAGES have passed."""
    if torch.device(device).type != "cuda":
        return False
    return set(HARDWARE_STAGES) <= set(_passes(key(device)).get(backend, []))


def save(device: str | torch.device, results: Mapping[str, Mapping[str, bool]]) -> Path:
    """Records ``{backend: {stage: passed}}``. Stages that did not run keep their result."""
    here = key(device)
    merged = {backend: set(stages) for backend, stages in _passes(here).items()}
    for backend, stages in results.items():
        known = merged.setdefault(backend, set())
        known |= {stage for stage, ok in stages.items() if ok}
        known -= {stage for stage, ok in stages.items() if not ok}
    entry = {"key": here, "passed": {backend: sorted(known) for backend, known in merged.items()}}
    others = [each for each in _entries() if each["key"] != here]
    content = {"version": _VERSION, "entries": [*others, entry][-_MAX_ENTRIES:]}
    target = path()
    target.parent.mkdir(parents=True, exist_ok=True)
    files.write_atomically(target, json.dumps(content, indent=1).encode())
    return target


def _passes(here: Key) -> dict[str, list[str]]:
    return next((entry["passed"] for entry in _entries() if entry["key"] == here), {})


def _entries() -> list[Entry]:
    """Reads the entries; empty if the file is missing, damaged or of another version."""
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
