"""Publishes a pack: writes the columns, the log, and last the manifest that completes a dataset."""

from __future__ import annotations

import itertools
import json
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np

from fastload._common.files import NewFile, write_atomically
from fastload._common.strict_json import Json
from fastload._order.mixing import measure_mixing
from fastload._pack.options import LOG, PackOptions
from fastload._pack.sources.base import AnySource, LeavesOut
from fastload._pack.state import Done, Event, PackState
from fastload._store.columns import ColumnWriter, open_column
from fastload._store.fields import ALL_SPLITS, SPLIT, splits_of
from fastload._store.manifest import (
    COLUMN_HEADER,
    SHARD_NAME,
    Column,
    Manifest,
    content_of,
    dump,
    expected_columns,
    read_manifest,
)
from fastload._store.manifest import NAME as MANIFEST
from fastload._store.properties import Properties
from fastload._version import __version__
from fastload.errors import BadImage, ConfigError

# An unshuffled pack below this fraction of the class mixture of a random order gets a note.
WELL_MIXED = 0.8
LEFT_OUT = "left out"  # the event of a file that is no sample


def publish(
    source: AnySource,
    dest: Path,
    options: PackOptions,
    state: PackState,
    *,
    done: list[Done],
    encoded: str,
) -> tuple[Manifest, tuple[str, ...], dict[str, int]]:
    """Turns the parts in ``done``, which are summaries, into a dataset.

    Returns the manifest, notes for the user, and the number of left-out files per reason.
    ``encoded`` is the choice of `auto`. Several machines may publish at the same time.
    """
    columns = _write_columns(source, dest, state, done)
    properties = tuple(Properties() for _ in source.fields)
    part_events = _events_of(state, len(done), properties)
    paths = source.left_out() if isinstance(source, LeavesOut) else ()
    left_out = (Event(LEFT_OUT, path, why) for path, why in paths)
    events, n_left_out = _write_log(dest, itertools.chain(part_events, left_out))
    skipped = events.pop("skipped", 0)
    if options.max_bad is not None and skipped > options.max_bad:
        raise BadImage(
            f"{skipped} samples are bad, more than {options.max_bad} (--max-bad). "
            f"{dest / LOG} lists them. All parts are packed: rerun the command with a larger "
            "--max-bad to publish the dataset"
        )
    shards = tuple(
        shard._replace(first=first + shard.first)
        for each, first in zip(done, _firsts(done), strict=True)
        for shard in each.shards
    )
    _remove_unused_shards(dest, {shard.name for shard in shards})
    manifest = Manifest(
        n_samples=sum(each.records for each in done),
        fields=tuple(source.fields),
        properties=properties,
        shards=shards,
        columns=columns,
        tool=f"fastload {__version__}",
        seed=options.seed,
        order=options.order,
        skipped=skipped,
        converted=dict(sorted(events.items())),
        content=content_of(shards),
        options=_options(source, options, encoded),
    )
    notes = (*_unmixed(source, dest, options, columns), *_mixed_depths(manifest))
    if not write_atomically(dest / MANIFEST, dump(manifest), replace=False):
        found = read_manifest(dest).content
        if found != manifest.content:
            raise ConfigError(
                f"{dest}: another pack published other content ({found[:16]}..., expected "
                f"{manifest.content[:16]}...). The source changed during packing: remove {dest} "
                "and pack again"
            )
    return manifest, notes, dict(n_left_out)


def check_publishable(source: AnySource, options: PackOptions) -> None:
    """Raises ConfigError before packing if the manifest cannot hold the source's fields or info."""
    splits = splits_of(source.fields)
    if ALL_SPLITS in splits or len(set(splits)) < len(splits):
        raise ConfigError(
            f"splits {', '.join(splits)!s:.80}: expected unique names other than {ALL_SPLITS!r}, "
            "which selects all splits"
        )
    columns = tuple(
        Column(name, dtype, (0, 2) if name == "_blocks" else (0,), COLUMN_HEADER, "0" * 8)
        for name, dtype in expected_columns(tuple(source.fields)).items()
    )
    dump(
        Manifest(
            n_samples=0,
            fields=tuple(source.fields),
            properties=tuple(Properties() for _ in source.fields),
            shards=(),
            columns=columns,
            content="0" * 64,
            options=_options(source, options, options.encode),
        )
    )


def is_packed_like(found: dict[str, Json], source: AnySource, options: PackOptions) -> bool:
    """Returns whether a manifest has the options that this source and these options produce."""
    return found == _options(source, options, str(found.get("encoded", "")))


def _options(source: AnySource, options: PackOptions, encoded: str) -> dict[str, Json]:
    chosen: dict[str, Json] = {"encoded": encoded} if options.encode == "auto" else {}
    try:
        loaded: dict[str, Json] = json.loads(
            json.dumps(
                {"source": source.name, "info": source.info, **options.kept(), **chosen},
                allow_nan=False,
            )
        )
    except (TypeError, ValueError) as error:
        raise ConfigError(f"info of source {source.name!r} is not JSON: {error}") from None
    return loaded


def _write_columns(
    source: AnySource, dest: Path, state: PackState, done: list[Done]
) -> tuple[Column, ...]:
    """Joins the rows of all parts, one part and one column at a time."""
    written: list[Column] = []
    for name, dtype in expected_columns(tuple(source.fields)).items():
        with ColumnWriter(dest, name, dtype, width=2 if name == "_blocks" else 1) as writer:
            for number, first in enumerate(_firsts(done)):
                if name == "_blocks":
                    blocks = np.array(state.done(number).blocks, dtype).reshape(-1, 2)
                    writer.append(np.add(blocks, (first, 0)))
                else:
                    writer.append(state.rows(number, [name])[name])
            written.append(writer.finish())
    return tuple(written)


def _events_of(
    state: PackState, n_parts: int, properties: tuple[Properties, ...]
) -> Iterator[Event]:
    """Yields the events of all parts, one part in memory at a time. Merges their properties."""
    for number in range(n_parts):
        done = state.done(number)
        for total, one in zip(properties, done.properties, strict=True):
            total.merge(one)
        yield from done.events


def _firsts(done: list[Done]) -> Iterator[int]:
    """Yields the id of the first sample of each part."""
    return itertools.accumulate((each.records for each in done[:-1]), initial=0)


def _remove_unused_shards(dest: Path, names: set[str]) -> None:
    """Removes shards of a killed run that wrote more of them than the parts now have."""
    for path in dest.iterdir():
        if SHARD_NAME.fullmatch(path.name) and path.name not in names:
            path.unlink(missing_ok=True)


def read_left_out(dest: Path) -> dict[str, int]:
    """Returns the number of left-out files per reason from the log of a published dataset."""
    with (dest / LOG).open(encoding="utf-8") as log:
        events = (json.loads(line) for line in log)
        return dict(Counter(event["why"] for event in events if event["event"] == LEFT_OUT))


def _write_log(dest: Path, events: Iterable[Event]) -> tuple[Counter[str], Counter[str]]:
    """Writes one line per event. Returns the counts of samples and of left-out files by reason."""
    counts: Counter[str] = Counter()
    left_out: Counter[str] = Counter()
    with NewFile(dest / LOG) as log:
        for event in events:
            log.write(
                json.dumps(
                    {"event": event.event, "source": event.source, "why": event.why}
                ).encode()
                + b"\n"
            )
            if event.event == LEFT_OUT:
                left_out[event.why] += 1
            else:
                counts["skipped" if event.event == "skipped" else event.why] += 1
        log.publish()
    return counts, left_out


def _mixed_depths(manifest: Manifest) -> Iterator[str]:
    """Yields a note for each field with images of 8 and of 16 bits."""
    for each, found in zip(manifest.fields, manifest.properties, strict=True):
        if each.kind.is_image and {8, 16} <= found.bits:
            yield (
                f"field {each.name!r} has images of 8 and of 16 bits per channel. Add ToDtype or "
                "Normalize to the transforms of the loader, or pack with --max-bits 8 (max_bits=8)"
            )


def _unmixed(
    source: AnySource, dest: Path, options: PackOptions, columns: tuple[Column, ...]
) -> tuple[str, ...]:
    """Returns a note if a source sorted by class was packed unshuffled."""
    labels = next(
        (each.name for each in source.fields if each.classes and each.name != SPLIT), None
    )
    if options.order == "shuffle" or labels is None:
        return ()
    by_name = {column.name: column for column in columns}
    mixing = measure_mixing(
        open_column(dest, by_name["_source_index"]), open_column(dest, by_name[labels])
    )
    if mixing.batch_mixture >= WELL_MIXED:
        return ()
    return (
        f"the source is sorted by {labels} and was packed unshuffled (--order source): "
        f"{mixing}. Pack without --order source unless you read it in order",
    )
