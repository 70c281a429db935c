"""Truncated, extended, zeroed, swapped and foreign files raise before their tree is read."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.fault.trials import LONG, Damage, make_dataset, run

PAGE = 4096
NAMES = ("shard-00000.lmdb", "shard-00001.lmdb", "shard-00002.lmdb")


def damages(folder: Path, job: dict[str, Any]) -> Iterator[Damage]:
    """Yields every kind in ``job["damages"]``, at each page of every shard and at random bytes."""
    rng = random.Random(job["seed"])
    other = folder.parent / "other"
    for name in NAMES:
        good = (folder / name).read_bytes()
        size = len(good)
        steps = range(0, size, PAGE)
        for kind in job["damages"]:
            if kind == "truncated":
                for end in [*steps, *rng.sample(range(size), job["random"])]:
                    yield Damage(name, good[:end], f"truncated: {name} to {end} bytes")
            elif kind == "extended":
                for more in [
                    *range(PAGE, 8 * PAGE, PAGE),
                    *rng.sample(range(1, 100_000), job["random"]),
                ]:
                    yield Damage(
                        name,
                        good + rng.randbytes(more) * (more % 2) + bytes(more) * (1 - more % 2),
                        f"extended: {name} by {more}",
                    )
            elif kind == "zeroed":
                for start in [*steps, *rng.sample(range(size), job["random"])]:
                    data = (
                        good[:start] + bytes(len(good[start : start + PAGE])) + good[start + PAGE :]
                    )
                    if data != good:
                        yield Damage(name, data, f"zeroed: {name} from {start} on")
            elif kind == "swapped":
                for another in NAMES:
                    if another != name:
                        yield Damage(
                            name, (folder / another).read_bytes(), f"swapped: {another} for {name}"
                        )
            elif kind == "foreign":
                yield Damage(
                    name, (other / name).read_bytes(), f"foreign: {name} of another dataset"
                )


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Both datasets have the same file sizes, so that a size check cannot detect swapped files."""
    root = tmp_path_factory.mktemp("damaged")
    make_dataset(root / "ds")
    make_dataset(root / "other", seed=1)
    for name in NAMES:
        assert (root / "ds" / name).stat().st_size == (root / "other" / name).stat().st_size
    return root / "ds"


@pytest.mark.parametrize("verify", ["size", "full"])
def test_a_file_of_wrong_size_or_of_another_shard_is_never_opened(
    folder: Path, verify: str
) -> None:
    found = run(
        {
            "kind": "files",
            "folder": str(folder),
            "verify": verify,
            "unopened": True,
            "seed": 1,
            "damages": ["truncated", "extended", "swapped", "foreign"],
            "random": 200 if LONG else 20,
        }
    )
    print(found["where"])
    assert found["outcomes"].keys() == {"typed"}, found["log"]


def test_a_partly_zeroed_file_is_never_opened_with_full_verification(folder: Path) -> None:
    found = run(
        {
            "kind": "files",
            "folder": str(folder),
            "verify": "full",
            "unopened": True,
            "seed": 2,
            "damages": ["zeroed"],
            "random": 200 if LONG else 20,
        }
    )
    print(found["where"])
    assert found["outcomes"].keys() == {"typed"}, found["log"]


def test_a_partly_zeroed_file_never_gives_wrong_values(folder: Path) -> None:
    """It may be opened, but every record and every step to it is checked."""
    found = run(
        {
            "kind": "files",
            "folder": str(folder),
            "verify": "size",
            "damages": ["zeroed"],
            "seed": 3,
            "random": 200 if LONG else 20,
        }
    )
    print(found["where"])
    assert found["outcomes"].get("wrong", 0) == found["outcomes"].get("misnamed", 0) == 0, found[
        "log"
    ]
    assert found["outcomes"].get("signal", 0) == 0
    assert found["where"]["zeroed"]["typed"] > 0


@pytest.mark.parametrize(
    ("bug", "verify", "kind", "outcomes"),
    [
        ("no size check", "size", "truncated", ("signal", "wrong")),
        ("no digest", "full", "zeroed", ("wrong", "signal")),
        ("no stamp", "size", "foreign", ("wrong",)),
    ],
)
def test_planted_bugs_are_detected(
    folder: Path, bug: str, verify: str, kind: str, outcomes: tuple[str, ...]
) -> None:
    found = run(
        {
            "kind": "files",
            "folder": str(folder),
            "verify": verify,
            "damages": [kind],
            "random": 5,
            "seed": 4,
            "unopened": kind != "foreign",
            "plant": bug,
        }
    )
    assert sum(found["outcomes"].get(outcome, 0) for outcome in outcomes) > 0, (
        f"{bug}: {found['outcomes']} {found['log']}"
    )
