"""Dropping a loader while threads still read records: the shards stay mapped until then."""

from __future__ import annotations

import gc
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fastload import transforms
from fastload._common.native import core
from fastload._load.loader import DataLoader
from fastload._load.records import read_records
from fastload._store.dataset import open_dataset
from tests.loading import backends, our_threads, wait_until
from tests.small_dataset import simple_samples, write_dataset


def mapped(folder: Path) -> bool:
    gc.collect()
    return any(
        str(folder) in line and ".lmdb" in line
        for line in Path("/proc/self/maps").read_text().splitlines()
    )


@pytest.mark.parametrize("held", ["records", "some records", "a record", "a piece of a record"])
def test_records_in_flight_keep_their_shard_mapped(tmp_path: Path, held: str) -> None:
    write_dataset(tmp_path, simple_samples(6))
    dataset = open_dataset(tmp_path)
    parts = read_records(dataset, np.arange(6), check_crc=True)
    before = [bytes(record) for record in parts.views]
    keeper: Any = {
        "records": parts.views,
        "some records": parts.views[2:4],
        "a record": parts.views[3],
        "a piece of a record": parts.views[3][8:],
    }[held]
    del dataset, parts
    assert mapped(tmp_path)  # only this reference is left, as in a decode thread
    expected = {
        "records": before,
        "some records": before[2:4],
        "a record": before[3],
        "a piece of a record": before[3][8:],
    }[held]
    assert (list(map(bytes, keeper)) if isinstance(expected, list) else bytes(keeper)) == expected
    del keeper
    assert not mapped(tmp_path)


def test_a_view_of_a_record_keeps_its_shard_mapped(tmp_path: Path) -> None:
    write_dataset(tmp_path, simple_samples(6))
    reader = open_dataset(tmp_path).reader(2)
    found, before = reader.find(2), bytes(reader.find(2))
    del reader
    assert mapped(tmp_path)
    assert bytes(found) == before
    del found
    assert not mapped(tmp_path)


def test_a_batch_in_flight_keeps_its_records_mapped(tmp_path: Path) -> None:
    """Only the ticket references them."""
    if core() is None:
        pytest.skip(
            "not run: no native core"
        )  # threads of the reference decoder may keep a sample for a while
    write_dataset(tmp_path, simple_samples(24))
    loader = DataLoader(tmp_path, 24, fields=("image",), transform=[transforms.Resize(64, 64)])
    pending = loader.pipeline.submit(loader.pipeline.planner.plan(np.arange(24), 0))
    ticket = pending.fields[0].ticket
    decoder = loader.pipeline.backend.backend
    del loader, pending
    assert mapped(tmp_path)
    assert decoder.collect(ticket).ok
    del ticket
    assert not mapped(tmp_path)


@pytest.mark.parametrize("backend", backends())
def test_loaders_dropped_during_a_batch_leave_no_reader(tmp_path: Path, backend: str) -> None:
    """Neither a thread of the iteration nor a map of the dataset outlives the loader."""
    before = threading.enumerate()
    write_dataset(tmp_path, simple_samples(24))
    for _ in range(30):
        loader = DataLoader(
            tmp_path, 4, backend=backend, fields=("image",), transform=[transforms.Resize(64, 64)]
        )
        iterator = iter(loader)
        next(iterator)
        del iterator, loader
    assert wait_until(lambda: our_threads(before) == [])
    assert wait_until(lambda: not mapped(tmp_path))
