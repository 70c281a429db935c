"""Readers concurrent with a publisher see complete datasets only, and no error.

The publisher repeatedly adds a shard and replaces the manifest by a longer one, in one folder. The
content of a sample follows from its number, so readers know what to expect. ``python -m
tests.fault.test_reader_beside_packer FOLDER GENERATIONS BUG`` runs the publisher.
"""

from __future__ import annotations

import hashlib
import itertools
import subprocess
import sys
import time
from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from fastload._common import files
from fastload._store import manifest
from fastload._store.columns import ColumnWriter
from fastload._store.dataset import open_dataset
from fastload._store.fields import Field
from fastload._store.manifest import Manifest, Shard
from fastload._store.properties import Properties
from fastload._store.record import Part, encode_record
from fastload._store.writer import ShardWriter, shard_name
from fastload.errors import StoreError
from tests.fault.trials import LONG, ROOT

FIELDS = (Field("data", "bytes"),)
PER_SHARD = 6
BUG_S = 0.1  # how long a planted bug shows


def payload(sample_id: int) -> bytes:
    """Returns the content of a sample, which is the same in every generation."""
    return hashlib.sha256(str(sample_id).encode()).digest() * (50 + sample_id % 200)


def publish(folder: Path, generations: int, bug: str) -> None:
    """Publishes datasets of 1, 2, ... shards in the same folder."""
    folder.mkdir(exist_ok=True)
    shards: list[Shard] = []
    for generation in range(generations):
        first = PER_SHARD * len(shards)
        shard = _write_shard(folder, len(shards), first, bug)
        shards.append(shard)
        n_samples = first + PER_SHARD
        found = Manifest(
            n_samples=n_samples,
            fields=FIELDS,
            properties=(Properties(),),
            shards=tuple(shards),
            columns=_columns(folder, n_samples),
            content=manifest.content_of(shards),
            seed=generation,
        )
        data = manifest.dump(found)
        if bug == "manifest in place":
            (folder / manifest.NAME).write_bytes(data[:200])
            time.sleep(BUG_S)
            (folder / manifest.NAME).write_bytes(data)
        else:
            files.write_atomically(folder / manifest.NAME, data)


def _write_shard(folder: Path, number: int, first: int, bug: str) -> Shard:
    with ShardWriter(folder, shard_name(number), base=first) as writer:
        for sample_id in range(first, first + PER_SHARD):
            writer.add(sample_id, encode_record(sample_id, [Part(0, payload(sample_id))]))
        shard = writer.publish(first)
    if bug == "shard after the manifest" and number:
        old = manifest.parse((folder / manifest.NAME).read_bytes())
        data = (folder / shard.name).read_bytes()
        (folder / shard.name).unlink()
        longer = replace(
            old,
            n_samples=first + PER_SHARD,
            shards=(*old.shards, shard),
            columns=_columns(folder, first + PER_SHARD),
        )
        files.write_atomically(folder / manifest.NAME, manifest.dump(longer))
        time.sleep(BUG_S)
        (folder / shard.name).write_bytes(data)
    return shard


def _columns(folder: Path, n_samples: int) -> tuple[manifest.Column, ...]:
    rows = {
        "_blocks": np.array([(first, PER_SHARD) for first in range(0, n_samples, PER_SHARD)]),
        "_source_index": np.arange(n_samples),
    }
    written = []
    for name, values in rows.items():
        with ColumnWriter(folder, name, "<i8", width=values.ndim) as writer:
            writer.append(values)
            written.append(writer.finish())
    return tuple(written)


def read_all(folder: Path, seen: Counter[str], last: int) -> int:
    """Opens and reads the dataset and counts the outcome; returns its number of samples."""
    try:
        ds = open_dataset(folder, verify="full")
        right = all(ds[i]["data"] == payload(i) for i in range(len(ds)))
    except StoreError as error:
        early = any(
            message in str(error)
            for message in ("has not finished", "no such folder", "not a fastload dataset")
        )
        seen["not yet" if early and not last else f"error: {error}"] += 1
        return last
    seen[
        "whole"
        if right and len(ds) >= last and len(ds) % PER_SHARD == 0
        else f"wrong: {len(ds)} after {last}"
    ] += 1
    return len(ds)


def watch(folder: Path, generations: int, bug: str) -> tuple[Counter[str], int]:
    """Runs a publisher and reads its folder; returns all outcomes and the final size."""
    seen: Counter[str] = Counter()
    last = 0
    with subprocess.Popen(
        [
            sys.executable,
            "-m",
            "tests.fault.test_reader_beside_packer",
            str(folder),
            str(generations),
            bug,
        ],
        cwd=ROOT,
        stderr=subprocess.PIPE,
    ) as publisher:
        while publisher.poll() is None:
            last = read_all(folder, seen, last)
        assert publisher.stderr is not None
        assert publisher.returncode == 0, publisher.stderr.read()
    return seen, read_all(folder, seen, last)


def test_a_reader_sees_complete_datasets_only(tmp_path: Path) -> None:
    generations = 1000 if LONG else 40
    n_whole = 0
    for attempt in itertools.count():  # the publisher may be faster than the reader
        seen, last = watch(tmp_path / str(attempt), generations, "")
        print(dict(seen))
        assert seen.keys() <= {"whole", "not yet"}, seen
        assert last == generations * PER_SHARD
        n_whole += seen["whole"]
        if n_whole > 5:
            break


@pytest.mark.parametrize("bug", ["manifest in place", "shard after the manifest"])
def test_planted_bugs_are_detected(tmp_path: Path, bug: str) -> None:
    for attempt in range(20):  # a race, which may need several attempts
        seen, _ = watch(tmp_path / str(attempt), 10, bug)
        if seen.keys() - {"whole", "not yet"}:
            return
    pytest.fail(f"the planted bug {bug!r} was not detected: {seen}")


def test_an_open_dataset_stays_readable_after_its_replacement(tmp_path: Path) -> None:
    """Another pack replaces all files: open datasets keep the old ones."""
    publish(tmp_path, 2, "")
    old = open_dataset(tmp_path)
    before = [old[i] for i in range(len(old))]
    publish(tmp_path, 5, "")
    assert [old[i] for i in range(len(old))] == before
    assert len(open_dataset(tmp_path)) == 5 * PER_SHARD


if __name__ == "__main__":
    publish(Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3])
