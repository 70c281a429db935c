"""The message of a Ctrl-C: how many samples are kept, and how to continue."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

from fastload._pack.journal import count_samples
from fastload._pack.layout import Layout
from fastload._pack.state import PackState
from fastload.errors import StoreError


@contextlib.contextmanager
def interrupt_says_what_is_kept(dest: Path) -> Iterator[None]:
    """Adds the message to a KeyboardInterrupt that is raised in its body."""
    try:
        yield
    except KeyboardInterrupt as interrupt:
        with contextlib.suppress(OSError, StoreError):
            interrupt.args = (_what_is_kept(PackState(dest)),)
        raise


def _what_is_kept(state: PackState) -> str:
    stored = state.read("layout.json")
    if stored is None:
        return (
            f"Interrupted before the first sample was packed into {state.dest}. Run the same "
            "command again to start over"
        )
    layout = Layout(**stored)
    finished = state.recorded()
    kept = sum(len(layout.positions(part)) for part in finished)
    kept += sum(count_samples(state.journal(part)) for part in state.unfinished() - finished)
    return (
        f"Interrupted. {kept:,} of {layout.n:,} samples are kept in {state.dest}. Run the same "
        "command again to continue"
    )
