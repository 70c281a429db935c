"""What a pack would do: lists the source and encodes a few samples, and writes nothing to DEST."""

from __future__ import annotations

import contextlib
import itertools
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from fastload._common.cpus import available_cpus
from fastload._common.formatting import byte_size, count, seconds
from fastload._pack.images import SAMPLES, choose_encode, images_of
from fastload._pack.jobs import Item, load_listed, ordered_map, some_samples
from fastload._pack.layout import Layout, measured_rows
from fastload._pack.options import PackOptions
from fastload._pack.samples import EncodedSample, SampleEncoder
from fastload._pack.shard import as_record
from fastload._pack.sources.base import AnySource, LeavesOut, Sample, Source
from fastload._pack.state import Listing, write_listing
from fastload._store.fields import splits_of
from fastload.errors import BadImage

_EXAMPLES = 3  # files named per reason


@dataclass(frozen=True, slots=True)
class PackPreview:
    """The result of ``--dry-run``. ``str(preview)`` is what the command prints."""

    format: str
    fields: dict[str, str]  # name → kind
    splits: tuple[str, ...]
    n_samples: int | None  # None for a stream of unknown length
    left_out: dict[str, tuple[int, list[str]]]  # reason → number of files, some of them
    n_measured: int
    bad: tuple[str, ...]  # errors of the measured samples
    n_shards: int | None
    bytes_out: int | None
    seconds: float | None

    def as_json(self) -> dict[str, object]:
        return asdict(self)

    def __str__(self) -> str:
        known = "unknown number" if self.n_samples is None else f"{self.n_samples:,}"
        lines = [
            f"Format {self.format}, fields "
            + ", ".join(f"{name}: {kind}" for name, kind in self.fields.items()),
            f"Samples: {known}" + (f" in splits {', '.join(self.splits)}" if self.splits else ""),
        ]
        for why, (n, some) in self.left_out.items():
            more = ", ..." if n > len(some) else ""
            lines.append(f"Left out: {count(n, 'file')}, {why} ({', '.join(some)}{more})")
        if self.bad:
            lines.append(
                f"Bad: {len(self.bad)} of {self.n_measured} samples that were encoded, for example "
                f"{self.bad[0]}"
            )
        if self.n_shards is not None and self.bytes_out is not None and self.seconds is not None:
            lines.append(
                f"Expected: {byte_size(self.bytes_out)} in {count(self.n_shards, 'shard')}, "
                f"{seconds(self.seconds)} on this machine, from {count(self.n_measured, 'sample')}"
            )
        return "\n".join([*lines, "Nothing was written (--dry-run)"])


def preview_pack(source: AnySource, options: PackOptions) -> PackPreview:
    """Lists a source and encodes up to 256 of its samples."""
    jobs = options.jobs or available_cpus()
    with contextlib.ExitStack() as resources:
        if isinstance(source, Source):
            folder = Path(resources.enter_context(tempfile.TemporaryDirectory()))
            write_listing(folder, source.refs(), lambda _: None)
            listing = resources.enter_context(contextlib.closing(Listing(folder)))
            n: int | None = len(listing)
            options = _chosen(source, some_samples(source, listing, SAMPLES), options)
            measured = _measure(
                load_listed(source, listing, options), measured_rows(len(listing)), jobs
            )
        else:
            n = source.n_samples
            head = list(itertools.islice(iter(source), SAMPLES))
            readable = [each for each in head if not isinstance(each, BadImage)]
            encoder = SampleEncoder(source.fields, _chosen(source, readable, options))
            measured = _measure(encoder.encode_all, head, jobs)
    sizes, bad, elapsed = measured
    total = sum(sizes) / max(1, len(sizes) + len(bad)) * (n or 0)
    known = bool(n and sizes)
    return PackPreview(
        source.name,
        {each.name: "list of " * each.list + each.kind.name for each in source.fields},
        splits_of(source.fields),
        n,
        _left_out(source.left_out() if isinstance(source, LeavesOut) else ()),
        len(sizes) + len(bad),
        tuple(bad),
        Layout.of(n, total / n, options.shard_size).n_parts if n and known else None,
        int(total) if known else None,
        elapsed / (len(sizes) + len(bad)) * n if n and known else None,
    )


def _chosen(source: AnySource, samples: Iterable[Sample], options: PackOptions) -> PackOptions:
    """Replaces `auto` by what a pack would probably choose."""
    if options.encode != "auto":
        return options
    names = [each.name for each in source.fields if each.kind.is_image]
    images = (image for sample in samples for image in images_of(sample, names))
    return replace(options, encode=choose_encode(images, options).encode)


def _measure(
    encode: Callable[[Sequence[Item]], Iterable[EncodedSample | BadImage]],
    items: Iterable[Item],
    jobs: int,
) -> tuple[list[int], list[str], float]:
    """Returns the record sizes, the errors and the duration of encoding these samples."""
    sizes: list[int] = []
    bad: list[str] = []
    started = time.monotonic()
    with contextlib.closing(ordered_map(encode, items, jobs=jobs)) as results:
        for each in results:
            if isinstance(each, BadImage):
                bad.append(str(each))
            else:
                sizes.append(len(as_record(0, each.parts)))
    return sizes, bad, time.monotonic() - started


def _left_out(files: Iterable[tuple[str, str]]) -> dict[str, tuple[int, list[str]]]:
    counts: Counter[str] = Counter()
    some: dict[str, list[str]] = {}
    for path, why in files:
        counts[why] += 1
        if counts[why] <= _EXAMPLES:
            some.setdefault(why, []).append(path)
    return {why: (counts[why], some[why]) for why in sorted(counts)}
