"""Damages a dataset in many ways, reads it in a child and counts the outcomes.

Outcomes are ``same`` (every value is correct), ``typed`` (a fastload error names the right place),
``wrong`` (a wrong value or another error), ``misnamed`` (the error names another shard or record)
and ``signal``. Children are forked from a separate process that has no other threads and never
opens a damaged file. It runs as ``python -m tests.fault.trials``, with a job in JSON on stdin.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from fastload._store import manifest, shard
from fastload._store.dataset import Dataset, open_dataset
from fastload.errors import CorruptManifest, CorruptShard, StoreError
from tests.fault.planted import plant
from tests.small_dataset import same, write_dataset
from tests.store.test_dataset import ALL, full_sample

OUTCOMES = {0: "same", 10: "typed", 20: "wrong", 30: "misnamed"}
ROOT = Path(__file__).parents[2]
LONG = os.environ.get("FASTLOAD_LONG") == "1"


@dataclass(frozen=True, slots=True)
class Damage:
    """One changed file of the dataset; ``record`` is the damaged sample, or -1 if unknown."""

    name: str
    data: bytes
    what: str  # "kind: details"
    record: int = -1


def make_dataset(folder: Path, *, seed: int = 0, n_samples: int = 15, per_shard: int = 5) -> None:
    """Writes three shards with samples of every kind, in leaf and overflow pages."""
    samples = []
    for i in range(n_samples):
        sample = full_sample(i % 7)
        sample["note"] = f"sample {i} of {seed}"
        sample["array"] = np.random.default_rng([seed, i]).integers(
            0, 1 << 40, 10 if i % 2 else 900
        )
        samples.append(sample)
    write_dataset(folder, samples, fields=ALL, per_shard=per_shard)


def everything(ds: Dataset) -> Iterator[tuple[str, Callable[[], Any]]]:
    """Yields every value of a dataset, as a name and a function that reads it."""
    yield "fields", lambda: [repr(ds.fields), repr(ds.class_names), repr(ds.splits), len(ds)]
    yield "blocks", lambda: ds.blocks
    for column in ds.manifest.columns:
        yield f"column {column.name}", lambda name=column.name: ds.column(name)  # type: ignore[misc]
    for i in range(len(ds)):
        yield f"sample {i}", lambda i=i: ds[i]  # type: ignore[misc]
        yield f"record {i}", lambda i=i: [bytes(part.data) for part in ds.record(i).parts]  # type: ignore[misc]


def expected_of(folder: Path) -> dict[str, Any]:
    """Returns copies of all values of the undamaged dataset, so that its files do not stay open."""
    found = {name: get() for name, get in everything(open_dataset(folder, verify="full"))}
    return {
        name: value.copy() if isinstance(value, np.ndarray) else value
        for name, value in found.items()
    }


def observe(folder: Path, verify: str, expected: dict[str, Any], damage: Damage) -> int:
    """Reads all of a damaged dataset in a child; returns the exit code of the trial."""
    errors: list[tuple[str, StoreError]] = []
    try:
        ds = open_dataset(folder, verify=verify)
    except StoreError as failure:
        errors.append(("open", failure))
    else:
        right = set()
        for name, get in everything(ds):
            try:
                value = get()
            except StoreError as failure:
                errors.append((name, failure))
                continue
            if name not in expected or not same(value, expected[name]):
                print(f"WRONG {damage.what}: {name}", file=sys.stderr)
                return 20
            right.add(name)
        if len(right) + len(errors) < len(expected):
            print(
                f"WRONG {damage.what}: {expected.keys() - right} missing without an error",
                file=sys.stderr,
            )
            return 20
    for name, error in errors:
        if not _names_the_place(name, error, damage):
            print(
                f"MISNAMED {damage.what}: reading {name}: {type(error).__name__}: {error}",
                file=sys.stderr,
            )
            return 30
    return 10 if errors else 0


def _names_the_place(name: str, error: StoreError, damage: Damage) -> bool:
    """Returns whether the error names the damaged file and, if known, the damaged record."""
    if damage.name == manifest.NAME:
        return isinstance(error, CorruptManifest)
    if (
        not isinstance(error, CorruptShard)
        or error.shard != damage.name
        or damage.name not in str(error)
    ):
        return False
    if error.record is None:
        return damage.record < 0 or name == "open" or "BLAKE3" in str(error)
    expected_id = int(name.split()[1])
    return (
        f"sample {expected_id}:" in str(error)
        and f"record {error.record})" in str(error)
        and error.record == expected_id % 5
        and damage.record in (-1, expected_id)
    )


def in_children(trial: Callable[[Damage], int], folder: Path, damages: list[Damage]) -> list[str]:
    """Returns the outcome of each trial. After a kill, another child continues."""
    outcomes: list[str] = []
    while len(outcomes) < len(damages):
        reading, writing = os.pipe()
        pid = os.fork()
        if pid == 0:
            for damage in damages[len(outcomes) :]:
                signal.alarm(60)  # a child that hangs is a finding, too
                with damaged(folder, damage):
                    code = _code_of(trial, damage)
                os.write(writing, bytes([code]))
            os._exit(0)
        os.close(writing)
        with os.fdopen(reading, "rb") as pipe:
            outcomes += [OUTCOMES[code] for code in pipe.read()]
        if os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) < 0:
            path = folder / damages[len(outcomes)].name
            path.with_name(path.name + ".good").rename(path)
            outcomes.append("signal")
    return outcomes


def _code_of(trial: Callable[[Damage], int], damage: Damage) -> int:
    try:
        return trial(damage)
    except Exception:  # noqa: BLE001 (another error is a finding)
        traceback.print_exc()
        return 20


@contextlib.contextmanager
def damaged(folder: Path, damage: Damage) -> Iterator[None]:
    """Replaces a file by a damaged one, as a new file, and restores it afterwards."""
    path = folder / damage.name
    aside = path.with_name(path.name + ".good")
    path.rename(aside)
    path.write_bytes(damage.data)
    try:
        yield
    finally:
        aside.rename(path)


def watch_opens() -> set[str]:
    """Returns a set that collects the names of the shards whose tree is read from now on."""
    opened: set[str] = set()
    real = shard.open_file

    def watched(descriptor: int, size: int) -> Any:
        opened.add(Path(os.readlink(f"/proc/self/fd/{descriptor}")).name)
        return real(descriptor, size)

    shard.open_file = watched
    return opened


def run(job: dict[str, Any]) -> dict[str, Any]:
    """Runs a job in a separate process; returns what it printed."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.fault.trials"],
        input=json.dumps(job),
        capture_output=True,
        text=True,
        cwd=ROOT,
        check=False,
    )
    if done.returncode:
        raise RuntimeError(f"the harness failed: {done.stderr[-3000:]}")
    result: dict[str, Any] = json.loads(done.stdout)
    result["log"] = done.stderr[-3000:]
    return result


def main() -> None:
    """Runs the job on stdin: {"kind", "folder", "verify", "seed", "plant", ...}."""
    from tests.fault import test_bit_flips, test_damaged_files

    job = json.loads(sys.stdin.read())
    folder = Path(job["folder"])
    expected = expected_of(folder)
    generators = {"flips": test_bit_flips.flips, "files": test_damaged_files.damages}
    damages = list(generators[job["kind"]](folder, job))
    plant(job.get("plant", ""))
    opened = watch_opens()

    def trial(damage: Damage) -> int:
        opened.clear()
        code = observe(folder, job["verify"], expected, damage)
        if job.get("unopened") and damage.name in opened:
            print(f"OPENED {damage.what}", file=sys.stderr)
            return 20
        return code

    outcomes = in_children(trial, folder, damages)
    where: dict[str, Counter[str]] = {}
    for damage, outcome in zip(damages, outcomes, strict=True):
        where.setdefault(damage.what.split(":")[0], Counter())[outcome] += 1
    json.dump({"outcomes": Counter(outcomes), "where": where}, sys.stdout)


if __name__ == "__main__":
    main()
