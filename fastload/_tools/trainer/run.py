"""``fastload.check_trainer``: is the training step itself what it should be?"""

from __future__ import annotations

import inspect
import time
from collections.abc import Callable
from typing import Any

import torch

from fastload._tools.diagnose.batches import n_samples
from fastload._tools.diagnose.device import synchronise
from fastload._tools.diagnose.source import short
from fastload._tools.trainer.facts import Facts
from fastload._tools.trainer.judge import judge
from fastload._tools.trainer.keep import Kept
from fastload._tools.trainer.profile import profile_step
from fastload._tools.trainer.report import TrainerReport
from fastload._tools.trainer.watch import watching
from fastload.errors import ConfigError

_WARM, _TIMED = 2, 3


def check_trainer(
    model: torch.nn.Module,
    optimizer: torch.optim.Optimizer | None,
    step: Callable[[Any], object],
    batch: object,
) -> TrainerReport:
    """Runs ``step(batch)`` a few times and looks: mixed precision, TF32, channels_last, compile, optimizer, waits, copies, tiny batches.

    Model, optimizer, gradients, gradient scalers and random numbers are put back afterwards; what else the step changes is not.

        print(fastload.check_trainer(model, optimizer, train_step, next(iter(loader))))
    """
    if not isinstance(model, torch.nn.Module):
        raise ConfigError(
            f"check_trainer: model: expected a torch.nn.Module, found {type(model).__name__}"
        )
    if optimizer is not None and not hasattr(optimizer, "param_groups"):
        raise ConfigError(
            f"check_trainer: optimizer: expected a torch optimizer or None, found {type(optimizer).__name__}"
        )
    if not callable(step):
        raise ConfigError(
            f"check_trainer: step: expected a function of one batch, found {type(step).__name__}"
        )
    facts = Facts(
        device=_device(model),
        batch_size=n_samples(batch),
        anomaly=torch.is_anomaly_enabled(),
        fp32_precision=torch.get_float32_matmul_precision(),
        compiled_model=_compiled(model),
    )
    _look_at_optimizer(facts, optimizer)
    with Kept(model, optimizer):
        _run(facts, lambda: step(batch))
    findings, passed = judge(facts)
    return TrainerReport(
        device=facts.device,
        step_s=facts.step_s,
        batch_size=facts.batch_size,
        findings=findings,
        passed=passed,
    )


def _run(facts: Facts, step: Callable[[], object]) -> None:
    """Warm-up, timed steps with nothing watching, one under the profiler, one under the modes."""
    try:
        for _ in range(_WARM):
            step()
        synchronise()
        began = time.perf_counter()
        for _ in range(_TIMED):
            step()
        synchronise()
        facts.step_s = (time.perf_counter() - began) / _TIMED
        profile_step(facts, step)
        if facts.device == "cuda":
            facts.cudnn_tf32 = bool(torch.backends.cudnn.allow_tf32)
        with watching(facts):
            step()
    except Exception as error:
        raise ConfigError(
            f"check_trainer: the step raised {short(error)}. It is called as step(batch)"
        ) from error


def _device(model: torch.nn.Module) -> str:
    first = next(model.parameters(), None)
    return first.device.type if first is not None else "cpu"


def _compiled(model: torch.nn.Module) -> bool:
    """Of torch.compile(model), or model.compile(); also of a part of it."""
    return any(
        hasattr(each, "_orig_mod") or getattr(each, "_compiled_call_impl", None) is not None
        for each in model.modules()
    )


def _look_at_optimizer(facts: Facts, optimizer: torch.optim.Optimizer | None) -> None:
    if optimizer is None:
        return
    known = inspect.signature(type(optimizer).__init__).parameters
    groups = optimizer.param_groups
    facts.optimizer = type(optimizer).__name__
    facts.optimizer_tensors = sum(len(group["params"]) for group in groups)
    if "fused" in known:
        facts.fused = all(bool(group.get("fused")) for group in groups)
    if "foreach" in known:
        # None leaves it to torch, which takes foreach on a GPU and single tensors on a CPU.
        chosen = [
            facts.device == "cuda" if group.get("foreach") is None else bool(group["foreach"])
            for group in groups
        ]
        facts.foreach = all(chosen)
