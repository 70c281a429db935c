"""Builds a dataset from samples of other packed datasets.

Whole shards are linked: a shard's keys count from its own base, so the same file can be part of
several datasets. Other records are copied without decoding them. The manifest is written last.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fastload._common import files
from fastload._common.formatting import count
from fastload._common.public import public
from fastload._pack.options import LOG, PackOptions
from fastload._pack.shard import as_record
from fastload._store.columns import ColumnWriter
from fastload._store.dataset import Dataset
from fastload._store.fields import SPLIT, Field, splits_of
from fastload._store.joining import Ids, Input
from fastload._store.manifest import NAME as MANIFEST
from fastload._store.manifest import Column, Manifest, Shard, content_of, dump, expected_columns
from fastload._store.properties import Properties, PropertyCounter
from fastload._store.record import Part
from fastload._store.shard import open_checked, verify_file
from fastload._store.writer import ShardWriter, shard_name
from fastload._version import __version__
from fastload.errors import ConfigError

_FICLONE = 0x40049409  # ioctl of Linux: shares the blocks of a file (Btrfs, XFS)

OnProgress = Callable[[int, int], None]  # samples done, samples in total


class Assembly:
    """Collects shards in a folder and publishes them as one dataset.

    Args:
        folder: Where the shards and columns are written.
        fields: Fields of the result.
        options: Sizes of shards and blocks.
        first_number: Number of the first new shard.
        columns_folder: Name of the folder of the columns.
        on_progress: Called with the number of samples done and in total.
        n_samples: The number in total.
    """

    def __init__(
        self,
        folder: Path,
        fields: tuple[Field, ...],
        options: PackOptions,
        *,
        first_number: int = 0,
        columns_folder: str = "columns",
        on_progress: OnProgress | None = None,
        n_samples: int = 0,
    ) -> None:
        self.folder = folder
        self.fields = fields
        self.counter = PropertyCounter(fields)
        self.shards: list[Shard] = []
        self.n_linked = 0  # shards
        self.n_copied = 0  # records
        self._options = options
        self._next_number = first_number
        self._columns_folder = columns_folder
        self._on_progress = on_progress
        self._expected = n_samples
        self._samples: list[tuple[Input, Ids]] = []
        self._blocks: list[NDArray[np.int64]] = []  # (first sample, number of samples)
        self._n_samples = 0
        self._checked_blocks: dict[Path, NDArray[np.int64]] = {}
        # The shard being written: the number of records in each block, and the current block.
        self._writer: ShardWriter | None = None
        self._new_blocks: list[int] = []
        self._block_bytes = 0
        self._block_split = 0

    def link(self, source: Input, shard: Shard, *, name: str = "") -> None:
        """Adds a whole shard without changing it. ``name``: the file is in the folder already."""
        self._end_shard()
        path = source.dataset.path / shard.name
        if not name:
            name = self._new_name()
            link_or_copy(path, self.folder / name, shard)
        last = shard.first + shard.records
        blocks = self._blocks_of(source.dataset)
        own = slice(*np.searchsorted(blocks[:, 0], (shard.first, last)))
        self._blocks.append(np.add(blocks[own], (self._n_samples - shard.first, 0)))
        self.shards.append(shard._replace(name=name, first=self._n_samples))
        self.n_linked += 1
        self._count(source, np.arange(shard.first, last))

    def copy(
        self,
        source: Input,
        ids: Ids,
        *,
        parts: Iterable[Sequence[Part]] | None = None,
        count_properties: bool = False,
    ) -> None:
        """Adds samples by copying their records, with new numbers of fields and classes.

        ``parts``: what to store for each sample. Default: its parts in the source.
        """
        stored = (list(source.parts(each)) for each in ids.tolist()) if parts is None else parts
        has_splits = bool(splits_of(self.fields))
        splits = source.column(SPLIT, ids) if has_splits else np.zeros(len(ids), np.int64)
        pairs = zip(stored, splits.tolist(), strict=True)
        for done, (own, split) in enumerate(pairs, start=1):
            if count_properties:
                self.counter.add(own)
            self._add_record(own, split)
            if self._on_progress is not None:
                self._on_progress(self._n_samples + done, self._expected)
        self.n_copied += len(ids)
        self._count(source, ids)

    def publish(
        self,
        like: Manifest,
        *,
        properties: Sequence[Properties],
        skipped: int = 0,
        converted: Mapping[str, int] | None = None,
        options: Mapping[str, object] | None = None,
    ) -> Manifest:
        """Writes the columns and the manifest, with the seed and the order of ``like``."""
        self._end_shard()
        manifest = Manifest(
            n_samples=self._n_samples,
            fields=self.fields,
            properties=tuple(properties),
            shards=tuple(self.shards),
            columns=tuple(self._write_columns()),
            tool=f"fastload {__version__}",
            seed=like.seed,
            order=like.order,
            skipped=skipped,
            converted=dict(sorted((converted or {}).items())),
            content=content_of(self.shards),
            options={**like.options, **(options or {})},  # type: ignore[dict-item]  # dump checks
        )
        files.sync_dir(self.folder)  # links and folders must not be later than the manifest
        files.write_atomically(self.folder / MANIFEST, dump(manifest))
        return manifest

    def abort(self) -> None:
        """Deletes the unfinished shard. Has no effect after ``publish``."""
        if self._writer is not None:
            self._writer.abort()

    def __enter__(self) -> Assembly:
        return self

    def __exit__(self, *error: object) -> None:
        self.abort()

    def _blocks_of(self, dataset: Dataset) -> NDArray[np.int64]:
        if dataset.path not in self._checked_blocks:
            self._checked_blocks[dataset.path] = dataset.blocks
        return self._checked_blocks[dataset.path]

    def _new_name(self) -> str:
        self._next_number += 1
        return shard_name(self._next_number - 1)

    def _count(self, source: Input, ids: Ids) -> None:
        self._samples.append((source, ids))
        self._n_samples += len(ids)
        if self._on_progress is not None:
            self._on_progress(self._n_samples, self._expected)

    def _add_record(self, parts: Sequence[Part], split: int) -> None:
        if self._writer is not None and self._writer.size_bytes >= self._options.shard_size:
            self._end_shard()
        if self._writer is None:
            self._writer = ShardWriter(self.folder, self._new_name(), base=0)
            self._new_blocks = []
        record = as_record(self._writer.records, parts)
        self._writer.add(self._writer.records, record)
        if (
            not self._new_blocks
            or split != self._block_split
            or self._block_bytes + len(record) > self._options.block_size
        ):
            self._new_blocks.append(0)
            self._block_bytes = 0
        self._block_split = split
        self._new_blocks[-1] += 1
        self._block_bytes += len(record)

    def _end_shard(self) -> None:
        if self._writer is None:
            return
        first = sum(shard.records for shard in self.shards)
        self.shards.append(self._writer.publish(first))
        self._writer = None
        counts = np.array(self._new_blocks, np.int64)
        self._blocks.append(np.stack((first + np.cumsum(counts) - counts, counts), axis=1))

    def _write_columns(self) -> Iterator[Column]:
        for name, dtype in expected_columns(self.fields).items():
            with ColumnWriter(
                self.folder,
                name,
                dtype,
                width=2 if name == "_blocks" else 1,
                folder=self._columns_folder,
            ) as writer:
                if name == "_blocks":
                    for blocks in self._blocks:
                        writer.append(blocks)
                else:
                    for source, ids in self._samples:
                        writer.append(source.column(name, ids))
                yield writer.finish()


@public()
@dataclass(frozen=True, slots=True)
class DatasetResult:
    """Result of ``append``, ``merge`` or ``filter_dataset``. ``str(result)`` is its summary.

    Attributes:
        dest: Folder of the dataset.
        n_samples: Samples in the dataset.
        n_added: Samples that were added: all, except for ``append``.
        n_shards: Shards in the dataset.
        linked: Shards that were added or kept without copying a record.
        copied: Records that were copied, because they were selected one by one, or because a class
            number or two splits in one shard required it.
        seconds: Duration.

    Examples:
        >>> result = fastload.merge(["day1", "day2"], "both")  # doctest: +SKIP
        >>> result.n_samples  # doctest: +SKIP
        2000
    """

    dest: Path
    n_samples: int
    n_added: int
    n_shards: int
    linked: int
    copied: int
    seconds: float

    @classmethod
    def of(
        cls,
        dest: Path,
        manifest: Manifest,
        assembly: Assembly | None,
        *,
        started: float,
        n_added: int | None = None,
    ) -> DatasetResult:
        """Returns the result of an operation that began at ``started``. Not for users.

        Args:
            dest: Folder of the dataset.
            manifest: Its new manifest.
            assembly: What wrote it, or None if nothing was written.
            started: ``time.monotonic()`` at the start.
            n_added: Samples that were added. Default: all.
        """
        return cls(
            dest=dest,
            n_samples=manifest.n_samples,
            n_added=manifest.n_samples if n_added is None else n_added,
            n_shards=len(manifest.shards),
            linked=assembly.n_linked if assembly is not None else 0,
            copied=assembly.n_copied if assembly is not None else 0,
            seconds=time.monotonic() - started,
        )

    def as_json(self) -> dict[str, object]:
        """Returns the result as a dict that ``json.dumps`` accepts."""
        return {**asdict(self), "dest": str(self.dest)}

    def __str__(self) -> str:
        return (
            f"{self.dest}: {count(self.n_samples, 'sample')} in {count(self.n_shards, 'shard')}, "
            f"{count(self.n_added, 'sample')} added in {self.seconds:.1f} s. "
            f"Linked {count(self.linked, 'shard')}, copied {count(self.copied, 'record')}"
        )


def link_or_copy(path: Path, dest: Path, shard: Shard) -> None:
    """Makes a shard available at ``dest``: a hard link, else a reflink, else a checked copy."""
    os.close(open_checked(path, shard))
    with files.writing(dest, needed=shard.size):
        try:
            os.link(path, dest)
            return
        except OSError:
            pass  # another file system, one without links, or too many links
        temporary = files.temporary_path(dest)
        try:
            with path.open("rb") as source, temporary.open("wb") as target:
                try:
                    fcntl.ioctl(target.fileno(), _FICLONE, source.fileno())
                except OSError:
                    shutil.copyfileobj(source, target, 1 << 20)
                target.flush()
                os.fsync(target.fileno())
            verify_file(temporary, shard)
            files.publish(temporary, dest)
        finally:
            temporary.unlink(missing_ok=True)


@contextlib.contextmanager
def new_folder(dest: Path, *, replace: bool = False) -> Iterator[Path]:
    """Yields a temporary folder next to ``dest`` that becomes ``dest`` if the body succeeds.

    Removes the temporary folders that killed processes left there. If ``replace`` is True, an
    existing folder is removed at the end.
    """
    if not replace and dest.exists() and (not dest.is_dir() or any(dest.iterdir())):
        raise ConfigError(f"{dest} is not empty: expected a new or empty folder as DEST")
    with files.writing(dest, needed=4096):
        dest.parent.mkdir(parents=True, exist_ok=True)
        for path in dest.parent.glob(f"{dest.name}.tmp-*"):
            owner = files.owner_of(path.name)
            if owner and not _is_running(int(owner.partition("-")[0])):
                shutil.rmtree(path, ignore_errors=True)
        temporary = files.temporary_path(dest)
        shutil.rmtree(temporary, ignore_errors=True)
        temporary.mkdir()
    try:
        yield temporary
        with files.writing(dest, needed=4096):
            files.sync_dir(temporary)
            if replace and dest.exists():
                old = files.temporary_path(dest)
                dest.rename(old)
                files.publish(temporary, dest)
                shutil.rmtree(old, ignore_errors=True)
            else:
                files.publish(temporary, dest)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def _is_running(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    return True


def write_log(folder: Path, datasets: Iterable[Path]) -> None:
    """Joins the logs of datasets."""
    with files.NewFile(folder / LOG) as log:
        for dataset in datasets:
            with contextlib.suppress(FileNotFoundError), (dataset / LOG).open("rb") as source:
                while data := source.read(1 << 20):
                    log.write(data)
        log.publish()
