"""Checks that need a GPU, on hand-written facts: one failing and one passing case each."""

from __future__ import annotations

import dataclasses
from collections import Counter
from typing import Any

import pytest

from fastload._tools.doctor.trainer.check import judge
from fastload._tools.doctor.trainer.watch import StepFacts


def facts(**changes: Any) -> StepFacts:
    """Facts of a trainer on a GPU without any mistake."""
    clean = StepFacts(
        device="cuda",
        batch_size=64,
        step_s=0.1,
        matmuls=Counter(bfloat16=90),
        autocast=Counter({(True, "bfloat16", "a.py:1"): 1}),
        fp32_precision="high",
        convolutions=20,
        compiled_regions=2,
        optimizer="AdamW",
        optimizer_tensors=60,
        fused=True,
        foreach=False,
        kernels=900,
        kernel_s=0.09,
    )
    return dataclasses.replace(clean, **changes)


def test_a_correct_trainer_on_a_gpu_has_no_findings() -> None:
    findings, passed = judge(facts())
    assert findings == ()
    assert len(passed) == 8


@pytest.mark.parametrize(
    ("changes", "check", "text"),
    [
        (
            {"matmuls": Counter(float32=30, bfloat16=60), "fp32_precision": "highest"},
            "tf32",
            "30 matrix products",
        ),
        ({"matmuls": Counter(float32=30, bfloat16=60), "cudnn_tf32": False}, "tf32", "cuDNN"),
        (
            {"kernels": 9000, "kernel_s": 0.03},
            "batch",
            "9000 kernels take 3 us on average, and the GPU is busy 30 % of a step",
        ),
        (
            {"blocking_copies": Counter({("from memory that is not pinned", "a.py:7"): 2})},
            "copy",
            "2 times per step",
        ),
        ({"fused": None, "foreach": False}, "optimizer", "one at a time"),
        (
            {"syncs": Counter({("x", f"a.py:{line}"): 1 for line in range(12)})},
            "sync",
            "4 more places",
        ),
    ],
)
def test_each_mistake_is_found_alone(changes: dict[str, Any], check: str, text: str) -> None:
    findings, _ = judge(facts(**changes))
    assert {each.kind for each in findings} == {check}
    assert any(text in each.title for each in findings)


@pytest.mark.parametrize(
    "changes",
    [
        {"matmuls": Counter(float32=30, bfloat16=60)},
        {"kernels": 9000, "kernel_s": 0.09},
        {"kernels": 300, "kernel_s": 0.03},
        {"kernels": 0},
        {"fused": None, "foreach": True},
        {"fused": None, "foreach": None},
        {"matmuls": Counter()},
        {"convolutions_nchw": 3},
        {"compiled_regions": 0, "failed": "another profiler is running"},
        {"scaler": True, "autocast": Counter({(True, "float16", ""): 1})},
    ],
    ids=str,
)
def test_harmless_facts_are_not_reported(changes: dict[str, Any]) -> None:
    assert judge(facts(**changes))[0] == ()
