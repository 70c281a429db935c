"""Reads packed datasets: ``fastload.open(path)`` returns a ``Dataset``."""

from __future__ import annotations

import bisect
import operator
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, SupportsIndex

import numpy as np
import numpy.typing as npt

# Imported here because a first import in a decode thread could fail for lack of files or memory.
import fastload._store.pixels  # noqa: F401
from fastload._common.public import public
from fastload._store.columns import open_column
from fastload._store.fields import Field, decode_value
from fastload._store.manifest import read_manifest
from fastload._store.record import DATA, SOURCE_FIELD, Part, source_of
from fastload._store.shard import VERIFY, ShardReader, check_sizes, warn_if_remote
from fastload.errors import BadImage, ConfigError, CorruptShard, RecordError, StoreError

if TYPE_CHECKING:
    from fastload import _core

SPLIT = "split"  # name of the int field whose classes are the names of the splits


@dataclass(frozen=True, slots=True)
class Record:
    """One sample as stored. The bytes are views into the shard's memory map and keep it alive."""

    id: int
    parts: Sequence[Part]
    fields: tuple[Field, ...]

    @property
    def source(self) -> str:
        """The original path, relative to the packed folder if possible; '' if it was not stored."""
        return source_of(self.parts)

    def raw(self, field: str, item: int = 0, *, role: int = DATA) -> memoryview:
        """Returns the encoded bytes of one field, such as a JPEG file; raises KeyError."""
        number = next((n for n, each in enumerate(self.fields) if each.name == field), -1)
        for part in self.parts:
            if (part.field, part.item, part.role) == (number, item, role):
                return memoryview(part.data)
        raise KeyError(f"sample {self.id}: no field {field!r} with item {item} and role {role}")


@public()
class Dataset:
    """A packed dataset with random access. ``fastload.open`` creates one.

    ``dataset[i]`` is a dict with the decoded fields of sample i; a missing field is None. Images
    are upright uint8 or uint16 arrays of shape (height, width, channels), RGB or grayscale with one
    channel. The object pickles as its path, works after a fork and in several threads, and can be
    passed to ``torch.utils.data.DataLoader``.

    Args:
        path: Folder written by ``fastload pack``. verify: ``"size"`` checks the size of every
        shard. ``"full"`` also checks the SHA-256 of each
            shard before it is first read. Default: ``"size"``.

    Raises:
        StoreError: The folder does not exist or cannot be read.
        CorruptManifest: The manifest is missing or damaged.
        CorruptShard: A shard is missing or has the wrong size.

    Examples:
        >>> dataset = fastload.open("packed")
        >>> dataset[0]["image"].shape
        (375, 500, 3)
    """

    def __init__(self, path: str | os.PathLike[str], *, verify: str = "size") -> None:
        if verify not in VERIFY:
            raise ConfigError(f"verify={verify!r:.40}: expected one of {', '.join(VERIFY)}")
        self.path = Path(path).absolute()
        self.verify = verify
        self.manifest = read_manifest(self.path)
        check_sizes(self.path, self.manifest.shards)
        warn_if_remote(self.path)
        self._firsts = [shard.first for shard in self.manifest.shards]
        self._starts = np.array(self._firsts, np.int64)
        self._readers: dict[int, ShardReader] = {}
        self._maps: list[_core.ShardMap | None] = [None] * len(self._firsts)
        self._columns: dict[str, npt.NDArray[Any]] = {}

    def __getstate__(self) -> tuple[Path, str, str]:
        return self.path, self.verify, self.manifest.content

    def __setstate__(self, state: tuple[Path, str, str]) -> None:
        path, verify, content = state
        self.__init__(path, verify=verify)  # type: ignore[misc]
        if self.manifest.content != content:
            raise StoreError(
                f"unpickling the dataset {path}: it was packed again after it was pickled. Restart "
                "the program to use the new dataset."
            )

    def __len__(self) -> int:
        return self.manifest.n_samples

    def __getitem__(self, index: SupportsIndex) -> dict[str, Any]:
        sample_id = self._number(index)
        parts = self.parts(sample_id)
        found: list[list[Part]] = [[] for _ in self.fields]
        sample: dict[str, Any] = {}
        name = ""
        try:
            for part in parts:
                if part.field < len(found):
                    found[part.field].append(part)
                elif part.field != SOURCE_FIELD:
                    raise RecordError("field number", part.field, f"below {len(found)}")
            for field, own in zip(self.fields, found, strict=True):
                name = field.name
                sample[name] = decode_value(field, own)
        except RecordError as error:
            self.reader(sample_id).damaged(sample_id, f"field {name!r}: {error}")
        except BadImage as error:
            raise BadImage(
                f"sample {sample_id}, field {name!r}: {error.why}",
                source=source_of(parts),
                image_id=sample_id,
            ) from None
        return sample

    def __getitems__(self, indices: Iterable[SupportsIndex]) -> list[dict[str, Any]]:
        # torch's DataLoader requests a whole batch where this method exists.
        return [self[index] for index in indices]

    def __repr__(self) -> str:
        fields = ", ".join(
            f"{each.name}: {'list of ' if each.list else ''}{each.kind}" for each in self.fields
        )
        return f"Dataset({str(self.path)!r}, {len(self)} samples of {fields})"

    @property
    def fields(self) -> tuple[Field, ...]:
        """Fields of every sample, in order."""
        return self.manifest.fields

    @property
    def classes(self) -> dict[str, tuple[str, ...]]:
        """Class names by field: ``dataset.classes["label"][dataset[0]["label"]]``."""
        return {each.name: each.classes for each in self.fields if each.classes}

    @property
    def splits(self) -> tuple[str, ...]:
        """Names of the splits, such as ("train", "val"); () if there are none. See ``split``."""
        return self.classes.get(SPLIT, ())

    def split(self, name: str) -> npt.NDArray[np.int64]:
        """Returns the ids of all samples of one split.

        Args:
            name: One of ``splits``.

        Raises:
            ConfigError: There is no such split.

        Examples:
            >>> train_ids = dataset.split("train")
        """
        if name not in self.splits:
            raise ConfigError(
                f"split {name!r:.60}: {self.path} has {', '.join(self.splits) or 'no splits'}"
            )
        return np.flatnonzero(self.column(SPLIT) == self.splits.index(name))

    def column(self, name: str) -> npt.NDArray[Any]:
        """Returns a read-only, memory-mapped array with one number per sample.

        Int and float fields have a column. Image fields have ``NAME.width`` and ``NAME.height``.

        Args:
            name: Name of the column.

        Raises:
            ConfigError: There is no such column.
            CorruptShard: The file is damaged. Its checksum is compared at the first call.

        Examples:
            >>> class_counts = numpy.bincount(dataset.column("label"))
        """
        if name not in self._columns:
            columns = {column.name: column for column in self.manifest.columns}
            if name not in columns:
                raise ConfigError(
                    f"column {name!r:.60}: {self.path} has {', '.join(columns)} (int and float "
                    "fields, and image sizes)"
                )
            self._columns[name] = open_column(self.path, columns[name])
        return self._columns[name]

    def sizes(self, field: str = "") -> npt.NDArray[np.uint16]:
        """Returns (height, width) of the upright image of every sample, shape (n_samples, 2).

        Args:
            field: Name of an image field. Default: the first image field.
        """
        field = field or next(
            (each.name for each in self.fields if each.kind.is_image and not each.list), ""
        )
        return np.stack((self.column(f"{field}.height"), self.column(f"{field}.width")), axis=1)

    @property
    def blocks(self) -> npt.NDArray[np.int64]:
        """(first sample, number of samples) of every block, in order.

        A block is a run of samples that are stored together in one shard.
        """
        blocks = self.column("_blocks")
        bounds = np.concatenate(([0], blocks.sum(axis=1)))
        if not (
            np.array_equal(blocks[:, 0], bounds[:-1])
            and (blocks[:, 1] > 0).all()
            and np.isin(self._starts, blocks[:, 0]).all()
            and bounds[-1] == len(self)
        ):
            raise CorruptShard(
                f"{self.path}: the blocks do not cover the samples of each shard in order. Pack "
                "the dataset again.",
                shard="columns/_blocks.npy",
            )
        return blocks

    def record(self, index: SupportsIndex) -> Record:
        """Returns the checked, encoded bytes of one sample without copying them."""
        sample_id = self._number(index)
        return Record(sample_id, self.reader(sample_id).record(sample_id), self.fields)

    def raw(self, index: SupportsIndex, field: str, item: int = 0) -> memoryview:
        """Returns the encoded bytes of one field: ``dataset.raw(0, "image")`` is a JPEG file.

        Args:
            index: Number of the sample; negative numbers count from the end.
            field: Name of the field.
            item: Index in a list field. Default: 0.

        Raises:
            KeyError: The sample does not have this field or item.
        """
        return self.record(index).raw(field, item)

    def source(self, index: SupportsIndex) -> str:
        """Returns the original path of a sample, or '' if it was not stored."""
        return source_of(self.parts(index))

    def parts(self, index: SupportsIndex) -> list[Part]:
        """Returns the checked parts of a sample; valid while this object exists.

        The loader uses it because it is faster than ``record``.
        """
        sample_id = self._number(index)
        reader = self.reader(sample_id)
        return reader.check(sample_id, reader.get(sample_id))

    def reader(self, sample_id: int) -> ShardReader:
        return self._reader(bisect.bisect_right(self._firsts, sample_id) - 1)

    def _reader(self, place: int) -> ShardReader:
        reader = self._readers.get(place)
        if reader is None:
            # All threads use the first reader: dropping a reader unmaps the bytes it returned.
            reader = self._readers.setdefault(
                place, ShardReader(self.path, self.manifest.shards[place], verify=self.verify)
            )
        return reader

    def maps(
        self, ids: npt.NDArray[np.int64]
    ) -> tuple[list[_core.ShardMap | None], npt.NDArray[np.int64], dict[int, CorruptShard]]:
        """Returns what the native core needs to read samples ``ids``.

        These are the maps of all shards (None unless open), the shard index of each sample, and the
        errors by shard index. The shards of ``ids`` are opened.
        """
        shards = np.searchsorted(self._starts, ids, side="right") - 1
        faults: dict[int, CorruptShard] = {}
        for place in set(shards.tolist()) if len(self._maps) > 1 else (0,):
            if self._maps[place] is None:
                try:
                    self._maps[place] = self._reader(place).map()
                except CorruptShard as error:
                    faults[place] = error
        return self._maps, shards, faults

    def _number(self, index: SupportsIndex) -> int:
        number = operator.index(index)
        count = self.manifest.n_samples
        if not -count <= number < count:
            raise IndexError(f"sample {number}: the dataset has {count} samples")
        return number + count if number < 0 else number


def open_dataset(path: str | os.PathLike[str], *, verify: str = "size") -> Dataset:
    """Opens a packed dataset.

    The checksum of every record is verified when it is read. Record checksums do not cover LMDB's
    own pages, and a damaged LMDB page can crash the process. ``verify="full"`` prevents that.

    Args:
        path: Folder written by ``fastload pack``. verify: ``"size"`` checks the size of every
        shard. ``"full"`` also checks the SHA-256 of each
            shard before it is first read. Default: ``"size"``.

    Returns:
        The dataset.

    Raises:
        StoreError: The folder does not exist or cannot be read.
        CorruptManifest: The manifest is missing or damaged.
        CorruptShard: A shard is missing or has the wrong size.

    Examples:
        >>> dataset = fastload.open("packed")
        >>> dataset[0]["image"], dataset.classes["label"], dataset.column("label")
    """
    return Dataset(path, verify=verify)
