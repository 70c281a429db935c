"""Shards are published in order, one at a time, during packing. A failure ends the pack."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest

import fastload
from fastload._pack.options import PackOptions
from fastload._pack.samples import EncodedSample
from fastload._pack.shard import ShardBuilder, ShardStage, as_record
from fastload._pack.state import Done, PackState
from fastload._store.fields import Field
from fastload.errors import StoreError
from tests.packing import IMAGE, LABEL, SMALL_SHARDS, Listed, pack, samples

FIELDS = (IMAGE, LABEL, Field("blob", "bytes"))


def source(n: int = 160) -> Listed:
    return Listed(samples(n, size=8, extra_bytes=25_000), FIELDS)


def test_packing_continues_while_a_shard_is_published(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    publish = ShardBuilder.publish
    packed_more = threading.Event()
    order: list[int] = []

    def slow(self: ShardBuilder, state: PackState, next_position: int) -> Done:
        if self.number == 0:
            assert packed_more.wait(20), "nothing was packed meanwhile"
        order.append(self.number)
        return publish(self, state, next_position)

    def observe(progress: Any) -> None:
        if progress.stage == "packing" and progress.done > first:
            packed_more.set()

    first = pack(source(), tmp_path / "plain", order="source", **SMALL_SHARDS).n_samples // 3
    monkeypatch.setattr(ShardBuilder, "publish", slow)
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
    publish = ShardBuilder.publish

    def fails(self: ShardBuilder, state: PackState, next_position: int) -> Done:
        if self.number == failing:
            raise StoreError("no room")
        assert self.number < failing, "a shard after the failed one was published"
        return publish(self, state, next_position)

    with monkeypatch.context() as patch:
        patch.setattr(ShardBuilder, "publish", fails)
        with pytest.raises(StoreError, match="no room"):
            pack(source(), tmp_path / "packed", **SMALL_SHARDS)
    assert not [
        thread.name for thread in threading.enumerate() if thread.name.startswith("fastload-pack")
    ]
    assert sorted(path.name for path in (tmp_path / "packed").glob("shard-*")) == [
        f"shard-{number:05}.lmdb" for number in range(failing)
    ]
    result = pack(source(), tmp_path / "packed", **SMALL_SHARDS)
    assert (result.n_samples, result.resumed_at > 0) == (160, failing > 0)
    assert len(fastload.open(tmp_path / "packed")) == 160


def assert_stage(shard: ShardBuilder, expected: ShardStage) -> None:
    assert shard.stage is expected


def test_a_shard_is_written_then_published_or_aborted(tmp_path: Path) -> None:
    encoded = EncodedSample([], "a.jpg", bytes_in=5)
    shard = ShardBuilder(tmp_path, 0, 0, (LABEL,), PackOptions())
    assert_stage(shard, ShardStage.EMPTY)
    assert not list(tmp_path.iterdir()), "the file appears with the first record"
    with PackState(tmp_path) as state:
        with pytest.raises(RuntimeError, match="shard 0 is empty, expected writing"):
            shard.publish(state, 0)
        shard.add(0, encoded, as_record(0, []))
        assert_stage(shard, ShardStage.WRITING)
        done = shard.publish(state, 1)
        assert_stage(shard, ShardStage.PUBLISHED)
        assert (done.shard.records, state.done(0).shard) == (1, done.shard)
        shard.abort()
        assert_stage(shard, ShardStage.PUBLISHED)
        assert (tmp_path / "shard-00000.lmdb").exists()
        for call in (lambda: shard.add(1, encoded, b"x"), lambda: shard.publish(state, 1)):
            with pytest.raises(RuntimeError, match="shard 0 is published, expected writing"):
                call()
        other = ShardBuilder(tmp_path, 1, 1, (LABEL,), PackOptions())
        other.add(1, encoded, as_record(1, []))
        other.abort()
        other.abort()
        assert_stage(other, ShardStage.ABORTED)
        with pytest.raises(RuntimeError, match="shard 1 is aborted, expected writing"):
            other.add(2, encoded, as_record(2, []))
    assert sorted(path.name for path in tmp_path.iterdir()) == [".pack", "shard-00000.lmdb"]
