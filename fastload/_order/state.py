"""What a saved state must agree with; both sides are printed where it does not."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping

from fastload.errors import ConfigError

STATE_VERSION = 1
_LONGEST = 1500  # characters of all transforms in words; a state stays below 4 kB


def check_version(state: object) -> Mapping[str, object]:
    """The state itself, if it is one; raises ConfigError."""
    if not isinstance(state, Mapping) or state.get("version") != STATE_VERSION:
        found = (
            f"version {state.get('version')!r:.40}"
            if isinstance(state, Mapping)
            else f"a {type(state).__name__}"
        )
        raise ConfigError(
            f"loading a state: {found}, expected what state_dict() returned, version {STATE_VERSION}"
        )
    return state


def check_same(what: str, found: object, expected: Mapping[str, object]) -> None:
    """Raises ConfigError naming each difference."""
    saved = found if isinstance(found, Mapping) else {}
    changed = [key for key in {**expected, **saved} if saved.get(key) != expected.get(key)]
    if changed:
        sides = "\n".join(
            f"  {key} in the state:  {saved.get(key)!r:.300}\n  {key} in the loader: {expected.get(key)!r:.300}"
            for key in changed
        )
        raise ConfigError(
            f"loading a state of another {what}:\n{sides}\nUse the dataset and options of the saved run, or start anew"
        )


def whole_number(what: str, value: object, least: int = 0) -> int:
    """A number of things; raises ConfigError."""
    if type(value) is not int or not least <= value < 2**63:
        raise ConfigError(f"{what}: expected a whole number, {least} or more, found {value!r:.40}")
    return value


def in_short(words: Mapping[str, str]) -> dict[str, object]:
    """The same, with a digest instead of most of the text where it is long."""
    if sum(len(name) + len(text) for name, text in words.items()) <= _LONGEST:
        return dict(words)
    digest = hashlib.sha256(repr(sorted(words.items())).encode()).hexdigest()
    return {
        "sha256": digest,
        "begins": "; ".join(f"{name}: {text}" for name, text in words.items())[: _LONGEST // 2],
    }
