"""`kill -9` while packing, at random moments and before every step, then the same command again.

The expected state is kept here, outside the killed process. The same checks must detect five
planted bugs.
"""

from __future__ import annotations

import functools
import itertools
import json
import os
import random
import shutil
import signal
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fastload._common import files
from fastload._pack.options import PackProgress
from fastload._pack.part_packer import PartPacker
from fastload._pack.state import Done, PackState
from fastload._store import writer
from fastload._store.dataset import open_dataset
from fastload._store.fields import Field
from fastload.errors import BadImage, StoreError
from tests.forking import Outcome, Zygote
from tests.packing import (
    CONVERTED_JPEG,
    IMAGE,
    LABEL,
    SMALL_SHARDS,
    Listed,
    Streamed,
    file_of,
    image_sample,
    pack,
    pixels,
    samples,
    tree,
)

LONG = os.environ.get("FASTLOAD_LONG") == "1"
KILLS = 100 if LONG else 10  # per option set
SEED = int(os.environ.get("FASTLOAD_SEED", "1"))
FIELDS = (IMAGE, LABEL, Field("blob", "bytes"))
# A record has about 90 kB, so every second one is written. A kill may lose the records of a write
# that has not ended, those collected for the next one, and a bad sample, in two parts.
FLUSH_BYTES = 100_000
MAX_LOST = 10

OPTIONS: dict[str, dict[str, Any]] = {
    "class folders, one thread": {"jobs": 1},
    "bad samples, source order": {"jobs": 2, "order": "source", "on_error": "skip"},
    "stream, shuffled": {"jobs": 2, "on_error": "skip", "seed": 7},
    "reencoded": {"jobs": 3, "encode": "jpeg", "max_side": 24, "on_error": "skip"},
}


@functools.cache
def make_samples() -> list[Any]:
    """33 samples for three shards: 3 are bad and 3 are converted."""
    given: list[Any] = samples(33, size=32, extra_bytes=90_000)
    for i in range(5, 33, 11):
        given[i] = BadImage("broken", source=f"bad {i}")
        given[i + 3] = image_sample(CONVERTED_JPEG, f"cmyk {i}", label=0, blob=bytes(90_000))
    return given


def make_source(case: str, root: str) -> Any:
    if case == "class folders, one thread":
        return Path(root)
    return (
        Streamed(make_samples(), FIELDS)
        if case.startswith("stream")
        else Listed(make_samples(), FIELDS)
    )


def pack_in_child(
    case: str,
    root: str,
    dest: str,
    bug: str = "",
    on_progress: Callable[[PackProgress], None] | None = None,
) -> None:
    """The process that is killed."""
    if bug:
        BUGS[bug]()
    writer.FLUSH_BYTES = FLUSH_BYTES
    result = pack(
        make_source(case, root),
        Path(dest),
        on_progress=on_progress,
        **OPTIONS[case],
        **SMALL_SHARDS,
    )
    print(json.dumps({"samples": result.n_samples, "resumed_at": result.resumed_at}))


def pack_until(case: str, root: str, dest: str, at: int) -> None:
    """Prints how many samples were taken over, and kills itself when ``at`` samples are done."""
    said: list[int] = []

    def kill(progress: PackProgress) -> None:
        if progress.stage == "packing" and not said:
            said.append(progress.resumed_at)
            print(progress.resumed_at, flush=True)
        if progress.stage == "packing" and progress.done == at:
            os.kill(os.getpid(), signal.SIGKILL)

    pack_in_child(case, root, dest, on_progress=kill)


def pack_and_die(case: str, root: str, dest: str, step: int, bug: str = "") -> None:
    """Kills itself before change ``step`` of the file system; 0 prints all changes."""
    steps: list[str] = []

    def watch(event: str, arguments: tuple[Any, ...]) -> None:
        if event == "open":
            counts = (
                isinstance(arguments[0], str)
                and arguments[0].startswith(dest)
                and arguments[2] & (os.O_WRONLY | os.O_RDWR)
            )
        else:
            counts = event in ("os.rename", "os.link", "os.remove", "os.rmdir", "os.mkdir")
        if counts:
            steps.append(
                f"{event} {os.path.basename(os.fspath(arguments[event in ('os.rename', 'os.link')]))}"
            )
            if len(steps) == step:
                os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(watch)
    pack_in_child(case, root, dest, bug)
    if not step:
        print(json.dumps(steps))


def bug_publishes_by_copying() -> None:
    """Publishes by copying instead of renaming."""

    def publish(temporary: Path, path: Path, *, replace: bool = True) -> bool:
        data = temporary.read_bytes()
        for start in range(0, len(data), 1 + len(data) // 3):
            with path.open("ab" if start else "wb") as file:
                file.write(data[start : start + 1 + len(data) // 3])
        temporary.unlink()
        return True

    files.publish = publish


def bug_forgets_events() -> None:
    """After a resume, the skipped and converted samples of finished shards are lost."""
    real = PackState.done

    def forgetful(self: PackState, number: int) -> Done:
        done = real(self, number)
        return replace(done, events=[]) if self.resumed else done  # type: ignore[attr-defined]

    def finished(self: PackState, number: int, positions: range) -> Done | None:
        self.resumed = (self.folder / "done-00000.json").exists()  # type: ignore[attr-defined]
        return real_finished(self, number, positions)

    real_finished = PackState.finished
    PackState.resumed = False  # type: ignore[attr-defined]
    PackState.done, PackState.finished = forgetful, finished  # type: ignore[method-assign]


def bug_leaves_temporary_files() -> None:
    PackState._remove_leftovers = lambda self: None  # type: ignore[method-assign]


def bug_resumes_one_too_far() -> None:
    """The first sample after the finished parts is lost."""
    real = PartPacker._rows

    def shifted(self: PartPacker, parts: Any) -> Any:
        return itertools.islice(real(self, parts), int(len(parts) < self._layout.n_parts), None)

    PartPacker._rows = shifted  # type: ignore[method-assign]


def bug_records_a_shard_before_it_exists() -> None:
    real_publish, real_record = files.publish, PackState.record
    late: list[tuple[Path, Path]] = []

    def publish(temporary: Path, path: Path, *, replace: bool = True) -> bool:
        if path.name.startswith("shard-"):
            late.append((temporary, path))
            return True
        return real_publish(temporary, path, replace=replace)

    def record(self: PackState, number: int, done: Done, rows: Any) -> None:
        real_record(self, number, done, rows)
        real_publish(*late.pop())

    files.publish, PackState.record = publish, record  # type: ignore[method-assign]


BUGS: dict[str, Callable[[], None]] = {
    "publishes by copying": bug_publishes_by_copying,
    "forgets events": bug_forgets_events,
    "leaves temporary files": bug_leaves_temporary_files,
    "resumes one too far": bug_resumes_one_too_far,
    "records shards before they exist": bug_records_a_shard_before_it_exists,
}


@pytest.fixture(scope="module")
def zygote(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Zygote]:
    with Zygote(tmp_path_factory.mktemp("logs"), ("tests.fault.test_pack_killed",)) as process:
        process.warm(make_samples)
        yield process


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Class folders of 3 MB, for three shards."""
    folder = tmp_path_factory.mktemp("images")
    for number, name in enumerate(LABEL.classes):
        (folder / name).mkdir()
        for i in range(12):
            (folder / name / f"{i}.jpg").write_bytes(
                file_of(pixels(280, 260, seed=50 * number + i, grain=1), quality=93)
            )
    return str(folder)


class KillTrial:
    """One option set: the result and duration of an uninterrupted pack, and all failed checks."""

    def __init__(self, zygote: Zygote, case: str, root: str, folder: Path, bug: str = "") -> None:
        self.zygote, self.case, self.root, self.folder, self.bug = zygote, case, root, folder, bug
        started = time.monotonic()
        outcome = zygote.run(pack_in_child, case, root, str(folder / "whole"))
        self.seconds = time.monotonic() - started
        assert outcome.code == 0, outcome.output
        self.expected = tree(folder / "whole")
        if bug:  # only a kill may reveal a planted bug
            assert zygote.run(pack_in_child, case, root, str(folder / "buggy"), bug).code == 0
            assert tree(folder / "buggy") == self.expected
        assert sum(name.startswith("shard-") for name in self.expected) == 3
        self.kills = 0
        self.taken = 0  # samples that the last run of a pack took over
        self.wrong: list[str] = []

    def check_after_kill(self, dest: Path) -> None:
        """Checks that published files are final and nothing opens without a manifest."""
        found = tree(dest) if dest.exists() else {}
        published = {
            name: digest
            for name, digest in found.items()
            if not name.startswith(".pack") and not files.is_temporary(name)
        }
        self.wrong += [
            f"{name} exists but is incomplete"
            for name, digest in published.items()
            if self.expected.get(name) != digest
        ]
        for name in found:
            if (
                name.startswith(".pack/done-")
                and not files.is_temporary(name)
                and f"shard-{name[11:16]}.lmdb" not in found
            ):
                self.wrong.append(f"{name} names a shard that does not exist")
        if "manifest.json" in found and published != self.expected:
            self.wrong.append("a manifest without the other files")
        if "manifest.json" not in found:
            try:
                open_dataset(dest)
                self.wrong.append("opened without a manifest")
            except StoreError:
                pass

    def check_finished(self, dest: Path, outcome: Outcome) -> None:
        """Checks the result of the run that completed."""
        if outcome.code != 0:
            self.wrong.append(f"exit code {outcome.code}: {outcome.output}")
        found = tree(dest)
        self.wrong += [
            f"{name}: unexpected or wrong"
            for name in found
            if found[name] != self.expected.get(name)
        ]
        self.wrong += [f"{name}: missing" for name in self.expected if name not in found]

    def kill_at_random(self, dest: Path, rng: random.Random, at_most: int) -> None:
        """Kills and restarts until packing is done."""
        kills = 0
        while True:
            child = self.zygote.start(pack_in_child, self.case, self.root, str(dest), self.bug)
            if kills < at_most:
                time.sleep(rng.uniform(0, 1.05 * self.seconds))
                child.kill(signal.SIGKILL)
            outcome = child.wait()
            if outcome.code != -signal.SIGKILL:
                if outcome.code == 0:
                    self.taken += json.loads(outcome.output)["resumed_at"]
                return self.check_finished(dest, outcome)
            kills += 1
            self.kills += 1
            self.check_after_kill(dest)
            if "manifest.json" in tree(dest) and not (dest / ".pack").exists():  # all was done
                return self.check_finished(dest, Outcome(0, ""))

    def kill_at_step(self, dest: Path, step: int) -> None:
        """Kills before one step, then lets the same command complete."""
        outcome = self.zygote.run(pack_and_die, self.case, self.root, str(dest), step, self.bug)
        assert outcome.code == -signal.SIGKILL, (step, outcome)
        self.kills += 1
        self.check_after_kill(dest)
        self.check_finished(
            dest, self.zygote.run(pack_in_child, self.case, self.root, str(dest), self.bug)
        )


@pytest.mark.parametrize("case", OPTIONS)
def test_packing_resumes_after_kills_at_random_moments(
    tmp_path: Path, zygote: Zygote, root: str, case: str
) -> None:
    trial = KillTrial(zygote, case, root, tmp_path)
    rng = random.Random(f"{SEED} {case}")
    trials = 0
    while trial.kills < KILLS and not trial.wrong:
        trials += 1
        trial.kill_at_random(tmp_path / "packed", rng, KILLS - trial.kills)
        shutil.rmtree(tmp_path / "packed")
    print(
        f"seed {SEED}: {trial.kills} kills in {trials} packs of {trial.seconds:.2f} s, "
        f"{trial.taken} samples taken over"
    )
    assert not trial.wrong


@pytest.mark.parametrize("case", OPTIONS)
def test_samples_before_a_kill_are_taken_over(
    tmp_path: Path, zygote: Zygote, root: str, case: str
) -> None:
    """Kills at random samples. Each run reports how many samples it took over."""
    trial = KillTrial(zygote, case, root, tmp_path)
    rng = random.Random(f"{SEED} {case}")
    n_samples = 36 if case.startswith("class folders") else len(make_samples())
    trials = taken = 0
    while trial.kills < KILLS:
        trials += 1
        dest = tmp_path / "packed"
        before = 0
        while (at := before + rng.randint(1, 20)) < n_samples:
            outcome = zygote.run(pack_until, case, root, str(dest), at)
            assert outcome.code == -signal.SIGKILL, outcome
            assert before - MAX_LOST <= int(outcome.output) <= before
            taken += int(outcome.output)
            before = at
            trial.kills += 1
            trial.check_after_kill(dest)
        outcome = zygote.run(pack_in_child, case, root, str(dest))
        resumed_at = json.loads(outcome.output)["resumed_at"]
        assert before - MAX_LOST <= resumed_at <= before
        taken += resumed_at
        trial.check_finished(dest, outcome)
        assert not trial.wrong
        shutil.rmtree(dest)
    print(f"seed {SEED}: {trial.kills} kills in {trials} packs, {taken} samples taken over")
    assert taken > 0


def steps_of(zygote: Zygote, case: str, root: str, dest: Path) -> list[str]:
    outcome = zygote.run(pack_and_die, case, root, str(dest), 0)
    assert outcome.code == 0, outcome.output
    return list(json.loads(outcome.output.splitlines()[-1]))


BOUNDARIES = (
    "os.link plan.json",
    "os.link listing.offsets",
    "os.rename shard-00001.lmdb",
    "os.rename done-00001.json",
    "os.rename label.npy",
    "os.rename pack-log.jsonl",
    "os.link manifest.json",
    "os.remove plan.json",
)


@pytest.mark.parametrize("case", ["bad samples, source order", "stream, shuffled"])
def test_packing_resumes_after_a_kill_before_every_step(
    tmp_path: Path, zygote: Zygote, root: str, case: str
) -> None:
    """Creating, renaming and removing a file are steps.

    FASTLOAD_LONG=1 tests all of them, otherwise both sides of each boundary.
    """
    trial = KillTrial(zygote, case, root, tmp_path)
    steps = steps_of(zygote, case, root, tmp_path / "watched")
    places = [steps.index(name) + 1 for name in BOUNDARIES]
    assert places == sorted(places)
    assert steps[-1] == "os.rmdir .pack"
    chosen = {place + more for place in places for more in (0, 1)} | set(
        range(1, len(steps), 1 if LONG else 9)
    )
    for step in sorted(chosen):
        trial.kill_at_step(tmp_path / "packed", step)
        assert not trial.wrong, (step, steps[step - 1])
        shutil.rmtree(tmp_path / "packed")
    print(f"{trial.kills} of {len(steps)} steps")
    assert trial.kills == len(chosen) >= 16


@pytest.mark.parametrize("bug", ["forgets events", "leaves temporary files", "resumes one too far"])
def test_random_kills_detect_planted_bugs(
    tmp_path: Path, zygote: Zygote, root: str, bug: str
) -> None:
    trial = KillTrial(zygote, "bad samples, source order", root, tmp_path, bug)
    rng = random.Random(SEED)
    while trial.kills < 60 and not trial.wrong:
        trial.kill_at_random(tmp_path / "packed", rng, 4)
        shutil.rmtree(tmp_path / "packed")
    assert trial.wrong, f"{trial.kills} kills did not detect it"
    print(f"detected after {trial.kills} kills: {trial.wrong[0]:.3000}")


@pytest.mark.parametrize(
    ("bug", "near"),
    [
        ("records shards before they exist", "os.rename done-00000.json"),
        ("leaves temporary files", "os.rename _blocks.npy"),
        ("publishes by copying", "os.rename shard-00000.lmdb"),
    ],
)
def test_kills_at_every_step_detect_planted_bugs(
    tmp_path: Path, zygote: Zygote, root: str, bug: str, near: str
) -> None:
    case = "bad samples, source order"
    trial = KillTrial(zygote, case, root, tmp_path, bug)
    steps = steps_of(zygote, case, root, tmp_path / "watched")
    first = steps.index(near)
    for step in range(first, first + 6):
        trial.kill_at_step(tmp_path / "packed", step)
        shutil.rmtree(tmp_path / "packed")
    assert trial.wrong
