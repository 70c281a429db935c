"""Packs image datasets and loads them for PyTorch training. See README.md.

The public API is ``fastload.open``, the names in ``__all__``, and the modules
``fastload.transforms``, ``fastload.sources``, ``fastload.callbacks`` and ``fastload.errors``. All
other modules are private.
"""

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
    from fastload import callbacks as callbacks
    from fastload import sources as sources
    from fastload import transforms
    from fastload._common.metrics import (
        EventRow,
        LoaderStats,
        RunRow,
        SlowStep,
        Span,
        StageStats,
        StepRow,
    )
    from fastload._decode.selftest_record import SelftestStatus, selftest_status
    from fastload._load.decoder import BackendChoice
    from fastload._load.loader import DataLoader
    from fastload._pack.datasets.assembly import DatasetResult
    from fastload._pack.datasets.diff import DiffResult, diff
    from fastload._pack.datasets.exporting import ExportResult, export
    from fastload._pack.datasets.filtering import filter_dataset
    from fastload._pack.datasets.merge import append, merge
    from fastload._pack.datasets.reindex import ReindexResult, reindex
    from fastload._pack.options import PackProgress, PackResult
    from fastload._pack.packer import pack
    from fastload._plan.rows import PlanRow
    from fastload._store.dataset import Dataset, open_dataset
    from fastload._store.fields import Field
    from fastload._store.kinds import FieldKind
    from fastload._store.verify import VerifyReport, verify
    from fastload._tools.doctor.examine import examine
    from fastload._tools.doctor.finding import Ceiling, Diagnosis, Finding, RecordedRuns, RunFigures
    from fastload._tools.doctor.loader.diagnose import diagnose
    from fastload._tools.doctor.loader.figures import BatchTiming, LoaderFigures, StageShare
    from fastload._tools.doctor.trainer.check import StepFigures, check_trainer
    from fastload._tools.migrate.migration import Migration, migrate
    from fastload._tools.monitor.metrics_file import Metrics, read_metrics
    from fastload._tools.monitor.probe import StepProbe
    from fastload._tools.monitor.window import (
        GpuSummary,
        GpuWindow,
        HostWindow,
        Window,
        read_window,
    )

    open = open_dataset

# "open" is public but not listed, because `from fastload import *` must not replace the builtin.
__all__ = [
    "BackendChoice",
    "BadImage",
    "BatchTiming",
    "Ceiling",
    "ConfigError",
    "CorruptManifest",
    "CorruptShard",
    "DataLoader",
    "Dataset",
    "DatasetResult",
    "Diagnosis",
    "DiffResult",
    "EventRow",
    "ExportResult",
    "FastloadError",
    "Field",
    "FieldKind",
    "Finding",
    "GpuSummary",
    "GpuWindow",
    "HostWindow",
    "LoaderFigures",
    "LoaderStats",
    "Metrics",
    "Migration",
    "MissingPart",
    "NativeStatus",
    "PackProgress",
    "PackResult",
    "PlanRow",
    "RecordedRuns",
    "ReindexResult",
    "RunFigures",
    "RunRow",
    "SelftestStatus",
    "SlowStep",
    "Span",
    "StageShare",
    "StageStats",
    "StepFigures",
    "StepProbe",
    "StepRow",
    "StoreError",
    "VerifyReport",
    "Window",
    "WorkerDied",
    "__version__",
    "append",
    "check_trainer",
    "diagnose",
    "diff",
    "examine",
    "export",
    "filter_dataset",
    "merge",
    "migrate",
    "native_status",
    "pack",
    "read_metrics",
    "read_window",
    "reindex",
    "selftest_status",
    "transforms",
    "verify",
]

_MODULES = ("callbacks", "sources", "transforms")
# Imported at first use, because `import fastload` must import neither torch nor NumPy.
_LAZY = {
    "BackendChoice": "fastload._load.decoder",
    "BatchTiming": "fastload._tools.doctor.loader.figures",
    "Ceiling": "fastload._tools.doctor.finding",
    "DataLoader": "fastload._load.loader",
    "Dataset": "fastload._store.dataset",
    "DatasetResult": "fastload._pack.datasets.assembly",
    "Diagnosis": "fastload._tools.doctor.finding",
    "DiffResult": "fastload._pack.datasets.diff",
    "EventRow": "fastload._common.metrics",
    "ExportResult": "fastload._pack.datasets.exporting",
    "Field": "fastload._store.fields",
    "FieldKind": "fastload._store.kinds",
    "Finding": "fastload._tools.doctor.finding",
    "GpuSummary": "fastload._tools.monitor.window",
    "GpuWindow": "fastload._tools.monitor.window",
    "HostWindow": "fastload._tools.monitor.window",
    "LoaderFigures": "fastload._tools.doctor.loader.figures",
    "LoaderStats": "fastload._common.metrics",
    "Metrics": "fastload._tools.monitor.metrics_file",
    "Migration": "fastload._tools.migrate.migration",
    "PackProgress": "fastload._pack.options",
    "PackResult": "fastload._pack.options",
    "PlanRow": "fastload._plan.rows",
    "RecordedRuns": "fastload._tools.doctor.finding",
    "ReindexResult": "fastload._pack.datasets.reindex",
    "RunFigures": "fastload._tools.doctor.finding",
    "RunRow": "fastload._common.metrics",
    "SelftestStatus": "fastload._decode.selftest_record",
    "SlowStep": "fastload._common.metrics",
    "Span": "fastload._common.metrics",
    "StageShare": "fastload._tools.doctor.loader.figures",
    "StageStats": "fastload._common.metrics",
    "StepFigures": "fastload._tools.doctor.trainer.check",
    "StepProbe": "fastload._tools.monitor.probe",
    "StepRow": "fastload._common.metrics",
    "VerifyReport": "fastload._store.verify",
    "Window": "fastload._tools.monitor.window",
    "append": "fastload._pack.datasets.merge",
    "check_trainer": "fastload._tools.doctor.trainer.check",
    "diagnose": "fastload._tools.doctor.loader.diagnose",
    "diff": "fastload._pack.datasets.diff",
    "examine": "fastload._tools.doctor.examine",
    "export": "fastload._pack.datasets.exporting",
    "filter_dataset": "fastload._pack.datasets.filtering",
    "merge": "fastload._pack.datasets.merge",
    "migrate": "fastload._tools.migrate.migration",
    "open": "fastload._store.dataset:open_dataset",
    "pack": "fastload._pack.packer",
    "read_metrics": "fastload._tools.monitor.metrics_file",
    "read_window": "fastload._tools.monitor.window",
    "reindex": "fastload._pack.datasets.reindex",
    "selftest_status": "fastload._decode.selftest_record",
    "verify": "fastload._store.verify",
}


def __getattr__(name: str) -> object:
    if name in _MODULES:
        return importlib.import_module(f"fastload.{name}")
    if name not in _LAZY:
        raise AttributeError(f"module 'fastload' has no attribute {name!r}")
    module, _, attribute = _LAZY[name].partition(":")
    found: object = getattr(importlib.import_module(module), attribute or name)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__, *_LAZY, *_MODULES})
