"""Rules on the GPU and on memory: throttling, a GPU that waits for its host, and swapping."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from fastload._common import formatting as fmt
from fastload._tools.doctor.case import Case, Unclaimed
from fastload._tools.doctor.finding import INFO, WARN, Finding, severity_of
from fastload._tools.doctor.limits import (
    CLOCK_DROP,
    POWER_LOW,
    SWAP_BYTES_S,
    THROTTLE_PART,
    UTIL_BUSY,
    UTIL_LOW,
    WARN_SHARE,
)
from fastload._tools.doctor.runs import mean_of, samples
from fastload._tools.monitor.window import GpuWindow, Window

# Parts of NVML's throttle reasons, and the fix.
REASONS = {
    "heat": (
        ("therm", "hot", "temp", "slowdown"),
        "Improve the cooling (fans, dust, air flow, distance to the next card); a lower power "
        "limit (nvidia-smi -pl) gives a steadier and higher speed.",
    ),
    "power": (
        ("power", "brake"),
        "Raise the power limit if you may (nvidia-smi -pl), or accept this speed as the ceiling.",
    ),
}


# What to change first if this stage is the largest one of a host-bound step.
STAGE_FIXES = {
    "to_device": "Copy with pin_memory=True and .to(device, non_blocking=True), or use "
    "fastload.DataLoader(device='cuda').",
    "forward": "Compile the model: torch.compile(model).",
    "loss": "Keep the loss on the device: no .item(), no Python loop over samples or boxes.",
    "backward": "Compile the model: torch.compile(model), whose backward pass launches less.",
    "optimizer": "Create the optimizer with fused=True.",
}


@dataclass(frozen=True, slots=True)
class _Slowed:
    gpu: GpuWindow
    part: float  # share of the samples
    clock_loss: float  # relative to the highest clock of the window; 0 if it is not known
    evidence: str


def throttling(window: Window) -> list[Finding]:
    """Throttling by heat and by power, at most one finding each.

    ``share`` is the clock that the worst GPU loses, because the other GPUs of a run wait for it.
    """
    found = []
    for reason, (words, fix) in REASONS.items():
        # Heat is always a fault. A power cap is normal for a fully used GPU unless it costs clock.
        slowed = [
            each
            for each in (_slowed(gpu, words) for gpu in window.gpus if gpu.t)
            if each.part >= THROTTLE_PART and (reason == "heat" or each.clock_loss >= CLOCK_DROP)
        ]
        if slowed:
            names = ", ".join(str(each.gpu.index) for each in slowed)
            subject = f"GPU {names} is" if len(slowed) == 1 else f"GPUs {names} are"
            part = fmt.percent(max(each.part for each in slowed))
            share = max(each.part * each.clock_loss for each in slowed)
            found.append(
                Finding(
                    "throttled",
                    f"{subject} slowed down by {reason} {part} of the time "
                    f"(limit {fmt.percent(THROTTLE_PART)})",
                    tuple(each.evidence for each in slowed[:8]),
                    fix,
                    share=share,
                    severity=severity_of(share, at_least=WARN),
                )
            )
    return found


def _slowed(gpu: GpuWindow, words: tuple[str, ...]) -> _Slowed:
    mask = np.array(
        [
            any(word in reason.lower() for reason in each or () for word in words)
            for each in gpu.throttle
        ],
        bool,
    )
    means = {name: mean_of(samples(gpu.series[name])[mask]) for name in gpu.series}
    top = float(np.fmax.reduce(samples(gpu.series["sm_mhz"]), initial=0.0))
    loss = max(1 - means["sm_mhz"] / top, 0.0) if top > 0 and means["sm_mhz"] >= 0 else 0.0
    part = float(mask.mean())
    facts = [f"throttled in {fmt.percent(part)} of the samples"]
    facts.append(
        f"at {means['sm_mhz']:.0f} MHz instead of {top:.0f} MHz" if loss else "no clock was lost"
    )
    facts += [f"at {means['temp_c']:.0f} C"] if means["temp_c"] > 0 else []
    if means["power_w"] > 0:
        limit = mean_of(samples(gpu.series["power_limit_w"]))
        facts.append(f"at {means['power_w']:.0f} W" + (f" of {limit:.0f} W" if limit > 0 else ""))
    return _Slowed(gpu, part, loss, f"GPU {gpu.index}: {', '.join(facts)}.")


def throttled_gpus(case: Case, _: Unclaimed) -> list[Finding]:
    """The missing clock stretches the time in which the run computes."""
    computing_s = max(case.total_s - case.account.wait_s, 0.0)
    return [
        case.finding(
            each.kind,
            each.title,
            each.evidence,
            each.fix,
            lost_s=each.share * computing_s,
            at_least=WARN,
        )
        for each in (throttling(case.window) if case.window else [])
    ]


def host_bound(case: Case, unclaimed: Unclaimed) -> list[Finding]:
    """The GPU is idle although data is ready, or busy with small kernels or float32."""
    gpus = [gpu for gpu in case.window.gpus if gpu.t] if case.window else []
    if not gpus:
        return []
    util = mean_of(np.concatenate([samples(gpu.series["util"]) for gpu in gpus]))
    power = _power_share(gpus)
    drawn = f"power draw is {fmt.percent(power)} of the limit"
    idle_s = (1 - util / 100) * case.total_s
    lost_s = idle_s - unclaimed.lost_s
    fix = (
        "Run fastload.check_trainer(model, optimizer, step, batch) to check AMP, torch.compile and "
        ".item() calls; then try larger batches or CUDA graphs."
    )
    if util < UTIL_LOW and lost_s > max(WARN_SHARE * case.total_s, unclaimed.lost_s):
        evidence = [
            f"GPU utilization is {util:.0f} % (limit {UTIL_LOW:.0f} %), and data wait is only "
            f"{fmt.percent(case.account.wait_s / case.total_s)} of the time."
        ]
        evidence += [f"{drawn.capitalize()}."] if power > 0 else []
        title = (
            f"data is ready, but the GPU waits for Python {fmt.percent(1 - util / 100)} of the time"
        )
        stages = case.account.stages
        if stages:
            largest = max(stages, key=stages.__getitem__)
            share = fmt.percent(stages[largest] / case.account.step_s)
            title += f"; the largest stage is {largest} ({share} of a step)"
            parts = ", ".join(f"{name} {fmt.seconds(value)}" for name, value in stages.items())
            evidence.append(f"A step takes {fmt.seconds(case.account.step_s)}: {parts}.")
            fix = f"{STAGE_FIXES.get(largest, f'Profile {largest} first.')} {fix}"
        return [case.finding("host-bound", title, evidence, fix, lost_s=lost_s)]
    if util >= UTIL_BUSY and 0 < power < POWER_LOW:
        evidence = [
            f"GPU utilization is {util:.0f} %, but {drawn} (expected at least "
            f"{fmt.percent(POWER_LOW)}): its kernels are small."
        ]
        title = f"the GPU is busy but draws only {fmt.percent(power)} of its power limit"
        return [case.finding("low-power", title, evidence, fix, at_least=WARN)]
    return []


def _power_share(gpus: list[GpuWindow]) -> float:
    """Mean power draw relative to the limit; NaN if it is not known."""
    shares = [
        mean_of(samples(gpu.series["power_w"])) / (limit or math.nan)
        for gpu in gpus
        if (limit := mean_of(samples(gpu.series["power_limit_w"]))) > 0
    ]
    return mean_of(np.array(shares, np.float64))


def swapping(case: Case, unclaimed: Unclaimed) -> list[Finding]:
    """Claims the slow steps in which the host swaps, and all waiting if most rows swap."""
    rank = case.rank
    rows = case.account.rows
    swap = np.nan_to_num(rank.swap_bytes[rows])
    seconds = rank.seconds[rows]
    busy = swap > SWAP_BYTES_S * seconds
    stalled = [stall for stall in unclaimed.stalls if stall.swap]
    unclaimed.stalls = [stall for stall in unclaimed.stalls if not stall.swap]
    window_rate = math.nan
    if case.window:
        host = case.window.host.series
        window_rate = 1e6 * mean_of(samples(host["swap_in_mb_s"]) + samples(host["swap_out_mb_s"]))
    window_swaps = window_rate > SWAP_BYTES_S
    if not busy.any() and not window_swaps:
        return []
    waited_s = sum(stall.data_s for stall in stalled)
    lost_s = sum(stall.excess_s for stall in stalled)
    if 2 * int(busy.sum()) > len(busy):
        lost_s += max(unclaimed.wait_s - waited_s, 0.0)
        waited_s = unclaimed.wait_s
    unclaimed.wait_s = max(unclaimed.wait_s - waited_s, 0.0)
    limit = f"(limit {SWAP_BYTES_S / 1e6:.0f} MB/s)"
    evidence = []
    if busy.any():
        rate = float(swap[busy].sum() / seconds[busy].sum()) / 1e6
        share = fmt.percent(float(busy.mean()))
        evidence.append(f"The host swaps in {share} of the rows, at {rate:.0f} MB/s {limit}.")
    if window_swaps:
        evidence.append(f"The monitor saw {window_rate / 1e6:.0f} MB/s of swapping {limit}.")
    return [
        case.finding(
            "swap",
            "the job needs more memory than the machine has",
            evidence,
            "Use fewer workers, a smaller prefetch_factor (each worker holds its own batches) or "
            "a smaller cache. fastload.DataLoader has no worker processes and reports its buffers "
            "in loader.stats().",
            lost_s=lost_s,
            at_least=WARN if busy.sum() > 1 or window_swaps else INFO,
        )
    ]
