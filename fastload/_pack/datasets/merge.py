"""Joins packed datasets: ``append`` and ``merge``."""

from __future__ import annotations

import contextlib
import os
import shutil
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from fastload._common import files
from fastload._common.formatting import count
from fastload._common.public import public
from fastload._pack.datasets.assembly import (
    Assembly,
    DatasetResult,
    OnProgress,
    new_folder,
    write_log,
)
from fastload._pack.options import PackOptions, PackProgress
from fastload._pack.packer import Packer
from fastload._pack.sources.base import AnySource
from fastload._pack.sources.detect import open_source
from fastload._pack.sources.python import MapStyle
from fastload._pack.state import PackState
from fastload._store.dataset import Dataset
from fastload._store.joining import Input, check_fields, joined_properties, pieces, unite
from fastload._store.manifest import COLUMNS_FOLDER, SHARD_NAME, Manifest, read_manifest
from fastload._store.manifest import NAME as MANIFEST
from fastload.errors import ConfigError

APPEND_FOLDER = ".append"  # in the dataset: the new samples while they are packed


@public()
def merge(
    datasets: Sequence[str | os.PathLike[str]],
    dest: str | os.PathLike[str],
    *,
    on_progress: OnProgress | None = None,
) -> DatasetResult:
    """Joins packed datasets into the new dataset ``dest``. The inputs do not change.

    Shards are hard-linked where the file system allows it, and copied otherwise. Classes are united
    by name: the result has the classes of the first dataset, followed by new names. Samples are
    ordered by split and then by dataset. Records are copied, never decoded, where a class gets
    another number, and in the one shard per dataset and split that contains two splits.

    Args:
        datasets: Two or more folders written by ``fastload pack``, with the same fields.
        dest: Folder to create. It must be new or empty.
        on_progress: Called with the number of samples done and in total.

    Returns:
        Counts and duration.

    Raises:
        ConfigError: The datasets have different fields or class meanings, or ``dest`` is not empty.
        StoreError: A dataset cannot be read, or ``dest`` cannot be written.

    Examples:
        >>> fastload.merge(["day1", "day2"], "both")  # doctest: +SKIP
    """
    started = time.monotonic()
    if len(datasets) < 2:
        raise ConfigError(f"merge: found {count(len(datasets), 'dataset')}, expected two or more")
    opened = [Dataset(path) for path in datasets]
    fields, inputs = unite(opened)
    first = opened[0].manifest
    with (
        new_folder(Path(dest)) as folder,
        Assembly(
            folder,
            fields,
            stored_sizes(first),
            on_progress=on_progress,
            n_samples=sum(map(len, opened)),
        ) as assembly,
    ):
        _place(assembly, inputs)
        write_log(folder, [each.path for each in opened])
        manifest = _publish(assembly, inputs, first)
    return DatasetResult.of(Path(dest), manifest, assembly, started=started)


@public()
def append(
    dataset: str | os.PathLike[str],
    source: str | os.PathLike[str] | Iterable[object] | MapStyle | AnySource,
    *,
    format: str | None = None,
    source_options: Mapping[str, object] | None = None,
    on_error: str = "stop",
    max_bad: int | None = None,
    jobs: int = 0,
    on_progress: Callable[[PackProgress], None] | None = None,
) -> DatasetResult:
    """Packs further samples into an existing dataset, with the pack options of the dataset.

    The existing shards do not change. The new manifest replaces the old one in one step: after
    a crash, the dataset is the old or the new one, and the same call continues. A program that has
    the dataset open keeps the old samples. Classes and splits are joined as in ``merge``, so the
    samples of a split that is not the last get their ids before the next split.

    Args:
        dataset: Folder written by ``fastload pack``.
        source: What ``fastload.pack`` accepts. It must have the same fields as the dataset.
        format: Name of the format of a path. Default: detected.
        source_options: Options of the format.
        on_error: ``"stop"`` or ``"skip"`` for bad samples. Default: ``"stop"``.
        max_bad: Maximum number of skipped samples. Default: None (no limit).
        jobs: Number of threads. Default: 0 (all available cores).
        on_progress: Called with a ``PackProgress`` after every sample.

    Returns:
        Counts and duration.

    Raises:
        ConfigError: The source has other fields than the dataset, or an option is invalid.
        BadImage: A sample is bad and ``on_error`` is ``"stop"``.
        StoreError: The dataset cannot be read or written, or another append is running.

    Examples:
        >>> fastload.append("packed", "photos/tuesday")  # doctest: +SKIP
    """
    started = time.monotonic()
    place = Path(dataset)
    read_manifest(place)  # before a folder is created in it
    with _locked(place):
        old = Dataset(place)
        folder = place / APPEND_FOLDER
        if (folder / MANIFEST).exists():
            # A killed append. Its samples are in the dataset, or they are packed again.
            content = read_manifest(folder).content
            _discard(folder)
            if content in _appended(old.manifest):
                return DatasetResult.of(place, old.manifest, None, n_added=0, started=started)
        _remove_unused(old)
        opened = open_source(source, format=format, **(source_options or {}))
        check_fields(old.fields, tuple(opened.fields), str(place), f"source {opened.name}")
        Packer(
            opened,
            folder,
            replace(stored_options(old.manifest), on_error=on_error, max_bad=max_bad, jobs=jobs),
            name=str(Path(source).resolve()) if isinstance(source, str | os.PathLike) else "",
            source_options=source_options,
            on_progress=on_progress,
        ).run()
        new = Dataset(folder)
        fields, inputs = unite([old, new])
        numbers = [int(shard.name[6:].split(".")[0]) for shard in old.manifest.shards]
        folders = {column.folder for column in old.manifest.columns}
        generation = max(int(name.partition("-")[2] or 0) for name in folders) + 1
        with Assembly(
            place,
            fields,
            stored_sizes(old.manifest),
            first_number=max(numbers, default=-1) + 1,
            columns_folder=f"columns-{generation}",
        ) as assembly:
            _place(assembly, inputs)
            write_log(place, [place, folder])
            appended = [*_appended(old.manifest), new.manifest.content]
            manifest = _publish(assembly, inputs, old.manifest, {"appended": appended})
        _discard(folder)
    return DatasetResult.of(place, manifest, assembly, n_added=len(new), started=started)


@contextlib.contextmanager
def _locked(dataset: Path) -> Iterator[None]:
    """Holds the lock of a pack into this folder, and leaves no file after an error."""
    with PackState(dataset) as lock:
        try:
            yield
        finally:
            lock.remove()


def stored_options(manifest: Manifest) -> PackOptions:
    """Returns the options that a dataset was packed with."""
    known: dict[str, Any] = {
        name: tuple(value) if isinstance(value, list) else value
        for name, value in manifest.options.items()
        if name in PackOptions.__dataclass_fields__
    }
    if "encoded" in manifest.options:  # the choice of `auto`
        known["encode"] = manifest.options["encoded"]
    return PackOptions(**known)


def stored_sizes(manifest: Manifest) -> PackOptions:
    """Returns options with the shard and block size of a dataset."""
    options = stored_options(manifest)
    return PackOptions(shard_size=options.shard_size, block_size=options.block_size)


def _place(assembly: Assembly, inputs: Sequence[Input]) -> None:
    """Adds all samples, ordered by split and then by dataset. Links whole shards."""
    kept = (
        {shard.name for each in inputs for shard in each.dataset.manifest.shards}
        if assembly.folder == inputs[0].dataset.path
        else set()
    )
    for piece in pieces(assembly.fields, inputs):
        source = piece.source
        ids = np.arange(piece.low, piece.high)
        if piece.is_whole and not source.must_copy(ids):
            is_here = source is inputs[0] and piece.shard.name in kept
            assembly.link(source, piece.shard, name=piece.shard.name if is_here else "")
        else:
            assembly.copy(source, ids)


def _publish(
    assembly: Assembly,
    inputs: Sequence[Input],
    like: Manifest,
    options: Mapping[str, object] | None = None,
) -> Manifest:
    converted: Counter[str] = Counter()
    for each in inputs:
        converted.update(each.dataset.manifest.converted)
    return assembly.publish(
        like,
        properties=joined_properties(inputs),
        skipped=sum(each.dataset.manifest.skipped for each in inputs),
        converted=converted,
        options=options,
    )


def _appended(manifest: Manifest) -> list[str]:
    """Returns the contents of the datasets that were appended."""
    found = manifest.options.get("appended", [])
    return [str(each) for each in found] if isinstance(found, list) else []


def _remove_unused(dataset: Dataset) -> None:
    """Removes the files of earlier versions of a dataset, and those of a killed append."""
    used = {shard.name for shard in dataset.manifest.shards}
    used |= {column.folder for column in dataset.manifest.columns}
    for path in dataset.path.iterdir():
        if path.name in used:
            continue
        if SHARD_NAME.fullmatch(path.name.partition(".tmp-")[0]):
            path.unlink()
        elif COLUMNS_FOLDER.fullmatch(path.name) or path.name.startswith(f"{APPEND_FOLDER}.tmp-"):
            shutil.rmtree(path)


def _discard(folder: Path) -> None:
    """Removes a folder. A crash leaves the whole folder, or one that ``_remove_unused`` removes."""
    aside = files.temporary_path(folder)
    folder.rename(aside)
    shutil.rmtree(aside)
