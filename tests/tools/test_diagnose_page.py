"""The page: verdict first, the best change beside its ceiling, samples/s beside it/s."""

from __future__ import annotations

from typing import Any

import pytest

from fastload._tools.diagnose.result import Diagnosis, Stage, Suggestion, Timing


def diagnosis(**changes: Any) -> Diagnosis:
    found: dict[str, Any] = {
        "loader_kind": "torch",
        "batch_size": 64,
        "cores": 8,
        "workers": 4,
        "loader": Timing(0.212, 40),
        "step": Timing(0.148, 60),
        "together": Timing(0.2115, 42),
        "wait_share": 0.30,
        "on_gpu": True,
        "stages_from": "one batch of 64 in one of 4 workers",
        "stages": (
            Stage("read", 0.05, 0.06),
            Stage("decode", 0.52, 0.61),
            Stage("transform", 0.28, 0.33, (("Resize", 0.2),)),
            Stage("collate", 0.0, 0.0),
        ),
        "suggestions": (
            Suggestion("num_workers=6 (now 4)", "a batch costs one worker 850 ms", 1 / 0.148, 0.43),
        ),
        "notes": ("mind the gap",),
    }
    return Diagnosis(**{**found, **changes})


def test_the_whole_page() -> None:
    assert (
        str(diagnosis())
        == """\
Your step needs 148 ms, your loader 212 ms: the GPU waits 30 % of the time. Decode is 61 % of the loader's work.
Best change: num_workers=6: expected 6.8 it/s (+43 %), ceiling 6.8 it/s.
Together they reach 4.7 it/s = 303 samples/s (42 batches measured); with data for free it would be 6.8 it/s = 432 samples/s; 8 cores, 4 workers.

Where the loader's time goes (one batch of 64 in one of 4 workers):
  read            50.0 ms    6 %
  decode         520.0 ms   61 %
  transform      280.0 ms   33 %   Resize 200.0

What to change, the best first:
  1. num_workers=6 (now 4): expected 6.8 it/s (+43 %)
     a batch costs one worker 850 ms

Note: mind the gap"""
    )


def test_without_a_step_it_speaks_of_the_loader_only() -> None:
    page = str(
        diagnosis(step=None, together=None, wait_share=None, suggestions=(), stages=(), notes=())
    )
    assert page == (
        "Your loader needs 212 ms for a batch of 64: it gives 4.7 it/s = 302 samples/s.\n"
        "40 batches measured on 8 cores, 4 workers. With a step (diagnose(loader, step)) you learn whether that is enough."
    )


def test_a_step_that_does_not_wait_is_sent_to_check_trainer() -> None:
    page = str(diagnosis(loader=Timing(0.05, 9), wait_share=0.01, suggestions=(), on_gpu=False))
    assert page.startswith(
        "Your step needs 148 ms, your loader 50 ms: the step does not wait for data.\n"
    )
    assert "fastload.check_trainer" in page


@pytest.mark.parametrize(
    ("loader_s", "wait", "verdict"),
    [
        (0.212, 0.3, "loader"),
        (0.15, 0.06, "loader"),
        (0.05, 0.06, "step"),
        (0.05, 0.2, "loader"),
        (0.05, 0.0, "step"),
        (0.05, None, "unknown"),
    ],
)
def test_who_is_blamed(loader_s: float, wait: float | None, verdict: str) -> None:
    assert diagnosis(loader=Timing(loader_s, 9), wait_share=wait).verdict == verdict


def test_rates() -> None:
    found = diagnosis()
    assert found.per_s == pytest.approx(1 / 0.2115)
    assert diagnosis(together=None).per_s == pytest.approx(1 / 0.212)
    assert found.ceiling_per_s == pytest.approx(1 / 0.148)
    assert Timing(0.0, 1).per_s == float("inf")
