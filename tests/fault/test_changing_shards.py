"""Pages of a shard are zeroed while a loader reads it: no wrong pixel, no other error."""

from __future__ import annotations

import itertools
import os
import random
import shutil
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fastload import transforms as T
from fastload._common.native import core
from fastload._load import planning
from fastload._load.loader import DataLoader
from fastload._load.records import read_records
from fastload._store.dataset import Dataset, open_dataset
from fastload._store.lmdb_tree import META_BYTES, PAGE
from fastload.errors import CorruptShard, RecordError
from tests.fault.trials import LONG
from tests.loading import backends

N = 40
OPTIONS: dict[str, Any] = {
    "transform": [T.Resize(24, 24)],
    "fields": ("image", "label", "id"),
    "num_workers": 2,
}


@pytest.fixture
def packed(pack_once: Callable[..., Path], tmp_path: Path) -> Path:
    return Path(shutil.copytree(pack_once(N, size=(200, 150)), tmp_path / "packed"))


def pixels_by_id(batch: dict[str, Any]) -> dict[int, bytes]:
    images = batch["image"].numpy()
    return {int(i): images[place].tobytes() for place, i in enumerate(batch["id"])}


def put(path: Path, position: int, data: bytes | bytearray) -> None:
    """Overwrites bytes in place."""
    descriptor = os.open(path, os.O_WRONLY)
    os.pwrite(descriptor, data, position)
    os.close(descriptor)


def zero(dataset: Dataset, sample_id: int) -> None:
    """Zeroes the record of a sample in place, except its first bytes."""
    reader = dataset.reader(sample_id)
    offset, size = reader.find(sample_id)
    put(reader.path, offset + 300, bytes(size - 300))


@pytest.mark.parametrize("backend", backends())
def test_zeroed_pages_never_become_pixels(packed: Path, backend: str) -> None:
    expected: dict[int, bytes] = {}
    for batch in DataLoader(packed, 8, backend=backend, **OPTIONS):
        expected |= pixels_by_id(batch)
    paths = sorted(packed.glob("*.lmdb"))
    good = {path: path.read_bytes() for path in paths}
    loader = DataLoader(packed, 8, shuffle=True, backend=backend, on_error="substitute", **OPTIONS)
    over = threading.Event()

    def damage() -> None:
        chosen = random.Random(1)
        while not over.is_set():
            path = chosen.choice(paths)
            page = chosen.randrange(META_BYTES, len(good[path]), PAGE)
            put(path, page, bytes(PAGE))
            over.wait(chosen.choice((0, 0.0001, 0.001)))
            put(path, page, good[path][page : page + PAGE])

    thread = threading.Thread(target=damage)
    thread.start()
    delivered = 0
    try:
        for epoch in itertools.count():
            if epoch >= (96 if LONG else 12) and loader.stats().bad:  # the damage was seen
                break
            iterator = iter(loader)
            while True:
                try:
                    batch = next(iterator, None)
                except CorruptShard:  # all samples of the batch are damaged
                    continue
                if batch is None:
                    break
                for i, pixels in pixels_by_id(batch).items():
                    assert pixels == expected[i], f"sample {i} has wrong pixels"
                    delivered += 1
    finally:
        over.set()
        thread.join()
    assert delivered > 2 * N


@pytest.mark.skipif(core() is None, reason="needs the native core")
def test_all_views_of_a_record_show_the_bytes_that_were_verified(packed: Path) -> None:
    dataset = open_dataset(packed)
    records = read_records(dataset, np.arange(3), check_crc=False)
    first = records.views[1]
    before = bytes(first)
    zero(dataset, 1)
    zero(dataset, 2)
    records.verify(1)
    assert bytes(first) == bytes(records.views[1]) == before
    with pytest.raises(RecordError, match="record length"):
        records.verify(2)  # it was not read before: the view does not show unverified bytes


@pytest.mark.skipif(core() is None, reason="needs the native core")
def test_a_record_that_changes_after_its_batch_was_planned_is_corrupt(packed: Path) -> None:
    loader = DataLoader(packed, 4, **OPTIONS)
    planned = loader.pipeline.planner.plan(np.arange(4), 0)
    other = loader.packed.reader(2)
    header = bytearray(other.get(2)[:24])
    header[10] ^= 1  # another number of parts
    put(other.path, other.find(2)[0], header)
    zero(loader.packed, 1)
    pending = loader.pipeline.submit(planned)
    result = loader.pipeline.backend.collect(pending.fields[0].ticket)
    assert result.reasons.keys() == {1, 2}
    assert "checksum" in result.reasons[1]
    assert "changed after its header was read" in result.reasons[2]


def test_a_substitute_that_is_damaged_meanwhile_is_one_more_bad_sample(
    packed: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """This raised IndexError: the substitutes were read a second time and not checked again."""
    loader = DataLoader(packed, 8, sampler=range(8), on_error="substitute", **OPTIONS)
    expected = pixels_by_id(next(iter(DataLoader(packed, 8, sampler=range(8), **OPTIONS))))
    dataset = open_dataset(packed)
    reader = dataset.reader(3)
    put(reader.path, reader.find(3)[0], bytes(24))
    calls: list[int] = []
    real = read_records

    def read(opened: Dataset, ids: Any, *, check_crc: bool, cache: Any = None) -> Any:
        calls.append(len(ids))
        if check_crc and 3 not in ids.tolist() and 4 in ids.tolist():
            zero(opened, 4)  # between the check of the batch and the read of its substitutes
        return real(opened, ids, check_crc=check_crc, cache=cache)

    monkeypatch.setattr(planning, "read_records", read)
    batch = next(iter(loader))
    assert not {3, 4} & set(batch["id"].tolist())
    assert all(expected[i] == pixels for i, pixels in pixels_by_id(batch).items())
    assert loader.stats().bad == 2


@pytest.mark.parametrize("backend", backends())
def test_a_damaged_batch_of_substitutes_is_not_used(packed: Path, backend: str) -> None:
    """Its checksums are verified when it is read: labels reach the batch without the decoder."""
    options = {**OPTIONS, "fields": ("label", "id")}
    expected = {
        int(i): int(label)
        for batch in DataLoader(packed, 8, backend=backend, **options)
        for i, label in zip(batch["id"], batch["label"], strict=True)
    }
    loader = DataLoader(
        packed, 8, sampler=range(8), on_error="substitute", backend=backend, **options
    )
    dataset = open_dataset(packed)
    step = N // (planning.MAX_REPLACEMENTS + 1) + 1
    for i in range(8):  # the batch
        reader = dataset.reader(i)
        put(reader.path, reader.find(i)[0], bytes(24))
    for i in range(step, step + 8):  # the first batch that replaces it
        if i >= 8:
            zero(dataset, i)
    batch = next(iter(loader))
    ids = batch["id"].tolist()
    assert not set(ids) & set(range(step + 8))
    assert [expected[i] for i in ids] == batch["label"].tolist()
