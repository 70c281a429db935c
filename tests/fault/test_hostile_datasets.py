"""Hostile datasets with correct checksums raise errors of fastload: no signal, no other error.

``python -m tests.fault.test_hostile_datasets FOLDER FIRST COUNT`` prints one line of JSON each.
"""

from __future__ import annotations

import json
import os
import resource
import shutil
import signal
import subprocess
import sys
import traceback
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

import fastload
from fastload import transforms as T
from fastload._common.native import core
from fastload._load.loader import DataLoader
from fastload._store.dataset import open_dataset
from fastload._store.lmdb_tree import PAGE
from fastload._tools.inspect.overview import gather, overview
from fastload.errors import CorruptShard, FastloadError
from tests.fault.hostile import attack_pointers, make_bases, make_hostile
from tests.fault.trials import LONG, ROOT, everything

N = 2000 if LONG else 120
MAX_BYTES = 1 << 30  # address space of a child beyond what it has at its start


def use_store(folder: Path) -> None:
    """Reads every value of a dataset."""
    for _, get in everything(open_dataset(folder)):
        attempt(get)


def use_inspect(folder: Path) -> None:
    overview(gather(open_dataset(folder)))


def use_loader(folder: Path) -> None:
    loader = DataLoader(
        folder, 4, num_workers=1, transform=[T.Resize(16, 16)], on_error="substitute"
    )
    iterator = iter(loader)
    for _ in range(len(loader) + 1):
        attempt(lambda: next(iterator, None))


USES: dict[str, Callable[[Path], object]] = {
    "verify": lambda folder: fastload.verify(folder, jobs=1),
    "verify --deep": lambda folder: fastload.verify(folder, deep=True, jobs=1),
    "open": use_store,
    "inspect": use_inspect,
    "loader": use_loader,
}


def attempt(call: Callable[[], object]) -> bool:
    """Returns whether a call succeeds; other errors than those of fastload are findings."""
    try:
        call()
    except FastloadError:
        return False
    return True


def observe(folder: Path) -> dict[str, str]:
    """Returns "good", "refused" or the traceback of another error for each use of a dataset."""
    found = {}
    for name, use in USES.items():
        try:
            found[name] = "good" if attempt(lambda use=use: use(folder)) else "refused"  # type: ignore[misc]
        except Exception:  # noqa: BLE001 (another error is a finding)
            found[name] = traceback.format_exc(limit=-6)
    return found


def observe_many(bases: list[Path], folder: Path, first: int, count: int) -> None:
    """Prints one line per dataset. Runs in children; after a signal, another one continues."""
    seed = first
    while seed < first + count:
        reading, writing = os.pipe()
        pid = os.fork()
        if pid == 0:
            used = int(Path("/proc/self/statm").read_text().split()[0]) * PAGE
            resource.setrlimit(resource.RLIMIT_AS, (used + MAX_BYTES, used + MAX_BYTES))
            for number in range(seed, first + count):
                signal.alarm(600)  # a child that hangs is a finding, too
                dest = folder / str(number)
                what = make_hostile(bases[number % len(bases)], dest, number)
                line = json.dumps({"what": what, **observe(dest)})
                shutil.rmtree(dest)
                os.write(writing, line.encode() + b"\n")
            os._exit(0)
        os.close(writing)
        with os.fdopen(reading) as pipe:
            for line in pipe:
                print(line, end="", flush=True)
                seed += 1
        code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        if code:
            print(json.dumps({"what": f"seed {seed}", "signal": f"exit code {code}"}), flush=True)
            seed += 1


def test_hostile_datasets_are_refused(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tests.fault.test_hostile_datasets", str(tmp_path), "0", str(N)],
        capture_output=True,
        text=True,
        cwd=ROOT,
        check=True,
    )
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    outcomes = Counter(each for row in rows for key, each in row.items() if key != "what")
    assert len(rows) == N
    bad = [row for row in rows if set(row.values()) - {"good", "refused", row["what"]}]
    assert not bad, f"{len(bad)} findings, such as {bad[0]}"
    assert outcomes["refused"] > N / 2  # the attacks have an effect
    assert outcomes["good"] > N / 2  # verify reports faults and returns


@pytest.mark.skipif(core() is None, reason="needs the native core")
def test_both_readers_agree_about_hostile_trees(tmp_path: Path) -> None:
    """Each record is the same, or its error has the same reason."""
    from fastload._store.lmdb_tree import TreeFile

    module = core()
    assert module is not None
    compared = Counter[str]()
    bases = make_bases(tmp_path / "bases")
    for seed in range(90):
        folder = tmp_path / str(seed)
        make_hostile(bases[seed % len(bases)], folder, seed)
        for path in sorted(folder.glob("*.lmdb")):
            results = [outcomes_of(opener, path) for opener in (TreeFile, module.ShardFile)]
            assert results[0] == results[1], f"seed {seed}, {path.name}"
            compared.update(type(each).__name__ for each in results[0])
    assert compared["str"] > 50  # errors
    assert compared["bytes"] > 1000


def outcomes_of(opener: Callable[[int, int], object], path: Path) -> list[str | bytes]:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        opened = opener(descriptor, path.stat().st_size)
    except RuntimeError as error:
        return [str(error)]
    finally:
        os.close(descriptor)
    found: list[str | bytes] = []
    for number in range(270):
        try:
            found.append(opened.read(number))  # type: ignore[attr-defined]
        except KeyError as error:
            found.append(str(error.args[0]))
    return found


def test_a_tree_that_points_outside_its_file_is_reported(tmp_path: Path) -> None:
    """This killed verify, inspect and open with SIGBUS when LMDB read the shards."""
    base = make_bases(tmp_path / "bases")[1]
    make_hostile(base, tmp_path / "hostile", 0, attack_pointers)
    report = fastload.verify(tmp_path / "hostile")
    assert {fault.what for fault in report.faults} == {"a tree page of the shard is damaged"}
    large = [fault.record for fault in report.faults]  # of one shard: small records have no pointer
    assert len(large) >= 3
    with pytest.raises(CorruptShard, match="a tree page of the shard is damaged"):
        open_dataset(tmp_path / "hostile")[large[0] or 0]
    assert len(gather(open_dataset(tmp_path / "hostile")).records.damaged) == report.n_faults
    assert fastload.verify(base).ok


if __name__ == "__main__":
    observe_many(
        make_bases(Path(sys.argv[1]) / "bases"),
        Path(sys.argv[1]),
        int(sys.argv[2]),
        int(sys.argv[3]),
    )
