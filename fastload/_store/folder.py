"""The folder of a packed dataset, before anything in it is mapped: its manifest, and that every shard is there and whole."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path

from fastload._common import files
from fastload._store import manifest
from fastload._store.manifest import Manifest
from fastload._store.shard import cannot_open, wrong_size
from fastload.errors import CorruptManifest, StoreError


def read_manifest(folder: Path) -> Manifest:
    """The checked manifest of a dataset; raises CorruptManifest, or StoreError where there is no such folder."""
    try:
        data = files.read_regular(folder / manifest.NAME, most=manifest.MAX_BYTES)
    except OSError as error:
        raise _no_manifest(folder, error) from None
    try:
        return manifest.parse(data)
    except CorruptManifest as error:
        raise CorruptManifest(f"opening {folder}: {error}") from None


def _no_manifest(folder: Path, error: OSError) -> StoreError:
    if error.errno in (errno.ENOENT, errno.ENOTDIR):
        mode = _mode(folder)
        if not stat.S_ISDIR(mode):
            what = (
                "a file, expected the folder that fastload pack wrote" if mode else "no such folder"
            )
            failure = StoreError(f"opening dataset {folder}: {what}")
            failure.errno = error.errno
            return failure
        started = any(name.startswith("shard-") for name in os.listdir(folder))  # noqa: PTH208 (names are enough)
        return CorruptManifest(
            f"opening dataset {folder}: it has no {manifest.NAME}: "
            + (
                "a pack that has not finished; run the same 'fastload pack' command again, it goes on where it stopped"
                if started
                else "not a fastload dataset; make one with 'fastload pack SOURCE DEST'"
            )
        )
    why = "a link; links are not followed" if error.errno == errno.ELOOP else error.strerror
    return CorruptManifest(f"opening dataset {folder}: {manifest.NAME}: {why}")


def _mode(path: Path) -> int:
    """Asked once: a packer may be making the folder at this moment. 0: it is not there."""
    try:
        return path.stat().st_mode
    except OSError:
        return 0


def check_sizes(folder: Path, found: Manifest) -> None:
    """Finds a missing or cut shard at the start, not three hours into an epoch; 2,200 shards take 10 ms."""
    directory = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        for shard in found.shards:
            try:
                status = os.stat(shard.name, dir_fd=directory, follow_symlinks=False)
            except OSError as error:
                raise cannot_open(error, folder / shard.name) from None
            if not stat.S_ISREG(status.st_mode):
                raise cannot_open(OSError(errno.EINVAL, "not a regular file"), folder / shard.name)
            if status.st_size != shard.size:
                raise wrong_size(folder / shard.name, status.st_size, shard)
    finally:
        os.close(directory)
