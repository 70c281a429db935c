"""Publishes a pack: writes the columns, the log, and last the manifest that completes a dataset."""

from __future__ import annotations

import hashlib
import itertools
import json
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

import numpy as np

from fastload._common.files import NewFile, write_atomically
from fastload._common.strict_json import Json
from fastload._order.mixing import measure_mixing
from fastload._pack.options import LOG, PackOptions
from fastload._pack.sources.base import AnySource
from fastload._pack.state import Done, Event, PackState
from fastload._store.columns import ColumnWriter, open_column
from fastload._store.manifest import COLUMN_HEADER, Column, Manifest, dump, expected_columns
from fastload._store.manifest import NAME as MANIFEST
from fastload._version import __version__
from fastload.errors import ConfigError

# An unshuffled pack below this fraction of the class mixture of a random order gets a note.
WELL_MIXED = 0.8


def publish(
    source: AnySource,
    dest: Path,
    options: PackOptions,
    state: PackState,
    *,
    done: list[Done],
    last_events: list[Event],
    encoded: str,
) -> tuple[str, ...]:
    """Turns the shards in ``done`` into a dataset and returns notes for the user.

    ``encoded`` is the choice of `auto`.
    """
    columns = _write_columns(source, dest, state, done)
    # One shard at a time: a million converted samples have a million events.
    shard_events = (event for number in range(len(done)) for event in state.done(number).events)
    events = _write_log(dest, itertools.chain(shard_events, last_events))
    manifest = Manifest(
        n_samples=sum(each.shard.records for each in done),
        fields=tuple(source.fields),
        shards=tuple(each.shard for each in done),
        columns=columns,
        tool=f"fastload {__version__}",
        seed=options.seed,
        order=options.order,
        skipped=events.pop("skipped", 0),
        converted=dict(sorted(events.items())),
        # The digest over the binary digests of the shards, in order.
        content=hashlib.sha256(
            b"".join(bytes.fromhex(each.shard.sha256) for each in done)
        ).hexdigest(),
        options=_options(source, options, encoded),
    )
    notes = _unmixed(source, dest, options, columns)
    write_atomically(dest / MANIFEST, dump(manifest))
    return notes


def check_publishable(source: AnySource, options: PackOptions) -> None:
    """Raises ConfigError before packing if the manifest cannot hold the source's fields or info."""
    columns = tuple(
        Column(name, dtype, (0, 2) if name == "_blocks" else (0,), COLUMN_HEADER, "0" * 8)
        for name, dtype in expected_columns(tuple(source.fields)).items()
    )
    dump(
        Manifest(
            n_samples=0,
            fields=tuple(source.fields),
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
    """Joins the rows of all shards, one shard and one column at a time."""
    written: list[Column] = []
    for name, dtype in expected_columns(tuple(source.fields)).items():
        with ColumnWriter(dest, name, dtype, width=2 if name == "_blocks" else 1) as writer:
            for number, each in enumerate(done):
                writer.append(
                    np.array(each.blocks, dtype)
                    if name == "_blocks"
                    else state.rows(number, [name])[name]
                )
            written.append(writer.finish())
    return tuple(written)


def _write_log(dest: Path, events: Iterable[Event]) -> Counter[str]:
    """Writes one line per skipped or converted sample. Returns the counts by reason."""
    counts: Counter[str] = Counter()
    with NewFile(dest / LOG) as log:
        for event in events:
            log.write(
                json.dumps(
                    {"event": event.event, "source": event.source, "why": event.why}
                ).encode()
                + b"\n"
            )
            counts["skipped" if event.event == "skipped" else event.why] += 1
        log.publish()
    return counts


def _unmixed(
    source: AnySource, dest: Path, options: PackOptions, columns: tuple[Column, ...]
) -> tuple[str, ...]:
    """Returns a note if a source sorted by class was packed unshuffled."""
    labels = next((each.name for each in source.fields if each.classes), None)
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
