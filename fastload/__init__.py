"""fastload takes the waiting out of training. See README.md; the public names are the list below."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

from fastload._version import __version__
from fastload.errors import (
    BadImage,
    ConfigError,
    CorruptManifest,
    CorruptShard,
    FastloadError,
    MissingPart,
    StoreError,
    WorkerDied,
)
from fastload.native import NativeStatus, native_status

if TYPE_CHECKING:
    from fastload import transforms
    from fastload.diagnosis.run import diagnose
    from fastload.loader.loader import DataLoader
    from fastload.migration.run import migrate
    from fastload.observe.probe import StepProbe
    from fastload.packing.api import pack
    from fastload.store.dataset import Dataset
    from fastload.store.dataset import open_dataset as open
    from fastload.store.fields import Field
    from fastload.trainer.run import check_trainer

__all__ = [
    "BadImage",
    "ConfigError",
    "CorruptManifest",
    "CorruptShard",
    "DataLoader",
    "Dataset",
    "FastloadError",
    "Field",
    "MissingPart",
    "NativeStatus",
    "StepProbe",
    "StoreError",
    "WorkerDied",
    "__version__",
    "check_trainer",
    "diagnose",
    "migrate",
    "native_status",
    "open",
    "pack",
    "transforms",
]

# Loaded when first asked for: `import fastload` costs neither torch nor numpy.
_LATER = {
    "DataLoader": ("fastload.loader.loader", "DataLoader"),
    "Dataset": ("fastload.store.dataset", "Dataset"),
    "Field": ("fastload.store.fields", "Field"),
    "StepProbe": ("fastload.observe.probe", "StepProbe"),
    "check_trainer": ("fastload.trainer.run", "check_trainer"),
    "diagnose": ("fastload.diagnosis.run", "diagnose"),
    "migrate": ("fastload.migration.run", "migrate"),
    "open": ("fastload.store.dataset", "open_dataset"),
    "pack": ("fastload.packing.api", "pack"),
}


def __getattr__(name: str) -> object:
    if name == "transforms":
        return importlib.import_module("fastload.transforms")
    if name not in _LATER:
        raise AttributeError(f"module 'fastload' has no attribute {name!r}")
    module, attribute = _LATER[name]
    found: object = getattr(importlib.import_module(module), attribute)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
