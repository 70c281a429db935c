"""The last step of a pack: columns, log, and then the manifest, which makes it a dataset."""

from __future__ import annotations

import hashlib
import json
import os
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from fastload._version import __version__
from fastload.order.mixing import measure_mixing
from fastload.pack.options import PackOptions
from fastload.pack.sources.base import AnySource
from fastload.pack.state import Done, Event, PackState
from fastload.store.columns import ColumnWriter, open_column
from fastload.store.files import partly, write_atomically, write_error
from fastload.store.files import publish as publish_file
from fastload.store.manifest import NAME as MANIFEST
from fastload.store.manifest import Column, Manifest, dump, expected_columns

LOG = "pack-log.jsonl"
WELL_MIXED = 0.8         # below this share of a random order's class mixture an unshuffled pack is warned about


def publish(source: AnySource, dest: Path, options: PackOptions, state: PackState, *, done: list[Done],
            last_events: list[Event]) -> tuple[str, ...]:
    """Makes the shards in ``done`` a dataset; returns what the user should be told."""
    events = Counter(event.event if event.event == "skipped" else event.why for event in _events(done, last_events))
    skipped = events.pop("skipped", 0)
    columns = _write_columns(source, dest, state, done)
    _write_log(dest, done, last_events)
    manifest = Manifest(
        n_samples=sum(each.shard.records for each in done), fields=tuple(source.fields), shards=tuple(each.shard for each in done),
        columns=columns, tool=f"fastload {__version__}", seed=options.seed, order=options.order, skipped=skipped,
        converted=dict(sorted(events.items())), content=_content_digest(done),
        options=json.loads(json.dumps({"source": source.name, "info": source.info, **options.kept()})))
    write_atomically(dest / MANIFEST, dump(manifest))
    return _unmixed(source, dest, options, columns)


def _events(done: list[Done], last_events: list[Event]) -> Iterator[Event]:
    for each in done:
        yield from each.events
    yield from last_events


def _write_columns(source: AnySource, dest: Path, state: PackState, done: list[Done]) -> tuple[Column, ...]:
    """Joins the rows of all shards, a shard and a column at a time."""
    written: list[Column] = []
    for name, dtype in expected_columns(tuple(source.fields)).items():
        with ColumnWriter(dest, name, dtype, width=2 if name == "_blocks" else 1) as writer:
            for number, each in enumerate(done):
                writer.append(np.array(each.blocks, dtype) if name == "_blocks" else state.rows(number)[name])
            written.append(writer.finish())
    return tuple(written)


def _write_log(dest: Path, done: list[Done], last_events: list[Event]) -> None:
    """DEST/pack-log.jsonl: one line for every sample that was skipped or converted."""
    path = dest / LOG
    temporary = partly(path)
    try:
        with temporary.open("w", encoding="utf-8") as file:
            for event in _events(done, last_events):
                file.write(json.dumps({"event": event.event, "source": event.source, "why": event.why}) + "\n")
            file.flush()
            os.fsync(file.fileno())
        publish_file(temporary, path)
    except OSError as error:
        temporary.unlink(missing_ok=True)
        raise write_error(error, path, needed=4096) from error


def _content_digest(done: list[Done]) -> str:
    """One digest for the whole dataset: SHA-256 over the shards' SHA-256, as bytes, in order."""
    return hashlib.sha256(b"".join(bytes.fromhex(each.shard.sha256) for each in done)).hexdigest()


def _unmixed(source: AnySource, dest: Path, options: PackOptions, columns: tuple[Column, ...]) -> tuple[str, ...]:
    """A warning where the packed order is not mixed although somebody will read it in blocks."""
    labels = next((each.name for each in source.fields if each.classes), None)
    if options.order == "shuffle" or labels is None:
        return ()
    by_name = {column.name: column for column in columns}
    mixing = measure_mixing(open_column(dest, by_name["_source_index"]), open_column(dest, by_name[labels]))
    if mixing.batch_mixture >= WELL_MIXED:
        return ()
    return (f"the source is sorted by {labels} and was packed unshuffled (--order source): {mixing}. "
            "Pack without --order source unless you read it in order.",)
