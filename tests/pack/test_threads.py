"""ordered_map: order, bound, errors at their position, no thread left running."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Generator, Iterable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import pytest

from fastload._pack import preparation
from fastload._pack.jobs import ordered_map as ordered_chunks
from fastload._pack.layout import measured_rows
from fastload._pack.sources.base import Ref, Sample
from fastload.errors import BadImage
from tests.packing import Listed, pack, samples, tree

Result = TypeVar("Result")


def ordered_map(
    function: Callable[[int], Result], items: Iterable[int], **options: Any
) -> Generator[Result, None, None]:
    return ordered_chunks(lambda chunk: map(function, chunk), items, **options)


def running() -> list[str]:
    return [
        thread.name for thread in threading.enumerate() if thread.name.startswith("fastload-pack")
    ]


@pytest.mark.parametrize("jobs", [1, 2, 8])
def test_results_are_in_order_and_few_items_are_in_flight(jobs: int) -> None:
    taken = 0

    def items() -> Iterator[int]:
        nonlocal taken
        for i in range(200):
            taken += 1
            yield i

    gate = threading.Event()

    def slow_for_even(i: int) -> int:
        if i % 2 == 0 and i < 8:
            gate.wait(0.005)
        return i * i

    for count, result in enumerate(ordered_map(slow_for_even, items(), jobs=jobs)):
        assert result == count * count
        assert taken - count <= 2 * jobs + 2
    assert count == 199
    assert running() == []


def test_error_is_raised_at_its_position_and_ends_the_map() -> None:
    def fails_at_5(i: int) -> int:
        if i == 5:
            raise KeyError("five")
        return i

    results = ordered_map(fails_at_5, range(100), jobs=3)
    assert [next(results) for _ in range(5)] == [0, 1, 2, 3, 4]
    with pytest.raises(KeyError, match="five"):
        next(results)
    assert list(results) == []
    assert running() == []


@pytest.mark.parametrize("chunk_size", [1, 3, 7])
def test_chunks_keep_order_and_results_before_an_error(
    chunk_size: int,
) -> None:
    def fails_at_5(i: int) -> int:
        if i == 5:
            raise KeyError("five")
        return i

    results = ordered_map(fails_at_5, range(100), jobs=2, chunk_size=lambda: chunk_size)
    assert [next(results) for _ in range(5)] == [0, 1, 2, 3, 4]
    with pytest.raises(KeyError, match="five"):
        next(results)
    assert running() == []
    assert list(ordered_map(abs, range(100), jobs=3, chunk_size=lambda: chunk_size)) == list(
        range(100)
    )


def test_closing_early_starts_no_more_calls() -> None:
    begun: list[int] = []
    results = ordered_map(begun.append, range(1000), jobs=2)
    next(results)
    results.close()
    count = len(begun)
    assert count <= 2 * 2 + 2
    assert running() == []
    assert len(begun) == count


def test_a_failed_pack_leaves_no_thread(tmp_path: Path) -> None:
    with pytest.raises(BadImage):
        pack([*samples(10), BadImage("broken", source="x")], tmp_path / "packed", jobs=4)
    assert running() == []


def test_unexpected_exception_of_a_source_ends_the_pack_and_resumes(
    tmp_path: Path,
) -> None:
    class Broken(Listed):
        def load(self, ref: Ref) -> Sample:
            raise ZeroDivisionError("a bug in a user's dataset")

    with pytest.raises(ZeroDivisionError):
        pack(Broken(samples(10)), tmp_path / "packed", jobs=4)
    assert running() == []
    assert not (tmp_path / "packed" / "manifest.json").exists()
    assert pack(Listed(samples(10)), tmp_path / "packed").n_samples == 10


def test_source_that_is_not_thread_safe_is_loaded_by_one_thread(tmp_path: Path) -> None:
    class Careful(Listed):
        thread_safe = False
        inside = most = 0

        def load(self, ref: Ref) -> Sample:
            self.inside += 1
            self.most = max(self.most, self.inside)
            threading.Event().wait(0.001)
            self.inside -= 1
            return super().load(ref)

    source = Careful(samples(30))
    pack(source, tmp_path / "packed", jobs=6)
    assert source.most == 1


@pytest.mark.parametrize("kept", [True, False])
def test_samples_that_decided_the_layout_are_kept_up_to_a_limit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kept: bool
) -> None:
    class Counting(Listed):
        def load(self, ref: Ref) -> Sample:
            loads[int(str(ref))] += 1
            return super().load(ref)

    if not kept:
        monkeypatch.setattr(preparation, "_KEPT_BYTES", 0)
    loads: Counter[int] = Counter()
    values: list[Sample | BadImage] = [*samples(100)]
    measured = measured_rows(len(values))
    values[measured[3]] = BadImage("broken", source="x")
    pack(Counting(values), tmp_path / "packed", on_error="skip", jobs=3)
    again = {row for row, count in loads.items() if count > 1}
    # The limit of 0 bytes is exceeded by the first sample that is not bad.
    assert again == (set() if kept else set(measured))
    assert set(loads) == set(range(100))
    pack(Listed(values), tmp_path / "other", on_error="skip", jobs=1)
    assert tree(tmp_path / "packed") == tree(tmp_path / "other")
