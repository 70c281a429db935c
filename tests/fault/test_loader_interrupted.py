"""Training programs that end with a signal or an error exit and leave nothing.

No Ctrl-C is lost. A planted fault shows that each check can fail.
"""

from __future__ import annotations

import contextlib
import os
import random
import re
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from fastload._common.native import core
from tests.fault.loader_victims import (
    SEED,
    check_delivered_batches,
    count_interrupts,
    run_as_program,
    warm,
)
from tests.fault.trials import LONG
from tests.forking import Child, Outcome, Zygote

KINDS = (
    ["native", "reference", "sampler", "color", "single"] if core() is not None else ["reference"]
)
SPAN_S = 0.5  # duration of one training run
LIMIT_S = 2.0 if LONG else 120.0  # 0.1 on an idle machine, more only for a hang on a busy one


@pytest.fixture(scope="module")
def zygote(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Zygote]:
    with Zygote(
        tmp_path_factory.mktemp("logs"), ("tests.fault.loader_victims",), OMP_NUM_THREADS="1"
    ) as started:
        started.warm(warm)
        yield started


def ended(child: Child, since: float, limit_s: float) -> tuple[Outcome, float]:
    """Returns the outcome, and the seconds until fastload or the process was done.

    A process that takes much longer than ``limit_s`` is killed.
    """
    while Path(f"/proc/{child.pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z":
        if time.monotonic() > since + limit_s + 3:
            child.kill(signal.SIGKILL)
        time.sleep(0.002)
    end = time.monotonic()
    outcome = child.wait()
    over = re.search(r"^over ([0-9.]+)$", outcome.output, re.MULTILINE)
    return outcome, (float(over[1]) if over else end) - since


def leftovers(pid: int, packed: Path, before: list[str]) -> list[str]:
    """Returns remaining processes of its session, shared memory and files in the dataset."""
    found = [str(path) for path in shared_memory(pid)]
    found += [name for name in listing(packed) if name not in before]
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = path.read_text().rpartition(")")[2].split()
        except OSError:
            continue  # the process has just ended
        if int(fields[3]) == pid and fields[0] != "Z":
            found.append(f"process {path.parent.name}")
            with contextlib.suppress(ProcessLookupError):
                os.kill(int(path.parent.name), signal.SIGKILL)
    return found


def shared_memory(pid: int) -> list[Path]:
    """Returns the files with this number in their name, but not as a part of another number."""
    number = re.compile(rf"(?<!\d){pid}(?!\d)")
    return [path for path in Path("/dev/shm").iterdir() if number.search(path.name)]


def listing(packed: Path) -> list[str]:
    return sorted(str(path) for path in packed.rglob("*"))


def faults_of(
    zygote: Zygote,
    packed: Path,
    kind: str,
    rng: random.Random,
    *,
    signals: tuple[int, ...],
    bug: str = "",
    limit_s: float = LIMIT_S,
) -> list[str]:
    """Sends signals to a training run at a random moment; returns everything that went wrong."""
    before = listing(packed)
    child = zygote.start(run_as_program, LONG, "train_epochs", str(packed), kind, SPAN_S, bug)
    time.sleep(rng.uniform(0, 1.05 * SPAN_S))
    for number in signals:
        since = time.monotonic()
        child.kill(number)
        time.sleep(rng.uniform(0, 0.05) if len(signals) > 1 else 0)
    outcome, took = ended(child, since, limit_s)
    faults = leftovers(child.pid, packed, before)
    for path in shared_memory(child.pid):
        path.unlink()
    if took > limit_s:
        faults.append(f"ended {took:.1f} s after the signal")
    # 0: the run ended before the signal
    codes = {signal.SIGINT: (130, 0, -2, 1), signal.SIGKILL: (-9, 0)}[signal.Signals(signals[0])]
    if outcome.code not in codes:
        faults.append(f"exit code {outcome.code}")
    words = (
        "Exception in thread",
        "terminate called",
        "Fatal",
        *(("ignored in",) if "/fastload/" in outcome.output else ()),
    )
    # Otherwise the signal arrived before the training started.
    in_training = "run_as_program" not in outcome.output or outcome.code == 130
    return faults + [
        line
        for line in outcome.output.splitlines()
        if in_training and any(word in line for word in words)
    ]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "signals",
    [(signal.SIGINT,), (signal.SIGINT, signal.SIGINT), (signal.SIGKILL,)],
    ids=["once", "twice", "kill"],
)
def test_signals_at_random_moments_leave_nothing(
    zygote: Zygote, packed: Path, kind: str, signals: tuple[int, ...]
) -> None:
    rng = random.Random(f"{SEED} {kind} {signals}")
    for _ in range(60 if LONG else 4):
        assert faults_of(zygote, packed, kind, rng, signals=signals) == []


@pytest.mark.parametrize(
    ("bug", "message"),
    [
        ("thread that never ends", "s after the signal"),
        ("orphan", "process "),
        ("shared memory", "/dev/shm/"),
        ("thread that raises", "Exception in thread"),
    ],
)
def test_leftovers_are_detected(zygote: Zygote, packed: Path, bug: str, message: str) -> None:
    rng = random.Random(SEED)
    for _ in range(10):  # the signal may arrive before the fault is planted
        if any(
            message in fault
            for fault in faults_of(
                zygote, packed, KINDS[0], rng, signals=(signal.SIGINT,), bug=bug, limit_s=2
            )
        ):
            return
    pytest.fail(f"the planted fault {bug!r} was not detected")


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("how", "code"), [("end", 0), ("error", 1), ("exit", 3)])
def test_batches_in_flight_do_not_delay_the_exit(
    zygote: Zygote, packed: Path, kind: str, how: str, code: int
) -> None:
    before, since = listing(packed), time.monotonic()
    child = zygote.start(
        run_as_program, True, "exit_with_batches_in_flight", str(packed), kind, how, ""
    )
    outcome, took = ended(child, since, LIMIT_S)
    assert outcome.code == code, outcome.output
    assert took < LIMIT_S + 1.0  # one second for the work itself
    assert leftovers(child.pid, packed, before) == []
    assert outcome.output.count("Traceback") == (how == "error"), outcome.output
    assert "ZeroDivisionError" in outcome.output or how != "error"


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("pause", [0.008, 0.08], ids=["iterators", "loaders"])
def test_no_ctrl_c_is_lost(zygote: Zygote, packed: Path, kind: str, pause: float) -> None:
    outcome = zygote.run(count_interrupts, str(packed), kind, 60.0 if LONG else 1.5, pause, "")
    assert outcome.code == 0, outcome.output
    assert " 0 lost, {}" in outcome.output, outcome.output
    assert " 0 caught" not in outcome.output


def test_a_lost_ctrl_c_is_detected(zygote: Zygote, packed: Path) -> None:
    outcome = zygote.run(count_interrupts, str(packed), KINDS[0], 20.0, 0.008, "python finalizer")
    assert " 1 lost, {'KeyboardInterrupt in " in outcome.output, outcome.output


@pytest.mark.parametrize("kind", KINDS[:2])
def test_a_ctrl_c_neither_loses_nor_counts_a_batch(zygote: Zygote, packed: Path, kind: str) -> None:
    assert "wrong: []" in zygote.run(check_delivered_batches, str(packed), kind, 0.02, "").output


def test_a_miscounted_batch_is_detected(zygote: Zygote, packed: Path) -> None:
    output = zygote.run(
        check_delivered_batches, str(packed), KINDS[0], 0.02, "counts too early"
    ).output
    assert "in the state" in output
