"""Publishing a shard is atomic and deterministic and leaves no other files."""

from __future__ import annotations

import errno
import os
import random
import struct
from pathlib import Path

import lmdb
import pytest
from blake3 import blake3

from fastload._common import files
from fastload._common.checksum import Bytes
from fastload._store import writer
from fastload._store.manifest import Shard
from fastload._store.record import MAX_RECORD, Part, encode_record
from fastload._store.shard import ShardReader, verify_file
from fastload._store.writer import ShardWriter, shard_name
from fastload.errors import ConfigError, StoreError


def records(count: int, size: int = 5000, first: int = 0) -> list[bytes]:
    return [encode_record(first + i, [Part(0, os.urandom(size))]) for i in range(count)]


def write(folder: Path, values: list[bytes], *, number: int = 0, first: int = 0) -> Shard:
    with ShardWriter(folder, shard_name(number), base=first) as out:
        for i, value in enumerate(values):
            out.add(first + i, value)
        return out.publish(first)


def test_publish_creates_the_shard_and_leaves_no_other_file(tmp_path: Path) -> None:
    values = records(20, first=100)
    with ShardWriter(tmp_path, shard_name(7), base=100) as out:
        for i, value in enumerate(values):
            out.add(100 + i, value)
            (temporary,) = tmp_path.iterdir()
            assert temporary.name.startswith("shard-00007.lmdb.tmp-")
            assert files.owner_of(temporary.name) == files.owner()
        shard = out.publish(100)
        assert [path.name for path in tmp_path.iterdir()] == ["shard-00007.lmdb"]
    assert [path.name for path in tmp_path.iterdir()] == ["shard-00007.lmdb"], (
        "leaving the context must not touch it"
    )
    data = (tmp_path / shard.name).read_bytes()
    assert (shard.size, shard.records, shard.first, shard.blake3) == (
        len(data),
        20,
        100,
        blake3(data[8192:] + data[:8192]).hexdigest(),
    )
    assert shard.stamp == blake3(b"".join(bytes(value[:24]) for value in values)).hexdigest()
    assert data[-4096:-4040] == b"FLS1" + struct.pack("<4xQQ", 100, 20) + bytes.fromhex(shard.stamp)
    assert data[-4040:] == bytes(4040)
    verify_file(tmp_path / shard.name, shard)


# A leaf holds values of up to 2,022 bytes, larger values are on overflow pages; a branch has 226
# children.
@pytest.mark.parametrize(
    ("count", "least", "most"),
    [
        (1, 10, 10),
        (2, 3000, 3000),
        (500, 1, 9000),
        (300, 2021, 2024),
        (16_000, 40, 40),
        (16_000, 41, 41),
        (452, 2022, 2022),
        (454, 2022, 2022),
        (3000, 2000, 2022),
        (40, 200_000, 300_000),
    ],
)
def test_lmdb_reads_every_shape_of_tree(tmp_path: Path, count: int, least: int, most: int) -> None:
    chosen = random.Random(count)
    values = [chosen.randbytes(chosen.randint(least, most)) for _ in range(count)]
    shard = write(tmp_path, values, first=900)
    verify_file(tmp_path / shard.name, shard)
    expected = [((900 + i).to_bytes(8, "big"), value) for i, value in enumerate(values)]
    with (
        lmdb.open(str(tmp_path / shard.name), subdir=False, readonly=True, lock=False) as env,
        env.begin() as transaction,
    ):
        assert list(transaction.cursor()) == expected
        assert list(transaction.cursor().iterprev()) == expected[::-1]
        assert all(transaction.get(key) == value for key, value in expected)
        assert [transaction.get(key.to_bytes(8, "big")) for key in (0, 899, 900 + count)] == [
            None
        ] * 3
        found, pages = transaction.stat(), env.info()["last_pgno"] + 1
    assert found["branch_pages"] + found["leaf_pages"] + found["overflow_pages"] + 2 == pages
    assert found["overflow_pages"] == sum(
        -(-(16 + len(value)) // 4096) for value in values if len(value) > 2022
    )
    assert shard.size == 4096 * (pages + 1)


@pytest.mark.parametrize(
    ("sizes", "inline"), [([5000] * 600, 0), ([5000] * 300 + [1000] * 3 + [5000] * 300, 1)]
)
def test_leaves_without_records_are_stored_together_at_the_end(
    tmp_path: Path, sizes: list[int], inline: int
) -> None:
    shard = write(tmp_path, [bytes(size) for size in sizes])
    data = (tmp_path / shard.name).read_bytes()
    kinds, page = [], 2
    while page < len(data) // 4096 - 1:
        (kind,) = struct.unpack_from("<H", data, 4096 * page + 10)
        kinds.append(kind)
        page += struct.unpack_from("<I", data, 4096 * page + 12)[0] if kind == 4 else 1
    last_record = len(kinds) - kinds[::-1].index(4)
    assert kinds[:last_record].count(2) == inline  # leaves
    assert set(kinds[last_record:-1]) == {2}
    assert kinds[-1] == 1  # the root


def test_a_compacted_lmdb_copy_has_the_same_records(tmp_path: Path) -> None:
    """A compacting copy walks the tree and counts its pages; an unreachable page is an error."""
    values = records(1000, 1500) + records(200, 9000, first=1000)
    shard = write(tmp_path, values)
    with lmdb.open(str(tmp_path / shard.name), subdir=False, readonly=True, lock=False) as env:
        env.copy(str(tmp_path / "copy"), compact=True)
    with (
        lmdb.open(str(tmp_path / "copy"), subdir=False, readonly=True, lock=False) as env,
        env.begin() as transaction,
    ):
        assert [value for _, value in transaction.cursor()] == values


def test_flushes_are_bounded_and_the_size_is_known_while_writing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writer, "FLUSH_BYTES", 20_000)
    sizes: list[int] = []
    real = ShardWriter._write

    def watched(self: ShardWriter, pieces: list[Bytes]) -> None:
        sizes.append(sum(map(len, pieces)))
        real(self, pieces)

    monkeypatch.setattr(ShardWriter, "_write", watched)
    values = [encode_record(i, [Part(0, bytes([i % 256]) * (i * 37 % 9000))]) for i in range(500)]
    with ShardWriter(tmp_path, shard_name(0), base=0) as out:
        for i, value in enumerate(values):
            out.add(i, value)
        estimate = out.size_bytes
        shard = out.publish()
    assert estimate <= shard.size <= estimate + 3 * 4096
    assert len(sizes) > 50, "all at once: memory grows with the shard"
    assert max(sizes) < 20_000 + 3 * 4096 + 9000
    reader = ShardReader(tmp_path, shard, verify="full")
    assert [bytes(reader.get(i)) for i in range(500)] == values


def test_the_file_does_not_depend_on_the_flushes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    values = records(300)
    rows = []
    for name, size in (("a", 100_000), ("b", 1 << 20)):
        monkeypatch.setattr(writer, "FLUSH_BYTES", size)
        (tmp_path / name).mkdir()
        rows.append(write(tmp_path / name, values))
    assert rows[0] == rows[1]
    assert (tmp_path / "a" / rows[0].name).read_bytes() == (
        tmp_path / "b" / rows[1].name
    ).read_bytes()


def test_an_aborted_shard_leaves_no_file(tmp_path: Path) -> None:
    with ShardWriter(tmp_path, shard_name(0), base=0) as out:
        out.add(0, records(1)[0])
    assert list(tmp_path.iterdir()) == []
    out.abort()
    assert write(tmp_path, records(3)).records == 3


def test_wrong_calls_are_rejected_and_the_writer_stays_usable(tmp_path: Path) -> None:
    first, second, third = records(3)
    with ShardWriter(tmp_path, shard_name(0), base=0) as out:
        with pytest.raises(ConfigError, match="0 records, expected at least 1"):
            out.publish()
        out.add(0, first)
        for number, value in ((0, second), (2, second), (1, b""), (1, bytes(MAX_RECORD + 1))):
            with pytest.raises(ConfigError, match="expected record 1"):
                out.add(number, value)
        out.add(1, second)
        out.add(2, third)
        shard = out.publish()
    assert bytes(ShardReader(tmp_path, shard).get(2)) == third
    assert shard_name(1234567) == "shard-1234567.lmdb"
    assert shard_name(7, 2) == "shard-00007.2.lmdb"
    with pytest.raises(ConfigError, match="larger shard size"):
        shard_name(10_000_000)


def test_an_unwritable_folder_is_reported(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="run the same command again"):
        ShardWriter(tmp_path / "nowhere", shard_name(0), base=0)


@pytest.mark.parametrize(
    ("code", "free", "said"),
    [
        (errno.ENOSPC, 1 << 40, "disk full"),
        (errno.EIO, 1000, "disk full"),
        (errno.EDQUOT, 1 << 40, "quota exceeded"),
        (errno.EIO, 1 << 40, "Check the permissions"),
        (errno.EACCES, 0, "Check the permissions"),
    ],
)
def test_a_full_disk_is_reported_with_needed_and_free_bytes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int, free: int, said: str
) -> None:
    monkeypatch.setattr(files, "_free_bytes", lambda folder: free)
    failure = files.write_error(
        OSError(code, os.strerror(code)), tmp_path / "shard-00000.lmdb", needed=4096
    )
    assert said in str(failure)
    assert failure.errno == (errno.ENOSPC if said == "disk full" else code)
    assert "run the same command again" in str(failure)
    if said == "disk full":
        assert f"4096 bytes needed, {free} free on {tmp_path}" in str(failure)


def test_a_file_size_limit_stops_the_shard_cleanly(tmp_path: Path) -> None:
    """A real write error in the middle: the file may not grow above 1 MiB."""
    import resource

    pid = os.fork()
    if pid == 0:
        resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, 1 << 20))
        try:
            write(tmp_path, records(400))
        except StoreError as error:
            os._exit(
                10
                if not list(tmp_path.iterdir()) and "run the same command again" in str(error)
                else 11
            )
        os._exit(12)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 10
    assert write(tmp_path, records(400)).records == 400


def test_write_atomically_replaces_the_file_or_keeps_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
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


def test_files_are_synced_before_the_rename_and_the_folder_after(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Records each fsync and the file names at that time, for safety against power loss."""
    seen: list[tuple[str, bool]] = []
    real = os.fsync

    def watched(descriptor: int) -> None:
        seen.append(
            (os.readlink(f"/proc/self/fd/{descriptor}"), (tmp_path / "shard-00000.lmdb").exists())
        )
        real(descriptor)

    monkeypatch.setattr(os, "fsync", watched)
    write(tmp_path, records(30))
    (file, was_published), *rest = seen
    assert file.startswith(str(tmp_path / f"shard-00000.lmdb.tmp-{files.owner()}"))
    assert not was_published
    assert rest == [(str(tmp_path), True)]


def test_temporary_names_are_distinguished_from_published_files() -> None:
    assert files.is_temporary(files.temporary_path(Path("/x/shard-00000.lmdb")).name)
    for name in ("shard-00000.lmdb", "manifest.json", "a.tmp-", "a.tmp-x", ".tmp-"):
        assert not files.is_temporary(name)


def test_a_published_shard_is_plain_lmdb(tmp_path: Path) -> None:
    values = records(5, first=3)
    shard = write(tmp_path, values, first=3)
    with (
        lmdb.open(str(tmp_path / shard.name), subdir=False, readonly=True, lock=False) as env,
        env.begin() as transaction,
    ):
        assert list(transaction.cursor()) == [
            ((3 + i).to_bytes(8, "big"), value) for i, value in enumerate(values)
        ]


def test_a_view_is_copied_when_it_is_added(tmp_path: Path) -> None:
    value = records(1)[0]
    changing = bytearray(value)
    with ShardWriter(tmp_path, shard_name(0), base=0) as out:
        out.add(0, memoryview(changing))
        changing[-1] ^= 255
        shard = out.publish()
    assert bytes(ShardReader(tmp_path, shard).get(0)) == value


@pytest.mark.parametrize("most", [1, 3, 1024])
def test_short_writes_are_completed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, most: int
) -> None:
    pieces = [os.urandom(1 + n * 37 % 700) for n in range(2500)]
    real = os.writev
    monkeypatch.setattr(
        os, "writev", lambda descriptor, some: real(descriptor, [b"".join(some[:most])[:1000]])
    )
    with (tmp_path / "file").open("wb", buffering=0) as file:
        files.write_all(file.fileno(), pieces)
    assert (tmp_path / "file").read_bytes() == b"".join(pieces)


def test_a_shard_is_complete_after_short_writes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Includes the first pages, which are written last, when the disk may be nearly full."""
    values, real = records(50), os.writev
    monkeypatch.setattr(
        os, "writev", lambda descriptor, some: real(descriptor, [b"".join(some)[:100]])
    )
    shard = write(tmp_path, values)
    verify_file(tmp_path / shard.name, shard)
    with (
        lmdb.open(str(tmp_path / shard.name), subdir=False, readonly=True, lock=False) as env,
        env.begin() as transaction,
    ):
        assert [value for _, value in transaction.cursor()] == values
