"""docs/benchmarks.md contains exactly what the recorded results contain."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks import document, record, trainers_page
from tests.packed_datasets import photo


def test_the_page_is_up_to_date() -> None:
    for name, text in document.render().items():
        path = document.DOCS / name
        assert path.exists(), f"{name}: run python -m benchmarks.document"
        assert path.read_text() == text, (
            f"{name} does not match benchmarks/results: run python -m benchmarks.document"
        )


def _spread(value: float) -> dict[str, float]:
    return {"median": value, "low": value - 1, "high": value + 1, "n": 3}


def _quartiles(**medians: float) -> dict[str, float]:
    return {
        f"{name}{end}": value + more
        for name, value in medians.items()
        for end, more in (("", 0.0), ("_low", -0.01), ("_high", 0.01))
    }


def recorded() -> dict[str, Any]:
    """One small record of every kind."""
    about = {
        "machine": {"processor": "Abacus", "cpus": "2"},
        "versions": {"torch": "9.9"},
        "commit": "abc123",
    }
    lines = [
        {
            "peer": "fastload",
            "images_per_s": _spread(200.0),
            "cpu_ms": _spread(5.0),
            "peak_mb": 64.0,
            "mean": 100.0,
        },
        {
            "peer": "ffcv",
            "images_per_s": _spread(100.0),
            "cpu_ms": _spread(9.0),
            "peak_mb": 99.0,
            "mean": 100.0,
        },
    ]
    packing = {
        "work": "rrc",
        "n": 10,
        "failed": {},
        "rows": [
            {
                "peer": "fastload",
                "checksum": True,
                "seconds": _spread(2.0),
                "bytes": 5_000_000,
                "killed": "refused",
                "again": "complete (10)",
            }
        ],
    }
    run = {"accuracy": 0.5, "epoch_s": 2.0, "waiting": 0.25, "loss": 1.0}
    ways = {
        way: _spread(value)
        for way, value in (("plain", 10.0), ("fastload", 16.0), ("no loading", 20.0))
    }
    shares = {
        way: {"median": value, "low": value, "high": value, "n": 3}
        for way, value in (("plain", 0.2), ("fastload", 0.12), ("no loading", 0.11))
    }
    trainer = {
        "name": "lanes",
        "letter": "A",
        "about": "streets",
        "batch_size": 2,
        "samples_per_s": ways,
        "gain": _spread(1.6),
        "reached": {"median": 0.8, "low": 0.75, "high": 0.9, "n": 3},
        "waiting": shares,
        "variation": shares,
        "loss": ways,
        "losses": "+1.0%, within",
        "own_work": 0.5,
        "limit": "both",
    }
    return {
        "trainers": {
            **about,
            "rounds": 3,
            "epochs": 2,
            "ends": [4, 5],
            "bar": 0.1,
            "rows": [trainer],
        },
        "peers": {
            **about,
            "workers": 2,
            "rounds": 3,
            "seconds": 1.5,
            "packing": packing,
            "reach": ["RRC 224: 2.00 x"],
            "works": [
                {
                    "work": "rrc",
                    "title": "RRC 224",
                    "n": 10,
                    "lines": lines,
                    "absent": {"dali": "no wheel"},
                    "doubts": [],
                }
            ],
        },
        "train": {
            **about,
            "images": 10,
            "epochs": 2,
            "runs": {"torch DataLoader": [run] * 8, "fastload": [run] * 8},
        },
        "bench_decode": {
            **about,
            "n_images": 4,
            "limit": "The CPU.",
            "rows": [
                {
                    "work": "RRC 224",
                    "backend": "native",
                    "threads": 1,
                    "images_per_s": _spread(10.0),
                    "cpu_ms": _spread(2.0),
                    "gb_in_per_s": 0.1,
                    "gb_out_per_s": 0.2,
                }
            ],
        },
        "bench_io": {
            **about,
            "n_bytes": 1000000,
            "n_images": 4,
            "raw": _spread(5e8),
            "notes": ["a note"],
            "verdict": "Blocks win.",
            "rows": [{"order": "random", "cold": True, "readers": 1, "bytes_per_s": _spread(1e8)}],
        },
        "bench_load": {
            **about,
            "batch_size": 4,
            "compute_ms": 5.0,
            "verdict": "Fed.",
            "rows": [
                {
                    "loader": "fastload",
                    "images_per_s": _spread(7.0),
                    "wait_ms": 1.0,
                    "waiting": 0.1,
                    "p50_ms": 2.0,
                    "p99_ms": 3.0,
                    "cpu_ms": 4.0,
                    "peak_mb": 50.0,
                }
            ],
        },
        "pack": {
            **about,
            "n": 3000,
            "peak_mb": 55.5,
            "seconds": {"fastload pack": [3.0, 2.0, 4.0], "FFCV's writer": [9.0, 10.0, 8.0]},
        },
        "load": {
            **about,
            "rows": [{"name": "batches of 64: p99 / p50", "figure": 1.25, "bar": "<= 1.3"}],
        },
        "decode": {
            **about,
            "times": [
                {
                    "work": "RRC 224",
                    "threads": 2,
                    "n": 96,
                    "rounds": 11,
                    "recipe_per_s": 600.0,
                    "fastload_per_s": 1500.0,
                    "ratio_cpu": 2.4,
                    "bar": 1.8,
                    **_quartiles(ratio=2.5),
                }
            ],
            "gains": [
                {
                    "work": "RRC 224",
                    "threads": 2,
                    "beside": 1,
                    "rounds": 11,
                    "bar": 1.9,
                    **_quartiles(pool=1.95, processes=1.9, of_processes=1.02, busy=0.99),
                }
            ],
            "stages": [
                {
                    "work": "RRC 224",
                    "simd": "avx2",
                    "cut": 1.0,
                    "decode": 500.0,
                    "resize": 50.0,
                    "finish": 5.0,
                    "rounds": 11,
                    "bar": 0.15,
                    **_quartiles(share=0.1),
                },
                {
                    "work": "raw",
                    "simd": "avx2",
                    "cut": 0.0,
                    "decode": 0.0,
                    "resize": 0.0,
                    "finish": 2.0,
                    "rounds": 11,
                },
            ],
            "handover": [
                {
                    "work": "RRC 224",
                    "rounds": 11,
                    "bar": 2.0,
                    **_quartiles(outside=0.5, outside_bare=0.2, more=0.3),
                }
            ],
        },
        "something_else": {**about, "rows": [{"name": "x", "figure": 4711.0}]},
        "figures_only": {**about, "seconds": {"one": [1.5, 2.5]}, "n": 12345},
    }


def test_every_kind_of_record_is_shown_with_its_machine(tmp_path: Path) -> None:
    for name, found in recorded().items():
        (tmp_path / f"{name}.json").write_text(json.dumps(found))
    files = document.render(tmp_path)
    page = files["benchmarks.md"]
    assert (
        page.count("processor Abacus")
        == page.count("torch 9.9")
        == page.count("commit abc123")
        == 11
    )
    for words in (
        "| FFCV | 100 [99.0-101] | 2.00 x | 9.00 | 99.0 | full |",
        "| fastload | 200 [199-201] |  | 5.00 | 64.0 | reduced |",
        "This run does not contain it",
        "DALI (CPU): no wheel",
        "| fastload | 5.00 | 5.00 | yes | refused | complete (10) |",
        "| fastload | 50.0% ± 0.0% [50.0%-50.0%] | 2.00 | 25% |",
        "fastload: +0.0 ± 0.0 percentage points",
        "The CPU.",
        "| random | cold | 1 | 100 [100-100] |",
        "Blocks win.",
        "Fed.",
        "4,711",
        "| seconds: one | 1.50, 2.50 |",
        "| FFCV's writer | 333 [300-375] | 3.00 x |",
        "memory of fastload: 56 MB",
        "| A lanes: streets, batch 2 | 10.0 [9.00-11.0] | 16.0 [15.0-17.0] | 1.60 x [0.60-2.60] | 20.0 [19.0-21.0] | 20.0% | 12.0% | 20.0% | 12.0% | 11.0% |",
        "| A lanes | 10.0 [9.00-11.0] | 16.0 [15.0-17.0] | +1.0%, within |",
        "share these 2 cores",
        "The first\n4 and last 5 steps",
        "reaches 80% [75%-90%] of its speed without loading.",
        "below 10%. Missed by lanes. lanes also miss it without loading",
        "| n | 12,345 |",
        "only the machine varies",
        "| RRC 224 | 2 | 96 | 600 | 1,500 | 2.50 [2.49-2.51] x | 2.40 x | 11 | 1.8 |",
        "| work | 2 threads / 1 | 2 processes / 1 |",
        "| RRC 224 | 1.95 [1.94-1.96] | 1.90 [1.89-1.91] | 1.02 [1.01-1.03] | 0.99 [0.98-1.00] | 11 | 1.9 |",
        "| RRC 224 | avx2 | 1.0 | 500.0 | 50.0 | 5.0 | 0.100 [0.090-0.110] | 11 | 0.15 |",
        "| raw | avx2 | 0.0 | 0.0 | 0.0 | 2.0 |  | 11 |  |",
        "| RRC 224 | 0.50 [0.49-0.51] | 0.20 [0.19-0.21] | 0.30 [0.29-0.31] | 11 | 2.0 |",
        "All targets are met.",
        "| batches of 64: p99 / p50 | 1.25 | <= 1.3 |",
        "- RRC 224: 2.00 x",
    ):
        assert words in page, words
    assert set(files) == {"benchmarks.md", "plots/peers-rrc.svg", "plots/bench-decode.svg"}
    assert all(f"({name})" in page for name in files if name.endswith(".svg"))


def test_the_page_shows_no_accuracy_of_too_few_seeds() -> None:
    found = recorded()["train"]
    few = {name: runs[:3] for name, runs in found["runs"].items()}
    page = "\n".join(document.train({**found, "runs": few})[0])
    assert "| fastload | 2.00 | 25% |" in page
    assert "Accuracy is not compared: 3 seeds" in page
    assert "50.0%" not in page


def test_the_page_separates_missed_targets_from_a_noisy_machine() -> None:
    found = recorded()["trainers"]
    (row,) = found["rows"]

    def verdict(fastload: float, no_loading: float) -> str:
        variation = {
            "plain": {"median": 0.3},
            "fastload": {"median": fastload},
            "no loading": {"median": no_loading},
        }
        return trainers_page.trainers({**found, "rows": [{**row, "variation": variation}]})[0][-1]

    assert verdict(0.05, 0.2).endswith("Met by all.")
    assert verdict(0.2, 0.05).endswith("Missed by lanes.")


def test_exact_decoding_has_its_own_row_and_section(tmp_path: Path) -> None:
    found = recorded()["peers"]
    (work,) = found["works"]
    exact = {**work["lines"][0], "peer": "fastload-exact", "images_per_s": _spread(150.0)}
    found["works"] = [{**work, "lines": [*work["lines"], exact]}]
    (tmp_path / "peers_exact.json").write_text(json.dumps(found))
    files = document.render(tmp_path)
    page = files["benchmarks.md"]
    assert "## fastload at full resolution" in page
    assert "| fastload, exact=True | 150 [149-151] | 1.33 x | 5.00 | 64.0 | full |" in page
    assert "This run does not contain it" not in page
    assert "plots/exact-rrc.svg" in files


def test_a_baseline_slower_than_a_loader_is_not_a_statement() -> None:
    found = recorded()["trainers"]
    (row,) = found["rows"]

    def page(median: float, low: float, high: float) -> str:
        reached = {"median": median, "low": low, "high": high, "n": 5}
        return "\n".join(
            trainers_page.trainers({**found, "rows": [{**row, "reached": reached}]})[0]
        )

    disturbed = page(1.15, 1.12, 1.2)
    assert "| disturbed |" in disturbed
    assert "lanes: no statement" in disturbed
    assert "115%" not in disturbed
    noisy = page(1.01, 0.97, 1.04)
    assert "reaches 101% [97%-104%] of its speed without loading, so the two are not" in noisy


def test_the_variation_from_step_to_step_has_its_own_table_and_verdict() -> None:
    found = recorded()["trainers"]
    (row,) = found["rows"]
    quiet = {
        way: {"median": value, "low": 0.01, "high": 0.09}
        for way, value in (("plain", 0.08), ("fastload", 0.07), ("no loading", 0.06))
    }
    page = "\n".join(
        trainers_page.trainers(
            {
                **found,
                "rows": [
                    {
                        **row,
                        "step_to_step": quiet,
                        "disturbed": dict(zip(quiet, (5, 6, 7), strict=True)),
                    }
                ],
            }
        )[0]
    )
    for words in (
        "| A lanes | 20.0% [20.0%-20.0%] | 8.0% [1.0%-9.0%] | 12.0% [12.0%-12.0%] | 7.0% [1.0%-9.0%] |",
        "| 6.0% [1.0%-9.0%] | 5, 6, 7 |",
        "Missed by lanes. lanes also miss it without loading, so the machine is the cause. "
        "*From step to step*: Met by all.",
    ):
        assert words in page, words


def test_missing_records_are_listed_with_their_command(tmp_path: Path) -> None:
    page = document.render(tmp_path)["benchmarks.md"]
    assert "make peers" in page
    assert "- Trainers (`python -m benchmarks.trainers --json" in page
    assert "|" not in page.partition("## Not recorded yet")[0].replace("python -m", "")


def test_recording_measures_and_writes_the_page(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(2):
        (tmp_path / f"{number}.jpg").write_bytes(photo(64, 48, seed=number))
    monkeypatch.setattr(record, "photo_paths", lambda: sorted(tmp_path.glob("*.jpg")))
    monkeypatch.chdir(tmp_path)
    assert (
        record.main(
            [
                "--only",
                "io",
                "--copies",
                "2",
                "--quick",
                "--results",
                str(tmp_path),
                "--docs",
                str(tmp_path),
            ]
        )
        == 0
    )
    found = json.loads((tmp_path / "bench_io.json").read_text())
    assert found["dataset"] == "2 photographs x 2"
    assert found["n_images"] == 4
    assert found["verdict"] in (tmp_path / "benchmarks.md").read_text()


def test_check_fails_for_an_outdated_page_until_it_is_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    results = tmp_path / "results"
    docs = tmp_path / "docs"
    results.mkdir()
    (results / "train.json").write_text(json.dumps(recorded()["train"]))
    where = ["--results", str(results), "--docs", str(docs)]
    assert document.main(["--check", *where]) == 1
    assert document.main(where) == 0
    assert document.main(["--check", *where]) == 0
    (results / "train.json").write_text(json.dumps({**recorded()["train"], "epochs": 3}))
    assert document.main(["--check", *where]) == 1
    assert "run python -m benchmarks.document" in capsys.readouterr().err
