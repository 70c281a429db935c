"""T14 and the ends of programs: Ctrl-C at random moments, once and twice, errors in the training loop, work in flight when Python exits,
kill -9. Gone within 2 s, nothing left behind, and no Ctrl-C is ever lost. Each check is shown to fail by a planted fault."""

from __future__ import annotations

import os
import random
import re
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from fastload._common.native import core
from tests.fault.loader_victims import SEED, counted, interrupted, to_its_end, warm
from tests.fault.trials import LONG
from tests.forking import Child, Outcome, Zygote

KINDS = (
    ["native", "reference", "sampler", "colours", "single"] if core() is not None else ["reference"]
)
SPAN_S = 0.5  # of a victim's life


def at_most_s() -> float:
    """2 seconds; more where others keep the processors busy, up to 8."""
    return 2.0 * min(4.0, max(1.0, os.getloadavg()[0] / (os.cpu_count() or 1)))


@pytest.fixture(scope="module")
def zygote(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Zygote]:
    with Zygote(
        tmp_path_factory.mktemp("logs"), ("tests.fault.loader_victims",), OMP_NUM_THREADS="1"
    ) as started:
        started.warm(warm)
        yield started


def ended(child: Child, since: float) -> tuple[Outcome, float]:
    """How it ended, and seconds from ``since`` to where fastload was done, or to its end where it did not come to that."""
    while Path(f"/proc/{child.pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z":
        if time.monotonic() > since + 30:
            child.kill(signal.SIGKILL)
        time.sleep(0.002)
    end = time.monotonic()
    outcome = child.wait()
    over = re.search(r"^over ([0-9.]+)$", outcome.output, re.MULTILINE)
    return outcome, (float(over[1]) if over else end) - since


def left_behind(pid: int, packed: Path, before: list[str]) -> list[str]:
    """Processes of its session, files in shared memory, files beside the dataset's."""
    found = [f"/dev/shm/{path.name}" for path in Path("/dev/shm").glob(f"*{pid}*")]
    found += [name for name in listing(packed) if name not in before]
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = path.read_text().rpartition(")")[2].split()
        except OSError:
            continue  # it has just ended
        if int(fields[3]) == pid and fields[0] != "Z":
            found.append(f"process {path.parent.name}")
            os.kill(int(path.parent.name), signal.SIGKILL)
    return found


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
) -> list[str]:
    """Interrupts one training run at a random moment; what was not as it should be."""
    before = listing(packed)
    child = zygote.start(to_its_end, LONG, "train", str(packed), kind, SPAN_S, bug)
    time.sleep(rng.uniform(0, 1.05 * SPAN_S))
    for number in signals:
        since = time.monotonic()
        child.kill(number)
        time.sleep(rng.uniform(0, 0.05) if len(signals) > 1 else 0)
    outcome, took = ended(child, since)
    faults = left_behind(child.pid, packed, before)
    for path in Path("/dev/shm").glob(f"*{child.pid}*"):
        path.unlink()
    if took > at_most_s():
        faults.append(f"ended {took:.1f} s after the signal")
    codes = {signal.SIGINT: (130, 0, -2, 1), signal.SIGKILL: (-9, 0)}[
        signal.Signals(signals[0])
    ]  # 0: it was over before
    if outcome.code not in codes:
        faults.append(f"exit code {outcome.code}")
    words = (
        "Exception in thread",
        "terminate called",
        "Fatal",
        *(("ignored in",) if "/fastload/" in outcome.output else ()),
    )
    in_front = (
        "to_its_end" not in outcome.output or outcome.code == 130
    )  # else it came before the training began
    return faults + [
        line
        for line in outcome.output.splitlines()
        if in_front and any(word in line for word in words)
    ]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "signals",
    [(signal.SIGINT,), (signal.SIGINT, signal.SIGINT), (signal.SIGKILL,)],
    ids=["once", "twice", "kill"],
)
def test_interrupted_at_random_moments(
    zygote: Zygote, packed: Path, kind: str, signals: tuple[int, ...]
) -> None:
    rng = random.Random(f"{SEED} {kind} {signals}")
    for _ in range(60 if LONG else 4):
        assert faults_of(zygote, packed, kind, rng, signals=signals) == []


@pytest.mark.parametrize(
    ("bug", "message"),
    [
        ("thread that stays", "s after the signal"),
        ("orphan", "process "),
        ("shared memory", "/dev/shm/"),
        ("loud thread", "Exception in thread"),
    ],
)
def test_what_is_left_behind_is_found(zygote: Zygote, packed: Path, bug: str, message: str) -> None:
    rng = random.Random(SEED)
    for _ in range(10):  # it may be interrupted before the fault is there
        if any(
            message in fault
            for fault in faults_of(zygote, packed, KINDS[0], rng, signals=(signal.SIGINT,), bug=bug)
        ):
            return
    pytest.fail(f"{bug!r} was planted and not found")


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("how", "code"), [("end", 0), ("error", 1), ("exit", 3)])
def test_work_in_flight_does_not_hold_up_the_end(
    zygote: Zygote, packed: Path, kind: str, how: str, code: int
) -> None:
    before, since = listing(packed), time.monotonic()
    child = zygote.start(to_its_end, True, "leave", str(packed), kind, how, "")
    outcome, took = ended(child, since)
    assert outcome.code == code, outcome.output
    assert took < at_most_s() + 1.0  # a second for the work itself
    assert left_behind(child.pid, packed, before) == []
    assert outcome.output.count("Traceback") == (how == "error"), outcome.output
    assert "ZeroDivisionError" in outcome.output or how != "error"


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("pause", [0.008, 0.08], ids=["iterators", "loaders"])
def test_no_ctrl_c_is_lost(zygote: Zygote, packed: Path, kind: str, pause: float) -> None:
    outcome = zygote.run(
        interrupted, str(packed), kind, 60.0 if LONG else 1.5, pause, "", timeout_s=120
    )
    assert outcome.code == 0, outcome.output
    assert " 0 lost, {}" in outcome.output, outcome.output
    assert " 0 caught" not in outcome.output


def test_a_lost_one_is_seen(zygote: Zygote, packed: Path) -> None:
    outcome = zygote.run(
        interrupted, str(packed), KINDS[0], 20.0, 0.008, "python finaliser", timeout_s=120
    )
    assert " 1 lost, {'KeyboardInterrupt in " in outcome.output, outcome.output


@pytest.mark.parametrize("kind", KINDS[:2])
def test_a_ctrl_c_neither_loses_nor_counts_a_batch(zygote: Zygote, packed: Path, kind: str) -> None:
    assert "wrong: []" in zygote.run(counted, str(packed), kind, 0.02, "").output


def test_a_miscounted_batch_is_seen(zygote: Zygote, packed: Path) -> None:
    output = zygote.run(counted, str(packed), KINDS[0], 0.02, "counts too early").output
    assert "in the state" in output
