"""Checks of a saved state against the loader that loads it; errors print both sides."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping

from fastload.errors import ConfigError

STATE_VERSION = 1
_MAX_TEXT = 1500  # characters of all transforms; a state stays below 4 kB


def check_version(state: object) -> Mapping[str, object]:
    """Returns the state; raises ConfigError if it is none."""
    if not isinstance(state, Mapping):
        found = f"a {type(state).__name__}"
    elif state.get("version") != STATE_VERSION:
        found = f"version {state.get('version')!r:.40}"
    else:
        return state
    raise ConfigError(
        f"state_dict is invalid: found {found}, expected what state_dict() returned, version {STATE_VERSION}"
    )


def check_same(what: str, found: object, expected: Mapping[str, object]) -> None:
    """Raises ConfigError that names each difference."""
    saved = found if isinstance(found, Mapping) else {}
    changed = [key for key in {**expected, **saved} if saved.get(key) != expected.get(key)]
    if changed:
        sides = "\n".join(
            f"  {key} in the state:  {saved.get(key)!r:.300}\n  {key} in the loader: {expected.get(key)!r:.300}"
            for key in changed
        )
        raise ConfigError(
            f"state_dict belongs to another {what}:\n{sides}\n"
            "Use the dataset and options of the saved run, or start a new run"
        )


def whole_number(what: str, value: object, least: int = 0) -> int:
    """Returns the number; raises ConfigError if it is none, or too small."""
    if type(value) is not int or not least <= value < 2**63:
        raise ConfigError(f"{what}: expected a whole number, {least} or more, found {value!r:.40}")
    return value


def shortened(texts: Mapping[str, str]) -> dict[str, object]:
    """The same texts, or a digest and their beginning where they are long."""
    if sum(len(name) + len(text) for name, text in texts.items()) <= _MAX_TEXT:
        return dict(texts)
    digest = hashlib.sha256(repr(sorted(texts.items())).encode()).hexdigest()
    joined = "; ".join(f"{name}: {text}" for name, text in texts.items())
    return {"sha256": digest, "begins": joined[: _MAX_TEXT // 2]}
