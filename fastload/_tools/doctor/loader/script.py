"""Functions of a user's script, by path: ``train.py:make_loader,make_step``. The script is imported, not run as a program."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

from fastload._tools.doctor.loader.timing import short
from fastload.errors import ConfigError

FORM = "expected PATH:make_loader or PATH:make_loader,make_step, e.g. train.py:make_loader"


def call_script(text: str) -> tuple[Any, Callable[[Any], object] | None]:
    """The loader, and the step where one is named. Whatever goes wrong is a ConfigError of one line.

    The functions are called without arguments; ``make_step`` returns a function of one batch. A name may also be the loader itself.
    """
    path_text, colon, names_text = text.rpartition(":")
    names = [name.strip() for name in names_text.split(",")]
    if (
        not colon
        or not path_text
        or not 1 <= len(names) <= 2
        or not all(name.isidentifier() for name in names)
    ):
        raise ConfigError(f"--script {text!r:.120}: {FORM}")
    module = import_script(Path(path_text))
    made = [_made(module, name, Path(path_text)) for name in names]
    loader = made[0]
    step = made[1] if len(made) == 2 else None
    if not hasattr(loader, "__iter__") and not hasattr(loader, "__getitem__"):
        raise ConfigError(
            f"{path_text}: {names[0]}() returned {type(loader).__name__}: expected a loader to iterate over"
        )
    if step is not None and not callable(step):
        raise ConfigError(
            f"{path_text}: {names[1]}() returned {type(step).__name__}: expected a function of one batch"
        )
    return loader, step


def import_script(path: Path) -> ModuleType:
    """The script as a module under its own name, so that `if __name__ == "__main__"` does not run and workers can import it.

    Its folder comes first in sys.path, as when it is run; a module of that name that is there already is not replaced.
    """
    if not path.is_file():
        raise ConfigError(f"--script: {path}: no such file")
    path = path.resolve()
    name = (
        path.stem
        if path.stem.isidentifier() and path.stem not in sys.modules
        else f"fastload_script_{abs(hash(str(path)))}"
    )
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise ConfigError(f"--script: {path}: not a Python file")
    module = importlib.util.module_from_spec(spec)
    if str(path.parent) not in sys.path:
        sys.path.insert(0, str(path.parent))
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:
        del sys.modules[name]
        raise ConfigError(
            f"--script: importing {path} raised {short(error)}. Training belongs under if __name__ == '__main__'"
        ) from error
    return module


def _made(module: ModuleType, name: str, path: Path) -> Any:
    found = getattr(module, name, None)
    if found is None:
        known = [
            each
            for each, value in vars(module).items()
            if callable(value) and getattr(value, "__module__", "") == module.__name__
        ]
        raise ConfigError(
            f"{path}: no function {name}; it has {', '.join(sorted(known)[:12]) or 'none'}"
        )
    if not callable(found) or hasattr(found, "__iter__"):
        return found
    try:
        return found()
    except Exception as error:
        raise ConfigError(
            f"{path}: {name}() raised {short(error)}. It is called without arguments"
        ) from error
