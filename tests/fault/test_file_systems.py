"""File systems without locks, hard links or syncs of folders: FUSE, NFS without lockd.

``os.link``, ``fcntl.flock`` and ``os.fsync`` fail with the errors of such file systems.
"""

from __future__ import annotations

import errno
import fcntl
import os
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import fastload
from fastload._common import files
from fastload._pack.locks import HolderFile
from fastload._pack.state import PackState
from fastload.errors import StoreError
from tests.packing import SMALL_SHARDS, file_of, pixels, tree

NO_LINKS = [errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.EXDEV, errno.ENOSYS]
NO_LOCKS = [errno.ENOLCK, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EPERM]
N = 24


def named(code: int) -> str:
    return errno.errorcode[code]


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Images for three parts."""
    folder = tmp_path_factory.mktemp("source")
    for i in range(N):
        path = folder / ("cat", "dog")[i % 2] / f"{i:02}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(file_of(pixels(430, 370, seed=i, grain=1), quality=93))
    return folder


@pytest.fixture(scope="module")
def whole(root: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A pack on a file system that has everything."""
    dest = tmp_path_factory.mktemp("whole") / "packed"
    assert fastload.pack(root, dest, **SMALL_SHARDS).n_shards >= 3
    return dest


def without_links(monkeypatch: pytest.MonkeyPatch, code: int) -> None:
    def link(source: Any, dest: Any, **options: Any) -> None:
        del options
        if os.path.exists(dest):
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), source, None, dest)
        raise OSError(code, os.strerror(code), source, None, dest)

    monkeypatch.setattr(os, "link", link)


def without_locks(monkeypatch: pytest.MonkeyPatch, code: int) -> None:
    def flock(descriptor: int, kind: int) -> None:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(fcntl, "flock", flock)


@pytest.fixture
def no_locks(monkeypatch: pytest.MonkeyPatch) -> None:
    without_locks(monkeypatch, errno.ENOLCK)


# ---- hard links


@pytest.mark.parametrize("code", NO_LINKS, ids=named)
def test_packs_without_hard_links(
    tmp_path: Path, root: Path, whole: Path, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    without_links(monkeypatch, code)
    fastload.pack(root, tmp_path / "one", **SMALL_SHARDS)
    assert tree(tmp_path / "one") == tree(whole)
    for i in (1, 0, 0):  # the last one finds the dataset complete
        result = fastload.pack(root, tmp_path / "shared", part=(i, 2), **SMALL_SHARDS)
    assert result.missing == ()
    assert tree(tmp_path / "shared") == tree(whole)


@pytest.mark.parametrize("code", NO_LINKS, ids=named)
def test_the_first_file_stays_without_hard_links(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    without_links(monkeypatch, code)
    path = tmp_path / "plan.json"
    assert files.write_atomically(path, b"first", replace=False)
    assert not files.write_atomically(path, b"second", replace=False)
    assert path.read_bytes() == b"first"
    assert [each.name for each in tmp_path.iterdir()] == ["plan.json"]


@pytest.mark.parametrize("code", [errno.EIO, errno.EROFS, errno.ENOSPC], ids=named)
def test_other_errors_of_a_link_are_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    with monkeypatch.context() as patch:
        without_links(patch, code)
        with pytest.raises(StoreError, match=r"plan\.json"):
            files.write_atomically(tmp_path / "plan.json", b"first", replace=False)
        assert not list(tmp_path.iterdir())
    assert files.write_atomically(tmp_path / "plan.json", b"first", replace=False)


@pytest.mark.parametrize("code", NO_LINKS, ids=named)
def test_merge_and_append_copy_shards_without_hard_links(
    tmp_path: Path, root: Path, whole: Path, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    for name in ("linked", "copied"):
        fastload.pack(root, tmp_path / f"{name}-appended", **SMALL_SHARDS)
        with monkeypatch.context() as patch:
            if name == "copied":
                without_links(patch, code)
            fastload.merge([whole, whole], tmp_path / name)
            fastload.append(tmp_path / f"{name}-appended", root)
    assert tree(tmp_path / "copied") == tree(tmp_path / "linked")
    assert tree(tmp_path / "copied-appended") == tree(tmp_path / "linked-appended")
    shard = tmp_path / "copied" / "shard-00000.lmdb"
    assert shard.stat().st_nlink == 1


# ---- syncs of folders


def test_folders_that_cannot_be_synced(
    tmp_path: Path, root: Path, whole: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = os.fsync
    code = errno.EINVAL

    def fsync(descriptor: int) -> None:
        if stat.S_ISDIR(os.fstat(descriptor).st_mode):
            raise OSError(code, os.strerror(code))
        real(descriptor)

    monkeypatch.setattr(os, "fsync", fsync)
    fastload.pack(root, tmp_path / "packed", **SMALL_SHARDS)
    assert tree(tmp_path / "packed") == tree(whole)
    code = errno.EIO
    with pytest.raises(StoreError, match="Input/output error"):
        fastload.pack(root, tmp_path / "failed", **SMALL_SHARDS)


# ---- locks


@pytest.mark.parametrize("code", NO_LOCKS, ids=named)
def test_packs_and_appends_without_locks(
    tmp_path: Path, root: Path, whole: Path, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    fastload.pack(root, tmp_path / "with-locks", **SMALL_SHARDS)
    fastload.append(tmp_path / "with-locks", root)
    without_locks(monkeypatch, code)
    fastload.pack(root, tmp_path / "one", **SMALL_SHARDS)
    assert tree(tmp_path / "one") == tree(whole)
    for i in (1, 0, 0):
        fastload.pack(root, tmp_path / "shared", part=(i, 2), **SMALL_SHARDS)
    assert tree(tmp_path / "shared") == tree(whole)
    for _ in range(2):
        fastload.pack(root, tmp_path / "again", exist_ok=True, **SMALL_SHARDS)
    assert tree(tmp_path / "again") == tree(whole)
    fastload.append(tmp_path / "one", root)
    assert tree(tmp_path / "one") == tree(tmp_path / "with-locks")


@pytest.mark.usefixtures("no_locks")
def test_a_stopped_pack_resumes_without_locks(tmp_path: Path, root: Path, whole: Path) -> None:
    calls = 0

    def stop(progress: fastload.PackProgress) -> None:
        nonlocal calls
        calls += progress.stage == "packing"
        if calls == 20:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fastload.pack(root, tmp_path / "packed", on_progress=stop, **SMALL_SHARDS)
    assert fastload.pack(root, tmp_path / "packed", **SMALL_SHARDS).resumed_at > 0
    assert tree(tmp_path / "packed") == tree(whole)


@pytest.mark.usefixtures("no_locks")
def test_a_stream_packs_without_locks(tmp_path: Path) -> None:
    stream = ({"image": pixels(40, 30, seed=i)} for i in range(5))
    result = fastload.pack(stream, tmp_path / "packed", fields={"image": "image"})
    assert result.n_samples == 5
    assert not (tmp_path / "packed" / ".pack").exists()


@pytest.mark.usefixtures("no_locks")
def test_a_pack_by_one_process_excludes_others_without_locks(tmp_path: Path, root: Path) -> None:
    busy = r"another fastload pack is running here.*no locks.*remove .*lock\.holder"
    with PackState(tmp_path):
        with pytest.raises(StoreError, match=busy), PackState(tmp_path):
            pass
        with pytest.raises(StoreError, match=busy), PackState(tmp_path, shared=True):
            pass
        assert (tmp_path / ".pack" / "lock.holder").exists()
    with PackState(tmp_path, shared=True), PackState(tmp_path, shared=True):
        with pytest.raises(StoreError, match=busy), PackState(tmp_path):
            pass
        assert len(list((tmp_path / ".pack").glob("worker-*"))) == 1
    assert not list((tmp_path / ".pack").glob("worker-*"))
    assert not (tmp_path / ".pack" / "lock.holder").exists()
    assert fastload.pack(root, tmp_path, **SMALL_SHARDS).n_samples == N


@pytest.mark.usefixtures("no_locks")
def test_files_of_a_killed_process_do_not_block_without_locks(
    tmp_path: Path, root: Path, whole: Path
) -> None:
    """On this machine at once, on another machine after an hour."""
    program = (
        "import os, sys\nfrom pathlib import Path\nfrom fastload._pack.locks import HolderFile\n"
        "HolderFile(Path(sys.argv[1])).acquire(wait=False)\nos.kill(os.getpid(), 9)\n"
    )
    holder = tmp_path / "packed" / ".pack" / "lock.holder"
    killed = subprocess.run([sys.executable, "-c", program, str(holder)], check=False)
    assert killed.returncode == -9
    assert holder.exists()
    assert not HolderFile(holder).is_held()
    with PackState(tmp_path / "packed"):
        assert HolderFile(holder).is_held()

    holder.write_text("another-machine pid:[1] 5-77")
    with pytest.raises(StoreError, match="is running here"):
        fastload.pack(root, tmp_path / "packed", **SMALL_SHARDS)
    worker = holder.with_name("worker-11-aaaaaaaa")
    worker.write_text("another machine")
    for path in (holder, worker):
        os.utime(path, (0, 0))
    fastload.pack(root, tmp_path / "packed", **SMALL_SHARDS)
    assert tree(tmp_path / "packed") == tree(whole)


@pytest.mark.usefixtures("no_locks")
def test_a_half_written_holder_counts_as_running(tmp_path: Path) -> None:
    holder = HolderFile(tmp_path / "lock.holder")
    holder.path.touch()
    assert holder.is_held()
    with pytest.raises(BlockingIOError):
        holder.acquire(wait=False)
    holder.release()
    holder.acquire(wait=False)
    assert [path.name for path in tmp_path.iterdir()] == ["lock.holder"]
