"""What `import fastload` offers, and what it must not drag in."""

from __future__ import annotations

import subprocess
import sys

import fastload

PUBLIC = [
    "BadImage", "ConfigError", "CorruptManifest", "CorruptShard", "DataLoader", "Dataset", "FastloadError", "Field", "MissingPart",
    "NativeStatus", "StepProbe", "StoreError", "WorkerDied", "__version__", "check_trainer", "diagnose", "migrate", "native_status", "open",
    "pack",
]


def test_the_public_names_are_these_and_all_exist() -> None:
    assert sorted(fastload.__all__) == PUBLIC
    for name in PUBLIC:
        assert getattr(fastload, name) is not None
        assert name in dir(fastload)


def test_import_brings_neither_torch_nor_the_command_line() -> None:
    program = "import sys, fastload; print(*sorted({'torch', 'numpy', 'argparse', 'rich', 'PIL', 'nvidia'} & set(sys.modules)))"
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert result.stdout.split() == []
    assert result.stderr == ""


def test_every_error_can_be_caught_as_fastloads_and_as_a_builtin() -> None:
    builtin = {"BadImage": ValueError, "ConfigError": ValueError, "CorruptManifest": OSError, "CorruptShard": OSError,
               "MissingPart": ImportError, "StoreError": OSError, "WorkerDied": RuntimeError}
    for name, parent in builtin.items():
        error = getattr(fastload, name)
        assert issubclass(error, fastload.FastloadError)
        assert issubclass(error, parent)
