"""Packs one dataset with several processes, on one or many machines that share DEST.

A dataset is a fixed sequence of parts (layout.py). Any process can pack any part, at any time, more
than once: every writer produces the same bytes, every file is published atomically, and the record
of a part (``DEST/.pack/done-NNNNN.json``) is written last. A scheduler therefore needs only::

    task = PackTask("imagenet/train", "/shared/packed", options=PackOptions(on_error="skip"))
    for number in prepare(task):  # the parts that are missing
        executor.submit(pack_part, task, number)  # at least once, in any order
    ...  # wait
    result = publish_parts(task)

``PackTask`` and the results can be pickled. If a process or machine dies, run the same again:
``prepare`` returns only the parts that are missing. All processes must have the same versions of
fastload and its codecs; another version is refused with ConfigError.
"""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from fastload._pack.layout import Layout
from fastload._pack.options import PackOptions, PackProgress, PackResult
from fastload._pack.packer import Packer
from fastload._pack.packing_order import PackingOrder
from fastload._pack.sources.base import AnySource
from fastload._pack.sources.detect import open_source
from fastload._pack.state import FOLDER, PackState
from fastload.errors import ConfigError


@dataclass(frozen=True, slots=True)
class PackTask:
    """What every process has to know. Paths are the same on all machines."""

    source: str
    dest: str
    format: str | None = None
    source_options: Mapping[str, object] = field(default_factory=dict)
    options: PackOptions = field(default_factory=PackOptions)

    def packer(
        self,
        choose_parts: Callable[[range], Sequence[int]],
        *,
        publishes: bool = False,
        is_task: bool = False,
        opened: Opened | None = None,
        jobs: int | None = None,
        on_progress: Callable[[PackProgress], None] | None = None,
    ) -> Packer:
        return Packer(
            open_source(self.source, format=self.format, **self.source_options)
            if opened is None
            else opened.source,
            Path(self.dest),
            self.options if jobs is None else replace(self.options, jobs=jobs),
            name=str(Path(self.source).resolve()),
            source_options=self.source_options,
            on_progress=on_progress,
            choose_parts=choose_parts,
            publishes=publishes,
            is_task=is_task,
            order=None if opened is None else opened.order,
            plan=None if opened is None else opened.plan,
        )

    def identity(self) -> object:
        """Identifies the unfinished pack in ``dest``, or returns None if there is none."""
        try:
            plan = (Path(self.dest) / FOLDER / "plan.json").stat()
        except OSError:
            return None
        return self, plan.st_ino, plan.st_mtime_ns


@dataclass(frozen=True, slots=True)
class Opened:
    """What a process keeps for the next part of the same pack.

    A source may take long to open, and the plan contains the versions of the encoders: reading
    them from the installed packages and the native core takes a few milliseconds per part.
    """

    pack: object  # PackTask.identity
    source: AnySource
    order: PackingOrder | None
    plan: Mapping[str, object]


_idle: deque[Opened] = deque()  # one per thread that packed a part


def _take_opened(pack: object) -> Opened | None:
    """Returns what a thread of this process opened for this pack. Drops that of other packs."""
    while _idle:
        with contextlib.suppress(IndexError):  # another thread took the last one
            opened = _idle.pop()
            if opened.pack == pack:
                return opened
    return None


def _keep_opened(pack: object, packer: Packer) -> None:
    if pack is not None:
        _idle.append(Opened(pack, packer.source, packer.order, packer.plan))


def prepare(
    task: PackTask,
    on_progress: Callable[[PackProgress], None] | None = None,
    *,
    jobs: int | None = None,
) -> tuple[int, ...]:
    """Lists the source and decides the parts, unless that is done. Returns the missing parts.

    Returns () if all parts are packed or the dataset is complete. ``jobs`` threads encode the
    samples whose sizes decide the parts; the default is that of the options.
    """
    packer = task.packer(lambda _: (), jobs=jobs, on_progress=on_progress)
    result = packer.run()
    _keep_opened(task.identity(), packer)
    return result.missing


def stored_layout(task: PackTask) -> Layout | None:
    """Returns the parts that ``prepare`` decided; None if the dataset is complete."""
    stored = PackState(Path(task.dest)).read("layout.json")
    return None if stored is None else Layout(**stored)


def pack_part(
    task: PackTask, number: int, on_progress: Callable[[PackProgress], None] | None = None
) -> PackResult:
    """Packs one part that ``prepare`` returned. An intact part of an earlier run is kept.

    Returns its counts. ``missing`` stays empty.

    Creates no file if the dataset is complete. Raises ConfigError if there is no pack in ``dest``.
    """

    def choose(parts: range) -> Sequence[int]:
        if number not in parts:
            raise ConfigError(f"part {number}: expected 0 to {len(parts) - 1}")
        return (number,)

    pack = task.identity()
    packer = task.packer(
        choose,
        is_task=True,
        opened=_take_opened(pack) if pack is not None else None,
        on_progress=on_progress,
    )
    result = packer.run()
    _keep_opened(pack, packer)
    return result


def publish_parts(task: PackTask) -> PackResult:
    """Publishes the dataset if all parts are packed, otherwise ``result.missing`` names them.

    Raises BadImage if more than ``max_bad`` samples are bad.
    """
    pack = task.identity()
    packer = task.packer(
        lambda _: (), publishes=True, opened=_take_opened(pack) if pack is not None else None
    )
    _idle.clear()
    result = packer.run()
    if result.missing:
        _keep_opened(pack, packer)
    return result
