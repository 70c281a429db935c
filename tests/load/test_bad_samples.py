"""Bad images are named, counted and limited; other samples and other ranks are not affected."""

from __future__ import annotations

import contextlib
import copy
import gc
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fastload import transforms as T
from fastload._decode.backend import DecodeResult, Status
from fastload._decode.native import NativeBackend, NativeTicket
from fastload._load.loader import DataLoader
from fastload._store.fields import Field
from fastload.errors import BadImage, CorruptShard, FastloadError
from tests.loading import backends, needs_core, our_threads, pack_photos, same_batch, wait_until
from tests.packed_datasets import encoded, flip, pack_samples, photo, shard_of, spoil_image

N, BAD = 24, (3, 10, 17)


@pytest.fixture(scope="module")
def spoiled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    packed = pack_photos(tmp_path_factory.mktemp("spoiled") / "packed", N)
    for sample_id in BAD:
        spoil_image(packed, sample_id)
    return packed


def load(path: Path, **options: Any) -> DataLoader:
    return DataLoader(
        path,
        **{
            "batch_size": 4,
            "shuffle": True,
            "fields": ("image", "id"),
            "transform": [T.Resize(16, 16)],
            **options,
        },
    )


@pytest.mark.parametrize("backend", backends())
def test_raise_names_sample_shard_and_file_and_the_next_batch_follows(
    spoiled: Path, backend: str
) -> None:
    batches, failed, seen = iter(load(spoiled, backend=backend)), [], []
    while True:
        try:
            seen += next(batches)["id"].tolist()
        except StopIteration:
            break
        except FastloadError as error:
            failed.append(error)
    assert failed
    assert len(seen) == N - 4 * len(failed)
    for named in failed:
        assert isinstance(named, BadImage)
        assert named.image_id in BAD
        assert shard_of(spoiled, named.image_id).name in str(named)
        assert "samples/" in str(named)  # the original file


def test_a_pass_with_an_error_is_freed_without_the_garbage_collector(spoiled: Path) -> None:
    loader, before = load(spoiled), set(threading.enumerate())
    gc.collect()
    gc.disable()
    try:
        for _ in range(5):
            with contextlib.suppress(BadImage):
                for _batch in loader:
                    pass
        assert wait_until(lambda: not our_threads(before))
    finally:
        gc.enable()


def test_stored_errors_do_not_keep_batches_alive(spoiled: Path) -> None:
    loader, kept = load(spoiled, batch_size=2, prefetch_factor=2), list[BadImage]()
    for _ in range(10):
        batches = iter(loader)
        for _ in range(len(loader)):
            try:
                next(batches)
            except BadImage as error:
                kept.append(error)
    assert len(kept) >= 10  # at least one per epoch; two may be in one batch
    assert loader.stats().buffer_bytes <= (2 + 3) * (2 * 3 * 16 * 16 + 64)


@pytest.mark.parametrize("backend", backends())
def test_substitute_keeps_the_batch_size_and_lists_the_errors(spoiled: Path, backend: str) -> None:
    loader = load(spoiled, on_error="substitute", backend=backend)
    ids = [i for batch in loader for i in batch["id"].tolist()]
    assert len(ids) == N
    assert set(ids) == set(range(N)) - set(BAD)
    assert loader.stats().bad == len(BAD)
    assert {error.image_id for error in loader.errors if isinstance(error, BadImage)} == set(BAD)


@pytest.mark.parametrize("ragged", ["list", "pad"])
def test_a_substitute_shares_no_memory_with_the_original_sample(
    tmp_path: Path, ragged: str
) -> None:
    fields = (
        Field("image", "image"),
        Field("meta", "json"),
        Field("points", "points"),
        Field("feature", "array"),
        Field("words", "str", list=True),
    )
    samples = [
        {
            "image": encoded(photo(32, 24, seed=i)),
            "meta": {"seen": [i]},
            "points": [[i, 1.0]] * (1 + i % 2),
            "feature": np.full(3, i),
            "words": [str(i)],
        }
        for i in range(4)
    ]
    packed = pack_samples(tmp_path / "packed", fields, samples)
    spoil_image(packed, 2)
    (batch,) = DataLoader(
        packed,
        4,
        transform=[T.Resize(16, 16)],
        on_error="substitute",
        ragged=ragged,
        fields=("image", "meta", "points", "feature", "words", "id"),
    )
    ids = batch["id"].tolist()
    source, place = [at for at, i in enumerate(ids) if ids.count(i) == 2]
    before = {name: copy.deepcopy(batch[name][place]) for name in batch}
    batch["meta"][source]["seen"].append("again")
    batch["words"][source][0] = "changed"
    for name in ("image", "points", "feature"):
        batch[name][source] += 1
    for name, value in before.items():
        assert same_batch(batch[name][place], value), name


def test_out_of_memory_is_not_a_bad_sample(spoiled: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A substitute would change the training on a machine with little memory."""
    needs_core()
    collect = NativeBackend.collect

    def short(self: NativeBackend, ticket: NativeTicket) -> DecodeResult:
        result = collect(self, ticket)
        return replace(
            result,
            status=np.array([0, Status.NO_MEMORY, 0, 0], np.uint8),
            reasons={1: "Insufficient memory"},
        )

    monkeypatch.setattr(NativeBackend, "collect", short)
    loader = load(spoiled, on_error="substitute", backend="native")
    with pytest.raises(MemoryError, match=r"decoding sample \d+: Insufficient memory"):
        next(iter(loader))
    assert loader.stats().bad == 0
    monkeypatch.undo()
    assert len(list(loader)) == N // 4


def test_every_rank_gets_the_same_number_of_samples(spoiled: Path) -> None:
    ranks = [
        [
            batch["id"].tolist()
            for batch in load(spoiled, on_error="substitute", rank=rank, world_size=2)
        ]
        for rank in range(2)
    ]
    assert [[len(batch) for batch in rank] for rank in ranks] == [[4, 4, 4], [4, 4, 4]]


@pytest.mark.parametrize("max_bad", [2, 3])
def test_max_bad_limits_the_number_of_different_bad_samples(spoiled: Path, max_bad: int) -> None:
    loader = load(spoiled, on_error="substitute", max_bad=max_bad)
    if max_bad < len(BAD):
        with pytest.raises(BadImage, match=f"3 bad samples, more than max_bad={max_bad}"):
            list(loader)
    else:
        assert (
            len(list(loader)) == len(list(loader)) == N // 4
        )  # the same samples in the next epoch do not count again


def test_a_batch_without_a_good_sample_is_replaced(spoiled: Path) -> None:
    batches = load(
        spoiled,
        shuffle=None,
        batch_sampler=[list(BAD), [0, 1]],
        batch_size=1,
        on_error="substitute",
    )
    first, second = (batch["id"].tolist() for batch in batches)
    assert len(first) == len(BAD)
    assert not set(first) & set(BAD)
    assert second == [0, 1]


@pytest.mark.parametrize("on_error", ["raise", "substitute"])
def test_corrupt_bytes_are_never_delivered_as_pixels(tmp_path: Path, on_error: str) -> None:
    packed = pack_photos(tmp_path / "packed", 8)
    shard = packed / shard_of(packed, 0).name
    data = shard.read_bytes()
    flip(shard, data.index(b"\xff\xda") + 40)  # in the pixels of the first JPEG
    loader = load(packed, on_error=on_error, shuffle=False)
    if on_error == "raise":
        with pytest.raises(CorruptShard, match="sample"):
            list(loader)
    else:
        assert sum(len(batch["id"]) for batch in loader) == 8
        assert loader.stats().bad == 1
        assert isinstance(loader.errors[0], CorruptShard)
