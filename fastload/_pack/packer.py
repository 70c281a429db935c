"""Packing: list, shuffle, encode in threads, write shards in order, publish. Can be killed at any moment and goes on.

The bytes that come out depend on the source and on PackOptions.kept() alone, not on the number of threads or on how
often the pack was interrupted: records are written by one thread, in packing order, and a shard or block ends where its
bytes say so (shard.py).

Threads, not processes: encoding runs in native code without the GIL, nothing has to be pickled, any torch Dataset can be
a source, and nothing can be left behind.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from fastload._common import files
from fastload._common.cpus import available_cpus
from fastload._common.native import core
from fastload._common.public import public
from fastload._pack.encode_choice import SAMPLES, choose_encode, images_of
from fastload._pack.jobs import Job, Spool, load_listed, some_samples, spool
from fastload._pack.listing import Listing, write_listing
from fastload._pack.options import PackOptions
from fastload._pack.pillow import quiet_pillow
from fastload._pack.publish import check_publishable, is_packed_like, publish
from fastload._pack.result import PackProgress, PackResult
from fastload._pack.shards import ShardSequence
from fastload._pack.sources.base import AnySource, Sample, Source, StreamSource, is_stream
from fastload._pack.sources.detect import open_source
from fastload._pack.sources.python import MapStyle, pop_all
from fastload._pack.state import FOLDER, Done, PackState, damaged
from fastload._store.columns import FOLDER as COLUMNS
from fastload._store.fields import Field
from fastload._store.folder import read_manifest
from fastload._store.manifest import NAME as MANIFEST
from fastload._store.manifest import SHARD_NAME
from fastload._store.shard import verify_file
from fastload.errors import BadImage, ConfigError, StoreError

__all__ = ["PackProgress", "PackResult", "Packer", "pack"]

# Bytes that malloc keeps: handed back, they would be requested again at once.
_KEPT_MEMORY = 64 << 20


class Packer:
    """One pack of one source into one folder; ``run()`` does it."""

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
        self.name = name or source.name  # where the samples come from: a resume must name the same
        self.on_progress = on_progress
        self.jobs = options.jobs or available_cpus()
        self.progress = PackProgress()
        self.notes: list[str] = []
        self._encode = options.encode  # what `auto` turned out to be

    def run(self) -> PackResult:
        """Packs, or goes on where an earlier run was stopped; returns when the dataset is published."""
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
                # Nothing is lost without a shard; and what must be changed now would be refused later.
                if next(state.finished(), None) is None:
                    state.remove()
                    if is_new:
                        with contextlib.suppress(OSError):
                            self.dest.rmdir()
                raise
            state.remove()
        return PackResult(
            self.dest,
            sum(each.shard.records for each in done),
            len(done),
            self.progress.bytes_in,
            self.progress.bytes_out,
            self.progress.skipped,
            dict(self.progress.converted),
            time.monotonic() - started,
            resumed_at,
            tuple(self.notes),
        )

    def _check_dest(self) -> None:
        if self.dest.exists() and not self.dest.is_dir():
            raise ConfigError(f"{self.dest} is a file: name an empty or new folder as DEST")
        if (self.dest / FOLDER).is_dir():
            return  # an unfinished pack: its plan decides
        if (self.dest / MANIFEST).exists():
            raise self._is_finished()
        if self.dest.is_dir() and any(self.dest.iterdir()):
            raise ConfigError(
                f"{self.dest} is not empty and not an unfinished pack: name an empty or new folder as DEST"
            )

    def _is_finished(self) -> ConfigError:
        return ConfigError(
            f"{self.dest} holds a finished dataset already: remove it to pack again, or name another DEST"
        )

    def _plan(self) -> dict[str, object]:
        """What a resumed pack must have in common with the one that began."""
        return {
            "source": self.source.name,
            "name": self.name,
            "options": self.options.kept(),
            "fields": [
                [f.name, f.kind.name, f.list, list(f.classes), f.image] for f in self.source.fields
            ],
        }

    def _published_before(self, state: PackState, started: float) -> PackResult:
        """The run before this one was killed between publishing the manifest and removing its notes: only that is left."""
        found = read_manifest(self.dest)
        same = state.has_plan(self._plan())
        if same is None:
            # It was killed in its very last steps; the manifest knows all but the place of the source.
            same = found.fields == tuple(self.source.fields) and is_packed_like(
                found.options, self.source, self.options
            )
        state.remove()
        if not same:
            raise self._is_finished()
        return PackResult(
            self.dest,
            found.n_samples,
            len(found.shards),
            0,
            sum(each.size for each in found.shards),
            found.skipped,
            dict(found.converted),
            time.monotonic() - started,
            found.n_samples + found.skipped,
            ("an earlier run had published this dataset and was stopped before it could say so",),
        )

    def _run(self, state: PackState, done: list[Done]) -> int:
        """Packs what is missing and publishes; appends to ``done``; returns the position where it went on."""
        check_publishable(self.source, self.options)
        self._remove_leftovers()
        with contextlib.ExitStack() as resources:
            job = self._prepare_job(state, resources)
            done += self._verified(state)
            resumed_at = done[-1].next_position if done else 0
            shards = ShardSequence(
                self.source,
                self.dest,
                self.options,
                self.progress,
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
        """Files that a killed pack was writing; the lock says that no other pack is."""
        for folder in (self.dest, self.dest / FOLDER, self.dest / COLUMNS):
            for path in folder.iterdir() if folder.is_dir() else ():
                if files.is_temporary(path.name):
                    path.unlink()

    def _prepare_job(self, state: PackState, resources: contextlib.ExitStack) -> Job:
        """Freezes the list of samples (a stream is encoded on the way) and returns what loads one of them."""
        if not is_stream(self.source):
            return self._prepare_listed(self.source, state, resources)
        if not Listing.exists(state.folder):
            self._spool_stream(self.source, state)
        else:
            self._choose_encode(state, None)
        listing = self._open_listing(state, resources)
        return resources.enter_context(contextlib.closing(Spool(state.folder, listing)))

    def _prepare_listed(
        self, source: Source, state: PackState, resources: contextlib.ExitStack
    ) -> Job:
        if not Listing.exists(state.folder):
            write_listing(state.folder, source.refs(), self._count_listed)
        listing = self._open_listing(state, resources)
        has_shards = next(state.finished(), None) is not None
        samples = None if has_shards else some_samples(source, listing, SAMPLES)
        return load_listed(source, listing, self._choose_encode(state, samples))

    def _spool_stream(self, source: StreamSource, state: PackState) -> None:
        stream = iter(source)
        n_measured = SAMPLES if self.options.encode == "auto" else 0
        head = deque(itertools.islice(stream, n_measured))
        readable = (sample for sample in head if not isinstance(sample, BadImage))
        options = self._choose_encode(state, readable)
        samples = itertools.chain(pop_all(head), stream)
        refs = spool(samples, source.fields, state.folder, options, self.jobs)
        with contextlib.closing(refs):
            write_listing(state.folder, refs, self._count_listed)

    def _count_listed(self, count: int) -> None:
        self.progress.done = count
        self._say("listing")

    def _open_listing(self, state: PackState, resources: contextlib.ExitStack) -> Listing:
        listing = resources.enter_context(contextlib.closing(Listing(state.folder)))
        self.progress.total = len(listing)
        if not len(listing):
            raise ConfigError(f"{self.name}: no samples found in this {self.source.name} source")
        return listing

    def _choose_encode(self, state: PackState, samples: Iterable[Sample] | None) -> PackOptions:
        """The options with what `auto` stands for: measured on ``samples`` once, then remembered.

        Without ``samples`` it must have been measured before.
        """
        if self.options.encode != "auto":
            return self.options
        choice = state.encode_choice()
        if choice is None:
            if samples is None:
                raise damaged(state.folder / "encode.json", "it is missing")
            names = [each.name for each in self.source.fields if each.kind.is_image]
            images = (image for sample in samples for image in images_of(sample, names))
            choice = choose_encode(images, self.options)
            state.remember_encode_choice(choice)
        self.notes.append(f"--encode auto chose {choice.encode}: {choice.reason}")
        self._encode = choice.encode
        return replace(self.options, encode=choice.encode)

    def _verified(self, state: PackState) -> list[Done]:
        """The shards an earlier run published, each checked against its digest; a bad one and what follows are redone."""
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
        # Published, but killed before that was noted; or behind a bad one, whose notes are worth nothing without the file.
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
    """Packs a path, an iterable of dicts or a map-style torch Dataset into the new folder ``dest``.

    ``fields`` says what Python samples consist of (``{"image": "image", "label": "int"}``); by default the first sample
    tells. ``source_options`` are those of the path's format (docs/sources.md), ``options`` those of PackOptions: ``encode``,
    ``quality``, ``max_side``, ``resize``, ``restart``, ``order``, ``seed``, ``shard_size``, ``block_size``, ``on_error``,
    ``max_bad``, ``jobs``. Killed and called again with the same arguments, it goes on where it was.

        fastload.pack(({"image": pixels, "label": i} for i, pixels in enumerate(arrays)), "packed")
    """
    given = dict(source_options or {})
    if fields is not None:
        given["fields"] = fields
    samples = open_source(source, format=format, **given)
    name = str(Path(source).resolve()) if isinstance(source, str | os.PathLike) else ""
    known = PackOptions.__dataclass_fields__
    if unknown := sorted(options.keys() - known.keys()):
        raise ConfigError(f"pack has no option {', '.join(unknown)}; it has {', '.join(known)}")
    packer = Packer(samples, Path(dest), PackOptions(**options), name=name, on_progress=on_progress)
    return packer.run()
