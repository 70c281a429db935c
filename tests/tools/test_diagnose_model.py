"""The model of suggestions: never above the ceiling, and correct for loaders computed by hand."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fastload._tools.doctor.finding import Ceiling, Finding
from fastload._tools.doctor.loader.model import Candidate, LoaderCosts, suggestions

TIMES = st.floats(1e-4, 10.0)


def ceiling(found: Finding) -> Ceiling:
    assert found.ceiling is not None
    return found.ceiling


@given(
    loader_s=TIMES,
    step_s=TIMES,
    slower=st.floats(1.0, 3.0),
    workers=st.one_of(st.none(), st.integers(0, 16)),
    cores=st.integers(1, 64),
    wall_s=TIMES,
    cpu_share=st.floats(0.0, 1.0),
    fastload_s=st.one_of(st.none(), TIMES),
    collate_share=st.floats(0.0, 1.0),
    start_s=st.floats(0.0, 10.0),
    measured=st.booleans(),
)
def test_no_prediction_exceeds_the_ceiling(
    *,
    loader_s: float,
    step_s: float,
    slower: float,
    workers: int | None,
    cores: int,
    wall_s: float,
    cpu_share: float,
    fastload_s: float | None,
    collate_share: float,
    start_s: float,
    measured: bool,
) -> None:
    together = (
        slower * (loader_s + step_s if workers == 0 else max(loader_s, step_s))
        if measured
        else None
    )
    facts = LoaderCosts(
        loader_s=loader_s,
        step_s=step_s,
        together_s=together,
        workers=workers,
        cores=cores,
        wall_s=wall_s,
        cpu_s=cpu_share * wall_s,
        candidate=Candidate(fastload_s, "native", 1, (224, 224)) if fastload_s else None,
        collate_ipc_s=collate_share * wall_s,
        float_images=True,
        start_s=start_s,
        epoch_batches=100,
        persistent=False,
    )
    found = suggestions(facts)
    assert all(ceiling(each).it_s <= 1 / step_s * (1 + 1e-9) for each in found)
    assert all(ceiling(each).gain >= 0.05 for each in found)
    assert [ceiling(each).gain for each in found] == sorted(
        (ceiling(each).gain for each in found), reverse=True
    )


def test_more_workers_than_cores_help_only_if_they_wait_for_the_disk() -> None:
    busy = LoaderCosts(loader_s=0.1, step_s=0.01, workers=2, cores=2, wall_s=0.2, cpu_s=0.2)
    waiting = LoaderCosts(loader_s=0.1, step_s=0.01, workers=2, cores=2, wall_s=0.2, cpu_s=0.02)
    assert suggestions(busy) == ()
    assert [each.fix for each in suggestions(waiting)] == ["num_workers=16 (now 2)"]


def test_no_more_workers_than_the_step_needs() -> None:
    (found,) = suggestions(
        LoaderCosts(loader_s=0.2, step_s=0.08, workers=1, cores=8, wall_s=0.2, cpu_s=0.2)
    )
    assert found.fix == "num_workers=3 (now 1)"
    assert ceiling(found).it_s == 1 / 0.08


def test_a_loader_slower_than_the_formula_stays_slower() -> None:
    (found,) = suggestions(
        LoaderCosts(loader_s=0.4, step_s=0.001, workers=1, cores=4, wall_s=0.2, cpu_s=0.2)
    )
    assert found.fix == "num_workers=4 (now 1)"
    assert abs(ceiling(found).it_s - 10.0) < 1e-6  # 0.4 / 4, not 0.2 / 4


def test_the_measured_slowdown_is_kept() -> None:
    (found,) = suggestions(
        LoaderCosts(
            loader_s=0.2, step_s=0.1, together_s=0.3, workers=1, cores=2, wall_s=0.2, cpu_s=0.2
        )
    )
    assert abs(ceiling(found).it_s - 1 / 0.15) < 1e-6


def test_worker_restarts_matter_in_short_epochs() -> None:
    facts = LoaderCosts(
        loader_s=0.1, workers=8, cores=8, start_s=5.0, epoch_batches=20, persistent=False
    )
    (found,) = suggestions(facts)
    assert found.fix == "persistent_workers=True"
    assert abs(ceiling(found).gain - 2.5) < 1e-9
    assert not suggestions(
        LoaderCosts(
            loader_s=0.1, workers=8, cores=8, start_s=5.0, epoch_batches=20_000, persistent=False
        )
    )


def test_uint8_is_suggested_for_float_images() -> None:
    facts = LoaderCosts(
        loader_s=0.1,
        workers=4,
        cores=4,
        wall_s=0.4,
        cpu_s=0.4,
        collate_ipc_s=0.2,
        float_images=True,
    )
    (found,) = suggestions(facts)
    assert found.fix.startswith("return uint8")
    assert abs(ceiling(found).it_s - 16.0) < 1e-6  # 0.4 - 3/4 of 0.2 = 0.25


def test_all_cores_are_suggested_to_a_fastload_loader() -> None:
    (found,) = suggestions(LoaderCosts(loader_s=0.1, step_s=0.04, threads=2, cores=8))
    assert found.fix == "num_workers=None (now 2)"
    assert abs(ceiling(found).it_s - 25.0) < 1e-6
    assert suggestions(LoaderCosts(loader_s=0.1, step_s=0.04, threads=8, cores=8)) == ()


def test_pinning_and_copying_are_stages_if_measured() -> None:
    from fastload._tools.doctor.loader.stages import StageCosts, Work, of_torch

    work = Work(
        items=4, wall_s=0.04, cpu_s=0.04, queued_s=0.0, collate_s=0.01, stages={"decode": 0.03}
    )
    stages, _ = of_torch(StageCosts(work, pin_s=0.02, copy_s=0.03), 0)
    assert {stage.name: stage.seconds for stage in stages if stage.seconds} == {
        "decode": 0.03,
        "other": pytest.approx(0.01),
        "collate": 0.01,
        "pin": 0.02,
        "copy": 0.03,
    }
    assert [stage.name for stage in of_torch(StageCosts(work), 0)[0]][-1] == "collate"
