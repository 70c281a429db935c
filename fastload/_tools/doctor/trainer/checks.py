"""StepFacts of a training step and the checks that judge them. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field

from fastload._tools.doctor.finding import Finding


@dataclass(slots=True, kw_only=True)
class StepFacts:
    """Of one step, unless said otherwise."""

    device: str = "cpu"  # type of the model's device
    batch_size: int = 0
    step_s: float = 0.0
    matmuls: Counter[str] = field(
        default_factory=Counter
    )  # dtype → matrix products and convolutions, forward and backward
    autocast: Counter[tuple[bool, str, str]] = field(
        default_factory=Counter
    )  # (enabled, dtype, where) → entered
    scaler: bool = False  # a gradient scaler was used
    fp32_precision: str = "highest"  # torch.get_float32_matmul_precision()
    cudnn_tf32: bool = True
    convolutions: int = 0
    convolutions_nchw: int = 0  # of them with images not in channels_last
    compiled_regions: int = 0
    compiled_model: bool = False  # the model given is a compiled one
    optimizer: str = ""
    optimizer_tensors: int = 0  # parameters it updates
    fused: bool | None = None  # None = it has no such option
    foreach: bool | None = None
    syncs: Counter[tuple[str, str]] = field(default_factory=Counter)  # (what, where) → times
    blocking_copies: Counter[tuple[str, str]] = field(
        default_factory=Counter
    )  # (why, where) → times
    kernels: int = 0  # launched on the GPU
    kernel_s: float = 0.0  # all of them together
    anomaly: bool = False  # torch.autograd's anomaly detection is on
    failed: str = ""  # what the profiler could not do


Verdict = Iterator[Finding | str]  # a string: the check found nothing, and what it saw
_HALF = ("bfloat16", "float16")
_SHORT_KERNEL_S = (
    20e-6  # launching one costs the CPU about 5 to 10 us; below twice that the GPU outruns it
)
_NAMED = 8  # places a finding names one by one


def judge(facts: StepFacts) -> tuple[tuple[Finding, ...], tuple[str, ...]]:
    """All checks, those that cost most first."""
    results = [
        each
        for check in (
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
        for each in check(facts)
    ]
    findings = tuple(each for each in results if isinstance(each, Finding))
    passed = tuple(each for each in results if isinstance(each, str))
    return findings, passed


def _anomaly(facts: StepFacts) -> Verdict:
    if facts.anomaly:
        yield _finding(
            "anomaly",
            "torch.autograd's anomaly detection is on: each operator keeps a stack trace and is checked for NaN",
            "remove set_detect_anomaly(True) outside of debugging",
        )


def _amp(facts: StepFacts) -> Verdict:
    total = sum(facts.matmuls.values())
    half = sum(facts.matmuls[name] for name in _HALF)
    if not total:
        yield _passed("amp", "no matrix product or convolution was seen: cannot be told")
        return
    entered = [key for key in facts.autocast if key[0]]
    if half * 2 >= total:
        kind = "autocast" if entered else "the model's own dtype"
        counts = ", ".join(f"{count} in {name}" for name, count in facts.matmuls.most_common())
        yield _passed("amp", f"active by {kind}: of {total} matrix products {counts}")
        return
    off = next((where for enabled, _, where in facts.autocast if not enabled), None)
    why = "autocast was never entered"
    if entered:
        why = "autocast was entered, but they run outside of it"
    elif facts.autocast:
        why = "autocast was entered with enabled=False"
    doubt = (
        "; a setting such as amp: true that is compared with the string 'bf16' ends like this"
        if not entered
        else ""
    )
    yield _finding(
        "amp",
        f"mixed precision is off: {total - half} of {total} matrix products in {_most(facts)}; {why}{doubt}",
        f"run the forward pass and the loss under torch.autocast({facts.device!r}, dtype=torch.bfloat16)",
        off or "",
    )


def _most(facts: StepFacts) -> str:
    return next((name for name, _ in facts.matmuls.most_common() if name not in _HALF), "float32")


def _scaler(facts: StepFacts) -> Verdict:
    if (
        any(enabled and dtype == "float16" for enabled, dtype, _ in facts.autocast)
        and not facts.scaler
    ):
        yield _finding(
            "amp",
            "autocast to float16 without a gradient scaler: small gradients become 0",
            "use dtype=torch.bfloat16, or a torch.amp.GradScaler: scale(loss).backward(), step(optimizer), update()",
        )


def _tf32(facts: StepFacts) -> Verdict:
    if facts.device != "cuda":
        yield _passed("tf32", f"does not apply on {facts.device}")
    elif facts.matmuls["float32"] and facts.fp32_precision == "highest":
        yield _finding(
            "tf32",
            f"{facts.matmuls['float32']} matrix products in float32 at full precision, without tensor cores",
            "torch.set_float32_matmul_precision('high')",
        )
    elif facts.convolutions and facts.matmuls["float32"] and not facts.cudnn_tf32:
        yield _finding(
            "tf32",
            "convolutions in float32 with TF32 switched off in cuDNN",
            "torch.backends.cudnn.allow_tf32 = True",
        )
    else:
        yield _passed("tf32", "on, or nothing runs in float32")


def _syncs(facts: StepFacts) -> Verdict:
    for (what, where), times in facts.syncs.most_common(_NAMED):
        yield _finding(
            "sync",
            f"{what}, {_times(times)} a step: the CPU waits until the GPU has done everything before it",
            "keep the tensor (losses.append(loss.detach())), read it every 50 steps; torch.where instead of masks",
            where,
        )
    if len(facts.syncs) > _NAMED:
        yield _finding(
            "sync",
            f"{len(facts.syncs) - _NAMED} more places that read values each step",
            "as above",
        )
    if not facts.syncs:
        yield _passed("sync", "no value is read by the CPU during a step")


def _copies(facts: StepFacts) -> Verdict:
    for (why, where), times in facts.blocking_copies.most_common(_NAMED):
        fix = "tensor.to(device, non_blocking=True), from a loader with pin_memory=True"
        yield _finding(
            "copy",
            f"copy to the device {why}, {_times(times)} a step: it blocks until it is done",
            fix,
            where,
        )
    if not facts.blocking_copies:
        yield _passed(
            "copy",
            f"does not apply on {facts.device}"
            if facts.device == "cpu"
            else "no copy to the device blocks",
        )


def _channels_last(facts: StepFacts) -> Verdict:
    if not facts.convolutions:
        yield _passed("channels_last", "no convolutions")
    elif facts.convolutions_nchw * 2 >= facts.convolutions:
        yield _finding(
            "channels_last",
            f"{facts.convolutions_nchw} of {facts.convolutions} convolutions get images as NCHW: they are "
            "turned around before and after",
            "model.to(memory_format=torch.channels_last), and the images, too",
        )
    else:
        yield _passed(
            "channels_last",
            f"{facts.convolutions - facts.convolutions_nchw} of {facts.convolutions} convolutions",
        )


def _compile(facts: StepFacts) -> Verdict:
    if facts.failed:
        yield _passed("compile", f"cannot be told, the profiler did not run: {facts.failed}")
    elif facts.compiled_regions:
        yield _passed("compile", f"{facts.compiled_regions} compiled regions in a step")
    elif facts.compiled_model:
        yield _finding(
            "compile",
            "the model is compiled, but nothing compiled ran in a step: the step calls another one",
            "call what torch.compile(model) returned, not the model it was given",
        )
    else:
        yield _finding(
            "compile",
            "nothing in the step is compiled",
            "model = torch.compile(model), and call that; it pays from a few thousand steps on",
        )


def _optimizer(facts: StepFacts) -> Verdict:
    if facts.fused or (facts.fused is None and facts.foreach):
        yield _passed("optimizer", f"{facts.optimizer}, {'fused' if facts.fused else 'foreach'}")
    elif facts.fused is None and facts.foreach is None:
        yield _passed(
            "optimizer",
            f"{facts.optimizer or 'none'}: has neither fused nor foreach: cannot be told",
        )
    else:
        how = "with foreach" if facts.foreach else "one tensor after the other"
        yield _finding(
            "optimizer",
            f"{facts.optimizer} updates {facts.optimizer_tensors} tensors {how}",
            f"{facts.optimizer}(..., {'fused' if facts.fused is not None else 'foreach'}=True)",
        )


def _batch(facts: StepFacts) -> Verdict:
    if not facts.kernels:
        yield _passed(
            "batch",
            f"does not apply on {facts.device}" if facts.device == "cpu" else "no kernel was seen",
        )
        return
    mean = facts.kernel_s / facts.kernels
    busy = facts.kernel_s / facts.step_s if facts.step_s else 1.0
    launched = f"{facts.kernels} kernels of {1e6 * mean:.0f} us on average, the GPU is busy {100 * busy:.0f} % of a step"
    if mean < _SHORT_KERNEL_S and busy < 0.7:
        yield _finding(
            "batch",
            f"{launched}: the CPU cannot launch them fast enough",
            f"a batch larger than {facts.batch_size or 'this'}, torch.compile(mode='reduce-overhead'), or both",
        )
    else:
        yield _passed("batch", launched)


def _times(count: int) -> str:
    return "once" if count == 1 else f"{count} times"


def _finding(check: str, title: str, fix: str, where: str = "") -> Finding:
    return Finding(check, title, (), fix, where=where)


def _passed(check: str, saw: str) -> str:
    return f"{check}: {saw}"
