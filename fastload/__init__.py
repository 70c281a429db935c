"""fastload takes the waiting out of training. See README.md; the public names are the list below."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

from fastload._common.native import NativeStatus, native_status
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

if TYPE_CHECKING:
    from fastload import transforms
    from fastload._load.loader import DataLoader
    from fastload._pack.api import pack
    from fastload._store.dataset import Dataset
    from fastload._store.dataset import open_dataset as open
    from fastload._store.fields import Field
    from fastload._tools.diagnose.run import diagnose
    from fastload._tools.migrate.run import migrate
    from fastload._tools.monitor.probe import StepProbe
    from fastload._tools.trainer.run import check_trainer

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
    "DataLoader": ("fastload._load.loader", "DataLoader"),
    "Dataset": ("fastload._store.dataset", "Dataset"),
    "Field": ("fastload._store.fields", "Field"),
    "StepProbe": ("fastload._tools.monitor.probe", "StepProbe"),
    "check_trainer": ("fastload._tools.trainer.run", "check_trainer"),
    "diagnose": ("fastload._tools.diagnose.run", "diagnose"),
    "migrate": ("fastload._tools.migrate.run", "migrate"),
    "open": ("fastload._store.dataset", "open_dataset"),
    "pack": ("fastload._pack.api", "pack"),
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
