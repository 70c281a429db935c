"""Packs a source: list, shuffle, encode in threads, write shards in order, publish.

A pack can be killed at any time and resumes when the same command runs again. The output depends
only on the source and on ``PackOptions.kept()``, not on the number of threads or on interruptions:
one thread writes the records in packing order, and a shard is a fixed range of that order
(layout.py).

The packer uses threads instead of processes. Encoding runs in native code without the GIL, nothing
has to be pickled, any torch Dataset can be a source, and no worker process can outlive the pack.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import os
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import replace
from pathlib import Path
from typing import Any

from fastload._common.cpus import available_cpus
from fastload._common.native import core
from fastload._common.public import public
from fastload._pack.images import encoder_versions
from fastload._pack.interrupt import interrupt_says_what_is_kept
from fastload._pack.layout import Layout
from fastload._pack.options import PackOptions, PackProgress, PackResult
from fastload._pack.packing_order import PackingOrder
from fastload._pack.part_packer import PartPacker
from fastload._pack.pillow import quiet_pillow
from fastload._pack.preparation import Preparation
from fastload._pack.publish import (
    check_publishable,
    is_packed_like,
    publish,
    read_left_out,
)
from fastload._pack.sources.base import AnySource
from fastload._pack.sources.detect import open_source
from fastload._pack.sources.python import MapStyle
from fastload._pack.state import FOLDER, Done, PackState, as_json
from fastload._store.fields import Field
from fastload._store.manifest import NAME as MANIFEST
from fastload._store.manifest import read_manifest
from fastload._store.shard import open_checked
from fastload.errors import ConfigError

__all__ = ["PackProgress", "PackResult", "Packer", "pack"]

# Bytes that malloc keeps after a free. The packer would request returned memory again at once.
_KEPT_MEMORY = 64 << 20


class Packer:
    """Packs one source into one folder."""

    def __init__(
        self,
        source: AnySource,
        dest: Path,
        options: PackOptions,
        *,
        name: str = "",
        source_options: Mapping[str, object] | None = None,
        on_progress: Callable[[PackProgress], None] | None = None,
        choose_parts: Callable[[range], Sequence[int]] | None = None,
        publishes: bool = True,
        is_task: bool = False,
        order: PackingOrder | None = None,
        plan: Mapping[str, object] | None = None,
        exist_ok: bool = False,
    ) -> None:
        self.source = source
        self.dest = dest
        self.options = options
        self.name = name or source.name  # location of the source; a resume must have the same
        self._source_options = {key: str(value) for key, value in (source_options or {}).items()}
        self.on_progress = on_progress
        # Selects the parts that this process packs. None: all of them, and no other process packs.
        self._choose_parts = choose_parts
        self._publishes = publishes  # the dataset if all parts are finished
        # Whether a driver lists the source, checks the list, finds missing parts and removes the
        # files of killed workers. There may be 100,000 tasks: each reads only what its part needs.
        self._is_task = is_task
        self.order = order  # these two are those of an earlier part of the same pack
        self._known_plan = plan
        self._exist_ok = exist_ok
        self.jobs = options.jobs or available_cpus()
        self.progress = PackProgress()
        self.notes: list[str] = []

    def run(self) -> PackResult:
        """Packs the source or resumes an interrupted pack, and publishes the dataset."""
        started = time.monotonic()
        is_new = not self.dest.exists()
        if (module := core()) is not None:
            module.keep_freed_memory(_KEPT_MEMORY)
        self._check_dest()
        if (
            (self._exist_ok or self._is_task)
            and self._is_published()
            and not (self.dest / FOLDER).exists()
        ):
            return self._published_before(None, started)
        try:
            return self._run_locked(started, is_new=is_new)
        except OSError as error:
            if not self._is_task or error.errno != errno.ENOENT or (self.dest / FOLDER).exists():
                raise
            # Removed before the first file of this task: the dataset is complete, or gone.
            if self._is_published():
                return self._published_before(None, started)
            raise ConfigError(
                f"{self.dest} contains no unfinished pack. Run the command that starts the pack "
                "again"
            ) from error

    def _run_locked(self, started: float, *, is_new: bool) -> PackResult:
        with (
            interrupt_says_what_is_kept(self.dest),
            quiet_pillow(),
            PackState(
                self.dest,
                shared=self._is_shared,
                wait=self._exist_ok,
                removes=not self._is_task,
                creates=not self._is_task,
            ) as state,
        ):
            if self._is_published():
                return self._published_before(state, started)
            state.check_plan(self.plan)
            done: dict[int, Done] = {}
            try:
                return self._run(state, done, started)
            except ConfigError:
                # Without a packed sample nothing is lost, and the stored plan would refuse the
                # options that the user has to change now.
                is_empty = done and not any(each.records for each in done.values())
                if not self._is_shared and (not state.has_parts() or is_empty):
                    state.remove()
                    if is_new:
                        with contextlib.suppress(OSError):
                            self.dest.rmdir()
                raise
            except OSError:
                # The fastest worker removes the state of the pack when the dataset is complete.
                if self._is_shared and self._is_published():
                    return self._published_before(state, started)
                raise

    def _is_published(self) -> bool:
        return (self.dest / MANIFEST).exists()

    @property
    def _is_shared(self) -> bool:
        return self._choose_parts is not None

    def _check_dest(self) -> None:
        root = Path(self.name)
        if root.is_absolute() and root.is_dir() and self.dest.resolve().is_relative_to(root):
            raise ConfigError(
                f"{self.dest} is inside the source {root}: a second pack would read its own "
                "output. Choose a DEST outside the source"
            )
        if self.dest.exists() and not self.dest.is_dir():
            raise ConfigError(f"{self.dest} is a file: expected an empty or new folder as DEST")
        if (self.dest / FOLDER).is_dir():
            return  # an unfinished pack: check_plan decides
        if self._is_published():
            if self._is_shared or self._exist_ok:
                return  # _published_before decides
            raise self._is_finished()
        names = {path.name for path in self.dest.iterdir()} if self.dest.exists() else set()
        # Checked again: another worker may have started this pack, or published it, since then.
        if names and not names & {FOLDER, MANIFEST}:
            raise ConfigError(
                f"{self.dest} is not empty and not an unfinished pack: "
                "expected an empty or new folder as DEST"
            )

    def _is_finished(self) -> ConfigError:
        return ConfigError(
            f"{self.dest} already contains a finished dataset"
            + (" of another source, or with other options" if self._exist_ok else "")
            + ". Remove it or choose another DEST"
        )

    @functools.cached_property
    def plan(self) -> Mapping[str, object]:
        """The values that must be equal when a pack resumes."""
        return self._known_plan or {
            "source": self.source.name,
            "name": self.name,
            "options": {**self.options.kept(), **self._source_options},
            "fields": [
                [f.name, f.kind.name, f.list, list(f.classes), f.image, f.along]
                for f in self.source.fields
            ],
            "versions": encoder_versions(),
        }

    def _published_before(self, state: PackState | None, started: float) -> PackResult:
        """Cleans up after a run that was killed after it published, or ends after another one."""
        found = read_manifest(self.dest)
        if state is not None and (plan := state.read("plan.json")) is not None:
            same = plan == as_json(self.plan)
        else:
            # The plan is gone. The manifest has everything except the location of the source.
            same = found.fields == tuple(self.source.fields) and is_packed_like(
                found.options, self.source, self.options
            )
        if state is not None:
            state.remove()
        if not same:
            raise self._is_finished()
        return PackResult(
            dest=self.dest,
            n_samples=found.n_samples,
            n_shards=len(found.shards),
            bytes_in=0,
            bytes_out=sum(each.size for each in found.shards),
            skipped=found.skipped,
            converted=dict(found.converted),
            seconds=time.monotonic() - started,
            resumed_at=found.n_samples + found.skipped,
            notes=(
                "another worker published this dataset"
                if self._is_shared
                else "the dataset was packed before"
                if self._exist_ok
                else "an earlier run published this dataset and was stopped during cleanup",
            ),
            left_out=read_left_out(self.dest),
        )

    def _run(self, state: PackState, done: dict[int, Done], started: float) -> PackResult:
        """Packs the missing parts, adds all to ``done``, and publishes if none is missing."""
        if not self._is_task:
            check_publishable(self.source, self.options)
        with Preparation(
            self.source,
            self.name,
            self.options,
            state,
            jobs=self.jobs,
            progress=self.progress,
            say=self._say,
            # A driver checks the list for all workers.
            checks_listing=not (self._is_shared and (self._publishes or self._is_task)),
        ) as preparation:
            job, listing = preparation.job()
            layout, job = preparation.layout(job, len(listing))
            self.notes += preparation.notes
            every_part = range(layout.n_parts)
            mine = every_part if self._choose_parts is None else self._choose_parts(every_part)
            self.progress.done = 0
            self.progress.total = sum(len(layout.positions(part)) for part in mine)
            with PartPacker(
                self.source.fields,
                self.options,
                state,
                listing,
                layout,
                plan={"plan": as_json(self.plan), "encode": preparation.encode},
                order=self.order,
                jobs=self.jobs,
                progress=self.progress,
                say=self._say,
            ) as packer:
                self.order = packer.order
                done |= packer.verified(mine)
                unfinished = [part for part in mine if part not in done]
                packer.take_over(unfinished)
                self.progress.resumed_at = self.progress.done
                with contextlib.closing(packer.pack(job, unfinished)) as packed:
                    done.update(packed)
        missing = () if self._is_task else self._add_others(state, layout, done)
        if missing or not self._publishes:
            return self._result(done.values(), started, missing=missing)
        ordered = [done[part] for part in every_part]
        if not any(each.records for each in ordered):
            last = state.done(layout.n_parts - 1).events[-1]
            raise ConfigError(
                f"{self.name}: all {layout.n} samples are bad. "
                f"Last error: {last.source}: {last.why}"
            )
        self._say("publishing")
        manifest, notes, left_out = publish(
            self.source, self.dest, self.options, state, done=ordered, encoded=preparation.encode
        )
        self.notes += notes
        state.remove()
        return replace(
            self._result(ordered, started),
            skipped=manifest.skipped,
            converted=dict(manifest.converted),
            left_out=left_out,
        )

    def _add_others(
        self, state: PackState, layout: Layout, done: dict[int, Done]
    ) -> tuple[int, ...]:
        """Adds the parts that other workers finished to ``done``. Returns the missing parts."""
        recorded = state.recorded()
        others = [part for part in range(layout.n_parts) if part not in done]
        missing = tuple(part for part in others if part not in recorded)
        if missing or not self._publishes:
            return missing
        for part in others:
            if (found := state.finished(part, layout.positions(part))) is None:
                missing += (part,)
                continue
            for shard in found.shards:
                os.close(open_checked(self.dest / shard.name, shard))
            done[part] = found.summary()
        return missing

    def _result(
        self,
        done: Iterable[Done],
        started: float,
        *,
        missing: tuple[int, ...] = (),
    ) -> PackResult:
        parts = list(done)
        return PackResult(
            dest=self.dest,
            n_samples=sum(each.records for each in parts),
            n_shards=sum(len(each.shards) for each in parts),
            bytes_in=sum(each.bytes_in for each in parts),
            bytes_out=sum(each.bytes_out for each in parts),
            skipped=self.progress.skipped,
            converted=dict(self.progress.converted),
            seconds=time.monotonic() - started,
            resumed_at=self.progress.resumed_at,
            notes=tuple(self.notes),
            missing=missing,
        )

    def _say(self, stage: str) -> None:
        self.progress.stage = stage
        if self.on_progress is not None:
            self.on_progress(self.progress)


@public()
def pack(
    source: str | os.PathLike[str] | Iterable[object] | MapStyle | AnySource,
    dest: str | os.PathLike[str],
    *,
    fields: Mapping[str, str] | Sequence[Field] | None = None,
    format: str | None = None,
    source_options: Mapping[str, object] | None = None,
    on_progress: Callable[[PackProgress], None] | None = None,
    part: tuple[int, int] | None = None,
    exist_ok: bool = False,
    engine: str | Executor | None = None,
    **options: Any,
) -> PackResult:
    """Packs a dataset into the new folder ``dest``.

    A pack that was interrupted continues with the next sample when it is called again with the same
    arguments. The message of a ``KeyboardInterrupt`` says how many samples are kept.

    Args:
        source: Path to a dataset in a known format, an iterable of dicts, a map-style torch
            Dataset, or an object with the ``fastload.sources`` protocol ``Source`` or
            ``StreamSource``.
        dest: Folder to create. It must be empty, new, or an unfinished pack.
        fields: Name and kind of each field of Python samples, e.g.
            ``{"image": "image", "boxes": "boxes", "classes": "array along boxes"}``, or a list of
            ``Field``. Default: inferred from the first sample.
        format: Name of the format of a path, e.g. ``"coco"``. Default: detected.
        source_options: Options of the format, see docs/sources.md.
        on_progress: Called with a ``PackProgress`` after every sample.
        part: (i, n): pack share i of n, counted from 0, of a dataset that n processes pack
            together, on any machines that share ``dest``. The process that completes the last
            share publishes the dataset; see ``PackResult.missing``. Default: None, pack all.
        exist_ok: Return at once if ``dest`` is a dataset that was packed with the same options, and
            wait for another process that packs it. All ranks may call it, for example in
            ``prepare_data``: one packs. Default: False, refuse both.
        engine: Packs the parts of the dataset in parallel on machines that share ``dest``:
            ``"ray"``, or any ``concurrent.futures.Executor``, such as Dask's
            ``client.get_executor()``. Default: None, pack in threads of this process.
        **options: Options that control how samples are stored:

            - ``encode``: ``"keep"`` (same pixels, default), ``"copy"`` (same bytes), ``"jpeg"``
              (re-encode), ``"raw"`` (pixels) or ``"auto"`` (measure, then keep or raw).
            - ``quality``: JPEG quality 1 to 100 for ``encode="jpeg"``. Default: 90.
            - ``max_side``: shrink images whose longer side exceeds this many pixels. Default: 0
              (never).
            - ``resize``: (width, height) for every image. Default: None.
            - ``max_bits``: 8 reduces images of 16 bits per channel to their upper 8 bits. Default:
              16 (kept).
            - ``restart``: MCUs between restart markers. Default: -1 (chosen per image). 0: none.
            - ``order``: ``"shuffle"`` (default) or ``"source"``, within each split.
            - ``seed``: seed of the shuffle. Default: 0.
            - ``shard_size``, ``block_size``: bytes per shard and per block. Defaults: 512 MiB and
              8 MiB.
            - ``on_error``: ``"stop"`` (default) or ``"skip"`` for bad samples.
            - ``max_bad``: maximum number of skipped samples. Default: None (no limit).
            - ``jobs``: number of threads. Default: 0 (all available cores; 1 per task of an
              engine).

    Returns:
        Counts, bytes, duration and notes of the pack.

    Raises:
        ConfigError: An argument is invalid, the source has no usable samples, or ``dest`` belongs
            to another pack.
        BadImage: A sample is bad and ``on_error`` is ``"stop"``, or more than ``max_bad`` are bad.
        StoreError: The files of an unfinished pack are damaged or another pack runs in ``dest``.
        WorkerDied: A part failed several times on ``engine``.

    Examples:
        >>> samples = ({"image": image, "label": i} for i, image in enumerate(images))
        >>> result = fastload.pack(samples, "packed")  # doctest: +SKIP
    """
    known = PackOptions.__dataclass_fields__
    if unknown := sorted(options.keys() - known.keys()):
        raise ConfigError(
            f"pack: unknown option {', '.join(unknown)}. Expected one of {', '.join(known)}"
        )
    settings = PackOptions(**options)
    path = Path(source) if isinstance(source, str | os.PathLike) else None
    if engine is not None:
        if path is None or fields is not None or part is not None:
            raise ConfigError(
                "engine= needs a source that every machine can open: expected a path, without "
                "fields= and part=. Write Python samples to files first"
            )
        from fastload._pack.engines import pack_with
        from fastload._pack.parts import PackTask

        # Workers have other working directories.
        given_options = {
            name: value.absolute() if isinstance(value, Path) else value
            for name, value in (source_options or {}).items()
        }
        task = PackTask(
            str(path.absolute()), str(Path(dest).absolute()), format, given_options, settings
        )
        return pack_with(engine, task, on_progress)
    given = {} if fields is None else {"fields": fields}
    return Packer(
        open_source(source, format=format, **given, **(source_options or {})),
        Path(dest),
        settings,
        name="" if path is None else str(path.resolve()),
        source_options=source_options,
        on_progress=on_progress,
        choose_parts=None if part is None else share_of(part),
        exist_ok=exist_ok,
    ).run()


def share_of(part: tuple[int, int]) -> Callable[[range], Sequence[int]]:
    """Returns the selection of every n-th part, starting with part i."""
    i, n = part
    if type(i) is not int or type(n) is not int or not 0 <= i < n:
        raise ConfigError(f"part {i}/{n}: expected i/n with 0 <= i < n, for example 0/40 to 39/40")
    return lambda parts: parts[i::n]
