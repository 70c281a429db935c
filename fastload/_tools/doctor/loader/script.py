"""Calls functions of a user's script, named as ``train.py:make_loader,make_step``.

The script is imported, not run as a program.
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

from fastload._tools.doctor.loader.timing import short
from fastload.errors import ConfigError

FORM = "expected PATH:make_loader or PATH:make_loader,make_step, for example train.py:make_loader"


def call_script(text: str) -> tuple[Any, Callable[[Any], object] | None]:
    """Returns the loader, and the step if one is named. Every failure is a one-line ConfigError.

    The functions are called without arguments, and ``make_step`` returns a function of one batch. A
    name may also refer to the loader itself.
    """
    file, _, names_text = text.rpartition(":")
    names = [name.strip() for name in names_text.split(",")]
    if not file or len(names) > 2 or not all(name.isidentifier() for name in names):
        raise ConfigError(f"--script {text!r:.120}: {FORM}")
    module = import_script(Path(file))
    loader, step = [*(_call(module, name, file) for name in names), None][:2]
    if not hasattr(loader, "__iter__") and not hasattr(loader, "__getitem__"):
        raise ConfigError(
            f"{file}: {names[0]}() returned {type(loader).__name__}; expected an iterable loader"
        )
    if step is not None and not callable(step):
        raise ConfigError(
            f"{file}: {names[1]}() returned {type(step).__name__}; expected a function of one batch"
        )
    return loader, step


def import_script(path: Path) -> ModuleType:
    """Imports the script under its own name, so that worker processes can import it as well.

    Code under ``if __name__ == "__main__"`` does not run. The script's folder is put first in
    sys.path, as when the script is run. An existing module of the same name is not replaced.
    """
    if not path.is_file():
        raise ConfigError(f"--script: {path} does not exist")
    path = path.resolve()
    name = path.stem
    if not name.isidentifier() or name in sys.modules:
        name = f"fastload_script_{abs(hash(str(path)))}"
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise ConfigError(f"--script: {path} is not a Python file")
    module = importlib.util.module_from_spec(spec)
    if str(path.parent) not in sys.path:
        sys.path.insert(0, str(path.parent))
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:
        del sys.modules[name]
        raise ConfigError(
            f"--script: importing {path} raised {short(error)}. "
            "Put the training code under if __name__ == '__main__'."
        ) from error
    return module


def _call(module: ModuleType, name: str, file: str) -> Any:
    found = getattr(module, name, None)
    if found is None:
        known = sorted(
            each
            for each, value in vars(module).items()
            if callable(value) and getattr(value, "__module__", "") == module.__name__
        )
        raise ConfigError(
            f"{file} has no function {name}; it defines {', '.join(known[:12]) or 'none'}"
        )
    if not callable(found) or hasattr(found, "__iter__"):
        return found
    try:
        return found()
    except Exception as error:
        raise ConfigError(
            f"{file}: {name}() raised {short(error)}. It is called without arguments."
        ) from error
