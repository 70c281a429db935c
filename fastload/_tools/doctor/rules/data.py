"""Rules on waiting for data: why it is late (disk, processors, decoding, threads), and the copy to the device."""

from __future__ import annotations

import math

import numpy as np

from fastload._common import formatting as fmt
from fastload._common.metrics import IMAGE_STAGES
from fastload._tools.doctor.case import Case
from fastload._tools.doctor.finding import Finding
from fastload._tools.doctor.limits import (
    CAUSE_PART,
    CPU_PERCENT,
    DATA_SHARE,
    IOWAIT_PERCENT,
    LOOK_SHARE,
    RARE_WAIT,
    READ_PART,
    TRANSFER_SHARE,
)
from fastload._tools.doctor.periods import find_period
from fastload._tools.doctor.rules.registry import Unclaimed, rule
from fastload._tools.doctor.runs import mean_of

PACK = "fastload pack SOURCE DEST once, then fastload.DataLoader(DEST, ...) in the trainer: one changed line"


@rule(30)
def data_wait(case: Case, unclaimed: Unclaimed) -> list[Finding]:
    """The run waits for data all the time. Rare late batches are left to the rules on slow steps."""
    late = [stall for stall in unclaimed.stalls if stall.by_data]
    if sum(max(stall.steps, 1) for stall in late) * RARE_WAIT > case.account.n_steps:
        late = []  # not rare: the loader is too slow, and they belong to that
    unclaimed.stalls = [stall for stall in unclaimed.stalls if not stall.by_data] + late
    wait_s = max(unclaimed.wait_s - sum(stall.data_s for stall in late), 0.0)
    unclaimed.wait_s = 0.0
    account = case.account
    if wait_s < DATA_SHARE * case.total_s:
        return []
    share = wait_s / case.total_s
    mean = wait_s / account.n_steps
    evidence = [
        f"data wait {fmt.seconds(mean)} of a step of {fmt.seconds(account.total_s / account.n_steps)}, "
        f"up to {fmt.seconds(float(max(case.rank.data_time_max[account.rows].max(), 0)))}"
    ]
    if account.covered:
        evidence.append("part of data_time was hidden behind the device's work and is not counted")
    evidence += _rhythm(case)
    kind, why, more, fix = _cause(case)
    return [
        case.finding(
            kind,
            f"the trainer waits for data {fmt.percent(share)} of the time{why}",
            evidence + more,
            fix,
            lost_s=wait_s,
        )
    ]


def _cause(case: Case) -> tuple[str, str, list[str], str]:
    """Kind, a few words, evidence, fix."""
    parts, largest = _sample_parts(case)
    total = sum(parts.values())
    window = case.window
    iowait = mean_of(window.iowait) if window else math.nan
    cpu = mean_of(window.cpu) if window else math.nan
    evidence = [_describe_parts(parts, total, largest)] if total > 0 else []
    if total > 0 and parts.get("read", 0.0) >= READ_PART * total:
        if not math.isnan(iowait):
            evidence.append(f"processors wait for the disk {fmt.percent(iowait / 100)} of the time")
        return (
            "disk-bound",
            "; reading is most of it",
            evidence,
            "the disk is the limit: put the packed dataset on a local NVMe, or into RAM (fastload doctor --data DIR "
            "measures the disk); keep shuffle=True, which reads whole blocks in sequence",
        )
    if iowait >= IOWAIT_PERCENT:
        evidence.append(
            f"processors wait for the disk {fmt.percent(iowait / 100)} of the time ({window.name if window else ''})"
        )
        return (
            "disk-bound",
            "; the disk is the limit",
            evidence,
            f"read in sequence instead of one file here and one there: {PACK}; or move the data to a local NVMe",
        )
    if cpu >= CPU_PERCENT and window is not None:
        evidence.append(f"all {window.cores} cores are busy: {cpu:.0f} % on average")
        own_share = mean_of(window.tree_cpu) / (cpu * max(window.cores, 1))
        if own_share < CAUSE_PART:
            evidence.append(f"this job has {fmt.percent(own_share)} of that")
            return (
                "cpu-saturated",
                "; other jobs hold the cores",
                evidence,
                "give this job cores of its own (another machine, taskset, "
                "--cpus-per-task), or stop what else computes there; only then is the loader itself worth a look",
            )
        if math.isnan(own_share):
            evidence.append(
                "whose work that is was not recorded: fastload monitor --pid PID tells this job's part"
            )
        return (
            "cpu-saturated",
            "; no core is free",
            evidence,
            "more workers cannot help. Do less for each sample: "
            + (
                "backend='dali' or 'nvjpeg' decodes on the GPU; fastload pack --max-side N stores smaller images"
                if total > 0
                else f"{PACK}; it decodes only the crop"
            ),
        )
    if not math.isnan(cpu):
        evidence.append(f"cores are free: {cpu:.0f} % busy on average")
    if total > 0:
        name = max(parts, key=lambda each: parts[each])
        fix = (
            "more decode threads (num_workers=None lets the loader decide; see loader.stats())"
            if not math.isnan(cpu)
            else "more decode threads (num_workers=None), or backend='dali' / 'nvjpeg' to decode on the GPU"
        )
        return (
            "data-bound",
            f"; {name} is {fmt.percent(parts[name] / total)} of a sample's way",
            evidence,
            fix,
        )
    return (
        "data-bound",
        "",
        evidence,
        f"{PACK}. To see which part is slow before you move: fastload.diagnose(loader)",
    )


def _sample_parts(case: Case) -> tuple[dict[str, float], dict[str, float]]:
    rows = case.account.rows
    steps = case.rank.steps
    means = {
        name: mean_of(case.rank.data_probe[name][rows], steps[rows])
        for name in IMAGE_STAGES
        if name in case.rank.data_probe
    }
    means = {name: value for name, value in means.items() if value >= 0}
    return means, {
        name: float(np.fmax.reduce(case.rank.data_probe_max[name][rows])) for name in means
    }


def _describe_parts(parts: dict[str, float], total: float, largest: dict[str, float]) -> str:
    name = max(parts, key=lambda each: parts[each])
    listed = ", ".join(f"{each} {fmt.seconds(value)}" for each, value in parts.items())
    return f"a sample takes {fmt.seconds(total)} in the loader: {listed}; {name} up to {fmt.seconds(largest[name])}"


def _rhythm(case: Case) -> list[str]:
    """Late every 8th step is how 8 workers look that cannot keep up."""
    late = [stall.iter for stall in case.account.stalls if stall.by_data]
    if len(late) * RARE_WAIT <= case.account.n_steps:
        return []
    found = find_period(
        np.array(late, np.int64),
        np.zeros(0, np.int64),
        case.account.first_iter,
        case.account.last_iter,
    )
    if found is None or found[0] > RARE_WAIT:
        return []
    return [
        f"every {fmt.ordinal(found[0])} step is late: the rhythm of {found[0]} workers that cannot keep up"
    ]


@rule(40)
def transfer(case: Case, _: Unclaimed) -> list[Finding]:
    """The copy to the device."""
    copy = case.account.stages.get("to_device", 0.0)
    share = copy * case.account.n_steps / case.total_s
    if share < max(TRANSFER_SHARE, LOOK_SHARE):
        return []
    evidence = [
        f"to_device {fmt.seconds(copy)} of a step of {fmt.seconds(case.account.total_s / case.account.n_steps)}"
    ]
    return [
        case.finding(
            "transfer-bound",
            f"copying batches to the device takes {fmt.percent(share)} of the time",
            evidence,
            "fastload.DataLoader(device='cuda') copies uint8 on a stream of its own while the step runs; with another loader: "
            "pin_memory=True, .to(device, non_blocking=True), and normalize on the device",
            lost_s=copy * case.account.n_steps,
        )
    ]
