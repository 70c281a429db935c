"""Rules on the monitor's window: throttling, a GPU that waits for its host, little power drawn; and swapping, from rows or window."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from fastload._common import formatting as fmt
from fastload._tools.doctor.case import Case
from fastload._tools.doctor.finding import Finding
from fastload._tools.doctor.limits import (
    CLOCK_DROP,
    LOOK_SHARE,
    POWER_LOW,
    SWAP_BYTES_S,
    THROTTLE_PART,
    UTIL_BUSY,
    UTIL_LOW,
)
from fastload._tools.doctor.rules.registry import Unclaimed, rule
from fastload._tools.doctor.runs import Bools, Gpu, Window, mean_of

HOT = ("therm", "hot", "temp")
POWER = ("power", "brake")
SLOWED = ("slowdown",)
FIXES = {
    "heat": "cooling: fans, dust, air flow, the card beside it; a lower power limit (nvidia-smi -pl) gives an even, higher speed",
    "power": "the power limit costs clock: raise it if you may (nvidia-smi -pl), or accept this speed as the ceiling",
}


def throttled(gpu: Gpu, parts: Sequence[str]) -> Bools:
    """Samples in which one of the reasons contains one of these words."""
    return np.array(
        [
            any(part in reason.lower() for reason in reasons for part in parts)
            for reasons in gpu.throttle
        ],
        bool,
    )


def clock_loss(gpu: Gpu, slowed: Bools) -> float:
    """Part of the clock that is missing in these samples, against the highest of the window; 0 where it is not known."""
    top = np.nanmax(gpu.sm_mhz, initial=0.0, where=np.isfinite(gpu.sm_mhz))
    mean = mean_of(gpu.sm_mhz[slowed])
    return max(1 - mean / float(top), 0.0) if top > 0 and mean >= 0 else 0.0


@dataclass(frozen=True, slots=True)
class Throttling:
    """GPUs held back for one reason; ``share`` is what the worst of them loses, for in one run the others wait for it."""

    title: str
    evidence: tuple[str, ...]
    fix: str
    share: float


def throttling(window: Window) -> list[Throttling]:
    """By heat and by power, at most one each."""
    found = []
    for reason, parts in (("heat", HOT + SLOWED), ("power", POWER)):
        slowed = [
            (gpu, mask, float(mask.mean()))
            for gpu in window.gpus
            if len(mask := throttled(gpu, parts))
        ]
        # Heat is a fault by itself. A power cap is how a full GPU looks, unless it costs clock.
        these = [
            (gpu, mask, part)
            for gpu, mask, part in slowed
            if part >= THROTTLE_PART and (reason == "heat" or clock_loss(gpu, mask) >= CLOCK_DROP)
        ]
        if these:
            names = ", ".join(str(gpu.index) for gpu, _, _ in these)
            title = (
                (f"GPU {names} is" if len(these) == 1 else f"GPUs {names} are")
                + f" held back by {reason} {fmt.percent(max(part for _, _, part in these))} of the time"
            )
            found.append(
                Throttling(
                    title,
                    tuple(_describe(gpu, mask, part) for gpu, mask, part in these[:8]),
                    FIXES[reason],
                    max(part * clock_loss(gpu, mask) for gpu, mask, part in these),
                )
            )
    return found


def _describe(gpu: Gpu, slowed: Bools, part: float) -> str:
    drop = clock_loss(gpu, slowed)
    hot = mean_of(gpu.temp_c[slowed])
    power = mean_of(gpu.power_w[slowed])
    clock = (
        f"clock {mean_of(gpu.sm_mhz[slowed]):.0f} MHz then, {np.nanmax(gpu.sm_mhz):.0f} at best"
        if drop
        else "no clock seen lost"
    )
    text = f"GPU {gpu.index}: {fmt.percent(part)} of the samples; {clock}" + (
        f"; {hot:.0f} C" if hot > 0 else ""
    )
    limit = mean_of(gpu.limit_w)
    return text + (
        f"; {power:.0f} W" + (f" of {limit:.0f}" if limit > 0 else "") if power > 0 else ""
    )


@rule(70)
def throttled_gpus(case: Case, _: Unclaimed) -> list[Finding]:
    """As findings of a run: the part of the time in which it computes is stretched by the missing clock."""
    computing = max(case.total_s - case.account.wait_s, 0.0)
    return [
        case.finding(
            "throttled",
            each.title,
            each.evidence,
            each.fix,
            lost_s=each.share * computing,
            least="look",
        )
        for each in (throttling(case.window) if case.window else [])
    ]


@rule(90)
def host_bound(case: Case, unclaimed: Unclaimed) -> list[Finding]:
    """The data is there and yet the GPU idles, or it is busy with little: kernels too small, syncs, float32."""
    if case.window is None:
        return []
    lost_s = unclaimed.lost_s
    util = (
        mean_of(np.concatenate([gpu.util for gpu in case.window.gpus]))
        if case.window.gpus
        else math.nan
    )
    power = _power_share(case.window)
    drawn = f"power {fmt.percent(power)} of the limit" if power > 0 else ""
    idle = (1 - util / 100) * case.total_s
    fix = (
        "fastload.check_trainer(model, optimizer, step, batch): is AMP really on, compile really called, .item() or print in each step? "
        "Then larger batches or CUDA graphs"
    )
    if util < UTIL_LOW and idle - lost_s > LOOK_SHARE * case.total_s and lost_s < idle / 2:
        evidence = [
            f"GPU utilization {util:.0f} % ({case.window.name}), data wait only "
            f"{fmt.percent(case.account.wait_s / case.total_s)} of the time",
            *([drawn] if drawn else []),
        ]
        return [
            case.finding(
                "host-bound",
                "the data is there, and the GPU still waits: for the trainer's own Python",
                evidence,
                fix,
                lost_s=idle - lost_s,
            )
        ]
    if util >= UTIL_BUSY and 0 < power < POWER_LOW:
        evidence = [f"GPU utilization {util:.0f} %, but {drawn}: it is busy with little at a time"]
        title = f"the GPU is busy, but draws {fmt.percent(power)} of its power limit"
        return [case.finding("low-power", title, evidence, fix, least="look")]
    return []


def _power_share(window: Window) -> float:
    shares = [
        mean_of(gpu.power_w) / limit for gpu in window.gpus if (limit := mean_of(gpu.limit_w)) > 0
    ]
    shares = [share for share in shares if share >= 0]
    return sum(shares) / len(shares) if shares else math.nan


@rule(20)
def swapping(case: Case, unclaimed: Unclaimed) -> list[Finding]:
    """The host swaps: it pays for the slow steps in which it does, and for all waiting where most rows swap."""
    rank = case.rank
    rows = case.account.rows
    swap = np.nan_to_num(rank.swap_bytes[rows])
    busy = swap > SWAP_BYTES_S * rank.seconds[rows]
    stalled = [stall for stall in unclaimed.stalls if stall.swap]
    unclaimed.stalls = [stall for stall in unclaimed.stalls if not stall.swap]
    rate = float(swap[busy].sum() / rank.seconds[rows][busy].sum()) if busy.any() else 0.0
    window_rate = 1e6 * mean_of(case.window.swap_mb_s) if case.window else math.nan
    if not busy.any() and not window_rate > SWAP_BYTES_S:
        return []
    waited = sum(stall.data_s for stall in stalled)
    lost = sum(stall.excess_s for stall in stalled)
    if 2 * int(busy.sum()) > len(busy):  # always: all waiting is its fault
        lost += max(unclaimed.wait_s - waited, 0.0)
        waited = unclaimed.wait_s
    unclaimed.wait_s = max(unclaimed.wait_s - waited, 0.0)
    evidence = []
    if busy.any():
        share = fmt.percent(float(busy.mean()))
        evidence.append(f"{share} of the rows swap, {rate / 1e6:.0f} MB/s while they do")
    if case.window and window_rate > SWAP_BYTES_S:
        evidence.append(f"{window_rate / 1e6:.0f} MB/s in {case.window.name}")
    return [
        case.finding(
            "swap",
            "the job needs more memory than the machine has",
            evidence,
            "fewer workers or a smaller prefetch_factor (each worker holds its own batches), a smaller cache; then "
            "swapoff -a to keep it so. fastload.DataLoader has no worker processes and names its buffers in loader.stats()",
            lost_s=lost,
            least="look" if busy.sum() > 1 or window_rate > SWAP_BYTES_S else "",
        )
    ]
