"""Reading ahead: the kernel is asked for the right bytes, in time, once; and whatever goes wrong with that stops nothing."""

from __future__ import annotations

import itertools
import mmap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fastload.errors import CorruptShard
from fastload.loader import readahead
from fastload.loader.loader import DataLoader
from fastload.loader.readahead import PIECE, Asker, ReadAhead, willneed
from fastload.store.dataset import Dataset, open_dataset
from tests.loading import pack_photos, wait_until

N = 60


@pytest.fixture(scope="module")
def packed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three shards, blocks of a few samples."""
    packed = pack_photos(tmp_path_factory.mktemp("photos") / "packed", N, size=(400, 300), vary=0)
    assert len(open_dataset(packed).manifest.shards) >= 3
    return packed


def in_file(address: int, length: int) -> tuple[str, int, int]:
    """Which bytes of which file lie at an address of this process."""
    for line in Path("/proc/self/maps").read_text().splitlines():
        addresses, _, offset, _, _, *path = line.split(maxsplit=5)
        start, end = (int(each, 16) for each in addresses.split("-"))
        if start <= address < end:
            assert address + length <= end
            return Path(path[0]).name, address - start + int(offset, 16), length
    raise AssertionError(f"nothing at {address:#x}")


def asked(dataset: Dataset, ids: list[int], *, whole_blocks: bool) -> list[tuple[str, int, int]]:
    found: list[tuple[str, int, int]] = []
    Asker(dataset, whole_blocks=whole_blocks, advise=lambda address, length: found.append(in_file(address, length))).ask(np.array(ids))
    return found


def record_places(dataset: Dataset, i: int) -> tuple[str, int, int]:
    reader = dataset.reader(i)
    view = np.frombuffer(reader.get(i), np.uint8)
    return in_file(int(view.ctypes.data), len(view))


def test_the_bytes_asked_for_are_those_of_the_records(packed: Path) -> None:
    dataset = open_dataset(packed)
    for i in (0, 17, N - 1):
        name, start, length = record_places(dataset, i)
        assert (packed / name).read_bytes()[start:start + length] == bytes(dataset.reader(i).get(i))        # the helper tells the truth
    assert asked(dataset, [17, 3], whole_blocks=False) == [record_places(dataset, 3), record_places(dataset, 17)]


def test_neighbours_are_one_run_from_the_first_byte_to_the_last(packed: Path) -> None:
    dataset = open_dataset(packed)
    shard = dataset.manifest.shards[1]
    first, last = shard.first + 1, shard.first + 4
    (name, start, length), = asked(dataset, [last, first + 1, first, last - 1], whole_blocks=False)
    begin, end = record_places(dataset, first), record_places(dataset, last)
    assert (name, start, start + length) == (shard.name, begin[1], end[1] + end[2])
    sizes = sum(len(dataset.reader(i).get(i)) for i in range(first, last + 1))
    assert sizes <= length < 1.2 * sizes + 4 * mmap.PAGESIZE            # and hardly anything else


def test_a_run_over_two_shards_is_asked_of_both(packed: Path) -> None:
    dataset = open_dataset(packed)
    border = dataset.manifest.shards[1].first
    runs = asked(dataset, [border - 1, border, border + 1], whole_blocks=False)
    assert [name for name, _, _ in runs] == ["shard-00000.lmdb", "shard-00001.lmdb"]
    assert runs[0] == record_places(dataset, border - 1)


def test_whole_blocks_are_asked_for_once(packed: Path) -> None:
    dataset = open_dataset(packed)
    blocks = dataset.blocks
    found: list[tuple[str, int, int]] = []
    asker = Asker(dataset, whole_blocks=True, advise=lambda address, length: found.append(in_file(address, length)))
    second, fifth = (int(blocks[number][0]) for number in (1, 4))
    asker.ask(np.array([fifth, second]))
    asker.ask(np.array([second, fifth]))
    assert len(found) == 2
    for (name, start, length), number in zip(found, (1, 4), strict=True):
        first, count = blocks[number].tolist()
        begin, end = record_places(dataset, first), record_places(dataset, first + count - 1)
        assert (name, start, start + length) == (begin[0], begin[1], end[1] + end[2])
    asker.ask(np.arange(N))
    assert len(found) == len(blocks)


def test_batches_are_asked_for_before_their_turn_and_come_unchanged(packed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wanted: list[list[int]] = []
    monkeypatch.setattr(ReadAhead, "want", lambda _, ids: wanted.append(ids.tolist()))
    reader = ReadAhead(open_dataset(packed), whole_blocks=True, advise=lambda *_: None)
    batches = [np.arange(5 * i, 5 * i + 5) for i in range(10)]
    ahead, got = [], []
    for ids in reader.before(iter(batches), horizon=20):
        got.append(ids.tolist())
        ahead.append(len(wanted) - len(got))
    assert got == wanted == [ids.tolist() for ids in batches]
    assert ahead[0] == 1                        # the first batch does not wait until all the others are asked for
    assert max(ahead) == 4                      # a horizon of 20 samples
    assert sorted(ahead[:5]) == ahead[:5]
    assert ahead[-1] == 0
    wanted.clear()
    assert [ids.tolist() for ids in reader.before(iter(batches), horizon=0)] == wanted


def test_asking_goes_to_the_kernel_in_pieces_that_it_does_not_cut(packed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[tuple[int, int, int]] = []

    class Libc:
        def madvise(self, address: object, length: object, advice: int) -> int:
            calls.append((address.value, length.value, advice))         # type: ignore[attr-defined]
            return 0

    monkeypatch.setattr(readahead, "_LIBC", Libc())
    willneed(7 * mmap.PAGESIZE + 100, 3 * PIECE)
    assert {advice for _, _, advice in calls} == {mmap.MADV_WILLNEED}
    assert calls[0][0] == 7 * mmap.PAGESIZE
    assert all(one[0] + one[1] == other[0] for one, other in itertools.pairwise(calls))
    assert sum(length for _, length, _ in calls) == 3 * PIECE + 100
    assert max(length for _, length, _ in calls) == PIECE


def test_the_real_call_accepts_a_map_and_names_the_failure_of_a_hole(packed: Path) -> None:
    dataset = open_dataset(packed)
    view = np.frombuffer(dataset.reader(0).get(0), np.uint8)
    willneed(int(view.ctypes.data), len(view))
    with pytest.raises(OSError, match="Cannot allocate memory"):
        willneed(mmap.PAGESIZE, 10)             # nobody maps the first pages


@pytest.mark.parametrize("error", [OSError(12, "no"), CorruptShard("damaged")])
def test_nothing_that_fails_there_stops_the_loading(packed: Path, monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    tried: list[int] = []

    def fail(address: int, length: int) -> None:
        tried.append(length)
        raise error

    monkeypatch.setattr(ReadAhead.__init__, "__kwdefaults__", {"advise": fail})
    loader = DataLoader(packed, 6, shuffle=True, fields=("label", "id"))
    for _ in range(2):
        assert sorted(i for batch in loader for i in batch["id"].tolist()) == list(range(N))
    assert wait_until(lambda: len(tried) > 2)           # it went on asking, too


def test_the_loader_asks_for_blocks_where_it_shuffles_blocks_and_for_records_elsewhere(packed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    modes: list[bool] = []
    original = Asker.__init__

    def noted(self: Asker, dataset: Dataset, **options: Any) -> None:
        modes.append(bool(options["whole_blocks"]))
        original(self, dataset, **options)

    monkeypatch.setattr(Asker, "__init__", noted)
    for options in ({"shuffle": True}, {"shuffle": "full"}, {"shuffle": False}, {"sampler": [1, 2]}):
        list(DataLoader(packed, 8, fields=("id",), **options))
    assert modes == [True, False, False, False]


def test_a_disk_that_is_far_behind_holds_nobody_up(packed: Path) -> None:
    """Asking waits for the disk: then what cannot be asked for any more is left out."""
    import threading
    go_on = threading.Event()

    def advise(address: int, length: int) -> None:
        go_on.wait(30)

    reader = ReadAhead(open_dataset(packed), whole_blocks=False, advise=advise)

    def batches() -> Iterator[np.ndarray[tuple[int], np.dtype[np.int64]]]:
        for number in range(500):
            yield np.array([number % N])

    assert sum(1 for _ in reader.before(batches(), horizon=100)) == 500
    go_on.set()
