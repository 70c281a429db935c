"""Shards are published in order, one at a time, during packing. A failure ends the pack."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest

import fastload
from fastload._pack.options import PackOptions
from fastload._pack.samples import EncodedSample
from fastload._pack.shard import PartBuilder, as_record
from fastload._pack.state import Done, PackState
from fastload._store.fields import Field
from fastload._store.manifest import Shard
from fastload._store.writer import ShardWriter, shard_name
from fastload.errors import StoreError
from tests.packing import IMAGE, LABEL, SMALL_SHARDS, Listed, pack, samples

FIELDS = (IMAGE, LABEL, Field("blob", "bytes"))


def source(n: int = 160) -> Listed:
    return Listed(samples(n, size=8, extra_bytes=25_000), FIELDS)


def test_packing_continues_while_a_shard_is_published(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    publish = PartBuilder.publish
    packed_more = threading.Event()
    order: list[int] = []

    def slow(self: PartBuilder, state: PackState) -> Done:
        if self.number == 0:
            assert packed_more.wait(300), "nothing was packed meanwhile"
        order.append(self.number)
        return publish(self, state)

    def observe(progress: Any) -> None:
        if progress.stage == "packing" and progress.done > first:
            packed_more.set()

    first = pack(source(), tmp_path / "plain", order="source", **SMALL_SHARDS).n_samples // 3
    monkeypatch.setattr(PartBuilder, "publish", slow)
    result = pack(source(), tmp_path / "slow", order="source", on_progress=observe, **SMALL_SHARDS)
    assert result.n_shards > 2
    assert order == list(range(result.n_shards))
    same = ["manifest.json", *(f"shard-{number:05}.lmdb" for number in range(result.n_shards))]
    assert all(
        (tmp_path / "plain" / name).read_bytes() == (tmp_path / "slow" / name).read_bytes()
        for name in same
    )


@pytest.mark.parametrize("failing", [0, 1])
def test_failed_publish_stops_the_pack_and_the_next_run_resumes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failing: int
) -> None:
    publish = ShardWriter.publish

    def fails(self: ShardWriter, first: int = 0) -> Shard:
        if self.name == shard_name(failing):
            raise StoreError("no room")
        assert self.name < shard_name(failing), "a shard after the failed one was published"
        return publish(self, first)

    with monkeypatch.context() as patch:
        patch.setattr(ShardWriter, "publish", fails)
        with pytest.raises(StoreError, match="no room"):
            pack(source(), tmp_path / "packed", **SMALL_SHARDS)
    assert not [
        thread.name for thread in threading.enumerate() if thread.name.startswith("fastload-pack")
    ]
    assert sorted(path.name for path in (tmp_path / "packed").glob("shard-*")) == [
        f"shard-{number:05}.lmdb" for number in range(failing)
    ]
    result = pack(source(), tmp_path / "packed", **SMALL_SHARDS)
    assert result.n_samples == 160
    assert result.resumed_at >= 160 // result.n_shards * (failing + 1), "its samples are kept"
    assert len(fastload.open(tmp_path / "packed")) == 160


def test_a_part_is_written_then_published_or_aborted(tmp_path: Path) -> None:
    encoded = EncodedSample([], "a.jpg", bytes_in=5)

    def builder(number: int) -> PartBuilder:
        return PartBuilder(
            tmp_path, number, range(10 * number, 10 * number + 10), (LABEL,), PackOptions()
        )

    with PackState(tmp_path) as state:
        part = builder(3)
        assert part.next_key == 30
        part.add(0, encoded, as_record(30, []))
        assert not (tmp_path / "shard-00003.lmdb").exists(), "the name appears when it is complete"
        done = part.publish(state)
        assert [(shard.name, shard.base, shard.records) for shard in done.shards] == [
            ("shard-00003.lmdb", 30, 1)
        ]
        stored = state.finished(3, range(30, 40))
        assert stored is not None
        assert stored.summary() == done
        assert state.finished(3, range(30, 41)) is None, "a part of another layout"
        part.abort()
        assert (tmp_path / "shard-00003.lmdb").exists()
        other = builder(1)
        other.add(1, encoded, as_record(10, []))
        other.abort()
        other.abort()
        empty = builder(2)
        assert empty.publish(state).shards == []
        assert state.finished(2, range(20, 30)) is not None
    assert sorted(path.name for path in tmp_path.iterdir()) == [".pack", "shard-00003.lmdb"]
