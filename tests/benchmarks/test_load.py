"""benchmarks/load.py and decode.py: targets, and a record that keeps rows from earlier runs."""

from __future__ import annotations

import json
from pathlib import Path

from benchmarks.decode_rows import misses, row_of
from benchmarks.load_rows import Row, record


def test_a_figure_is_compared_with_its_target() -> None:
    assert Row("speed", 0.95, 0.9, 1.0, ">= 0.95").reached
    assert not Row("speed", 0.94, 0.9, 1.0, ">= 0.95").reached
    assert Row("tail", 1.3, 1.2, 1.4, "<= 1.3").reached
    assert "MISSED" in str(Row("tail", 1.31, 1.2, 1.4, "<= 1.3"))
    assert Row("no target", 99.0, 1.0, 100.0, "").reached


def test_a_part_measured_alone_leaves_the_other_rows_of_the_record(tmp_path: Path) -> None:
    path = tmp_path / "load.json"
    about = {"machine": {"processor": "Abacus"}, "options": {"rounds": "3"}}
    record(
        path, [Row("one", 1.0, 1.0, 1.0, ""), Row("two", 2.0, 2.0, 2.0, "")], **about, commit="old"
    )
    record(
        path,
        [Row("one", 1.5, 1.0, 2.0, ""), Row("three", 3.0, 3.0, 3.0, "")],
        **about,
        commit="new",
    )
    found = json.loads(path.read_text())
    assert [(row["name"], row["figure"], row["commit"]) for row in found["rows"]] == [
        ("one", 1.5, "new"),
        ("two", 2.0, "old"),
        ("three", 3.0, "new"),
    ]
    assert found["machine"] == {"processor": "Abacus"}


def test_figures_of_the_core_are_compared_with_their_targets() -> None:
    slow = row_of("RRC", {"ratio": [1.5, 1.7, 1.6]}, threads=2, bar=1.8)
    assert (slow["ratio"], slow["rounds"]) == (1.6, 3)
    large = row_of("RRC", {"share": [0.16, 0.16, 0.16]}, simd="avx2", bar=0.15)
    untargeted = {**large, "simd": "portable"}
    del untargeted["bar"]
    assert list(
        misses(
            {
                "times": [slow, {**slow, "ratio": 1.8}],
                "stages": [large, untargeted],
                "handover": [row_of("raw", {"more": [2.0]}, bar=2.0)],
                "gains": [row_of("raw", {"pool": [1.7], "processes": [1.6]}, threads=2, bar=1.9)],
            }
        )
    ) == [
        "times, RRC (threads 2): 1.60, target at least 1.8",
        "gains, raw (threads 2): 1.70, target at least 1.9; separate processes reach 1.60 on this machine",
        "stages, RRC (simd avx2): 0.16, target at most 0.15",
    ]
