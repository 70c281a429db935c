"""T5: the disk fills up while packing: one clear message, nothing broken, and the same command goes on once there is space."""

from __future__ import annotations

import ctypes
import functools
import json
import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fastload._common.files import is_temporary
from fastload._store.dataset import open_dataset
from fastload._store.fields import Field
from fastload.errors import BadImage, StoreError
from tests.forking import Outcome, Zygote
from tests.packing import IMAGE, LABEL, SMALL_SHARDS, Listed, Streamed, pack, samples, tree

LONG = os.environ.get("FASTLOAD_LONG") == "1"
MOST = 400 if LONG else 60  # of the n in "the n-th write fails"
FIELDS = (IMAGE, LABEL, Field("blob", "bytes"))
MESSAGE = re.compile(
    r"writing \S+: disk full: (\d+) bytes needed, (\d+) free on \S+\. Free some space and run the same command again"
)


@functools.cache
def small_samples() -> list[Any]:
    """One shard of 300 kB, with a bad sample."""
    given: list[Any] = samples(8, size=16, extra_bytes=40_000)
    given[3] = BadImage("broken", source="bad")
    return given


@functools.cache
def large_samples() -> list[Any]:
    """Five shards, 5 MB."""
    return samples(52, size=16, extra_bytes=95_000)


def pack_in_child(given: str, kind: str, dest: str, fail_at: int = -1) -> None:
    """Packs, with writes that fail from the given one on; prints how many there were, or the error."""
    found = small_samples() if given == "small" else large_samples()
    source: Any = Streamed(found, FIELDS) if kind == "stream" else Listed(found, FIELDS)
    if fail_at >= 0:
        ctypes.CDLL(None).fault_arm(dest.encode(), ctypes.c_long(fail_at))
    try:
        pack(source, Path(dest), on_error="skip", jobs=2, **SMALL_SHARDS)
    except StoreError as error:
        print(json.dumps({"error": str(error)}))
        return
    print(json.dumps({"writes": ctypes.CDLL(None).fault_count() if fail_at >= 0 else -1}))


def said(outcome: Outcome) -> dict[str, Any]:
    """What the child printed; it ended by itself, not by a signal (SIGBUS is what a mapped file on a full disk gives)."""
    assert outcome.code == 0, outcome
    found: dict[str, Any] = json.loads(outcome.output)
    return found


def assert_nothing_is_broken(dest: Path, expected: dict[str, str]) -> None:
    """What has its final name is final, no temporary file takes space, and it is no dataset before it is complete."""
    found = tree(dest) if dest.exists() else {}
    assert not [name for name in found if is_temporary(name)]
    published = {name: digest for name, digest in found.items() if not name.startswith(".pack")}
    assert not [name for name, digest in published.items() if expected.get(name) != digest]
    if (
        "manifest.json" in found
    ):  # the very last call failed: the sync of the folder after the manifest's rename
        assert published == expected
    else:
        with pytest.raises(StoreError):
            open_dataset(dest)


@pytest.fixture(scope="module")
def shim(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The library that makes writes fail, built here."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        pytest.skip("not run: no C compiler")
    library = tmp_path_factory.mktemp("shim") / "failing_writes.so"
    subprocess.run(
        [
            compiler,
            "-shared",
            "-fPIC",
            "-O1",
            "-o",
            str(library),
            str(Path(__file__).with_name("failing_writes.c")),
            "-ldl",
        ],
        check=True,
    )
    return str(library)


@pytest.fixture(scope="module")
def zygote(tmp_path_factory: pytest.TempPathFactory, shim: str) -> Iterator[Zygote]:
    with Zygote(
        tmp_path_factory.mktemp("logs"), ("tests.fault.test_disk_full",), LD_PRELOAD=shim
    ) as process:
        process.warm(small_samples)
        process.warm(large_samples)
        yield process


@pytest.mark.parametrize("kind", ["list", "stream"])
def test_every_write_may_be_the_one_that_fails(tmp_path: Path, zygote: Zygote, kind: str) -> None:
    counted = said(zygote.run(pack_in_child, "small", kind, str(tmp_path / "whole"), 0))
    expected = tree(tmp_path / "whole")
    assert counted["writes"] > 40
    total = min(counted["writes"], MOST)
    for n in range(1, total + 1, 1 if LONG or kind == "list" else 3):
        dest = tmp_path / str(n)
        error = said(zygote.run(pack_in_child, "small", kind, str(dest), n)).get("error")
        assert error is not None, f"write {n} of {counted['writes']} failed and nobody noticed"
        found = MESSAGE.search(error)
        assert found, (n, error)
        assert int(found[1]) > 0
        assert_nothing_is_broken(dest, expected)
        assert "writes" in said(zygote.run(pack_in_child, "small", kind, str(dest)))
        assert tree(dest) == expected, n


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A folder with a file system of its own: 1 MiB, until it is remounted."""
    folder = tmp_path / "disk"
    folder.mkdir()
    done = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=1m", "fastload-test", str(folder)],
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        pytest.skip(f"not run: no right to mount a tmpfs ({done.stderr.strip()})")
    try:
        yield folder
    finally:
        subprocess.run(["umount", str(folder)], check=True)


def resize(disk: Path, options: str) -> None:
    subprocess.run(["mount", "-o", f"remount,{options}", str(disk)], check=True)


@pytest.mark.parametrize("kind", ["list", "stream"])
def test_a_disk_that_is_too_small_and_grows(
    tmp_path: Path, zygote: Zygote, small_disk: Path, kind: str
) -> None:
    """1, 2, 3 ... MiB, each time a little more is packed; then it fits."""
    said(zygote.run(pack_in_child, "large", kind, str(tmp_path / "whole")))
    expected = tree(tmp_path / "whole")
    dest = small_disk / "packed"
    shards = []
    for megabytes in (1, 2, 3, 4, 5):
        resize(small_disk, f"size={megabytes}m")
        error = said(zygote.run(pack_in_child, "large", kind, str(dest)))["error"]
        found = MESSAGE.search(error)
        assert found, error
        needed, free = map(int, found.groups())
        assert free < needed
        assert free < 2 << 20
        assert_nothing_is_broken(dest, expected)
        shards.append(len(list(dest.glob("shard-*.lmdb"))))
    if kind == "list":
        assert shards == sorted(set(shards))  # each time it went on behind what was there
    resize(small_disk, "size=64m")
    assert "error" not in said(zygote.run(pack_in_child, "large", kind, str(dest)))
    assert tree(dest) == expected


def test_no_inodes_left(tmp_path: Path, zygote: Zygote, small_disk: Path) -> None:
    said(zygote.run(pack_in_child, "small", "list", str(tmp_path / "whole")))
    dest = small_disk / "packed"
    resize(small_disk, "size=64m")
    for inodes in range(2, 9):
        resize(small_disk, f"nr_inodes={inodes}")
        assert "disk full" in said(zygote.run(pack_in_child, "small", "list", str(dest)))["error"]
        assert_nothing_is_broken(dest, tree(tmp_path / "whole"))
    resize(small_disk, "nr_inodes=1000")
    said(zygote.run(pack_in_child, "small", "list", str(dest)))
    assert tree(dest) == tree(tmp_path / "whole")
