"""A full disk while packing gives one clear message, and the same command resumes later."""

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
from fastload._store import writer
from fastload._store.dataset import open_dataset
from fastload._store.fields import Field
from fastload.errors import BadImage, StoreError
from tests.forking import Outcome, Zygote
from tests.packing import IMAGE, LABEL, SMALL_SHARDS, Listed, Streamed, pack, samples, tree

LONG = os.environ.get("FASTLOAD_LONG") == "1"
MAX_FAILING_WRITE = 400 if LONG else 60  # largest n in "the n-th write fails"
FIELDS = (IMAGE, LABEL, Field("blob", "bytes"))
MESSAGE = re.compile(
    r"writing \S+: disk full: (\d+) bytes needed, (\d+) free on \S+\. Free some space and run the same command again"
)


@functools.cache
def small_samples() -> list[Any]:
    """Samples for one shard of 300 kB, one of them bad."""
    given: list[Any] = samples(8, size=16, extra_bytes=40_000)
    given[3] = BadImage("broken", source="bad")
    return given


@functools.cache
def large_samples() -> list[Any]:
    """Samples for five shards, 5 MB."""
    return samples(52, size=16, extra_bytes=95_000)


def pack_in_child(given: str, kind: str, dest: str, fail_at: int = -1) -> None:
    """Packs with failing writes from ``fail_at`` on; prints the writes or the error."""
    found = small_samples() if given == "small" else large_samples()
    source: Any = Streamed(found, FIELDS) if kind == "stream" else Listed(found, FIELDS)
    if fail_at >= 0:
        ctypes.CDLL(None).fault_arm(dest.encode(), ctypes.c_long(fail_at))
    writer.FLUSH_BYTES = 80_000  # so that also a small pack writes lines of its journal
    try:
        result = pack(source, Path(dest), on_error="skip", jobs=2, **SMALL_SHARDS)
    except StoreError as error:
        print(json.dumps({"error": str(error)}))
        return
    writes = ctypes.CDLL(None).fault_count() if fail_at >= 0 else -1
    print(json.dumps({"writes": writes, "resumed_at": result.resumed_at}))


def output_of(outcome: Outcome) -> dict[str, Any]:
    """Returns what the child printed. It must not end with a signal such as SIGBUS."""
    assert outcome.code == 0, outcome
    found: dict[str, Any] = json.loads(outcome.output)
    return found


def assert_published_files_are_complete(dest: Path, expected: dict[str, str]) -> None:
    """Checks that published files are final and an incomplete dataset does not open."""
    found = tree(dest) if dest.exists() else {}
    assert not [name for name in found if is_temporary(name)]
    published = {name: digest for name, digest in found.items() if not name.startswith(".pack")}
    assert not [name for name, digest in published.items() if expected.get(name) != digest]
    if "manifest.json" in found:  # the last call failed: the sync of the folder after the rename
        assert published == expected
    else:
        with pytest.raises(StoreError):
            open_dataset(dest)


@pytest.fixture(scope="module")
def shim(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Builds the library that makes writes fail."""
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
def test_any_write_may_fail(tmp_path: Path, zygote: Zygote, kind: str) -> None:
    counted = output_of(zygote.run(pack_in_child, "small", kind, str(tmp_path / "whole"), 0))
    expected = tree(tmp_path / "whole")
    assert counted["writes"] > 40
    total = min(counted["writes"], MAX_FAILING_WRITE)
    resumed_at = set()
    for n in range(1, total + 1, 1 if LONG or kind == "list" else 3):
        dest = tmp_path / str(n)
        error = output_of(zygote.run(pack_in_child, "small", kind, str(dest), n)).get("error")
        assert error is not None, f"write {n} of {counted['writes']} failed without an error"
        found = MESSAGE.search(error)
        assert found, (n, error)
        assert int(found[1]) > 0
        assert_published_files_are_complete(dest, expected)
        resumed = output_of(zygote.run(pack_in_child, "small", kind, str(dest)))
        resumed_at.add(resumed["resumed_at"])
        assert tree(dest) == expected, n
    assert len(resumed_at) > 2, "samples of an unfinished shard are taken over"


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A folder with its own file system of 1 MiB, which can be remounted."""
    folder = tmp_path / "disk"
    folder.mkdir()
    done = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=1m", "fastload-test", str(folder)],
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        pytest.skip(f"not run: no permission to mount a tmpfs ({done.stderr.strip()})")
    try:
        yield folder
    finally:
        subprocess.run(["umount", str(folder)], check=True)


def resize(disk: Path, options: str) -> None:
    subprocess.run(["mount", "-o", f"remount,{options}", str(disk)], check=True)


@pytest.mark.parametrize("kind", ["list", "stream"])
def test_packing_resumes_while_the_disk_grows(
    tmp_path: Path, zygote: Zygote, small_disk: Path, kind: str
) -> None:
    """With 1, 2, 3 ... MiB, each run packs a little more; then everything fits."""
    output_of(zygote.run(pack_in_child, "large", kind, str(tmp_path / "whole")))
    expected = tree(tmp_path / "whole")
    dest = small_disk / "packed"
    shards = []
    for megabytes in (1, 2, 3, 4, 5):
        resize(small_disk, f"size={megabytes}m")
        error = output_of(zygote.run(pack_in_child, "large", kind, str(dest)))["error"]
        found = MESSAGE.search(error)
        assert found, error
        needed, free = map(int, found.groups())
        assert free < needed
        assert free < 2 << 20
        assert_published_files_are_complete(dest, expected)
        shards.append(len(list(dest.glob("shard-*.lmdb"))))
    if kind == "list":
        assert shards == sorted(shards)  # each run resumed after the existing shards
        assert len(set(shards)) > 2
    resize(small_disk, "size=64m")
    assert "error" not in output_of(zygote.run(pack_in_child, "large", kind, str(dest)))
    assert tree(dest) == expected


def test_packing_resumes_after_running_out_of_inodes(
    tmp_path: Path, zygote: Zygote, small_disk: Path
) -> None:
    output_of(zygote.run(pack_in_child, "small", "list", str(tmp_path / "whole")))
    dest = small_disk / "packed"
    resize(small_disk, "size=64m")
    for inodes in range(2, 9):
        resize(small_disk, f"nr_inodes={inodes}")
        assert (
            "disk full" in output_of(zygote.run(pack_in_child, "small", "list", str(dest)))["error"]
        )
        assert_published_files_are_complete(dest, tree(tmp_path / "whole"))
    resize(small_disk, "nr_inodes=1000")
    output_of(zygote.run(pack_in_child, "small", "list", str(dest)))
    assert tree(dest) == tree(tmp_path / "whole")
