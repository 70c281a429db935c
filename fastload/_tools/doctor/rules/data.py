"""Rules on data: why batches are late (disk, CPU, decoding, threads), and copies to the device."""

from __future__ import annotations

import math

import numpy as np

from fastload._common import formatting as fmt
from fastload._common.metrics import IMAGE_STAGES
from fastload._tools.doctor.account import find_period
from fastload._tools.doctor.case import Case, Unclaimed
from fastload._tools.doctor.finding import Finding
from fastload._tools.doctor.limits import (
    CAUSE_PART,
    CPU_PERCENT,
    DATA_SHARE,
    IOWAIT_PERCENT,
    RARE_WAIT,
    READ_PART,
    TRANSFER_SHARE,
)
from fastload._tools.doctor.runs import Floats, mean_of, n_cores, samples
from fastload._tools.monitor.window import Window

PACK = "run fastload pack SOURCE DEST once, then train with fastload.DataLoader(DEST, ...)"


def data_wait(case: Case, unclaimed: Unclaimed) -> list[Finding]:
    """Most steps wait for data. Rare late batches are left to the rules on slow steps."""
    late = [stall for stall in unclaimed.stalls if stall.by_data]
    if sum(max(stall.steps, 1) for stall in late) * RARE_WAIT > case.account.n_steps:
        late = []  # not rare: these stalls are part of a slow loader
    unclaimed.stalls = [stall for stall in unclaimed.stalls if not stall.by_data] + late
    # The rules on slow steps charge these stalls, including the wait inside them.
    wait_s = max(unclaimed.wait_s - sum(stall.data_s for stall in unclaimed.stalls), 0.0)
    unclaimed.wait_s = 0.0
    account = case.account
    share = wait_s / case.total_s
    if share < DATA_SHARE:
        return []
    longest = max(float(case.rank.data_time_max[account.rows].max()), 0.0)
    evidence = [
        f"A step takes {fmt.seconds(account.step_s)} and waits "
        f"{fmt.seconds(wait_s / account.n_steps)} of it for its batch, at most "
        f"{fmt.seconds(longest)}."
    ]
    if account.covered:
        evidence.append("Device work covers part of data_time; that part is not counted.")
    kind, why, more, fix = _cause(case)
    title = (
        f"the trainer waits for data {fmt.percent(share)} of the time "
        f"(limit {100 * DATA_SHARE:.0f} %){why}"
    )
    return [case.finding(kind, title, evidence + _rhythm(case) + more, fix, lost_s=wait_s)]


def _cause(case: Case) -> tuple[str, str, list[str], str]:
    """Kind, addition to the title, evidence and fix."""
    stages = _stage_means(case)
    total = sum(stages.values())
    slowest = max(stages, key=stages.__getitem__, default="")
    host = case.window.host if case.window else None
    iowait = mean_of(samples(host.series["iowait"])) if host else math.nan
    cpu = mean_of(_cpu_percent(case.window)) if case.window else math.nan
    evidence = []
    if total > 0:
        longest = np.fmax.reduce(case.rank.data_probe_max[slowest][case.account.rows])
        parts = ", ".join(f"{name} {fmt.seconds(value)}" for name, value in stages.items())
        evidence.append(
            f"The loader spends {fmt.seconds(total)} per sample: {parts}; "
            f"{slowest} takes up to {fmt.seconds(float(longest))}."
        )
    reads = total > 0 and stages.get("read", 0.0) >= READ_PART * total
    if iowait >= IOWAIT_PERCENT or (reads and not math.isnan(iowait)):
        evidence.append(
            f"The CPU waits for the disk {fmt.percent(iowait / 100)} of the time "
            f"(limit {IOWAIT_PERCENT:.0f} %)."
        )
    if reads:
        return (
            "disk-bound",
            f", and reading takes {fmt.percent(stages['read'] / total)} of the loader's work",
            evidence,
            "Store the packed dataset on a local NVMe drive or in RAM, and keep shuffle=True, "
            "which reads whole blocks; fastload doctor --data DIR measures the disk.",
        )
    if iowait >= IOWAIT_PERCENT:
        fix = f"Read large blocks instead of single files: {PACK}; or use a local NVMe drive."
        return "disk-bound", ", and the disk is the limit", evidence, fix
    if cpu >= CPU_PERCENT and case.window is not None:
        return _saturated(case.window, cpu, evidence, has_stages=total > 0)
    if not math.isnan(cpu):
        evidence.append(f"Cores are free: they are {cpu:.0f} % busy on average.")
    if not total > 0:
        fix = f"To find the slow stage, run fastload.diagnose(loader); to remove it, {PACK}."
        return "data-bound", "", evidence, fix
    fix = "Use more decode threads: num_workers=None chooses their number (see loader.stats())."
    if math.isnan(cpu):
        fix = "Use more decode threads (num_workers=None), or decode on the GPU (backend='dali')."
    why = f", and {slowest} takes {fmt.percent(stages[slowest] / total)} of the loader's work"
    return "data-bound", why, evidence, fix


def _saturated(
    window: Window, cpu: float, evidence: list[str], *, has_stages: bool
) -> tuple[str, str, list[str], str]:
    cores = n_cores(window)
    own_share = mean_of(samples(window.host.series["tree_cpu"])) / (cpu * max(cores, 1))
    evidence = [
        *evidence,
        f"All {cores} cores are {cpu:.0f} % busy on average (limit {CPU_PERCENT:.0f} %).",
    ]
    if own_share < CAUSE_PART:
        return (
            "cpu-saturated",
            ", and other jobs use the cores",
            [*evidence, f"This job uses {fmt.percent(own_share)} of that."],
            "Give this job its own cores (another machine, taskset, --cpus-per-task) or stop the "
            "other jobs before you change the loader.",
        )
    if math.isnan(own_share):
        evidence.append("fastload monitor --pid PID would show how much of that this job uses.")
    fix = f"More workers cannot help. Decode only the crop: {PACK}."
    if has_stages:
        fix = (
            "More workers cannot help. Decode on the GPU (backend='dali' or 'nvjpeg'), or store "
            "smaller images (fastload pack --max-side N)."
        )
    return "cpu-saturated", ", and no core is free", evidence, fix


def _cpu_percent(window: Window) -> Floats:
    """Mean over the cores, for each sample of the host."""
    return np.array([mean_of(samples(cores)) for cores in window.host.cpu])


def _stage_means(case: Case) -> dict[str, float]:
    """Mean seconds per sample of the loader's stages."""
    rows = case.account.rows
    means = {
        name: mean_of(case.rank.data_probe[name][rows], case.rank.steps[rows])
        for name in IMAGE_STAGES
        if name in case.rank.data_probe
    }
    return {name: value for name, value in means.items() if value >= 0}


def _rhythm(case: Case) -> list[str]:
    """Detects that every nth step is late, as with n workers that cannot keep up."""
    account = case.account
    late = [stall.iter for stall in account.stalls if stall.by_data]
    if len(late) * RARE_WAIT <= account.n_steps:
        return []
    none = np.zeros(0, np.int64)
    found = find_period(np.array(late, np.int64), none, account.first_iter, account.last_iter)
    if found is None or found[0] > RARE_WAIT:
        return []
    n = found[0]
    return [f"Every {fmt.ordinal(n)} step is late, as with {n} workers that cannot keep up."]


def transfer(case: Case, _: Unclaimed) -> list[Finding]:
    account = case.account
    copy = account.stages.get("to_device", 0.0)
    share = copy * account.n_steps / case.total_s
    if share < TRANSFER_SHARE:
        return []
    return [
        case.finding(
            "transfer-bound",
            f"copying batches to the device takes {fmt.percent(share)} of the time "
            f"(limit {100 * TRANSFER_SHARE:.0f} %)",
            [
                f"A step takes {fmt.seconds(account.step_s)}, and to_device is "
                f"{fmt.seconds(copy)} of it."
            ],
            "Use fastload.DataLoader(device='cuda'), which copies uint8 on its own stream while "
            "the step runs. With another loader use pin_memory=True and "
            ".to(device, non_blocking=True), and normalize on the device.",
            lost_s=copy * account.n_steps,
        )
    ]
