"""What was found out about this machine and is kept in the user's cache folder: one small JSON file for each set of versions.

A record speaks for exactly the GPU, driver and packages it was made with: with any other there is none.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib.metadata
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from fastload.decode.gpu_parts import read_facts

_PACKAGES = ("torch", "nvidia-dali-cuda120", "nvidia-dali-cuda130", "nvidia-nvimgcodec-cu12", "nvidia-nvimgcodec-cu13",
             "nvidia-nvjpeg-cu12", "nvidia-nvjpeg", "triton", "fastload")
_MAX_BYTES = 1 << 20


def versions(device: torch.device) -> dict[str, str]:
    """What decides how pixels come out: GPU, driver, packages. JSON."""
    facts = read_facts(device)
    found = {"device": device.type, "gpu": facts.gpu, "driver": facts.driver}
    for name in _PACKAGES:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            found[name] = importlib.metadata.version(name)
    return found


def cache_dir() -> Path:
    """``$XDG_CACHE_HOME/fastload``, else ``~/.cache/fastload``; not made yet."""
    base = os.environ.get("XDG_CACHE_HOME", "")
    return (Path(base) if base.startswith("/") else Path.home() / ".cache") / "fastload"


def record_path(kind: str, key: Mapping[str, str]) -> Path:
    """Where the record of this kind ("selftest", "backend") for these versions is."""
    digest = hashlib.sha256(json.dumps(dict(key), sort_keys=True).encode()).hexdigest()[:16]
    return cache_dir() / f"{kind}-{digest}.json"


def load(kind: str, key: Mapping[str, str]) -> dict[str, Any] | None:
    """The record; None where there is none, it is damaged, or it speaks of something else."""
    try:
        path = record_path(kind, key)
        if path.stat().st_size > _MAX_BYTES:
            return None
        found = json.loads(path.read_text())
    except (OSError, ValueError):
        return None
    return found if isinstance(found, dict) and found.get("for") == dict(key) else None


def store(kind: str, key: Mapping[str, str], record: Mapping[str, object]) -> Path | None:
    """Writes the record in one step; None where the folder cannot be written, which is nobody's error."""
    path = record_path(kind, key)
    new = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        new.write_text(json.dumps({"for": dict(key), **record}, indent=1, sort_keys=True) + "\n")
        new.replace(path)
    except OSError:
        with contextlib.suppress(OSError):
            new.unlink(missing_ok=True)
        return None
    return path


def store_selftest(device: torch.device, *, passed: Mapping[str, bool], report: Mapping[str, object]) -> Path | None:
    """What ``fastload selftest`` found: ``passed`` says for "dali" and "nvjpeg" whether the JPEG engine may be used."""
    return store("selftest", versions(device), {"hardware": dict(passed), "report": dict(report)})


def hardware_passed(backend: str, device: torch.device) -> bool:
    """Whether the self-test has passed the JPEG engine with this backend, on this GPU with these versions."""
    found = load("selftest", versions(device))
    hardware = found.get("hardware") if found else None
    return isinstance(hardware, dict) and hardware.get(backend) is True
