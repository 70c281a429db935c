"""The printed diagnosis: verdict first, best change with its ceiling, it/s with samples/s."""

from __future__ import annotations

import json
from typing import Any

import pytest

from fastload._tools.doctor.finding import Ceiling, Finding
from fastload._tools.doctor.loader.figures import (
    BatchTiming,
    LoaderFigures,
    StageShare,
    diagnosis_of,
)

SUGGESTION = Finding(
    "workers",
    "4 workers cannot keep up",
    ("a batch costs one worker 850 ms",),
    "num_workers=6 (now 4)",
    ceiling=Ceiling(1 / 0.148, 0.43),
    severity="bad",
)


def figures(**changes: Any) -> LoaderFigures:
    found: dict[str, Any] = {
        "loader_kind": "torch",
        "batch_size": 64,
        "cores": 8,
        "workers": 4,
        "loader": BatchTiming(0.212, 40),
        "step": BatchTiming(0.148, 60),
        "together": BatchTiming(0.2115, 42),
        "wait_share": 0.30,
        "on_gpu": True,
        "stages_from": "one batch of 64 in one of 4 workers",
        "stages": (
            StageShare("read", 0.05, 0.06),
            StageShare("decode", 0.52, 0.61),
            StageShare("transform", 0.28, 0.33, (("Resize", 0.2),)),
            StageShare("collate", 0.0, 0.0),
        ),
    }
    return LoaderFigures(**{**found, **changes})


def test_the_printed_page() -> None:
    assert (
        str(diagnosis_of(figures(), [SUGGESTION], ["a note"]))
        == """\
Your step needs 148 ms and your loader 212 ms: the GPU waits 30 % of the time. \
Decode is 61 % of the loader's work.
Best change: num_workers=6: expected 6.76 it/s (+43 %), ceiling 6.76 it/s.

Together they reach 4.73 it/s = 303 samples/s (42 batches measured). \
With data for free the step would reach 6.76 it/s = 432 samples/s (8 cores, 4 workers).
Time of the loader (one batch of 64 in one of 4 workers):
  read            50.0 ms   6.0 %
  decode         520.0 ms    61 %
  transform      280.0 ms    33 %   Resize 200.0

1. BAD  Too few workers: 4 workers cannot keep up
   evidence  a batch costs one worker 850 ms
   fix       num_workers=6 (now 4)
   ceiling   6.76 it/s (+43 %)

note: a note"""
    )


def test_without_a_step_only_the_loader_is_described() -> None:
    alone = figures(step=None, together=None, wait_share=None, stages=())
    assert str(diagnosis_of(alone, [], [])) == (
        "Your loader needs 212 ms for a batch of 64 and reaches 4.72 it/s = 302 samples/s.\n\n"
        "40 batches measured on 8 cores, 4 workers. Pass a step, diagnose(loader, step), to find out "
        "whether this is fast enough."
    )


def test_check_trainer_is_suggested_if_the_step_does_not_wait() -> None:
    page = str(
        diagnosis_of(figures(loader=BatchTiming(0.05, 9), wait_share=0.01, on_gpu=False), [], [])
    )
    assert page.startswith(
        "Your step needs 148 ms and your loader 50 ms: the step does not wait for data. "
    )
    assert "fastload.check_trainer" in page


@pytest.mark.parametrize(
    ("loader_s", "wait", "state"),
    [
        (0.212, 0.3, "data-bound"),
        (0.15, 0.06, "data-bound"),
        (0.05, 0.06, "compute-bound"),
        (0.05, 0.2, "data-bound"),
        (0.05, 0.0, "compute-bound"),
        (0.05, None, "unknown"),
    ],
)
def test_state_follows_from_speed_and_waiting(
    loader_s: float, wait: float | None, state: str
) -> None:
    found = diagnosis_of(figures(loader=BatchTiming(loader_s, 9), wait_share=wait), [], [])
    assert (found.state, found.healthy) == (state, state != "data-bound")


def test_rates() -> None:
    found = figures()
    assert found.per_s == pytest.approx(1 / 0.2115)
    assert figures(together=None).per_s == pytest.approx(1 / 0.212)
    assert found.ceiling_per_s == pytest.approx(1 / 0.148)
    assert BatchTiming(0.0, 1).per_s == float("inf")


def test_json_contains_figures_and_findings() -> None:
    content = json.loads(json.dumps(diagnosis_of(figures(), [SUGGESTION], []).as_json()))
    assert (content["state"], content["loader"]["seconds"], content["wait_share"]) == (
        "data-bound",
        0.212,
        0.3,
    )
    assert content["findings"][0]["fix"] == "num_workers=6 (now 4)"
