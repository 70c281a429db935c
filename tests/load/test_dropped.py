"""Dropping a loader while threads still read records: the shards stay open until then."""

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
from tests.open_files import open_files
from tests.small_dataset import simple_samples, write_dataset


def is_open(folder: Path) -> bool:
    gc.collect()
    return any(str(folder) in name and ".lmdb" in name for name in open_files())


@pytest.mark.parametrize("held", ["records", "some records", "a record", "a piece of a record"])
def test_records_in_flight_keep_their_shard_open(tmp_path: Path, held: str) -> None:
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
    # Only this reference is left, as in a decode thread. Without the core, the bytes are copies.
    assert is_open(tmp_path) == (core() is not None)
    expected = {
        "records": before,
        "some records": before[2:4],
        "a record": before[3],
        "a piece of a record": before[3][8:],
    }[held]
    assert (list(map(bytes, keeper)) if isinstance(expected, list) else bytes(keeper)) == expected
    del keeper
    assert not is_open(tmp_path)


def test_a_batch_in_flight_keeps_its_shard_open(tmp_path: Path) -> None:
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
    assert is_open(tmp_path)
    assert decoder.collect(ticket).ok
    del ticket
    assert not is_open(tmp_path)


@pytest.mark.parametrize("backend", backends())
def test_loaders_dropped_during_a_batch_leave_no_reader(tmp_path: Path, backend: str) -> None:
    """Neither a thread of the iteration nor a file of the dataset outlives the loader."""
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
    assert wait_until(lambda: not is_open(tmp_path))
