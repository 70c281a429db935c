"""Checks that a saved state fits the loader that loads it. Errors show both sides."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping

from fastload.errors import ConfigError

STATE_VERSION = 1
_MAX_TEXT = 1500  # characters for the transforms, so that a state stays below 4 kB


def check_version(state: object) -> Mapping[str, object]:
    """Returns the state; raises ConfigError if it is not one of this version."""
    if isinstance(state, Mapping) and state.get("version") == STATE_VERSION:
        return state
    found = f"a {type(state).__name__}"
    if isinstance(state, Mapping):
        found = f"version {state.get('version')!r:.40}"
    raise ConfigError(
        f"state_dict is invalid: found {found}, expected the result of state_dict(), "
        f"version {STATE_VERSION}"
    )


def check_same(what: str, found: object, expected: Mapping[str, object]) -> None:
    """Raises ConfigError with all differences."""
    saved = found if isinstance(found, Mapping) else {}
    changed = [key for key in {**expected, **saved} if saved.get(key) != expected.get(key)]
    if changed:
        sides = "\n".join(
            f"  {key} in the state:  {saved.get(key)!r:.300}\n"
            f"  {key} in the loader: {expected.get(key)!r:.300}"
            for key in changed
        )
        raise ConfigError(
            f"state_dict belongs to another {what}:\n{sides}\n"
            "Use the dataset and options of the saved run, or start a new run"
        )


def whole_number(what: str, value: object, least: int = 0) -> int:
    """Returns ``value``; raises ConfigError if it is not an int of ``least`` or more."""
    if type(value) is not int or not least <= value < 2**63:
        raise ConfigError(f"{what}: expected a whole number, {least} or more, found {value!r:.40}")
    return value


def shortened(texts: Mapping[str, str]) -> dict[str, object]:
    """Returns the texts; if they are long, their digest and the first characters."""
    if sum(len(name) + len(text) for name, text in texts.items()) <= _MAX_TEXT:
        return dict(texts)
    digest = hashlib.sha256(repr(sorted(texts.items())).encode()).hexdigest()
    joined = "; ".join(f"{name}: {text}" for name, text in texts.items())
    return {"sha256": digest, "begins": joined[: _MAX_TEXT // 2]}
