"""Packs a source: list, shuffle, encode in threads, write shards in order, publish.

A pack can be killed at any time and resumes when the same command runs again. The output depends
only on the source and on ``PackOptions.kept()``, not on the number of threads or on interruptions:
one thread writes the records in packing order, and the record sizes decide where a shard or block
ends (shard.py).

The packer uses threads instead of processes. Encoding runs in native code without the GIL, nothing
has to be pickled, any torch Dataset can be a source, and no worker process can outlive the pack.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from fastload._common import files
from fastload._common.cpus import available_cpus
from fastload._common.native import core
from fastload._common.public import public
from fastload._pack.images import SAMPLES, EncodeChoice, choose_encode, images_of
from fastload._pack.jobs import Job, Spool, load_listed, some_samples, spool
from fastload._pack.options import PackOptions, PackProgress, PackResult
from fastload._pack.pillow import quiet_pillow
from fastload._pack.publish import check_publishable, is_packed_like, publish
from fastload._pack.shard import ShardSequence
from fastload._pack.sources.base import AnySource, Sample, StreamSource, is_stream
from fastload._pack.sources.detect import open_source
from fastload._pack.sources.python import MapStyle, pop_all
from fastload._pack.state import (
    FOLDER,
    OFFSETS,
    Done,
    Listing,
    PackState,
    as_json,
    damaged,
    write_listing,
)
from fastload._store.columns import FOLDER as COLUMNS
from fastload._store.fields import Field
from fastload._store.manifest import NAME as MANIFEST
from fastload._store.manifest import SHARD_NAME, read_manifest
from fastload._store.shard import verify_file
from fastload.errors import BadImage, ConfigError, StoreError

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
        on_progress: Callable[[PackProgress], None] | None = None,
    ) -> None:
        self.source = source
        self.dest = dest
        self.options = options
        self.name = name or source.name  # location of the source; a resume must have the same
        self.on_progress = on_progress
        self.jobs = options.jobs or available_cpus()
        self.progress = PackProgress()
        self.notes: list[str] = []
        self._encode = options.encode  # replaced by the choice of `auto`

    def run(self) -> PackResult:
        """Packs the source or resumes an interrupted pack, and publishes the dataset."""
        started = time.monotonic()
        is_new = not self.dest.exists()
        if (module := core()) is not None:
            module.keep_freed_memory(_KEPT_MEMORY)
        self._check_dest()
        with quiet_pillow(), PackState(self.dest) as state:
            if (self.dest / MANIFEST).exists():
                return self._published_before(state, started)
            state.check_plan(self._plan())
            done: list[Done] = []
            try:
                resumed_at = self._run(state, done)
            except ConfigError:
                # Without a finished shard nothing is lost, and the stored plan would refuse the
                # options that the user has to change now.
                if next(state.finished(), None) is None:
                    state.remove()
                    if is_new:
                        with contextlib.suppress(OSError):
                            self.dest.rmdir()
                raise
            state.remove()
        return PackResult(
            dest=self.dest,
            n_samples=sum(each.shard.records for each in done),
            n_shards=len(done),
            bytes_in=self.progress.bytes_in,
            bytes_out=self.progress.bytes_out,
            skipped=self.progress.skipped,
            converted=dict(self.progress.converted),
            seconds=time.monotonic() - started,
            resumed_at=resumed_at,
            notes=tuple(self.notes),
        )

    def _check_dest(self) -> None:
        if self.dest.exists() and not self.dest.is_dir():
            raise ConfigError(f"{self.dest} is a file: expected an empty or new folder as DEST")
        if (self.dest / FOLDER).is_dir():
            return  # an unfinished pack: check_plan decides
        if (self.dest / MANIFEST).exists():
            raise self._is_finished()
        if self.dest.exists() and any(self.dest.iterdir()):
            raise ConfigError(
                f"{self.dest} is not empty and not an unfinished pack: "
                "expected an empty or new folder as DEST"
            )

    def _is_finished(self) -> ConfigError:
        return ConfigError(
            f"{self.dest} already contains a finished dataset. Remove it or choose another DEST"
        )

    def _plan(self) -> dict[str, object]:
        """Returns the values that must be equal when a pack resumes."""
        return {
            "source": self.source.name,
            "name": self.name,
            "options": self.options.kept(),
            "fields": [
                [f.name, f.kind.name, f.list, list(f.classes), f.image] for f in self.source.fields
            ],
        }

    def _published_before(self, state: PackState, started: float) -> PackResult:
        """Cleans up after a run that was killed after it published the manifest."""
        found = read_manifest(self.dest)
        if (plan := state.read("plan.json")) is not None:
            same = plan == as_json(self._plan())
        else:
            # The plan is gone. The manifest has everything except the location of the source.
            same = found.fields == tuple(self.source.fields) and is_packed_like(
                found.options, self.source, self.options
            )
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
            notes=("an earlier run published this dataset and was stopped during cleanup",),
        )

    def _run(self, state: PackState, done: list[Done]) -> int:
        """Packs the missing shards, appends them to ``done`` and publishes. Returns the start."""
        check_publishable(self.source, self.options)
        self._remove_leftovers()
        with contextlib.ExitStack() as resources:
            job = self._prepare_job(state, resources)
            done += self._verified(state)
            resumed_at = done[-1].next_position if done else 0
            shards = ShardSequence(
                source=self.source,
                dest=self.dest,
                options=self.options,
                progress=self.progress,
                name=self.name,
                jobs=self.jobs,
                on_sample=lambda: self._say("packing"),
            )
            with contextlib.closing(shards.run(state, job, done)) as packed:
                done.extend(packed)
        self._say("publishing")
        self.notes += publish(
            self.source,
            self.dest,
            self.options,
            state,
            done=done,
            last_events=shards.last_events,
            encoded=self._encode,
        )
        return resumed_at

    def _say(self, stage: str) -> None:
        self.progress.stage = stage
        if self.on_progress is not None:
            self.on_progress(self.progress)

    def _remove_leftovers(self) -> None:
        """Removes temporary files of a killed pack. The lock guarantees that no other pack runs."""
        for folder in (self.dest, self.dest / FOLDER, self.dest / COLUMNS):
            for path in folder.iterdir() if folder.is_dir() else ():
                if files.is_temporary(path.name):
                    path.unlink()

    def _prepare_job(self, state: PackState, resources: contextlib.ExitStack) -> Job:
        """Freezes the list of samples, encoding a stream on the way. Returns the job."""
        source = self.source
        is_listed = (state.folder / OFFSETS).exists()
        if is_stream(source):
            if is_listed:
                self._choose_encode(state, None)
            else:
                self._spool_stream(source, state)
            listing = self._open_listing(state, resources)
            return resources.enter_context(contextlib.closing(Spool(state.folder, listing)))
        if not is_listed:
            write_listing(state.folder, source.refs(), self._count_listed)
        listing = self._open_listing(state, resources)
        has_shards = next(state.finished(), None) is not None
        samples = None if has_shards else some_samples(source, listing, SAMPLES)
        return load_listed(source, listing, self._choose_encode(state, samples))

    def _spool_stream(self, source: StreamSource, state: PackState) -> None:
        stream = iter(source)
        head = deque(itertools.islice(stream, SAMPLES if self.options.encode == "auto" else 0))
        readable = (sample for sample in head if not isinstance(sample, BadImage))
        options = self._choose_encode(state, readable)
        samples = itertools.chain(pop_all(head), stream)
        with contextlib.closing(
            spool(samples, source.fields, state.folder, options, self.jobs)
        ) as refs:
            write_listing(state.folder, refs, self._count_listed)

    def _count_listed(self, count: int) -> None:
        self.progress.done = count
        self._say("listing")

    def _open_listing(self, state: PackState, resources: contextlib.ExitStack) -> Listing:
        listing = resources.enter_context(contextlib.closing(Listing(state.folder)))
        self.progress.total = len(listing)
        if not len(listing):
            raise ConfigError(f"{self.name}: the {self.source.name} source has no samples")
        return listing

    def _choose_encode(self, state: PackState, samples: Iterable[Sample] | None) -> PackOptions:
        """Returns the options with `auto` replaced by the choice, measured once and stored.

        ``samples`` is None if an earlier run must have stored the choice.
        """
        if self.options.encode != "auto":
            return self.options
        if stored := state.read("encode.json"):
            choice = EncodeChoice(**stored)
        else:
            if samples is None:
                raise damaged(state.folder / "encode.json", "missing")
            names = [each.name for each in self.source.fields if each.kind.is_image]
            images = (image for sample in samples for image in images_of(sample, names))
            choice = choose_encode(images, self.options)
            state.write("encode.json", asdict(choice))  # another measurement may differ
        self.notes.append(f"--encode auto chose {choice.encode}: {choice.reason}")
        self._encode = choice.encode
        return replace(self.options, encode=choice.encode)

    def _verified(self, state: PackState) -> list[Done]:
        """Returns the shards of an earlier run up to the first with a wrong digest."""
        good: list[Done] = []
        for done in state.finished():
            try:
                verify_file(self.dest / done.shard.name, done.shard)
            except StoreError:
                break
            good.append(replace(done, events=[]))
            self.progress.skipped += sum(event.event == "skipped" for event in done.events)
            self.progress.count(
                (event.why for event in done.events if event.event != "skipped"),
                done.bytes_in,
                done.bytes_out,
            )
            self.progress.done = done.next_position
            self._say("checking")
        names = {done.shard.name for done in good}
        # Not recorded because the pack was killed after publishing, or located after a bad shard.
        for path in self.dest.iterdir():
            if SHARD_NAME.fullmatch(path.name) and path.name not in names:
                path.unlink()
        return good


@public()
def pack(
    source: str | os.PathLike[str] | Iterable[object] | MapStyle | AnySource,
    dest: str | os.PathLike[str],
    *,
    fields: Mapping[str, str] | Sequence[Field] | None = None,
    format: str | None = None,
    source_options: Mapping[str, object] | None = None,
    on_progress: Callable[[PackProgress], None] | None = None,
    **options: Any,
) -> PackResult:
    """Packs a dataset into the new folder ``dest``.

    A pack that was interrupted resumes when it is called again with the same arguments.

    Args:
        source: Path to a dataset in a known format, an iterable of dicts, a map-style torch
            Dataset, or an object with the ``fastload.sources`` protocol ``Source`` or
            ``StreamSource``.
        dest: Folder to create. It must be empty, new, or an unfinished pack.
        fields: Name and kind of each field of Python samples, e.g.
            ``{"image": "image", "label": "int"}``. Default: inferred from the first sample.
        format: Name of the format of a path, e.g. ``"coco"``. Default: detected.
        source_options: Options of the format, see docs/sources.md.
        on_progress: Called with a ``PackProgress`` after every sample.
        **options: Options that control how samples are stored:

            - ``encode``: ``"keep"`` (same pixels, default), ``"jpeg"`` (re-encode), ``"raw"``
              (pixels) or ``"auto"`` (measure, then keep or raw).
            - ``quality``: JPEG quality 1 to 100 for ``encode="jpeg"``. Default: 90.
            - ``max_side``: shrink images whose longer side exceeds this many pixels. Default: 0
              (never).
            - ``resize``: (width, height) for every image. Default: None.
            - ``restart``: MCUs between restart markers. Default: -1 (chosen per image). 0: none.
            - ``order``: ``"shuffle"`` (default) or ``"source"``.
            - ``seed``: seed of the shuffle. Default: 0.
            - ``shard_size``, ``block_size``: bytes per shard and per block. Defaults: 512 MiB and
              8 MiB.
            - ``on_error``: ``"stop"`` (default) or ``"skip"`` for bad samples.
            - ``max_bad``: maximum number of skipped samples. Default: None (no limit).
            - ``jobs``: number of threads. Default: 0 (all available cores).

    Returns:
        Counts, bytes, duration and notes of the pack.

    Raises:
        ConfigError: An argument is invalid, the source has no usable samples, or ``dest`` belongs
            to another pack.
        BadImage: A sample is bad and ``on_error`` is ``"stop"``, or more than ``max_bad`` are bad.
        StoreError: The files of an unfinished pack are damaged or another pack runs in ``dest``.

    Examples:
        >>> samples = ({"image": image, "label": i} for i, image in enumerate(images))
        >>> result = fastload.pack(samples, "packed")  # doctest: +SKIP
    """
    given = {} if fields is None else {"fields": fields}
    samples = open_source(source, format=format, **given, **(source_options or {}))
    known = PackOptions.__dataclass_fields__
    if unknown := sorted(options.keys() - known.keys()):
        raise ConfigError(
            f"pack: unknown option {', '.join(unknown)}. Expected one of {', '.join(known)}"
        )
    return Packer(
        samples,
        Path(dest),
        PackOptions(**options),
        name=str(Path(source).resolve()) if isinstance(source, str | os.PathLike) else "",
        on_progress=on_progress,
    ).run()
