"""T11: shards replaced, truncated or removed during loading never lead to wrong pixels."""

from __future__ import annotations

import os
import shutil
import threading
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fastload import transforms as T
from fastload._load.loader import DataLoader
from fastload.errors import CorruptShard, FastloadError
from tests.fault.trials import LONG
from tests.loading import backends, digest

OPTIONS: dict[str, Any] = {
    "shuffle": True,
    "transform": [T.RandomResizedCrop(16)],
    "fields": ("image", "label", "id"),
    "num_workers": 2,
}


@pytest.fixture(scope="module")
def two(pack_once: Callable[..., Path]) -> tuple[Path, Path]:
    """Two datasets of the same shape in another order, with several shards each."""
    first = pack_once(60, size=(400, 300))
    assert len(list(first.glob("*.lmdb"))) >= 3
    return first, pack_once(60, size=(400, 300), seed=6)


@pytest.fixture
def copied(two: tuple[Path, Path], tmp_path: Path) -> Path:
    return Path(shutil.copytree(two[0], tmp_path / "packed"))


def swap(path: Path, content: bytes) -> None:
    """Replaces a file by rename, like rsync."""
    temporary = path.with_suffix(".new")
    temporary.write_bytes(content)
    temporary.rename(path)


@pytest.mark.parametrize("backend", backends())
def test_shards_that_are_swapped_continuously(
    two: tuple[Path, Path], copied: Path, backend: str
) -> None:
    """Swaps the same file, one of another dataset and a damaged one while loaders are in use."""
    expected = {digest(batch) for batch in DataLoader(two[0], 4, backend=backend, **OPTIONS)}
    over, swaps, seen = threading.Event(), Counter[str](), Counter[str]()

    def swapper() -> None:
        while not over.is_set():
            for path in sorted(copied.glob("*.lmdb")):
                good = (two[0] / path.name).read_bytes()
                other = two[1] / path.name
                for content in (
                    good,
                    other.read_bytes() if other.exists() else good,
                    good[:-4096],
                    good,
                ):
                    swap(path, content)
                    swaps["all"] += 1

    thread = threading.Thread(target=swapper)
    thread.start()
    try:
        while swaps["all"] < (3000 if LONG else 100) or not (seen["right"] and seen["named"]):
            try:
                for batch in DataLoader(copied, 4, backend=backend, **OPTIONS):
                    seen["right" if digest(batch) in expected else "wrong"] += 1
            except FastloadError as error:
                seen["named" if "shard-0" in str(error) else f"unnamed: {error}"] += 1
    finally:
        over.set()
        thread.join()
    print(swaps, seen)
    assert seen.keys() == {"right", "named"}


@pytest.mark.parametrize("backend", backends())
def test_a_running_epoch_continues_with_its_open_files(
    two: tuple[Path, Path], copied: Path, backend: str
) -> None:
    expected = [digest(batch) for batch in DataLoader(two[0], 4, backend=backend, **OPTIONS)]
    loader = DataLoader(copied, 4, backend=backend, **OPTIONS)
    list(loader)  # all shards are open
    loader.set_epoch(0)
    got = []
    for number, batch in enumerate(loader):
        if number == 2:
            shutil.rmtree(copied)
        got.append(digest(batch))
    assert got == expected


@pytest.mark.parametrize("how", ["cut", "gone", "foreign"])
def test_a_shard_that_changed_before_it_was_opened_is_named(
    two: tuple[Path, Path], copied: Path, how: str
) -> None:
    loader = DataLoader(copied, 4, **{**OPTIONS, "shuffle": False, "prefetch_factor": 1})
    path = copied / loader.packed.manifest.shards[-1].name
    loader.packed._files[-1] = (
        None  # the dataset is small, so the constructor has scanned all its shards
    )
    loader.packed._readers.clear()
    if how == "cut":
        os.truncate(path, path.stat().st_size - 4096)
    elif how == "gone":
        path.unlink()
    else:
        swap(
            path,
            (two[0] / loader.packed.manifest.shards[0].name)
            .read_bytes()
            .ljust(path.stat().st_size, b"\0")[: path.stat().st_size],
        )
    good = bad = 0
    iterator = iter(loader)
    while True:
        try:
            next(iterator)
            good += 1
        except StopIteration:
            break
        except CorruptShard as error:
            bad += path.name in str(error)
    assert bad
    assert good
    assert good + bad == len(loader)


@pytest.mark.parametrize("left", [0, 4096, 20_000])
def test_a_shard_truncated_in_place_fails_its_own_samples(copied: Path, left: int) -> None:
    loader = DataLoader(copied, 4, **OPTIONS)
    expected = [digest(batch) for batch in loader]  # all shards are open
    last = loader.packed.manifest.shards[-1]
    loader.set_epoch(0)
    iterator = iter(loader)
    os.truncate(copied / last.name, left)
    good = bad = 0
    while True:
        try:
            good += digest(next(iterator)) in expected
        except StopIteration:
            break
        except CorruptShard as error:
            bad += last.name in str(error)
    assert bad
    assert good + bad == len(loader)


def test_swaps_are_visible_without_checks(
    two: tuple[Path, Path], copied: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Control: a reader that does not compare stamp and size delivers pixels of another dataset."""
    from fastload._common import files
    from fastload._store import shard

    expected = {digest(batch) for batch in DataLoader(two[0], 4, **OPTIONS)}
    for path in copied.glob("*.lmdb"):
        if (two[1] / path.name).exists():
            swap(path, (two[1] / path.name).read_bytes())
    monkeypatch.setattr(shard, "open_checked", lambda path, shard: files.open_regular(path)[0])
    monkeypatch.setattr("fastload._store.dataset.check_sizes", lambda folder, found: None)
    wrong = 0
    iterator = iter(DataLoader(copied, 4, **OPTIONS))
    while True:
        try:
            wrong += digest(next(iterator)) not in expected
        except StopIteration:
            break
        except FastloadError:
            continue
    assert wrong
