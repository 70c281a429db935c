"""Both shard readers find the records that LMDB finds, and a damaged page is an error."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import lmdb
import numpy as np
import pytest

import fastload
from fastload._common.native import core
from fastload._load.records import read_records
from fastload._store.lmdb_tree import TreeFile
from fastload._store.record import Part, encode_record
from fastload._store.writer import ShardWriter, shard_name
from fastload.errors import CorruptShard
from tests.small_dataset import simple_samples, write_dataset
from tests.store.test_shard_publishing import records, write

module = core()
READERS: dict[str, Any] = {"python": TreeFile}
if module is not None:
    READERS["native"] = module.ShardFile


@pytest.fixture(params=READERS)
def open_shard(request: pytest.FixtureRequest) -> Callable[[Path], Any]:
    def opened(path: Path) -> Any:
        descriptor = os.open(path, os.O_RDONLY)
        try:
            return READERS[request.param](descriptor, path.stat().st_size)
        finally:
            os.close(descriptor)

    return opened


def lmdb_records(path: Path) -> dict[int, bytes]:
    with (
        lmdb.open(str(path), subdir=False, readonly=True, lock=False) as env,
        env.begin() as transaction,
    ):
        return {int.from_bytes(key, "big"): value for key, value in transaction.cursor()}


@pytest.mark.parametrize("count", [1, 170, 5000, 30000])
def test_it_reads_files_that_lmdb_wrote(
    tmp_path: Path, open_shard: Callable[[Path], Any], count: int
) -> None:
    """LMDB stores no key in the first node of a branch page."""
    rng = random.Random(count)
    path = tmp_path / "shard.lmdb"
    with (
        lmdb.open(str(path), subdir=False, lock=False, map_size=1 << 28) as env,
        env.begin(write=True) as transaction,
    ):
        for key in range(count):
            transaction.put(key.to_bytes(8, "big"), rng.randbytes(rng.choice((8, 700, 5000))))
    found = open_shard(path)
    assert found.entries == count
    for key, value in lmdb_records(path).items():
        assert found.read(key) == value
    with pytest.raises(KeyError, match="the record is missing"):
        found.read(count)


@pytest.mark.parametrize("count", [1, 2, 170, 5000, 30000])
def test_it_finds_the_records_that_lmdb_finds(
    tmp_path: Path, open_shard: Callable[[Path], Any], count: int
) -> None:
    """Records are in leaf or overflow pages; 30,000 of them need a tree of depth 3."""
    rng, first = random.Random(count), 2**33 + 7
    with ShardWriter(tmp_path, shard_name(0), base=first) as writer:
        for number in range(count):
            size = rng.choice((900, 1900) if count > 5000 else (0, 1, 700, 1900, 2100, 4096, 20000))
            writer.add(
                first + number, encode_record(first + number, [Part(0, rng.randbytes(size))])
            )
        row = writer.publish(first)
    found = open_shard(tmp_path / row.name)
    assert found.entries == count
    whole = (tmp_path / row.name).read_bytes()
    for key, value in lmdb_records(tmp_path / row.name).items():
        offset, size = found.find(key)
        assert found.read(key) == value == whole[offset : offset + size]
    for outside in (0, first - 1, first + count, 2**64 - 1):
        with pytest.raises(KeyError, match="the record is missing"):
            found.read(outside)
    if count == 30000:
        newest = max(
            ((tmp_path / row.name).read_bytes()[start : start + 152] for start in (0, 4096)),
            key=lambda meta: meta[144:152][::-1],
        )
        assert int.from_bytes(newest[94:96], "little") == 3


def test_damaged_pages_are_errors(tmp_path: Path, open_shard: Callable[[Path], Any]) -> None:
    """With random bytes changed, records are inside the file or raise an error; never a crash."""
    row = write(tmp_path, records(600))
    whole = (tmp_path / row.name).read_bytes()
    rng, path = random.Random(0), tmp_path / "damaged"
    missed = 0
    for _ in range(100):
        data = bytearray(whole)
        for _ in range(rng.choice((1, 3, 40))):
            page = rng.randrange(len(data) // 4096)
            data[4096 * page + rng.choice((rng.randrange(64), rng.randrange(4096)))] = rng.choice(
                (0, 255, rng.randrange(256))
            )
        path.write_bytes(data)
        try:
            found = open_shard(path)
        except RuntimeError:
            continue
        for number in range(600):
            try:
                found.read(number)
            except KeyError:
                missed += 1
    assert missed  # otherwise the damage had no effect


def test_files_that_are_not_shards_raise(tmp_path: Path, open_shard: Callable[[Path], Any]) -> None:
    path = tmp_path / "file"
    for data, message in (
        (b"", "only 0 bytes"),
        (bytes(100), "only 100 bytes"),
        (bytes(8192), "no meta page"),
    ):
        path.write_bytes(data)
        with pytest.raises(RuntimeError, match=message):
            open_shard(path)


def test_batches_read_together_equal_batches_read_separately(tmp_path: Path) -> None:
    fastload.pack(
        ({"text": "x" * n, "number": n} for n in range(50)),
        tmp_path / "packed",
        fields={"text": "str", "number": "int"},
    )
    dataset = fastload.open(tmp_path / "packed")
    ids = np.arange(50)[::-1].copy()
    together = read_records(dataset, ids, check_crc=True)
    for first in (0, 20, 40):
        part, alone = (
            together.slice(first, min(first + 20, 50)),
            read_records(dataset, ids[first : first + 20], check_crc=True),
        )
        assert list(part.views) == list(alone.views)
        assert (part.rows == alone.rows).all()
        assert (part.starts == alone.starts).all()
        assert all((part.part_rows(field) == alone.part_rows(field)).all() for field in (0, 1))
        assert [part.source(place) for place in range(len(part.ids))] == [
            alone.source(place) for place in range(len(part.ids))
        ]


def test_an_unreadable_shard_fails_only_its_own_samples(tmp_path: Path) -> None:
    fastload.pack(
        ({"data": os.urandom(3000)} for _ in range(400)),
        tmp_path / "packed",
        fields={"data": "bytes"},
        shard_size=1 << 20,
        block_size=1 << 18,
    )
    dataset = fastload.open(tmp_path / "packed")
    assert len(dataset.manifest.shards) == 2
    second = dataset.manifest.shards[1]
    os.truncate(tmp_path / "packed" / second.name, second.size - 4096)
    ids = np.array([0, second.first, 1, second.first + 1])
    faults = read_records(dataset, ids, check_crc=True).faults
    assert set(faults) == {1, 3}
    assert all(
        isinstance(each, CorruptShard) and "bytes, expected" in str(each)
        for each in faults.values()
    )


_SEVERAL_THREADS = """
import sys, threading
import numpy as np
import fastload
from fastload._load.records import read_records

def read(dataset, together):
    together.wait()
    parts = read_records(dataset, np.arange(len(dataset)), check_crc=True)
    assert not parts.faults and sum(len(bytes(each)) for each in parts.views)

for _ in range(30):
    dataset, together = fastload.open(sys.argv[1], verify="full"), threading.Barrier(4)
    threads = [threading.Thread(target=read, args=(dataset, together)) for _ in range(4)]
    for thread in threads: thread.start()
    for thread in threads: thread.join()
"""


def test_threads_may_open_a_shard_at_the_same_time(tmp_path: Path) -> None:
    """In a separate process: reading a map that another thread dropped was a crash."""
    write_dataset(tmp_path, simple_samples(40), per_shard=40)
    done = subprocess.run(
        [sys.executable, "-c", _SEVERAL_THREADS, str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
