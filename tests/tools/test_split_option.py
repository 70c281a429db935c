"""``--split`` of the commands that read samples."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import fastload
from fastload._cli import main
from fastload._tools.inspect.shuffle import shuffle_quality
from tests.loading import pack_photos

TRAIN, VAL = 20, 9


@pytest.fixture(scope="module")
def packed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return pack_photos(tmp_path_factory.mktemp("splits") / "packed", TRAIN, val=VAL)


def result(capsys: pytest.CaptureFixture[str], *words: object) -> dict[str, Any]:
    assert main([*map(str, words), "--json"]) == 0
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


def test_inspect_shows_the_figures_of_a_split(
    packed: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    whole = result(capsys, "inspect", packed)
    val = result(capsys, "inspect", packed, "--split", "val")
    assert (whole["n_samples"], val["n_samples"]) == (TRAIN + VAL, VAL)
    assert whole["splits"]["counts"] == [["train", TRAIN], ["val", VAL]]
    assert sum(count for _, count in val["classes"]["label"]["counts"]) == VAL
    main(["inspect", str(packed), "--split", "val"])
    assert f"{VAL} of {TRAIN + VAL}" in capsys.readouterr().out


def test_inspect_counts_a_sample_within_the_split(
    packed: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    dataset = fastload.open(packed)
    for number, sample_id in ((0, TRAIN), (-1, TRAIN + VAL - 1)):
        found = result(capsys, "inspect", packed, "--split", "val", "--sample", number)["sample"]
        assert found["id"] == sample_id
        assert found["source"] == dataset.source(sample_id)
        shard = next(each for each in dataset.manifest.shards if each.name == found["shard"])
        assert shard.first + found["record"] == sample_id
    assert main(["inspect", str(packed), "--split", "val", "--sample", str(VAL)]) == 2
    assert f"{VAL} samples, 0 to {VAL - 1}" in capsys.readouterr().err


def test_inspect_draws_and_measures_a_split(
    packed: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ("inspect", packed, "--split", "val", "--shuffle-quality", "--batch-size", 3)
    found = result(capsys, *words, "--sheet", tmp_path / "sheet.png")
    assert found["sheet"]["samples"] == VAL
    assert (tmp_path / "sheet.png").exists()
    # The split is at the end of the source, which does not count as distance.
    assert shuffle_quality(fastload.open(packed, split="val")).epoch.neighbor_distance > 0.5


def test_bench_load_requires_the_split(packed: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ("bench", "load", packed, "--quick", "--rounds", 1, "--seconds", 0.1, "--batch-size", 4)
    assert main([*map(str, words)]) == 2
    assert f"several splits: 'train' ({TRAIN} samples)" in capsys.readouterr().err
    found = result(capsys, *words, "--split", "val")
    assert (found["split"], found["failed"]) == ("val", {})
    assert main([*map(str, words), "--split", "val", "--batch-size", str(VAL + 1)]) == 2
    assert f"has {VAL} samples, less than one batch" in capsys.readouterr().err


@pytest.mark.parametrize("words", [("decode", "--samples", "5"), ("io", "--warm-only")])
def test_other_benchmarks_read_one_split_or_all(
    packed: Path, words: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    kind, *more = words
    for split in ([], ["--split", "val"]):
        result(capsys, "bench", kind, packed, "--quick", "--seconds", 0.01, *more, *split)


@pytest.mark.parametrize("words", [("inspect",), ("bench", "decode"), ("bench", "io")])
def test_an_unknown_split_lists_the_existing_ones(
    packed: Path, words: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*words, str(packed), "--split", "test"]) == 2
    assert "expected one of 'train', 'val', 'all'" in capsys.readouterr().err
