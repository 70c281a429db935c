"""What happens before the first shard: list the samples, choose the encoding, cut into parts.

All of it is stored in the pack's state, so that a resume and other machines use the same.
"""

from __future__ import annotations

import contextlib
import itertools
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, replace
from typing import Protocol, TypeVar

from fastload._pack.images import SAMPLES, EncodeChoice, choose_encode, images_of
from fastload._pack.jobs import (
    Job,
    Spool,
    load_in_order,
    load_listed,
    ordered_map,
    some_samples,
    spool,
    spooled_split,
    without_known,
)
from fastload._pack.layout import Layout, measured_rows
from fastload._pack.options import PackOptions, PackProgress
from fastload._pack.samples import EncodedSample
from fastload._pack.shard import as_record
from fastload._pack.sources.base import (
    AnySource,
    KnowsSplits,
    Ref,
    Sample,
    Source,
    is_stream,
    raise_if_refused,
)
from fastload._pack.sources.python import pop_all
from fastload._pack.state import OFFSETS, Listing, PackState, damaged, write_listing
from fastload._store.fields import splits_of
from fastload.errors import BadImage, ConfigError

_UNKNOWN_SIZE = 64 << 10  # assumed bytes per record if no measured sample is readable
_KEPT_BYTES = 32 << 20  # of measured records; the others are encoded again when they are packed
_MEASURED_CHUNK = 8  # samples that a thread encodes at a time: one after the other takes longer


class _Closes(Protocol):
    def close(self) -> None: ...


Resource = TypeVar("Resource", bound=_Closes)


class Preparation(contextlib.ExitStack):
    """Prepares one pack. The job and the listing can be used until the context manager exits."""

    def __init__(
        self,
        source: AnySource,
        name: str,
        options: PackOptions,
        state: PackState,
        *,
        jobs: int,
        progress: PackProgress,
        say: Callable[[str], None],
        checks_listing: bool = True,
    ) -> None:
        super().__init__()
        self._source = source
        self._name = name
        self._options = options
        self._state = state
        self._jobs = jobs
        self._progress = progress
        self._say = say
        self._checks_listing = checks_listing
        self.encode = options.encode  # replaced by the choice of `auto`
        self.notes: list[str] = []

    def job(self) -> tuple[Job, Listing]:
        """Freezes the list of samples, encoding a stream on the way. Returns job and list."""
        source = self._source
        state = self._state
        is_listed = (state.folder / OFFSETS).exists()
        has_splits = len(splits_of(source.fields)) > 1
        if is_stream(source) or (has_splits and not isinstance(source, KnowsSplits)):
            if state.shared:
                raise ConfigError(
                    f"{self._name}: a {source.name} source can only be read in order, so its parts "
                    "cannot be packed by several processes. Pack it with one command, or write "
                    "its samples to files first"
                )
            if is_listed:
                self._choose_encode(None)
            else:
                stream = iter(source) if is_stream(source) else load_in_order(source)
                self._spool(stream, has_splits=has_splits)
            listing = self._open_listing()
            return self._open(Spool(state.folder, listing)), listing
        if not is_listed:
            split_of = source.split_of if isinstance(source, KnowsSplits) else None
            with state.one_lister():
                if not (state.folder / OFFSETS).exists():
                    write_listing(
                        state.folder,
                        self._listed_refs(source),
                        self._count_listed,
                        split_of if has_splits else None,
                    )
        listing = self._open_listing()
        samples = some_samples(source, listing, SAMPLES)
        return load_listed(source, listing, self._choose_encode(samples)), listing

    def _listed_refs(self, source: Source) -> Iterator[Ref]:
        """Yields the refs. A refused file ends the pack before hours of packing."""
        for ref in source.refs():
            if self._options.on_error == "stop":
                try:
                    raise_if_refused(ref)
                except BadImage as error:
                    raise ConfigError(f"{error}. Or pass --on-error skip to leave it out") from None
            yield ref

    def layout(self, job: Job, n: int) -> tuple[Layout, Job]:
        """Returns the stored cut into parts, or decides it from the sizes of a few samples.

        Also returns the job that packs. It does not encode those samples again.
        """
        if (stored := self._state.read("layout.json")) is not None:
            return Layout(**stored), job
        rows = measured_rows(n)
        known: dict[int, EncodedSample | BadImage] = {}
        total = 0
        encoded = ordered_map(job, rows, jobs=self._jobs, chunk_size=lambda: _MEASURED_CHUNK)
        with contextlib.closing(encoded):
            for row, each in zip(rows, encoded, strict=True):
                if not isinstance(each, BadImage):
                    total += len(as_record(0, each.parts))
                if total <= _KEPT_BYTES:
                    known[row] = each
        # Without a readable sample the pack most likely fails. Any layout is valid.
        mean = total / len(rows) or _UNKNOWN_SIZE
        layout = Layout.of(n, mean, self._options.shard_size)
        if not self._state.write("layout.json", asdict(layout), replace=False):
            return self.layout(job, n)  # another worker decided it
        return layout, without_known(job, known)

    def _spool(self, stream: Iterator[Sample | BadImage], *, has_splits: bool) -> None:
        head = deque(itertools.islice(stream, SAMPLES if self._options.encode == "auto" else 0))
        readable = (sample for sample in head if not isinstance(sample, BadImage))
        options = self._choose_encode(readable)
        folder = self._state.folder
        samples = itertools.chain(pop_all(head), stream)
        with contextlib.closing(
            spool(samples, self._source.fields, folder, options, self._jobs)
        ) as refs:
            write_listing(folder, refs, self._count_listed, spooled_split if has_splits else None)

    def _count_listed(self, count: int) -> None:
        self._state.touch()
        self._progress.done = count
        self._say("listing")

    def _open_listing(self) -> Listing:
        listing = self._open(Listing(self._state.folder))
        self._progress.total = len(listing)
        # One process checks the whole list before hours of packing, the others the lines they use.
        if self._checks_listing:
            listing.verify()
        elif self._options.order == "shuffle":
            listing.expect_random_reads()
        if not len(listing):
            raise ConfigError(f"{self._name}: the {self._source.name} source has no samples")
        return listing

    def _choose_encode(self, samples: Iterable[Sample] | None) -> PackOptions:
        """Returns the options with `auto` replaced by the choice, measured once and stored.

        ``samples`` is None if an earlier run must have stored the choice. So must one that packed
        a sample.
        """
        if self._options.encode != "auto":
            return self._options
        state = self._state
        if stored := state.read("encode.json"):
            choice = EncodeChoice(**stored)
        else:
            if samples is None or state.has_parts():
                raise damaged(state.folder / "encode.json", "missing")
            names = [each.name for each in self._source.fields if each.kind.is_image]
            images = (image for sample in samples for image in images_of(sample, names))
            choice = choose_encode(images, self._options)
            # Another measurement may differ: the first one counts.
            if not state.write("encode.json", asdict(choice), replace=False):
                choice = EncodeChoice(**state.read("encode.json"))
        self.notes.append(f"--encode auto chose {choice.encode}: {choice.reason}")
        self.encode = choice.encode
        return replace(self._options, encode=choice.encode)

    def _open(self, resource: Resource) -> Resource:
        return self.enter_context(contextlib.closing(resource))
