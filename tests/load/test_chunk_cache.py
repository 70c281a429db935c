"""Small records are read through a cache of chunks: the same batches, bounded memory."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fastload._common.native import core
from fastload._load import chunk_cache
from fastload._load.chunk_cache import CHUNK, RecordCache
from fastload._load.loader import DataLoader
from fastload._load.records import read_records
from fastload._store.dataset import Dataset, open_dataset
from fastload.errors import CorruptShard
from tests.loading import LABELED, pack_photos
from tests.packed_datasets import encoded, pack_samples, photo

pytestmark = pytest.mark.skipif(core() is None, reason="not run: no native core")

N = 4000  # records of 1 kB: more than the smallest cache holds
WINDOW = 4
BLOCK = 64 << 10
LIMIT = 11 << 18  # less than the dataset


def pack_tiny(dest: Path, *, count: int = N, **options: Any) -> Path:
    images = [photo(28, 28, seed=i, gray=True, noise=12) for i in range(500)]
    samples = [{"image": encoded(images[i % 500]), "label": i % 3} for i in range(count)]
    packing = {"order": "shuffle", "block_size": BLOCK, "shard_size": 1 << 20, "encode": "raw"}
    return pack_samples(dest, LABELED, samples, **{**packing, **options})


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return pack_tiny(tmp_path_factory.mktemp("tiny") / "packed")


@pytest.fixture(scope="module")
def stored_order(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return pack_tiny(tmp_path_factory.mktemp("stored") / "packed", order="source")


@pytest.fixture
def small_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    """The dataset does not fit, so that chunks are replaced."""
    monkeypatch.setattr(chunk_cache, "MAX_BYTES", LIMIT)
    monkeypatch.setattr(chunk_cache, "_SEQUENTIAL", 1 << 20)


def loader_of(dataset: Any, **options: Any) -> DataLoader:
    fields = ("image", "label", "id")
    usual = {"window": WINDOW} if options.get("sampler") is None else {}
    return DataLoader(dataset, 64, fields=fields, num_workers=2, **{**usual, **options})


def cache_of(loader: DataLoader) -> RecordCache:
    return loader.pipeline.planner.cache


def without_cache(loader: DataLoader) -> DataLoader:
    cache_of(loader).chunks = None
    return loader


def batches_of(loader: DataLoader) -> list[tuple[bytes, ...]]:
    return [
        tuple(batch[name].numpy().tobytes() for name in ("id", "image", "label"))
        for batch in loader
    ]


def put(path: Path, position: int, data: bytes) -> None:
    descriptor = os.open(path, os.O_WRONLY)
    os.pwrite(descriptor, data, position)
    os.close(descriptor)


@pytest.mark.parametrize(
    "options",
    [
        {"shuffle": True},
        {"shuffle": True, "repeats": 3},
        {"shuffle": True, "rank": 1, "world_size": 2},
        {"shuffle": "full"},
        {"shuffle": False},
        {"sampler": range(5, 700, 3)},
    ],
    ids=str,
)
@pytest.mark.parametrize("fits", [True, False])
def test_batches_are_the_same_as_without_a_cache(
    tiny: Path, request: pytest.FixtureRequest, options: dict[str, Any], fits: bool
) -> None:
    if not fits:
        request.getfixturevalue("small_limit")
    loader = loader_of(tiny, **options)
    assert (cache_of(loader).chunks is not None) == (fits or options.get("shuffle") is True)
    expected = without_cache(loader_of(tiny, **options))
    for _ in range(2):
        assert batches_of(loader) == batches_of(expected)


def test_stored_order_needs_a_small_cache(stored_order: Path, small_limit: None) -> None:
    loader = loader_of(stored_order, shuffle=False)
    assert cache_of(loader).chunks is not None
    assert batches_of(loader) == batches_of(without_cache(loader_of(stored_order, shuffle=False)))


@pytest.mark.parametrize("weights", [None, [0.8, 0.2]])
def test_joined_datasets(
    tiny: Path, stored_order: Path, small_limit: None, weights: list[float] | None
) -> None:
    """With weights, the datasets would replace the chunks of each other."""
    options = {"shuffle": True, "weights": weights}
    loader = loader_of([tiny, stored_order], **options)
    assert (cache_of(loader).chunks is None) == (weights is not None)
    expected = without_cache(loader_of([tiny, stored_order], **options))
    assert batches_of(loader) == batches_of(expected)


def test_large_records_and_small_shares_have_no_cache(
    tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    large = pack_photos(tmp_path / "large", 8, size=(200, 150))
    assert cache_of(DataLoader(large, 4, shuffle=True)).chunks is None
    monkeypatch.setattr(chunk_cache, "MAX_BYTES", LIMIT)
    of_rank = {"shuffle": True, "rank": 0}
    assert cache_of(loader_of(tiny, world_size=4, **of_rank)).chunks is not None
    assert cache_of(loader_of(tiny, world_size=80, **of_rank)).chunks is None
    assert cache_of(loader_of(tiny, shuffle=True, window=40)).chunks is None  # above MAX_BYTES


def test_a_window_is_read_once(tiny: Path, small_limit: None) -> None:
    """The bytes that the process reads are those of the shards, with the shared ends of blocks."""
    loader = loader_of(tiny, shuffle=True)
    size = sum(shard.size for shard in loader.packed.manifest.shards)
    batches_of(loader)
    before = bytes_read()
    batches_of(loader)
    n_blocks = len(loader.packed.blocks)
    assert bytes_read() - before < size + 2 * CHUNK * n_blocks + (1 << 20)


def bytes_read() -> int:
    return int(Path("/proc/self/io").read_text().split()[1])


def test_memory_is_bounded(tiny: Path, small_limit: None) -> None:
    """In a process of its own: the memory of earlier tests must not count."""
    code = f"""
import numpy as np
from pathlib import Path
from fastload._common.native import core
from fastload._load.records import read_records
from fastload._store.dataset import open_dataset

def anonymous():
    return int(Path("/proc/self/status").read_text().split("RssAnon:")[1].split()[0]) * 1024

dataset = open_dataset({str(tiny)!r})
ids = np.arange(len(dataset))
read_records(dataset, ids[:64], check_crc=True)
cache = core().ChunkCache(2 << 20)
assert cache.capacity == 2 << 20
before = anonymous()
for start in range(0, len(ids), 64):
    read_records(dataset, ids[start : start + 64], check_crc=True, cache=cache)
grown = anonymous() - before
assert (1 << 20) < grown <= (2 << 20) + (1 << 20), grown
"""
    subprocess.run([sys.executable, "-c", code], check=True)


def filled(dataset: Dataset) -> Any:
    cache = core().ChunkCache(8 << 20)  # type: ignore[union-attr]
    read_records(dataset, np.arange(len(dataset)), check_crc=True, cache=cache)
    return cache


def values(dataset: Dataset, ids: Any, cache: Any = None) -> list[bytes]:
    records = read_records(dataset, np.asarray(ids), check_crc=True, cache=cache)
    assert not records.faults
    return [bytes(view) for view in records.views]


@pytest.fixture
def copied(tiny: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(tiny, tmp_path / "copied"))


def test_a_truncated_shard_is_an_error_of_the_missing_records(copied: Path) -> None:
    dataset = open_dataset(copied)
    ids = np.arange(200)
    expected = values(dataset, ids)
    shard = copied / dataset.reader(0).shard.name
    last, size = dataset.reader(0).find(100)
    os.truncate(shard, last + size)
    cache = core().ChunkCache(8 << 20)  # type: ignore[union-attr]
    found = read_records(dataset, ids, check_crc=True, cache=cache)
    direct = read_records(dataset, ids, check_crc=True)
    assert {i: str(error) for i, error in found.faults.items()} == {
        i: str(error) for i, error in direct.faults.items()
    }
    assert 90 < min(found.faults) <= 104  # a page with several records may be incomplete
    assert "truncated" in str(found.faults[150])
    assert [bytes(found.views[i]) for i in range(90)] == expected[:90]


def test_damage_is_never_a_value(copied: Path) -> None:
    """Pages are zeroed while chunks are read; every record is correct or an error."""
    dataset = open_dataset(copied)
    ids = np.arange(1000)
    expected = values(dataset, ids)
    reader = dataset.reader(0)
    good = reader.path.read_bytes()
    places = np.random.default_rng(0).integers(2, len(good) // 4096 - 1, 400) * 4096
    over = threading.Event()

    def damage() -> None:
        while not over.is_set():
            for place in places.tolist():
                put(reader.path, place, bytes(4096))
                put(reader.path, place, good[place : place + 4096])

    thread = threading.Thread(target=damage)
    thread.start()
    try:
        n_faults = 0
        for _ in range(60):
            cache = core().ChunkCache(4 << 20)  # type: ignore[union-attr]
            found = read_records(dataset, ids, check_crc=True, cache=cache)
            n_faults += len(found.faults)
            for i in ids.tolist():
                assert i in found.faults or bytes(found.views[i]) == expected[i]
    finally:
        over.set()
        thread.join()


def test_a_damaged_record_is_named_and_substituted(copied: Path) -> None:
    dataset = open_dataset(copied)
    offset, size = dataset.reader(70).find(70)
    put(dataset.reader(70).path, offset + size - 8, b"damaged!")
    with pytest.raises(CorruptShard, match="reading sample 70: checksum"):
        batches_of(loader_of(copied, shuffle=True))
    loader = loader_of(copied, shuffle=True, on_error="substitute")
    assert cache_of(loader).chunks is not None
    ids = np.concatenate([batch["id"].numpy() for batch in loader])
    assert set(ids.tolist()) == set(range(N)) - {70}
    assert loader.stats().bad == 1


def test_a_repaired_file_is_read_again(copied: Path) -> None:
    dataset = open_dataset(copied)
    reader = dataset.reader(70)
    offset, _ = reader.find(70)
    good = reader.path.read_bytes()[offset : offset + 400]
    put(reader.path, offset + 300, bytes(100))
    loader = loader_of(copied, shuffle=True, on_error="substitute")
    assert 70 not in {i for batch in loader for i in batch["id"].tolist()}
    put(reader.path, offset, good)
    assert 70 in {i for batch in loader for i in batch["id"].tolist()}


def test_another_file_never_gets_the_chunks_of_a_closed_one(tiny: Path, copied: Path) -> None:
    cache = filled(open_dataset(tiny))
    for _ in range(3):  # files are often allocated at the address of a closed one
        dataset = open_dataset(copied)
        reader = dataset.reader(5)
        offset, size = reader.find(5)
        put(reader.path, offset + size - 8, b"damaged!")
        assert set(read_records(dataset, np.arange(50), check_crc=True, cache=cache).faults) == {5}
        del dataset, reader


@pytest.mark.parametrize("size", [900, 3000, 8000])
def test_records_of_any_small_size(tmp_path: Path, size: int) -> None:
    """Records above 2 kB have pages of their own, and some are in two chunks."""
    photos = [photo(8, 8, seed=i) + bytes(size - 600 + i % 7) for i in range(300)]
    samples = [{"image": encoded(data), "label": i % 3} for i, data in enumerate(photos)]
    packed = pack_samples(tmp_path / "packed", LABELED, samples, encode="copy")
    dataset = open_dataset(packed)
    assert abs(dataset.reader(0).find(0)[1] - size) < 400
    ids = np.random.default_rng(1).permutation(300)
    expected = values(dataset, ids)
    cache = core().ChunkCache(0)  # type: ignore[union-attr]
    for _ in range(2):
        assert values(dataset, ids, cache) == expected


def test_a_forked_child_uses_a_filled_cache(tiny: Path) -> None:
    dataset = open_dataset(tiny)
    cache = filled(dataset)
    expected = values(dataset, range(500))
    stop = threading.Event()

    def read() -> None:
        while not stop.is_set():
            read_records(dataset, np.arange(N), check_crc=True, cache=cache)

    thread = threading.Thread(target=read)  # forks happen while it changes the cache
    thread.start()
    try:
        for _ in range(20):
            pid = os.fork()
            if pid == 0:
                signal.alarm(60)  # a child that waits for a lock is killed
                same = all(values(dataset, range(500), cache) == expected for _ in range(2))
                os._exit(0 if same else 1)
            assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    finally:
        stop.set()
        thread.join()
    assert values(dataset, range(500), cache) == expected


def test_several_iterators_share_a_cache(tiny: Path, small_limit: None) -> None:
    loader = loader_of(tiny, shuffle=True)
    both = [iter(loader), iter(loader)]
    seen: list[list[int]] = [[], []]
    for _ in range(len(loader)):
        for number, iterator in enumerate(both):
            seen[number].extend(next(iterator)["id"].tolist())
    assert sorted(seen[0]) == sorted(seen[1]) == list(range(N))


def test_threads_share_a_cache(tiny: Path) -> None:
    dataset = open_dataset(tiny)
    cache = core().ChunkCache(2 << 20)  # type: ignore[union-attr]
    expected = values(dataset, range(N))
    wrong: list[int] = []

    def read(seed: int) -> None:
        for ids in np.random.default_rng(seed).integers(0, N, (50, 100)):
            found = values(dataset, ids, cache)
            wrong.extend(i for i, value in zip(ids, found, strict=True) if value != expected[i])

    threads = [threading.Thread(target=read, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
