"""Shards are checked before they are read, in threads and in forked children."""

from __future__ import annotations

import gc
import os
import pickle
import subprocess
import sys
import threading
import warnings
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from fastload._common.checksum import crc32c
from fastload._store.manifest import Shard, stamp_page
from fastload._store.record import Part, encode_record
from fastload._store.shard import ShardReader, verify_file
from fastload.errors import CorruptShard, StoreError
from tests.open_files import open_files
from tests.store.test_shard_publishing import records, write


@pytest.fixture
def made(tmp_path: Path) -> tuple[Path, Shard, list[bytes]]:
    values = records(40, first=100)
    return tmp_path, write(tmp_path, values, first=100), values


Made = tuple[Path, Shard, list[bytes]]


def run_child(function: object) -> int:
    """Runs a function in a forked child; returns its exit code, or -signal."""
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            function()  # type: ignore[operator]
            code = 0
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def test_records_are_read_by_id(made: Made) -> None:
    folder, row, values = made
    reader = ShardReader(folder, row)
    assert [bytes(reader.get(100 + i)) for i in range(40)] == values
    value = reader.get(107)
    assert value.readonly
    assert bytes(reader.record(107)[0].data) == values[7][48:]
    for outside in (99, 140, -1):
        with pytest.raises(IndexError, match=r"shard-00000.lmdb has samples 100 to 139"):
            reader.get(outside)


def is_open(path: Path) -> bool:
    gc.collect()
    return str(path) in open_files()


def test_bytes_stay_valid_after_their_reader_closed_the_file(made: Made) -> None:
    folder, row, values = made
    reader = ShardReader(folder, row)
    part = reader.record(105)[0]
    view = memoryview(part.data)[10:20]
    assert is_open(folder / row.name)
    del reader, part
    assert not is_open(folder / row.name)
    assert bytes(view) == values[5][58:68]
    assert bytes(ShardReader(folder, row).get(105)) == values[5]


def test_a_replaced_file_is_opened_separately(made: Made) -> None:
    """After a rename, an open reader keeps the old file and a new reader gets the new file."""
    folder, row, values = made
    old = ShardReader(folder, row)
    old.get(100)
    fresh = records(40, first=100)
    other = write(folder, fresh, first=100)
    assert bytes(ShardReader(folder, other, verify="full").get(139)) == fresh[39]
    assert bytes(old.get(139)) == values[39]


def test_a_reader_pickles_as_its_path(made: Made) -> None:
    folder, row, values = made
    reader = ShardReader(folder, row, verify="full")
    reader.get(100)
    other = pickle.loads(pickle.dumps(reader))
    assert other._file is None
    assert other.verify == "full"
    assert bytes(other.get(101)) == values[1]


def test_threads_read_at_the_same_time(made: Made) -> None:
    folder, row, values = made
    reader = ShardReader(folder, row)

    def read(i: int) -> bool:
        return bytes(reader.record(100 + i % 40)[0].data) == values[i % 40][48:]

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(read, range(4000)))


def test_forked_children_read_while_threads_of_the_parent_read(made: Made) -> None:
    folder, row, values = made
    reader = ShardReader(folder, row)
    reader.get(100)
    stop = threading.Event()

    def spin() -> None:
        while not stop.is_set():
            reader.record(120)

    threads = [threading.Thread(target=spin) for _ in range(3)]
    for thread in threads:
        thread.start()

    def in_child() -> None:
        if (
            bytes(reader.get(103)) != values[3]
            or bytes(ShardReader(folder, row, verify="full").get(104)) != values[4]
        ):
            os._exit(3)

    with warnings.catch_warnings():
        warnings.simplefilter(
            "ignore", DeprecationWarning
        )  # Python 3.12 warns about fork with threads, which is the case under test
        try:
            codes = [run_child(in_child) for _ in range(30)]
        finally:
            stop.set()
            for thread in threads:
                thread.join()
    assert codes == [0] * 30


def test_a_forked_child_exits_normally(made: Made) -> None:
    """Interpreter exit must neither wait for threads of the parent nor harm the parent."""
    folder, row, _ = made
    code = f"""
import os, sys, threading, warnings
warnings.simplefilter("ignore")
from pathlib import Path
from fastload._store.manifest import Shard, stamp_page
from fastload._store.shard import ShardReader
reader = ShardReader(Path({str(folder)!r}), {row!r})
parts = reader.record(105)
stop = False
def spin():
    while not stop: reader.record(120)
threads = [threading.Thread(target=spin) for _ in range(3)]
for thread in threads: thread.start()
bad = 0
for _ in range(40):
    pid = os.fork()
    if pid == 0:
        reader.record(106); del reader, parts
        sys.exit(0)
    bad += os.waitpid(pid, 0)[1] != 0
stop = True
for thread in threads: thread.join()
print("bad", bad, len(bytes(parts[0].data)), len(reader.record(107)))
"""
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=600, check=True
    )
    assert done.stdout == "bad 0 5000 1\n"


@pytest.mark.parametrize("verify", ["size", "full"])
def test_every_wrong_file_is_rejected_by_name(made: Made, verify: str) -> None:
    folder, row, values = made
    path = folder / row.name
    good = path.read_bytes()

    def assert_refused(match: str) -> None:
        with pytest.raises(CorruptShard, match=match) as caught:
            ShardReader(folder, row, verify=verify).get(100)
        assert caught.value.shard == row.name
        assert "fastload verify" in str(caught.value)

    path.write_bytes(good[:-4096])
    assert_refused(f"{len(good) - 4096} bytes, expected {len(good)}")
    path.write_bytes(good + bytes(1))
    assert_refused("truncated, still being copied, or a shard of another dataset")
    path.unlink()
    assert_refused("No such file")
    path.symlink_to(folder / "elsewhere")
    (folder / "elsewhere").write_bytes(good)
    assert_refused("links are not followed")
    path.unlink()
    path.mkdir()
    assert_refused("regular file")
    path.rmdir()
    os.mkfifo(path)
    assert_refused("regular file")
    path.unlink()
    path.write_bytes(bytes(len(good) - 4096) + good[-4096:])
    assert_refused("checksum of its index 0x.*: a tree page is damaged")
    path.write_bytes(good[:9000] + b"?" + good[9001:])  # in a record
    if verify == "full":
        assert_refused("BLAKE3")
    path.write_bytes(good)
    assert bytes(ShardReader(folder, row, verify=verify).get(100)) == values[0]


def stamped(folder: Path, row: Shard) -> Shard:
    """Returns the file with the stamp of another row, as from a faulty writer."""
    path = folder / row.name
    data = path.read_bytes()[:-4096] + stamp_page(row.base, row.records, row.stamp)
    path.write_bytes(data)
    crc = crc32c(data[:8192] + data[-row.index_size :])
    return row._replace(index_crc32c=f"{crc:08x}")


def test_a_wrong_number_of_records_is_detected(made: Made) -> None:
    folder, row, _ = made
    with pytest.raises(CorruptShard, match="40 records, expected 41"):
        ShardReader(folder, stamped(folder, row._replace(records=41))).get(100)


def test_a_shard_of_another_dataset_is_rejected(made: Made) -> None:
    """Size, record count and all records are valid; only the stamp differs."""
    folder, row, values = made
    (folder / "other").mkdir()
    foreign = write(folder / "other", records(40, first=100), first=100)
    assert foreign.size == row.size
    good = (folder / row.name).read_bytes()
    (folder / "other" / row.name).replace(folder / row.name)
    with pytest.raises(CorruptShard, match="differ from the stamp in the manifest") as caught:
        ShardReader(folder, row).get(100)
    assert caught.value.shard == row.name
    for place in range(len(good) - 4096, len(good) - 4096 + 80):
        (folder / row.name).write_bytes(good[:place] + bytes([good[place] ^ 1]) + good[place + 1 :])
        with pytest.raises(CorruptShard, match="stamp"):
            ShardReader(folder, row).get(100)
    (folder / row.name).write_bytes(good)
    assert bytes(ShardReader(folder, row).get(100)) == values[0]


def test_every_byte_of_the_index_is_compared_before_mapping(tmp_path: Path) -> None:
    row = write(tmp_path, records(300))
    path = tmp_path / row.name
    good = path.read_bytes()
    assert row.index_size == 4096 * (2 + 1 + 1)  # two leaves, the root and the stamp
    for place in (*range(0, 8192, 97), *range(len(good) - row.index_size, len(good) - 4096, 97)):
        path.write_bytes(good[:place] + bytes([good[place] ^ 8]) + good[place + 1 :])
        with pytest.raises(CorruptShard, match="a tree page is damaged") as caught:
            ShardReader(tmp_path, row).get(0)
        assert caught.value.shard == row.name
    path.write_bytes(good)
    assert len(ShardReader(tmp_path, row).get(299)) > 5000


def test_ids_count_from_the_base_of_the_shard(tmp_path: Path) -> None:
    """The same file is samples 0 to 2 of one dataset and samples 40 to 42 of another."""
    values = records(3, first=500)
    row = write(tmp_path, values, first=500)
    for first in (0, 40):
        reader = ShardReader(tmp_path, row._replace(first=first))
        assert [bytes(reader.get(first + i)) for i in range(3)] == values
        assert len(reader.record(first + 2)) == 1
        with pytest.raises(IndexError, match=f"has samples {first} to {first + 2}"):
            reader.get(first + 3)
        offset, size = reader.find(first + 1)
        assert (tmp_path / row.name).read_bytes()[offset : offset + size] == values[1]


def test_a_record_under_the_wrong_key_is_detected(tmp_path: Path) -> None:
    values = records(3)
    row = write(tmp_path, [values[0], values[2], values[1]])
    reader = ShardReader(tmp_path, row, verify="full")
    reader.record(0)
    with pytest.raises(
        CorruptShard, match="reading sample 1: sample id is 2, expected 1"
    ) as caught:
        reader.record(1)
    assert (caught.value.shard, caught.value.record) == (row.name, 1)


def test_a_missing_record_is_named(tmp_path: Path) -> None:
    row = write(tmp_path, records(3, first=5), first=5)
    with pytest.raises(CorruptShard, match="reading sample 7: the record is missing") as caught:
        ShardReader(tmp_path, stamped(tmp_path, row._replace(base=7))).record(7)
    assert caught.value.record == 2


def test_damage_names_shard_record_and_original_file(tmp_path: Path) -> None:
    values = [
        encode_record(i, [Part(0, os.urandom(9000)), Part(65535, b"train/%d.jpg" % i)])
        for i in range(4)
    ]
    row = write(tmp_path, values)
    data = bytearray((tmp_path / row.name).read_bytes())
    data[data.index(values[2]) + 5000] ^= 4
    (tmp_path / row.name).write_bytes(data)
    reader = ShardReader(tmp_path, row)
    with pytest.raises(
        CorruptShard, match=r"reading sample 2: checksum is 0x.*expected 0x.*train/2\.jpg"
    ) as caught:
        reader.record(2)
    assert (caught.value.shard, caught.value.record) == (row.name, 2)
    assert f"Run 'fastload verify {tmp_path}'" in str(caught.value)
    assert bytes(reader.record(3)[0].data) == values[3][72:9072]
    with pytest.raises(CorruptShard, match="BLAKE3"):
        verify_file(tmp_path / row.name, row)


def test_the_limit_of_open_files_is_raised_for_many_shards(tmp_path: Path) -> None:
    rows = [write(tmp_path, records(1, 10, first=i), number=i, first=i) for i in range(60)]

    def read(hard: int) -> list[ShardReader]:
        import resource

        resource.setrlimit(resource.RLIMIT_NOFILE, (40, hard))
        readers = [ShardReader(tmp_path, row) for row in rows]
        for row, reader in zip(rows, readers, strict=True):
            reader.record(row.first)
        return readers

    def too_few() -> None:
        with pytest.raises(StoreError, match=r"too many open files.*ulimit -Hn"):
            read(45)

    assert run_child(lambda: read(200)) == 0
    assert run_child(too_few) == 0
