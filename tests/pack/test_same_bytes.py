"""The same source and options give identical files, for any number of threads and interrupts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from fastload._store.fields import Field
from fastload.errors import BadImage
from tests.packing import (
    CONVERTED_JPEG,
    IMAGE,
    LABEL,
    SMALL_SHARDS,
    content,
    image_sample,
    make_source,
    pack,
    samples,
    tree,
)

FIELDS = (IMAGE, LABEL, Field("blob", "bytes"))


class Interrupt(Exception):
    """Simulates Ctrl-C: raised by the progress callback."""


def mixed(count: int = 150) -> list[Any]:
    """Returns good, bad and converted samples that fill three shards."""
    given: list[Any] = samples(count, extra_bytes=20_000)
    for i in range(7, count, 20):
        given[i] = BadImage(f"broken {i}", source=f"bad {i}")
    for i in range(3, count, 25):
        given[i] = image_sample(CONVERTED_JPEG, f"cmyk {i}", label=1)
    return given


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("order", ["shuffle", "source"])
def test_same_bytes_for_any_number_of_threads(tmp_path: Path, stream: bool, order: str) -> None:
    for jobs in (1, 2, 7):
        result = pack(
            make_source(mixed(), FIELDS, stream=stream),
            tmp_path / str(jobs),
            jobs=jobs,
            order=order,
            on_error="skip",
            **SMALL_SHARDS,
        )
        assert (result.n_samples, result.skipped, result.converted) == (
            142,
            8,
            {"CMYK JPEG → RGB": 6},
        )
        assert result.n_shards >= 3
    assert tree(tmp_path / "1") == tree(tmp_path / "2") == tree(tmp_path / "7")


@pytest.mark.parametrize("stream", [False, True])
def test_same_bytes_after_interrupts_every_few_samples(tmp_path: Path, stream: bool) -> None:
    options: dict[str, Any] = {"on_error": "skip", "seed": 5, **SMALL_SHARDS}
    whole = pack(make_source(mixed(), FIELDS, stream=stream), tmp_path / "whole", jobs=2, **options)
    dest = tmp_path / "pieces"
    starts = []
    for attempt in range(40):

        def interrupt(progress: Any, stop_at: int = 17 * attempt) -> None:
            if progress.stage == "packing" and progress.done > stop_at:
                raise Interrupt

        try:
            result = pack(
                make_source(mixed(), FIELDS, stream=stream),
                dest,
                jobs=1 + attempt % 3,
                on_progress=interrupt,
                **options,
            )
            break
        except Interrupt:
            starts.append(len(list((dest / ".pack").glob("done-*.json"))))
            assert not (dest / "manifest.json").exists()
            assert not list(dest.rglob("*.tmp*"))  # an exception cleans up; a kill cannot
    assert set(starts) == set(range(result.n_shards))
    assert result.n_shards >= 3
    assert result.resumed_at > 0
    assert (
        result.n_samples,
        result.skipped,
        result.converted,
        result.bytes_in,
        result.bytes_out,
    ) == (whole.n_samples, whole.skipped, whole.converted, whole.bytes_in, whole.bytes_out)
    assert tree(dest) == tree(tmp_path / "whole")
    assert content(dest) == content(tmp_path / "whole")


def test_digest_detects_a_changed_sample(tmp_path: Path) -> None:
    """Proves that the comparisons above can fail."""
    given = mixed()
    pack(make_source(given, FIELDS, stream=False), tmp_path / "a", on_error="skip", **SMALL_SHARDS)
    given[0] = given[1]
    pack(make_source(given, FIELDS, stream=False), tmp_path / "b", on_error="skip", **SMALL_SHARDS)
    assert content(tmp_path / "a") != content(tmp_path / "b")
    assert tree(tmp_path / "a") != tree(tmp_path / "b")
