"""``fastload.check_trainer``: is the training step itself what it should be?"""

from __future__ import annotations

import copy
import inspect
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from types import TracebackType
from typing import Any

import torch

from fastload._common.formatting import count, rate, seconds
from fastload._common.public import public
from fastload._tools.doctor.finding import HEALTHY, Diagnosis
from fastload._tools.doctor.loader.timing import RandomState, short, synchronize
from fastload._tools.doctor.trainer.checks import StepFacts, judge
from fastload._tools.doctor.trainer.watch import profile_step, watching
from fastload._tools.monitor.batches import count_samples
from fastload.errors import ConfigError


class RestoredState:
    """Tensors keep their identity: values are copied back into them, so that views, DDP buckets and graphs stay right.

    What else the step changes (a scheduler, a counter, a log file) is not known here and stays changed.
    """

    def __init__(self, model: torch.nn.Module, optimizer: torch.optim.Optimizer | None) -> None:
        self._model = model
        self._optimizer = optimizer
        self._random = RandomState()
        self._scalers: dict[Any, dict[str, Any]] = {}

    def __enter__(self) -> RestoredState:
        self._random.__enter__()
        self._parameters = [
            (
                each,
                each.detach().clone(),
                each.grad,
                None if each.grad is None else each.grad.detach().clone(),
            )
            for each in self._model.parameters()
        ]
        self._buffers = [
            (module, name, value, value.detach().clone())
            for module in self._model.modules()
            for name, value in module._buffers.items()
            if value is not None
        ]
        self._training = [(module, module.training) for module in self._model.modules()]
        self._state = (
            copy.deepcopy(self._optimizer.state_dict()) if self._optimizer is not None else None
        )
        self._scale = scale = torch.amp.grad_scaler.GradScaler.scale
        seen = self._scalers

        def scaled(scaler: Any, outputs: Any) -> Any:
            if scaler not in seen:
                seen[scaler] = scaler.state_dict()
            return scale(scaler, outputs)

        torch.amp.grad_scaler.GradScaler.scale = scaled  # type: ignore[method-assign,assignment]
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        torch.amp.grad_scaler.GradScaler.scale = self._scale  # type: ignore[method-assign]
        with torch.no_grad():
            for parameter, value, grad, grad_value in self._parameters:
                parameter.copy_(value)
                parameter.grad = grad
                if grad is not None and grad_value is not None:
                    grad.copy_(grad_value)
            for module, name, buffer, value in self._buffers:
                module._buffers[name] = buffer
                buffer.copy_(value)
        for module, training in self._training:
            module.training = training
        if self._optimizer is not None and self._state is not None:
            self._optimizer.load_state_dict(self._state)
        for scaler, state in self._scalers.items():
            if state:
                scaler.load_state_dict(state)
        self._random.__exit__(kind, error, trace)


_WARM = 2
_TIMED = 3


@public()
def check_trainer(
    model: torch.nn.Module,
    optimizer: torch.optim.Optimizer | None,
    step: Callable[[Any], object],
    batch: object,
) -> Diagnosis[StepFigures]:
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
    facts = StepFacts(
        device=_device(model),
        batch_size=count_samples(batch) or 0,
        anomaly=torch.is_anomaly_enabled(),
        fp32_precision=torch.get_float32_matmul_precision(),
        compiled_model=_compiled(model),
    )
    _record_optimizer(facts, optimizer)
    with RestoredState(model, optimizer):
        _run(facts, lambda: step(batch))
    findings, passed = judge(facts)
    kinds = ", ".join(dict.fromkeys(each.kind for each in findings))
    noun = count(len(findings), "finding")
    return Diagnosis(
        f"{noun} that cost time: {kinds}." if findings else "Nothing found that costs time.",
        findings[0].kind if findings else HEALTHY,
        not findings,
        findings,
        StepFigures(facts.device, facts.step_s, facts.batch_size),
        passed=passed,
    )


@public()
@dataclass(frozen=True, slots=True)
class StepFigures:
    """What ``fastload.check_trainer`` measured."""

    device: str
    step_s: float  # one step, nothing watching it
    batch_size: int  # samples; 0 = could not be told

    def lines(self) -> list[str]:
        """One."""
        per_s = 1 / self.step_s if self.step_s > 0 else float("inf")
        samples = f" = {rate(per_s * self.batch_size)} samples/s (batch {self.batch_size})"
        return [
            f"One step on {self.device}: {seconds(self.step_s)}, {rate(per_s)} it/s"
            f"{samples if self.batch_size else ''}."
        ]

    def as_json(self) -> dict[str, object]:
        """All figures."""
        return asdict(self)


def _run(facts: StepFacts, step: Callable[[], object]) -> None:
    """Warm-up, timed steps with nothing watching, one under the profiler, one under the modes."""
    try:
        for _ in range(_WARM):
            step()
        synchronize()
        began = time.perf_counter()
        for _ in range(_TIMED):
            step()
        synchronize()
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


def _record_optimizer(facts: StepFacts, optimizer: torch.optim.Optimizer | None) -> None:
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
