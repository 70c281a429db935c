"""Read-ahead requests the right bytes from the kernel, in time and once; its errors are ignored."""

from __future__ import annotations

import itertools
import mmap
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fastload._common.native import core
from fastload._load import read_ahead as module
from fastload._load.loader import DataLoader
from fastload._load.read_ahead import GAP, PIECE, Advisor, ReadAhead, Runs, read_ahead, record_runs
from fastload._store.dataset import Dataset, open_dataset
from fastload._store.shard import ShardReader
from fastload._store.writer import ShardWriter, shard_name
from fastload.errors import CorruptShard
from tests.cold import evicted, pages_here
from tests.loading import wait_until

N = 60
PHOTOS = {"size": (400, 300), "vary": 0}  # at least three shards, blocks of a few samples


def in_file(descriptor: int, offset: int, length: int) -> tuple[str, int, int]:
    """Returns file, offset and length of a run."""
    return Path(os.readlink(f"/proc/self/fd/{descriptor}")).name, offset, length


class Requested(list[tuple[str, int, int]]):
    """File, offset and length of each request to the kernel."""

    def __call__(self, runs: Runs) -> None:
        self.extend(in_file(*run) for run in runs.tolist())


def requested(dataset: Dataset, ids: list[int], *, block: int = 0) -> list[tuple[str, int, int]]:
    found = Requested()
    Advisor(dataset, blocks=[(dataset.ids, block)] if block else (), advise=found).request(
        np.array(ids)
    )
    return found


def record_places(dataset: Dataset, i: int) -> tuple[str, int, int]:
    reader = dataset.reader(i)
    return reader.shard.name, *reader.find(i)


def test_requested_bytes_are_those_of_the_records(packed: Path) -> None:
    dataset = open_dataset(packed)
    for i in (0, 17, N - 1):
        name, start, length = record_places(dataset, i)
        assert (packed / name).read_bytes()[start : start + length] == bytes(
            dataset.reader(i).get(i)
        )  # the helper is correct
    assert requested(dataset, [17, 3, 17]) == [
        record_places(dataset, 3),
        record_places(dataset, 17),
    ]


def test_neighbors_are_one_run_from_the_first_byte_to_the_last(packed: Path) -> None:
    dataset = open_dataset(packed)
    shard = dataset.manifest.shards[1]
    first, last = shard.first + 1, shard.first + 4
    ((name, start, length),) = requested(dataset, [last, first + 1, first, last - 1])
    begin, end = record_places(dataset, first), record_places(dataset, last)
    assert (name, start, start + length) == (shard.name, begin[1], end[1] + end[2])
    sizes = sum(len(dataset.reader(i).get(i)) for i in range(first, last + 1))
    assert sizes <= length < 1.2 * sizes + 4 * mmap.PAGESIZE  # and little else


def test_samples_of_two_shards_are_two_runs(packed: Path) -> None:
    dataset = open_dataset(packed)
    assert len(dataset.manifest.shards) >= 3
    border = dataset.manifest.shards[1].first
    runs = requested(dataset, [border - 1, border, border + 1])
    assert [name for name, _, _ in runs] == ["shard-00000.lmdb", "shard-00001.lmdb"]
    assert runs[0] == record_places(dataset, border - 1)


def test_blocks_are_requested_completely_and_once(packed: Path) -> None:
    dataset = open_dataset(packed)
    found = Requested()
    advisor = Advisor(dataset, blocks=[(dataset.ids, 7)], advise=found)
    advisor.request(np.array([30, 8, 33]))  # 7 to 13, 28 to 34
    advisor.request(np.array([9, 28]))
    expected = requested(dataset, [*range(7, 14), *range(28, 35)])
    assert found == expected
    advisor.request(np.array([59]))  # the last block is short
    assert found == expected + requested(dataset, [56, 57, 58, 59])
    advisor.request(np.arange(N))
    assert sum(length for _, _, length in found) >= sum(
        len(dataset.reader(i).get(i)) for i in range(N)
    )


@pytest.mark.skipif(core() is None, reason="the native core is not here")
def test_both_cores_find_the_same_runs(packed: Path) -> None:
    dataset, random = open_dataset(packed), np.random.default_rng(5)
    for n in (1, 5, 20, N):
        ids: Any = random.permutation(N).astype(np.int32 if n == 5 else np.int64)[::-1][:n]
        here = [in_file(*run) for run in record_runs(dataset, ids).tolist()]
        assert [in_file(*run) for run in module._runs_in_python(dataset, ids).tolist()] == here
        assert all(
            one[0] != other[0] or other[1] - one[1] - one[2] > GAP
            for one, other in itertools.pairwise(here)
        )


def test_only_requested_pages_are_read(packed: Path) -> None:
    dataset = open_dataset(packed)
    name, start, length = record_places(dataset, 3)
    del dataset  # mapped pages stay
    path = evicted(packed / name)
    dataset = open_dataset(packed)
    read_ahead(record_runs(dataset, np.array([3])))
    wanted = range(start // mmap.PAGESIZE, -(-(start + length) // mmap.PAGESIZE))
    assert wait_until(lambda: all(pages_here(path)[page] for page in wanted))
    assert (
        sum(pages_here(path)) < len(wanted) + 40
    )  # and pages of the tree, which contain its position


def test_batches_are_requested_in_advance_and_yielded_unchanged(
    packed: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted: list[list[int]] = []
    monkeypatch.setattr(ReadAhead, "request", lambda _, ids: wanted.append(ids.tolist()))
    reader = ReadAhead(open_dataset(packed), blocks=[(range(N), 8)], advise=lambda *_: None)
    batches = [np.arange(5 * i, 5 * i + 5) for i in range(10)]
    ahead, got = [], []
    for ids in reader.ahead_of(iter(batches), horizon=20):
        got.append(ids.tolist())
        ahead.append(len(wanted) - len(got))
    assert got == wanted == [ids.tolist() for ids in batches]
    assert ahead[0] == 1  # the first batch does not wait for the requests of all others
    assert max(ahead) == 4  # a horizon of 20 samples
    assert sorted(ahead[:5]) == ahead[:5]
    assert ahead[-1] == 0
    wanted.clear()
    assert [ids.tolist() for ids in reader.ahead_of(iter(batches), horizon=0)] == wanted


def test_batches_of_a_group_are_requested_before_its_first_batch(
    packed: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted: list[int] = []
    monkeypatch.setattr(ReadAhead, "request", lambda _, ids: wanted.append(len(ids)))
    reader = ReadAhead(open_dataset(packed), advise=lambda *_: None)
    ahead = [
        len(wanted) - number
        for number, _ in enumerate(
            reader.ahead_of((np.arange(5) for _ in range(40)), 20, lambda size: 15 // size)
        )
    ]
    assert max(ahead) == 4 + 3 + 1  # the horizon, a group of three, and the batch itself


def test_python_requests_have_a_size_that_the_kernel_does_not_reduce(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    calls: list[tuple[int, int, int, int]] = []
    monkeypatch.setattr(os, "posix_fadvise", lambda *call: calls.append(call))
    module._read_ahead_in_python(np.array([[5, 7 * mmap.PAGESIZE + 100, 3 * PIECE]]))
    assert {(call[0], call[3]) for call in calls} == {(5, os.POSIX_FADV_WILLNEED)}
    assert calls[0][1] == 7 * mmap.PAGESIZE
    assert all(one[1] + one[2] == other[1] for one, other in itertools.pairwise(calls))
    assert sum(length for _, _, length, _ in calls) == 3 * PIECE + 100
    assert max(length for _, _, length, _ in calls) == PIECE


@pytest.mark.parametrize("ask", [read_ahead, module._read_ahead_in_python])
def test_the_real_call_accepts_a_file_and_fails_for_a_closed_one(
    packed: Path, ask: module.Advise
) -> None:
    dataset = open_dataset(packed)
    ask(record_runs(dataset, np.arange(N)))
    with pytest.raises((OSError, RuntimeError), match="Bad file descriptor"):
        ask(np.array([[1 << 20, 0, 10]]))


@pytest.mark.skipif(core() is None, reason="the native core is not here")
def test_opening_a_shard_requests_its_tree(tmp_path: Path) -> None:
    with ShardWriter(tmp_path, shard_name(0), base=0) as out:
        for i in range(2000):
            out.add(i, bytes(5000))
        shard = out.publish()
    path = evicted(tmp_path / shard.name)
    opened = ShardReader(tmp_path, shard).file()
    n_leaves = -(-2000 // ((4096 - 16) // (24 + 2)))
    assert wait_until(lambda: all(pages_here(path)[-n_leaves - 2 :]))  # leaves, root, stamp
    assert sum(pages_here(path)) < n_leaves + 40
    assert opened.entries == 2000


@pytest.mark.parametrize("error", [OSError(12, "no"), RuntimeError("no"), CorruptShard("damaged")])
def test_read_ahead_errors_do_not_stop_loading(
    packed: Path, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    tried: list[int] = []

    def fail(runs: Runs) -> None:
        tried.append(len(runs))
        raise error

    monkeypatch.setattr(module, "read_ahead", fail)
    loader = DataLoader(packed, 6, shuffle=True, fields=("label", "id"))

    def keeps_requesting() -> bool:
        assert sorted(i for batch in loader for i in batch["id"].tolist()) == list(range(N))
        return len(tried) > 2  # an epoch may end before its thread has requested anything

    assert wait_until(keeps_requesting)


def test_the_loader_requests_blocks_if_it_shuffles_blocks_else_records(
    packed: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    modes: list[Any] = []
    original = Advisor.__init__

    def noted(self: Advisor, dataset: Dataset, **options: Any) -> None:
        modes.append(options["blocks"])
        original(self, dataset, **options)

    monkeypatch.setattr(Advisor, "__init__", noted)
    for options in (
        {"shuffle": True},
        {"shuffle": "full"},
        {"shuffle": False},
        {"sampler": [1, 2]},
    ):
        list(DataLoader(packed, 8, fields=("id",), **options))
    blocks = open_dataset(packed).blocks
    assert modes == [((range(N), round(N / len(blocks))),), (), (), ()]


def test_a_new_loader_opens_no_shard(packed: Path) -> None:
    """The manifest has the properties of the fields."""
    loader = DataLoader(packed, 4)
    assert not loader.packed._readers
    next(iter(loader))
    assert loader.packed._readers


def test_a_slow_disk_does_not_block_the_loader(packed: Path) -> None:
    """A request waits for the disk, so further requests are dropped."""
    import threading

    go_on = threading.Event()

    def advise(runs: Runs) -> None:
        go_on.wait(300)

    reader = ReadAhead(open_dataset(packed), advise=advise)

    def batches() -> Iterator[np.ndarray[tuple[int], np.dtype[np.int64]]]:
        for number in range(500):
            yield np.array([number % N])

    assert sum(1 for _ in reader.ahead_of(batches(), horizon=100)) == 500
    go_on.set()
