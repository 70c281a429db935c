"""Adds restart indexes to the JPEGs of a packed dataset: ``reindex``."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from types import ModuleType

import numpy as np

from fastload._common.cpus import available_cpus
from fastload._common.formatting import count
from fastload._common.native import core
from fastload._common.public import public
from fastload._pack.datasets.assembly import Assembly, OnProgress, new_folder, write_log
from fastload._pack.datasets.merge import stored_sizes
from fastload._pack.images import rewritten
from fastload._pack.jobs import ordered_map
from fastload._pack.samples import image_parts
from fastload._store.dataset import Dataset
from fastload._store.joining import Input
from fastload._store.record import DATA, JPEG, Part
from fastload.errors import BadImage, ConfigError


@public()
@dataclass(frozen=True, slots=True)
class ReindexResult:
    """Result of ``reindex``. ``str(result)`` is its summary.

    Attributes:
        dest: Folder of the new dataset.
        n_samples: Samples in the dataset.
        indexed: Images that got an index.
        damaged: Images that cannot be decoded. They are stored unmodified.
        seconds: Duration.

    Examples:
        >>> fastload.reindex("copied", "packed").indexed  # doctest: +SKIP
        1000
    """

    dest: Path
    n_samples: int
    indexed: int
    damaged: int
    seconds: float

    def as_json(self) -> dict[str, object]:
        """Returns the result as a dict that ``json.dumps`` accepts."""
        return {**asdict(self), "dest": str(self.dest)}

    def __str__(self) -> str:
        text = (
            f"{self.dest}: {count(self.n_samples, 'sample')}, "
            f"{count(self.indexed, 'image')} indexed in {self.seconds:.1f} s"
        )
        if self.damaged:
            text += (
                f". {count(self.damaged, 'damaged image')} stored unmodified: "
                f"'fastload verify {self.dest} --deep' names them"
            )
        return text


@public()
def reindex(
    dataset: str | os.PathLike[str],
    dest: str | os.PathLike[str],
    *,
    jobs: int = 0,
    on_progress: OnProgress | None = None,
) -> ReindexResult:
    """Copies a dataset into the new dataset ``dest`` and adds indexed restart markers to its JPEGs.

    The loader then decodes only the part of an image that a crop needs, as in a dataset packed with
    ``encode="keep"``. Pixels, labels, order and ids stay the same. Use it for a dataset that was
    packed with ``encode="copy"`` or ``restart=0``. Images that have an index are not changed.

    Args:
        dataset: Folder written by ``fastload pack``. It is not changed.
        dest: Folder to create. It must be new or empty.
        jobs: Number of threads. Default: 0 (all available cores).
        on_progress: Called with the number of samples done and in total.

    Returns:
        Counts and duration.

    Raises:
        ConfigError: ``dest`` is not empty, or the native core is missing.
        StoreError: The dataset cannot be read, or ``dest`` cannot be written.

    Examples:
        >>> fastload.reindex("copied", "packed")  # doctest: +SKIP
    """
    started = time.monotonic()
    module = core()
    if module is None:
        raise ConfigError("reindex needs the native core. Check 'fastload --version'")
    opened = Dataset(dataset)
    manifest = opened.manifest
    indexed = damaged = 0

    def parts_of(ids: Sequence[int]) -> Iterator[tuple[list[Part], int, int]]:
        for sample_id in ids:
            yield _with_indexes(opened.parts(sample_id), module)

    with (
        new_folder(Path(dest)) as folder,
        Assembly(
            folder,
            opened.fields,
            stored_sizes(manifest),
            on_progress=on_progress,
            n_samples=len(opened),
        ) as assembly,
        contextlib.closing(
            ordered_map(parts_of, range(len(opened)), jobs=jobs or available_cpus())
        ) as results,
    ):

        def all_parts() -> Iterator[Sequence[Part]]:
            nonlocal indexed, damaged
            for parts, n_indexed, n_damaged in results:
                indexed += n_indexed
                damaged += n_damaged
                yield parts

        assembly.copy(
            Input(opened, tuple(range(len(opened.fields)))),
            np.arange(len(opened)),
            parts=all_parts(),
            count_properties=True,
        )
        write_log(folder, [opened.path])
        assembly.publish(
            manifest,
            properties=assembly.counter.found,
            skipped=manifest.skipped,
            converted=manifest.converted,
            options={"encode": "keep", "restart": -1},
        )
    return ReindexResult(Path(dest), len(opened), indexed, damaged, time.monotonic() - started)


def _with_indexes(parts: Sequence[Part], module: ModuleType) -> tuple[list[Part], int, int]:
    """Returns the parts, and the number of images that got an index and that are damaged."""
    found: list[Part] = []
    indexed = damaged = 0
    for part in parts:
        if part.codec != JPEG or part.role != DATA or part.interval:
            found.append(part)
            continue
        try:
            stored = rewritten(part.data, module, orient=False)
        except BadImage:
            damaged += 1
            found.append(part)
            continue
        # The orientation in the record counts. The file may have another one or none.
        stored = replace(stored, orientation=part.orientation)
        found += image_parts(part.field, part.item, stored)
        indexed += bool(stored.index)
    return found, indexed, damaged
