"""Copies selected samples of a packed dataset: ``filter_dataset``."""

from __future__ import annotations

import os
import time
from pathlib import Path

import numpy as np

from fastload._common.public import public
from fastload._pack.datasets.assembly import (
    Assembly,
    DatasetResult,
    OnProgress,
    new_folder,
)
from fastload._pack.datasets.merge import stored_sizes
from fastload._pack.datasets.where import matching
from fastload._store.dataset import Dataset
from fastload._store.fields import ALL_SPLITS, SPLIT, Field, with_classes
from fastload._store.joining import Ids, Input
from fastload.errors import ConfigError


@public()
def filter_dataset(
    dataset: str | os.PathLike[str],
    dest: str | os.PathLike[str],
    *,
    where: str = "",
    split: str = "",
    limit: int | None = None,
    on_progress: OnProgress | None = None,
) -> DatasetResult:
    """Copies the selected samples of a packed dataset into the new dataset ``dest``.

    Records are copied without decoding or encoding an image. Classes keep their numbers, also those
    without samples. ``split``, ``where`` and ``limit`` apply in this order.

    Args:
        dataset: Folder written by ``fastload pack``.
        dest: Folder to create. It must be new or empty.
        where: Condition over columns, e.g. ``'label in ("cat", "dog") and width >= 64'``: int and
            float fields, and the ``width`` and ``height`` of images. A text is the name of a class.
            A sample that lacks a value does not match. Default: all samples.
        split: Only the samples of this split. The result has only this split. Default: all.
        limit: Only the first samples in the packed order, which is random unless the dataset was
            packed with ``order="source"``. Default: None (no limit).
        on_progress: Called with the number of samples done and in total.

    Returns:
        Counts and duration.

    Raises:
        ConfigError: The condition is wrong, no sample matches, or ``dest`` is not empty.
        StoreError: The dataset cannot be read, or ``dest`` cannot be written.

    Examples:
        >>> fastload.filter_dataset("packed", "cats", where="label == 'cat'")  # doctest: +SKIP
    """
    started = time.monotonic()
    opened = Dataset(dataset)
    ids = selected_ids(opened, where=where, split=split, limit=limit)
    fields = selected_fields(opened.fields, split)
    changed: dict[str, Ids] = {}
    if fields != opened.fields:
        changed[SPLIT] = np.zeros(len(opened.splits), np.int64)
    # Source positions are counted again, because the samples in between are missing.
    positions = np.zeros(len(opened), np.int64)
    positions[ids[np.argsort(opened.column_rows("_source_index")[ids])]] = np.arange(len(ids))
    source = Input(opened, tuple(range(len(fields))), changed, positions=positions)
    with (
        new_folder(Path(dest)) as folder,
        Assembly(
            folder,
            fields,
            stored_sizes(opened.manifest),
            on_progress=on_progress,
            n_samples=len(ids),
        ) as assembly,
    ):
        assembly.copy(source, ids, count_properties=True)
        manifest = assembly.publish(opened.manifest, properties=assembly.counter.found)
    return DatasetResult.of(Path(dest), manifest, assembly, started=started)


def selected_ids(
    opened: Dataset, *, where: str = "", split: str = "", limit: int | None = None
) -> Ids:
    """Returns the ids of the selected samples; raises ConfigError if there are none."""
    selected = np.ones(len(opened), np.bool_)
    if split not in ("", ALL_SPLITS):
        chosen = opened.with_split(split).ids
        selected[: chosen.start] = False
        selected[chosen.stop :] = False
    if where:
        selected &= matching(opened, where)
    if limit is not None and limit < 1:
        raise ConfigError(f"limit={limit}: expected an integer of at least 1")
    ids = np.flatnonzero(selected)[:limit]
    if not len(ids):
        raise ConfigError(
            f"{opened.path}: no sample matches. Check where, split and the values of the columns "
            "with 'fastload inspect'"
        )
    return ids


def selected_fields(fields: tuple[Field, ...], split: str) -> tuple[Field, ...]:
    """Returns the fields of the result, in which the selected split is the only one."""
    if split in ("", ALL_SPLITS):
        return fields
    return tuple(with_classes(each, (split,)) if each.name == SPLIT else each for each in fields)
