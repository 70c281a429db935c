"""Streams are encoded once, spooled, and then shuffled like any other source."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fastload._pack.sources.base import Sample
from fastload._store.dataset import open_dataset
from fastload._store.fields import Field
from fastload.errors import BadImage, StoreError
from tests.open_files import open_files
from tests.packing import (
    CONVERTED_JPEG,
    IMAGE,
    LABEL,
    SMALL_SHARDS,
    Listed,
    Streamed,
    content,
    image_sample,
    log_of,
    pack,
    samples,
    tree,
)


class Stop(Exception):
    """Raised by a source or by the progress callback."""


class Once(Streamed):
    """Counts how often it was started and how many samples it yielded."""

    begun = given = 0

    def __iter__(self) -> Iterator[Sample | BadImage]:
        type(self).begun += 1
        for sample in self.samples:
            type(self).given += 1
            yield sample


@pytest.fixture(autouse=True)
def _fresh() -> None:
    Once.begun = Once.given = 0


def mixed() -> list[Any]:
    given: list[Any] = samples(60)
    given[4] = BadImage("cannot be read", source="tar!4")
    given[9] = image_sample(b"no image at all", "tar!9")
    given[20] = image_sample(CONVERTED_JPEG, "tar!20")
    return given


@pytest.mark.parametrize("order", ["shuffle", "source"])
def test_stream_and_list_give_the_same_dataset(tmp_path: Path, order: str) -> None:
    for name, source in (("stream", Once(mixed())), ("list", Listed(mixed()))):
        result = pack(source, tmp_path / name, order=order, on_error="skip", seed=8)
        assert (result.n_samples, result.skipped, result.converted) == (
            58,
            2,
            {"CMYK JPEG → RGB": 1},
        )
    assert Once.begun == 1
    assert content(tmp_path / "stream") == content(tmp_path / "list")
    assert log_of(tmp_path / "stream") == log_of(tmp_path / "list")
    assert {line["source"] for line in log_of(tmp_path / "stream")} == {"tar!4", "tar!9", "tar!20"}
    streamed, listed = (
        open_dataset(tmp_path / name).column("_source_index").tolist()
        for name in ("stream", "list")
    )
    assert streamed == listed
    assert result.bytes_in > 0


def test_pack_stopped_during_spooling_restarts_the_stream(tmp_path: Path) -> None:
    def broken() -> Iterator[Any]:
        yield from mixed()[:30]
        raise Stop

    with pytest.raises(Stop):
        pack(Once(broken()), tmp_path / "packed", on_error="skip")
    assert not list(tmp_path.rglob("*.tmp*"))
    result = pack(Once(mixed()), tmp_path / "packed", on_error="skip")
    assert (result.n_samples, result.resumed_at, Once.begun, Once.given) == (58, 0, 2, 30 + 60)
    pack(Once(mixed()), tmp_path / "whole", on_error="skip")
    assert tree(tmp_path / "packed") == tree(tmp_path / "whole")


def test_a_pack_stopped_after_spooling_does_not_read_the_stream_again(tmp_path: Path) -> None:
    def stop(progress: Any) -> None:
        if progress.stage == "packing" and progress.done == 20:
            raise Stop

    with pytest.raises(Stop):
        pack(Once(mixed()), tmp_path / "packed", on_error="skip", on_progress=stop)
    assert pack(Once(mixed()), tmp_path / "packed", on_error="skip").n_samples == 58
    assert Once.begun == 1
    pack(Once(mixed()), tmp_path / "whole", on_error="skip")
    assert tree(tmp_path / "packed") == tree(tmp_path / "whole")


def test_bad_sample_stops_at_its_position_and_resumes_with_skip(tmp_path: Path) -> None:
    with pytest.raises(BadImage, match="tar!"):
        pack(Once(mixed()), tmp_path / "packed")
    assert pack(Once(mixed()), tmp_path / "packed", on_error="skip").skipped == 2
    assert Once.begun == 1


def test_no_file_stays_open(tmp_path: Path) -> None:
    """A deleted spool that is still open keeps its disk space, as much as the dataset."""
    pack(Once(mixed()), tmp_path / "good", on_error="skip")
    with pytest.raises(BadImage):
        pack(Once(mixed()), tmp_path / "bad")
    assert not [name for name in open_files() if ".pack" in name]


def test_spool_of_another_stream_is_refused(tmp_path: Path) -> None:
    for name in ("a", "b"):
        with pytest.raises(BadImage):
            pack(Once(mixed() if name == "a" else [*mixed()[30:], *mixed()[:30]]), tmp_path / name)
    (tmp_path / "a" / ".pack" / "spool.records").write_bytes(
        (tmp_path / "b" / ".pack" / "spool.records").read_bytes()
    )
    with pytest.raises(StoreError, match=r"spool\.records is damaged \(sample \d+: "):
        pack(Once(mixed()), tmp_path / "a", on_error="skip")


def test_empty_stream_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="the streamed source has no samples"):
        pack(Once([]), tmp_path / "packed")
    assert not (tmp_path / "packed").exists()


def test_stream_is_spooled_in_bounded_memory(tmp_path: Path) -> None:
    """The number of samples in flight is bounded by the threads."""
    most = 0

    def watched() -> Iterator[Any]:
        nonlocal most
        for i, sample in enumerate(samples(100, size=8, extra_bytes=50_000)):
            yield sample
            spooled = next((tmp_path / "packed" / ".pack").glob("spool.records*"))
            most = max(most, i + 1 - spooled.stat().st_size // 50_000)

    pack(
        Once(watched(), (IMAGE, LABEL, Field("blob", "bytes"))),
        tmp_path / "packed",
        jobs=2,
        **SMALL_SHARDS,
    )
    assert 0 < most <= 2 * 2 + 3
