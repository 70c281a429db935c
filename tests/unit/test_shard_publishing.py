"""A shard appears whole or not at all, is the same for the same records, and leaves nothing beside it."""

from __future__ import annotations

import errno
import hashlib
import os
import struct
import subprocess
import sys
from pathlib import Path

import lmdb
import pytest

from fastload.errors import ConfigError, StoreError
from fastload.store import files, writer
from fastload.store.manifest import Shard
from fastload.store.record import MAX_RECORD, Part, encode_record
from fastload.store.shard import ShardReader, verify_file
from fastload.store.writer import ShardWriter, shard_name

ROOT = Path(__file__).parents[2]


def records(count: int, size: int = 5000, first: int = 0) -> list[bytes]:
    return [encode_record(first + i, [Part(0, os.urandom(size))]) for i in range(count)]


def write(folder: Path, values: list[bytes], *, number: int = 0, first: int = 0) -> Shard:
    with ShardWriter(folder, number, first=first) as out:
        for i, value in enumerate(values):
            out.add(first + i, value)
        return out.publish()


def test_nothing_has_the_name_before_publish_and_nothing_else_is_left(tmp_path: Path) -> None:
    values = records(20, first=100)
    with ShardWriter(tmp_path, 7, first=100) as out:
        for i, value in enumerate(values):
            out.add(100 + i, value)
            assert sorted(path.name for path in tmp_path.iterdir()) == [f"shard-00007.lmdb.tmp-{os.getpid()}"]
        shard = out.publish()
        assert [path.name for path in tmp_path.iterdir()] == ["shard-00007.lmdb"]
    assert [path.name for path in tmp_path.iterdir()] == ["shard-00007.lmdb"], "leaving the context must not touch it"
    data = (tmp_path / shard.name).read_bytes()
    assert (shard.size, shard.records, shard.first, shard.sha256) == (len(data), 20, 100,
                                                                      hashlib.sha256(data).hexdigest())
    assert shard.stamp == hashlib.sha256(b"".join(bytes(value[:24]) for value in values)).hexdigest()
    assert data[-4096:-4040] == b"FLS1" + struct.pack("<4xQQ", 100, 20) + bytes.fromhex(shard.stamp)
    assert data[-4040:] == bytes(4040)
    verify_file(tmp_path / shard.name, shard)


def test_records_come_back_across_many_commits_and_a_growing_map(tmp_path: Path,
                                                                 monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writer, "COMMIT_BYTES", 20_000)
    monkeypatch.setattr(writer, "_FIRST_MAP", 64 * 1024)
    values = [encode_record(i, [Part(0, bytes([i % 256]) * (i * 37 % 9000))]) for i in range(500)]
    shard = write(tmp_path, values)
    reader = ShardReader(tmp_path, shard, verify="full")
    assert [bytes(reader.get(i)) for i in range(500)] == values
    del reader
    with lmdb.open(str(tmp_path / shard.name), subdir=False, readonly=True, lock=False) as env:
        assert env.info()["last_txnid"] > 50, "all in one transaction: memory grows with the shard"


def test_the_size_is_known_while_writing(tmp_path: Path) -> None:
    for size in (10, 1000, 3000, 5000, 110_000):
        with ShardWriter(tmp_path, 0, first=0) as out:
            for i, value in enumerate(records(200, size)):
                out.add(i, value)
            estimate = out.size_bytes
            shard = out.publish()
            assert out.payload_bytes == sum(len(value) for value in records(200, size))
        assert shard.size <= estimate + 100_000, "the map would be too small"
        if size > 4096:
            assert estimate < 2.5 * shard.size


def test_the_same_records_give_the_same_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    values = records(300)
    monkeypatch.setattr(writer, "COMMIT_BYTES", 100_000)
    for name in "ab":
        (tmp_path / name).mkdir()
    assert write(tmp_path / "a", values) == write(tmp_path / "b", values)


def test_an_aborted_shard_leaves_nothing(tmp_path: Path) -> None:
    with ShardWriter(tmp_path, 0, first=0) as out:
        out.add(0, records(1)[0])
    assert list(tmp_path.iterdir()) == []
    out.abort()
    assert write(tmp_path, records(3)).records == 3


def test_a_rest_of_a_killed_process_with_our_number_is_no_obstacle(tmp_path: Path) -> None:
    (tmp_path / f"shard-00000.lmdb.tmp-{os.getpid()}").write_bytes(os.urandom(50_000))
    assert write(tmp_path, records(3)).records == 3


def test_wrong_use_is_refused_and_the_right_goes_on(tmp_path: Path) -> None:
    first, second, third = records(3)
    with ShardWriter(tmp_path, 0, first=0) as out:
        with pytest.raises(ConfigError, match="at least one record"):
            out.publish()
        out.add(0, first)
        for number, value in ((0, second), (2, second), (1, b""), (1, bytes(MAX_RECORD + 1))):
            with pytest.raises(ConfigError, match="expected sample 1"):
                out.add(number, value)
        out.add(1, second)
        out.add(2, third)
        shard = out.publish()
    assert bytes(ShardReader(tmp_path, shard).get(2)) == third
    assert shard_name(1234567) == "shard-1234567.lmdb"
    with pytest.raises(ConfigError, match="larger shard size"):
        shard_name(10_000_000)


def test_a_folder_that_cannot_be_written_is_said_so(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="run the same command again"):
        ShardWriter(tmp_path / "nowhere", 0, first=0)


def test_the_data_format_is_lmdb_0_9_whatever_the_environment_says(tmp_path: Path) -> None:
    code = (f"from tests.unit.test_shard_publishing import *; write(Path({str(tmp_path)!r}), records(2))\n"
            "env = lmdb.open('other', subdir=False); print(env.path())")
    done = subprocess.run([sys.executable, "-c", code.replace("'other'", repr(str(tmp_path / "other")))], check=True,
                          env={**os.environ, "LMDB_DEFAULT_LIB_VERSION": "1", "PYTHONPATH": str(ROOT)}, stdout=-3)
    assert done.returncode == 0
    meta = {path.name: path.read_bytes()[16:24] for path in tmp_path.glob("*") if not path.name.endswith("lock")}
    assert meta["shard-00000.lmdb"] == bytes.fromhex("dec0efbe01000000")        # magic, data version 1
    if int(lmdb.__version__.split(".")[0]) >= 3:
        assert meta["other"] != meta["shard-00000.lmdb"], "the variable has no effect: this test shows nothing"


@pytest.mark.parametrize(("code", "free", "said"), [
    (errno.ENOSPC, 1 << 40, "disk full"), (errno.EIO, 1000, "disk full"), (errno.EDQUOT, 1 << 40, "quota exceeded"),
    (errno.EIO, 1 << 40, "check the folder"), (errno.EACCES, 0, "check the folder"),
])
def test_a_full_disk_says_so_with_what_is_needed_and_free(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int,
                                                          free: int,
                                                          said: str) -> None:
    monkeypatch.setattr(files, "_free_bytes", lambda folder: free)
    failure = files.write_error(OSError(code, os.strerror(code)), tmp_path / "shard-00000.lmdb", needed=4096)
    assert said in str(failure)
    assert failure.errno == (errno.ENOSPC if said == "disk full" else code)
    assert "run the same command again" in str(failure)
    if said == "disk full":
        assert f"4096 bytes needed, {free} free on {tmp_path}" in str(failure)


def test_a_limit_of_the_file_size_stops_the_shard_cleanly(tmp_path: Path) -> None:
    """A write that fails for real, in the middle: the file may not grow above 1 MiB."""
    import resource

    pid = os.fork()
    if pid == 0:
        resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, 1 << 20))
        try:
            write(tmp_path, records(400))
        except StoreError as error:
            os._exit(10 if not list(tmp_path.iterdir()) and "run the same command again" in str(error) else 11)
        os._exit(12)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 10
    assert write(tmp_path, records(400)).records == 400


def test_write_atomically_replaces_or_leaves_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "manifest.json"
    files.write_atomically(path, b"old")
    files.write_atomically(path, b"new")
    assert path.read_bytes() == b"new"

    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, "no")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(StoreError, match="disk full"):
        files.write_atomically(path, b"newer")
    assert [each.name for each in tmp_path.iterdir()] == ["manifest.json"]
    assert path.read_bytes() == b"new"


def test_everything_is_synced_before_the_rename_and_the_folder_after(tmp_path: Path,
                                                                     monkeypatch: pytest.MonkeyPatch) -> None:
    """The order that a power loss asks for, seen from outside: what reached fsync, and the names at that moment."""
    seen: list[tuple[str, bool]] = []
    real = os.fsync

    def watched(descriptor: int) -> None:
        seen.append((os.readlink(f"/proc/self/fd/{descriptor}"), (tmp_path / "shard-00000.lmdb").exists()))
        real(descriptor)

    monkeypatch.setattr(os, "fsync", watched)
    write(tmp_path, records(30))
    assert seen == [(str(tmp_path / f"shard-00000.lmdb.tmp-{os.getpid()}"), False), (str(tmp_path), True)]


def test_leftovers_are_told_from_published_files() -> None:
    assert files.is_partly(files.partly(Path("/x/shard-00000.lmdb")).name)
    for name in ("shard-00000.lmdb", "manifest.json", "a.tmp-", "a.tmp-x", ".tmp-"):
        assert not files.is_partly(name)


def test_a_published_shard_is_plain_lmdb(tmp_path: Path) -> None:
    values = records(5, first=3)
    shard = write(tmp_path, values, first=3)
    with lmdb.open(str(tmp_path / shard.name), subdir=False, readonly=True,
                   lock=False) as env, env.begin() as transaction:
        assert list(transaction.cursor()) == [((3 + i).to_bytes(8, "big"), value) for i, value in enumerate(values)]
