"""``fastload.check_trainer``: checks a training step for common performance mistakes."""

from __future__ import annotations

import copy
import inspect
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import Any

import torch

from fastload._common.formatting import count, percent, rate, seconds
from fastload._common.public import public
from fastload._tools.doctor.finding import HEALTHY, Diagnosis, Finding
from fastload._tools.doctor.loader.timing import restored_random, short, synchronize
from fastload._tools.doctor.trainer.watch import StepFacts, profile_step, watching
from fastload._tools.monitor.batches import count_samples
from fastload.errors import ConfigError

_WARM_STEPS = 2
_TIMED_STEPS = 3
_HALF = ("bfloat16", "float16")
# Launching a kernel costs the CPU 5 to 10 us. Below twice that, the GPU outruns the CPU.
_SHORT_KERNEL_S = 20e-6
_BUSY = 0.7  # share of a step in which kernels run; below this the GPU waits for launches
_MAX_PLACES = 8  # findings per check


@public()
@dataclass(frozen=True, slots=True)
class StepFigures:
    """The measurements of ``fastload.check_trainer``.

    Attributes:
        device: Type of the model's device, for example ``"cuda"``.
        step_s: Seconds per step without instrumentation.
        batch_size: Samples per batch; 0 if it is not known.
    """

    device: str
    step_s: float
    batch_size: int

    def lines(self) -> list[str]:
        """Returns the figures as one line of text."""
        per_s = 1 / self.step_s if self.step_s > 0 else float("inf")
        samples = ""
        if self.batch_size:
            samples = f" = {rate(per_s * self.batch_size)} samples/s (batch {self.batch_size})"
        return [f"One step on {self.device}: {seconds(self.step_s)}, {rate(per_s)} it/s{samples}."]

    def as_json(self) -> dict[str, object]:
        """Returns all figures."""
        return asdict(self)


@public()
def check_trainer(
    model: torch.nn.Module,
    optimizer: torch.optim.Optimizer | None,
    step: Callable[[Any], object],
    batch: object,
) -> Diagnosis[StepFigures]:
    """Checks a training step for common performance mistakes.

    Runs ``step(batch)`` a few times and checks mixed precision, TF32, channels_last, compilation,
    the optimizer, reads that wait for the GPU, blocking copies and small kernels. Model, optimizer,
    gradients, gradient scalers and random generators are restored afterwards. Other state that the
    step changes (a scheduler, a log file) is not.

    Args:
        model: The model that the step trains.
        optimizer: Its optimizer, or None to skip that check.
        step: The training step, called as ``step(batch)``.
        batch: One batch of the loader.

    Returns:
        The findings with file and line, the passed checks, and the time of a step.

    Raises:
        ConfigError: An argument has the wrong type, or the step raises.

    Examples:
        >>> print(fastload.check_trainer(model, optimizer, train_step, next(iter(loader))))
    """
    expected = [
        ("model", model, isinstance(model, torch.nn.Module), "a torch.nn.Module"),
        (
            "optimizer",
            optimizer,
            optimizer is None or hasattr(optimizer, "param_groups"),
            "a torch optimizer or None",
        ),
        ("step", step, callable(step), "a function of one batch"),
    ]
    for name, value, is_valid, what in expected:
        if not is_valid:
            raise ConfigError(f"check_trainer: {name}={type(value).__name__}: expected {what}")
    first = next(model.parameters(), None)
    facts = StepFacts(
        device=first.device.type if first is not None else "cpu",
        batch_size=count_samples(batch) or 0,
        anomaly=torch.is_anomaly_enabled(),
        fp32_precision=torch.get_float32_matmul_precision(),
        compiled_model=_is_compiled(model),
    )
    if optimizer is not None:
        _record_optimizer(facts, optimizer)
    with restored_random(), _restored_state(model, optimizer) as scalers:
        _run(facts, lambda: step(batch))
        facts.scaler = any(scaler.is_enabled() for scaler in scalers)
    findings, passed = judge(facts)
    kinds = ", ".join(dict.fromkeys(each.kind for each in findings))
    verdict = "No finding: the step has none of the known mistakes."
    if findings:
        verdict = f"{count(len(findings), 'finding')}: {kinds}."
    return Diagnosis(
        verdict,
        findings[0].kind if findings else HEALTHY,
        not findings,
        findings,
        StepFigures(facts.device, facts.step_s, facts.batch_size),
        passed=passed,
    )


@contextmanager
def _restored_state(
    model: torch.nn.Module, optimizer: torch.optim.Optimizer | None
) -> Iterator[dict[Any, dict[str, Any]]]:
    """Restores model, optimizer, gradients and gradient scalers on exit; yields these scalers.

    Values are copied back into the same tensors, so views, DDP buckets and graphs remain valid.
    """
    modules = [(module, module.training) for module in model.modules()]
    tensors: list[tuple[torch.Tensor, torch.Tensor]] = [
        (each, each.detach().clone()) for each in model.parameters()
    ]
    grads = [(each, each.grad) for each in model.parameters()]
    tensors += [(grad, grad.detach().clone()) for _, grad in grads if grad is not None]
    buffers = [
        (module, name, value)
        for module, _ in modules
        for name, value in module._buffers.items()
        if value is not None
    ]
    tensors += [(value, value.detach().clone()) for _, _, value in buffers]
    optimizer_state = copy.deepcopy(optimizer.state_dict()) if optimizer is not None else {}
    scalers: dict[Any, dict[str, Any]] = {}
    scale = torch.amp.grad_scaler.GradScaler.scale

    def recording_scale(scaler: Any, outputs: Any) -> Any:
        if scaler not in scalers:
            scalers[scaler] = scaler.state_dict()
        return scale(scaler, outputs)

    torch.amp.grad_scaler.GradScaler.scale = recording_scale  # type: ignore[method-assign,assignment]
    try:
        yield scalers
    finally:
        torch.amp.grad_scaler.GradScaler.scale = scale  # type: ignore[method-assign]
        with torch.no_grad():
            for tensor, value in tensors:
                tensor.copy_(value)
        for parameter, grad in grads:
            parameter.grad = grad
        for module, name, buffer in buffers:
            module._buffers[name] = buffer
        for module, training in modules:
            module.training = training
        if optimizer is not None:
            optimizer.load_state_dict(optimizer_state)
        for scaler, state in scalers.items():
            if state:
                scaler.load_state_dict(state)


def _run(facts: StepFacts, step: Callable[[], object]) -> None:
    """Runs warm-up and timed steps, then one step under the profiler and one under the modes."""
    try:
        for _ in range(_WARM_STEPS):
            step()
        synchronize()
        began = time.perf_counter()
        for _ in range(_TIMED_STEPS):
            step()
        synchronize()
        facts.step_s = (time.perf_counter() - began) / _TIMED_STEPS
        profile_step(facts, step)
        if facts.device == "cuda":
            facts.cudnn_tf32 = bool(torch.backends.cudnn.allow_tf32)
        with watching(facts):
            step()
    except Exception as error:
        raise ConfigError(
            f"check_trainer: the step raised {short(error)}. It is called as step(batch)."
        ) from error


def _is_compiled(model: torch.nn.Module) -> bool:
    """True after torch.compile(model) or model.compile(), also of a part of the model."""
    return any(
        hasattr(each, "_orig_mod") or getattr(each, "_compiled_call_impl", None) is not None
        for each in model.modules()
    )


def _record_optimizer(facts: StepFacts, optimizer: torch.optim.Optimizer) -> None:
    known = inspect.signature(type(optimizer).__init__).parameters
    groups = optimizer.param_groups
    facts.optimizer = type(optimizer).__name__
    facts.optimizer_tensors = sum(len(group["params"]) for group in groups)
    if "fused" in known:
        facts.fused = all(bool(group.get("fused")) for group in groups)
    if "foreach" in known:
        # With None, torch uses foreach on a GPU and single tensors on a CPU.
        default = facts.device == "cuda"
        chosen = (group.get("foreach") for group in groups)
        facts.foreach = all(default if each is None else bool(each) for each in chosen)


Results = Iterator[Finding | str]  # a string describes a passed check


def judge(facts: StepFacts) -> tuple[tuple[Finding, ...], tuple[str, ...]]:
    """Runs all checks, the most expensive mistakes first. Returns findings and passed checks."""
    checks = (
        _anomaly,
        _amp,
        _scaler,
        _tf32,
        _syncs,
        _copies,
        _channels_last,
        _compile,
        _optimizer,
        _batch,
    )
    results = [each for check in checks for each in check(facts)]
    findings = tuple(each for each in results if isinstance(each, Finding))
    return findings, tuple(each for each in results if isinstance(each, str))


def _finding(kind: str, title: str, fix: str, where: str = "") -> Finding:
    return Finding(kind, title, (), fix, where=where)


def _anomaly(facts: StepFacts) -> Results:
    if facts.anomaly:
        yield _finding(
            "anomaly",
            "autograd's anomaly detection is on and checks every operator for NaN",
            "Remove set_detect_anomaly(True) unless you are debugging.",
        )


def _amp(facts: StepFacts) -> Results:
    total = sum(facts.matmuls.values())
    half = sum(facts.matmuls[name] for name in _HALF)
    if not total:
        yield "amp: not checked, the step has no matrix product or convolution"
        return
    entered = any(enabled for enabled, _, _ in facts.autocast)
    if half * 2 >= total:
        source = "autocast" if entered else "the model's own dtype"
        counts = ", ".join(f"{times} in {name}" for name, times in facts.matmuls.most_common())
        yield f"amp: active through {source}, {total} matrix products: {counts}"
        return
    why = "autocast is never entered"
    if entered:
        why = "they run outside of autocast"
    elif facts.autocast:
        why = "autocast is entered with enabled=False"
    dtype = next(name for name, _ in facts.matmuls.most_common() if name not in _HALF)
    advice = "" if entered else "; check the setting, for example amp: true compared with 'bf16'"
    yield _finding(
        "amp",
        f"mixed precision is off: {total - half} of {total} matrix products run in {dtype}, "
        f"because {why}",
        f"Run forward pass and loss under torch.autocast({facts.device!r}, "
        f"dtype=torch.bfloat16){advice}.",
        next((where for enabled, _, where in facts.autocast if not enabled), ""),
    )


def _scaler(facts: StepFacts) -> Results:
    uses_float16 = any(enabled and dtype == "float16" for enabled, dtype, _ in facts.autocast)
    if uses_float16 and not facts.scaler:
        yield _finding(
            "amp",
            "autocast uses float16 without a gradient scaler, so small gradients become 0",
            "Use dtype=torch.bfloat16, or torch.amp.GradScaler: scale(loss).backward(), "
            "step(optimizer), update().",
        )


def _tf32(facts: StepFacts) -> Results:
    n_float32 = facts.matmuls["float32"]
    if facts.device != "cuda":
        yield f"tf32: does not apply to {facts.device}"
    elif n_float32 and facts.fp32_precision == "highest":
        yield _finding(
            "tf32",
            f"{n_float32} matrix products run in full float32 without tensor cores",
            "Call torch.set_float32_matmul_precision('high').",
        )
    elif facts.convolutions and n_float32 and not facts.cudnn_tf32:
        yield _finding(
            "tf32",
            "convolutions run in float32 with TF32 disabled in cuDNN",
            "Set torch.backends.cudnn.allow_tf32 = True.",
        )
    else:
        yield "tf32: on, or unused because nothing runs in float32"


def _syncs(facts: StepFacts) -> Results:
    for (what, where), times in facts.syncs.most_common(_MAX_PLACES):
        yield _finding(
            "sync",
            f"{what}, {_times(times)} per step, makes the CPU wait for all earlier GPU work",
            "Keep the tensor (losses.append(loss.detach())) and read it every 50 steps; use "
            "torch.where instead of masks.",
            where,
        )
    if len(facts.syncs) > _MAX_PLACES:
        yield _finding(
            "sync",
            f"{len(facts.syncs) - _MAX_PLACES} more places read values in each step",
            "Change them in the same way.",
        )
    if not facts.syncs:
        yield "sync: the CPU reads no value during a step"


def _copies(facts: StepFacts) -> Results:
    for (why, where), times in facts.blocking_copies.most_common(_MAX_PLACES):
        yield _finding(
            "copy",
            f"a copy to the device {why}, {_times(times)} per step, blocks until it is done",
            "Use tensor.to(device, non_blocking=True) and a loader with pin_memory=True.",
            where,
        )
    if not facts.blocking_copies:
        yield f"copy: {_on_cpu(facts) or 'no copy to the device blocks'}"


def _channels_last(facts: StepFacts) -> Results:
    n_last = facts.convolutions - facts.convolutions_nchw
    if not facts.convolutions:
        yield "channels_last: the step has no convolutions"
    elif n_last > facts.convolutions_nchw:
        yield f"channels_last: {n_last} of {facts.convolutions} convolutions"
    else:
        yield _finding(
            "channels_last",
            f"{facts.convolutions_nchw} of {facts.convolutions} convolutions receive NCHW images "
            "and must convert them",
            "Call model.to(memory_format=torch.channels_last) and convert the images as well.",
        )


def _compile(facts: StepFacts) -> Results:
    if facts.failed:
        yield f"compile: not checked, the profiler did not run: {facts.failed}"
    elif facts.compiled_regions:
        yield f"compile: {count(facts.compiled_regions, 'compiled region')} per step"
    elif facts.compiled_model:
        yield _finding(
            "compile",
            "the model is compiled, but the step calls the original",
            "Call the model that torch.compile(model) returned.",
        )
    else:
        yield _finding(
            "compile",
            "nothing in the step is compiled",
            "Call model = torch.compile(model); it pays off after a few thousand steps.",
        )


def _optimizer(facts: StepFacts) -> Results:
    if facts.fused or (facts.fused is None and facts.foreach):
        yield f"optimizer: {facts.optimizer}, {'fused' if facts.fused else 'foreach'}"
    elif facts.fused is None and facts.foreach is None:
        yield f"optimizer: not checked, {facts.optimizer or 'none'} has neither fused nor foreach"
    else:
        how = "with foreach" if facts.foreach else "one at a time"
        option = "fused" if facts.fused is not None else "foreach"
        yield _finding(
            "optimizer",
            f"{facts.optimizer} updates {facts.optimizer_tensors} tensors {how}",
            f"Create it as {facts.optimizer}(..., {option}=True).",
        )


def _batch(facts: StepFacts) -> Results:
    if not facts.kernels:
        yield f"batch: {_on_cpu(facts) or 'the profiler saw no kernel'}"
        return
    mean_s = facts.kernel_s / facts.kernels
    busy = facts.kernel_s / facts.step_s if facts.step_s else 1.0
    found = (
        f"{facts.kernels} kernels take {1e6 * mean_s:.0f} us on average, and the GPU is busy "
        f"{percent(busy)} of a step"
    )
    if mean_s < _SHORT_KERNEL_S and busy < _BUSY:
        yield _finding(
            "batch",
            f"{found} (limit {percent(_BUSY)}), because the CPU launches them too slowly",
            f"Use a batch larger than {facts.batch_size or 'this'}, "
            "torch.compile(mode='reduce-overhead'), or both.",
        )
    else:
        yield f"batch: {found}"


def _on_cpu(facts: StepFacts) -> str:
    return "does not apply to cpu" if facts.device == "cpu" else ""


def _times(number: int) -> str:
    return "once" if number == 1 else f"{number} times"
