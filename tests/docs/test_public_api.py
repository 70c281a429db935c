"""The public names of fastload, and what importing it must not import."""

from __future__ import annotations

import inspect
import subprocess
import sys

import fastload
from fastload import transforms as T

PUBLIC = [
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


def test_the_public_names_match_this_list_and_exist() -> None:
    assert sorted(fastload.__all__) == PUBLIC
    for name in (*PUBLIC, "open", "sources", "callbacks", "errors"):
        assert getattr(fastload, name) is not None
        assert name in dir(fastload)


def test_what_users_call_shows_how_in_a_block_that_the_reference_keeps_as_code() -> None:
    for name in (
        "DataLoader",
        "append",
        "diff",
        "export",
        "filter_dataset",
        "merge",
        "Field",
        "StepProbe",
        "check_trainer",
        "diagnose",
        "migrate",
        "open",
        "pack",
        "reindex",
    ):
        shown = [
            line
            for line in str(inspect.getdoc(getattr(fastload, name))).splitlines()
            if line.startswith("    ")
        ]
        assert any(f"fastload.{name}(" in line for line in shown), f"{name}: no example"
    for name in T.__all__:
        assert inspect.getdoc(getattr(T, name)), f"{name}: no docstring"


def test_a_star_import_keeps_the_builtin_open() -> None:
    program = "from fastload import *; import builtins; print(open is builtins.open, DataLoader)"
    result = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert result.stdout == "True <class 'fastload.DataLoader'>\n"


def test_classes_report_the_module_that_users_import_them_from() -> None:
    for module in (fastload, fastload.transforms, fastload.sources, fastload.errors):
        for name, value in vars(module).items():
            if inspect.isclass(value) and not name.startswith("_"):
                public = ("fastload", "fastload.transforms", "fastload.sources", "fastload.errors")
                if value.__module__.startswith("fastload"):
                    assert value.__module__ in public, f"{module.__name__}.{name}"
    for name in fastload.__all__:
        value = getattr(fastload, name)
        if inspect.isclass(value):
            assert value.__module__ in ("fastload", "fastload.errors"), name


def test_import_loads_neither_torch_nor_the_command_line() -> None:
    program = "import sys, fastload; print(*sorted({'torch', 'numpy', 'argparse', 'rich', 'PIL', 'nvidia'} & set(sys.modules)))"
    result = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert result.stdout.split() == []
    assert result.stderr == ""


def test_transforms_are_available_after_import_fastload() -> None:
    program = "import fastload; print(fastload.transforms.Resize(2, 3))"
    result = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert result.stdout == f"{T.Resize(2, 3)}\n"


def test_every_error_is_a_fastload_error_and_a_builtin_one() -> None:
    builtin = {
        "BadImage": ValueError,
        "ConfigError": ValueError,
        "CorruptManifest": OSError,
        "CorruptShard": OSError,
        "MissingPart": ImportError,
        "StoreError": OSError,
        "WorkerDied": RuntimeError,
    }
    for name, parent in builtin.items():
        error = getattr(fastload, name)
        assert issubclass(error, fastload.FastloadError)
        assert issubclass(error, parent)
