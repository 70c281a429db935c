"""A flipped bit in a dataset raises an error that names the place, or changes nothing.

CI flips 1,500 bits, FASTLOAD_LONG=1 at least 6,000. With verify="size", a flip in the pages of LMDB
may kill the child, because LMDB reads them without checks and only the digest covers them. With
verify="full", no flip may.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fastload._store.dataset import open_dataset
from fastload._store.record import HEADER, ROW
from tests.fault.trials import LONG, Damage, make_dataset, run

Place = tuple[str, int]
META_USED = 160  # bytes used of each meta page; the rest is zero


def flips(folder: Path, job: dict[str, Any]) -> Iterator[Damage]:
    """Yields the given number of flips for each group in ``job["groups"]``; -1: every byte."""
    rng = random.Random(job["seed"])
    inside, headers = _record_places(folder)
    pages = [
        (name, place)
        for name, owners in inside.items()
        for place in range(8192, (folder / name).stat().st_size)
        if (name, place) not in owners and place % 4096 < 400
    ]
    groups: dict[str, list[Place]] = {
        "header": headers,
        "record": [place for owners in inside.values() for place in owners],
        "page": pages,
        "meta": [
            ("shard-00001.lmdb", page + place) for page in (0, 4096) for place in range(META_USED)
        ],
        "meta, unused": [
            ("shard-00001.lmdb", page + place)
            for page in (0, 4096)
            for place in range(META_USED, 4096)
        ],
        "manifest": [
            ("manifest.json", place) for place in range((folder / "manifest.json").stat().st_size)
        ],
        "column": [
            (f"columns/{path.name}", place)
            for path in sorted((folder / "columns").iterdir())
            for place in range(path.stat().st_size)
        ],
    }
    for group, count in job["groups"].items():
        places = groups[group]
        for name, place in places if count < 0 else rng.sample(places, min(count, len(places))):
            data = bytearray((folder / name).read_bytes())
            bit = rng.randrange(8)
            data[place] ^= 1 << bit
            yield Damage(
                name,
                bytes(data),
                f"{group}: bit {bit} of byte {place} of {name}",
                inside.get(name, {}).get((name, place), -1),
            )


def _record_places(folder: Path) -> tuple[dict[str, dict[Place, int]], list[Place]]:
    """Returns the record of each byte, and the header and table bytes of two records."""
    ds = open_dataset(folder)
    inside: dict[str, dict[Place, int]] = {shard.name: {} for shard in ds.manifest.shards}
    headers: list[Place] = []
    for i in range(len(ds)):
        name = ds.reader(i).shard.name
        value = bytes(ds.reader(i).get(i))
        data = (folder / name).read_bytes()
        start = data.index(value)
        if data.count(value) != 1:
            raise ValueError(f"record {i} occurs more than once in {name}")
        inside[name].update({(name, place): i for place in range(start, start + len(value))})
        if i in (0, 1):
            headers += [
                (name, start + place) for place in range(HEADER.size + ROW.size * len(ds.parts(i)))
            ]
    return inside, headers


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("flips") / "ds"
    make_dataset(path)
    return path


def test_a_flipped_bit_never_gives_a_wrong_value(folder: Path) -> None:
    groups = {"header": -1, "meta": -1, "record": 60, "page": 80, "column": 40, "manifest": 40}
    if LONG:
        groups |= {"meta, unused": 500, "record": 1000, "page": 1000, "column": 500, "manifest": -1}
    found = run(
        {"kind": "flips", "folder": str(folder), "verify": "size", "groups": groups, "seed": 1}
    )
    print(found["where"])
    assert found["outcomes"].get("wrong", 0) == found["outcomes"].get("misnamed", 0) == 0, found[
        "log"
    ]
    for group in ("header", "record", "column", "manifest"):
        assert found["where"][group].keys() == {"typed"}, found["log"]
    assert found["where"]["page"]["same"] > 0, (
        "some flips change nothing and must be counted separately"
    )


def test_a_flipped_bit_never_kills_with_full_verification(folder: Path) -> None:
    groups = {
        "header": 20,
        "meta": 120,
        "record": 60,
        "page": 100,
        "column": 20,
        "manifest": 20,
        "meta, unused": 40,
    }
    if LONG:
        groups = {group: 10 * count for group, count in groups.items()} | {"meta": -1}
    found = run(
        {"kind": "flips", "folder": str(folder), "verify": "full", "groups": groups, "seed": 2}
    )
    print(found["where"])
    assert found["outcomes"].keys() == {"typed"}, found["log"]


@pytest.mark.parametrize(
    ("bug", "verify", "group", "outcome"),
    [
        ("no record checksum", "size", "record", "wrong"),
        ("no manifest checksum", "size", "manifest", "wrong"),
        ("no column checksum", "size", "column", "wrong"),
        ("wrong record named", "size", "record", "misnamed"),
        ("no digest", "full", "page", "same"),
    ],
)
def test_planted_bugs_are_detected(
    folder: Path, bug: str, verify: str, group: str, outcome: str
) -> None:
    found = run(
        {
            "kind": "flips",
            "folder": str(folder),
            "verify": verify,
            "groups": {group: 400 if group == "manifest" else 40},
            "seed": 3,
            "plant": bug,
        }
    )
    assert found["outcomes"].get(outcome, 0) > 0, f"{bug}: {found['outcomes']} {found['log']}"
