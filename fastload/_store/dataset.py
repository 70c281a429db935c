"""Reads packed datasets: ``fastload.open(path)`` returns a ``Dataset``."""

from __future__ import annotations

import bisect
import operator
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, SupportsIndex, cast

import numpy as np
import numpy.typing as npt

# Imported here because a first import in a decode thread could fail for lack of files or memory.
import fastload._store.pixels  # noqa: F401
from fastload._common.public import public
from fastload._store.column_file import AnyColumn, ColumnFile
from fastload._store.columns import open_rows
from fastload._store.fields import (
    ALL_SPLITS,
    SPLIT,
    Field,
    decode_value,
    kind_text,
    splits_of,
)
from fastload._store.manifest import Column, read_manifest
from fastload._store.record import DATA, SOURCE_FIELD, Part, source_of
from fastload._store.shard import VERIFY, ShardReader, check_sizes
from fastload.errors import BadImage, ConfigError, CorruptShard, RecordError, StoreError

if TYPE_CHECKING:
    from fastload import _core

_ROWS = 1 << 20  # rows of a large column that are read at a time


@dataclass(frozen=True, slots=True)
class Record:
    """One sample as stored."""

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

    Samples have an *id*, which counts through the packed dataset, and an *index*, which counts
    through this object. Both are the same unless ``split`` selects a part of the dataset: then
    ``len``, ``dataset[i]``, ``column`` and all other methods use the index, and ``ids`` has the
    ids.

    Args:
        path: Folder written by ``fastload pack``.
        split: Only the samples of this split, e.g. ``"train"``. Default: all samples.
        verify: ``"size"`` checks the size of every shard, and the tree pages of each shard before
            it is first read. ``"full"`` also checks the BLAKE3 digest of the shard. Default:
            ``"size"``.

    ``fastload.open`` of a list joins several packed datasets in memory. The result has no
    attribute ``path``.

    Attributes:
        path: Absolute path of the folder.
        paths: Absolute paths of the folders, one for each joined dataset.
        split_name: The argument ``split``.
        ids: Ids of the samples in the packed dataset, a ``range``.

    Raises:
        StoreError: The folder does not exist or cannot be read.
        CorruptManifest: The manifest is missing or damaged.
        CorruptShard: A shard is missing or has the wrong size.
        ConfigError: There is no such split.

    Examples:
        >>> dataset = fastload.open("packed")
        >>> dataset[0]["image"].shape
        (375, 500, 3)
    """

    def __init__(
        self, path: str | os.PathLike[str], *, split: str | None = None, verify: str = "size"
    ) -> None:
        if verify not in VERIFY:
            raise ConfigError(f"verify={verify!r:.40}: expected one of {', '.join(VERIFY)}")
        self.path = Path(path).absolute()
        self.paths: tuple[Path, ...] = (self.path,)
        self.verify = verify
        self.manifest = read_manifest(self.path)
        check_sizes(self.path, self.manifest.shards)
        shards = self.manifest.shards
        self._set_shards([self.path] * len(shards), [shard.first for shard in shards])
        self.split_name = split
        self.ids = self._ids_of(split)

    def _set_shards(self, folders: list[Path], firsts: list[int]) -> None:
        """Sets the folder and the first id of each shard in the manifest."""
        self._folders = folders
        self._firsts = firsts
        self._starts = np.array(firsts, np.int64)
        # Key minus id of the samples of each shard.
        self._shifts = np.array([shard.key(0) for shard in self.manifest.shards], np.int64)
        self._readers: dict[int, ShardReader] = {}
        self._files: list[_core.ShardFile | None] = [None] * len(firsts)
        self._columns: dict[str, AnyColumn] = {}  # of all samples

    def __getstate__(self) -> tuple[Path, str | None, str, str]:
        return self.path, self.split_name, self.verify, self.manifest.content

    def __setstate__(self, state: tuple[Path, str | None, str, str]) -> None:
        path, split, verify, content = state
        self.__init__(path, split=split, verify=verify)  # type: ignore[misc]
        if self.manifest.content != content:
            raise StoreError(
                f"unpickling the dataset {path}: it was packed again after it was pickled. Restart "
                "the program to use the new dataset."
            )

    def with_split(self, split: str | None) -> Dataset:
        """Returns the same packed dataset with another split. Both share their open files.

        Args:
            split: Name of a split, or None or ``"all"`` for all samples.

        Raises:
            ConfigError: There is no such split.

        Examples:
            >>> val = dataset.with_split("val")
        """
        if split == self.split_name:
            return self
        other = type(self).__new__(type(self))
        vars(other).update(vars(self), split_name=split, ids=self._ids_of(split))
        return other

    def select(self, split: str | None) -> Dataset:
        """Returns the samples of a loader: like ``with_split``, but several splits need a choice.

        Args:
            split: The argument ``split`` of the loader.

        Raises:
            ConfigError: ``split`` is missing or unknown, differs from the split that this dataset
                was opened with, or has no samples.
        """
        if split is not None and self.split_name not in (None, split):
            raise ConfigError(
                f"split={split!r:.60} contradicts the dataset, which was opened with "
                f"split={self.split_name!r:.60}: pass one of them"
            )
        chosen = self if split is None else self.with_split(split)
        if chosen.split_name is None and len(sizes := self.split_sizes()) > 1:
            shown = ", ".join(f"{name!r} ({size:,} samples)" for name, size in sizes.items())
            raise ConfigError(
                f"{self._name} has several splits: {shown}. Pass split={next(iter(sizes))!r}, ..., "
                f"or split={ALL_SPLITS!r} for all samples"
            )
        if not len(chosen):
            name = "" if chosen.split_name is None else f"split {chosen.split_name!r} of "
            raise ConfigError(f"{name}{self._name} has no samples")
        return chosen

    def _ids_of(self, split: str | None) -> range:
        if split is None or split == ALL_SPLITS:
            return range(self.manifest.n_samples)
        if split not in self.splits:
            names = ", ".join((*map(repr, self.splits), repr(ALL_SPLITS)))
            why = f"expected one of {names:.200}" if self.splits else "the dataset has no splits"
            raise ConfigError(f"split={split!r:.60}: {why} ({self._name})")
        return self._split_ranges()[split]

    def _split_ranges(self) -> dict[str, range]:
        """Returns the ids of each split; raises CorruptShard if they are not contiguous."""
        column = self._whole_column(SPLIT)
        sizes = np.zeros(len(self.splits), np.int64)
        before = 0
        for start in range(0, len(column), _ROWS):
            rows = column[start : start + _ROWS]
            if rows[0] < before or rows[-1] >= len(sizes) or (rows[1:] < rows[:-1]).any():
                raise CorruptShard(
                    f"{self._name}: the samples of a split are not contiguous. Pack the dataset "
                    "again.",
                    shard=f"columns/{SPLIT}.npy",
                )
            sizes += np.bincount(rows, minlength=len(sizes))
            before = rows[-1]
        ends = np.cumsum(sizes).tolist()
        return {
            name: range(first, end)
            for name, first, end in zip(self.splits, [0, *ends], ends, strict=False)
        }

    def __len__(self) -> int:
        return len(self.ids)

    def __getitem__(self, index: SupportsIndex) -> dict[str, Any]:
        sample_id = self._number(index)
        parts = self._parts(sample_id)
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
        fields = ", ".join(f"{each.name}: {kind_text(each)}" for each in self.fields)
        split = "" if self.split_name is None else f"split={self.split_name!r}, "
        paths = [str(path) for path in self.paths]
        shown = paths[0] if len(paths) == 1 else paths
        return f"Dataset({shown!r}, {split}{len(self)} samples of {fields})"

    @property
    def _name(self) -> str:
        """The dataset in messages."""
        return " + ".join(map(str, self.paths))

    @property
    def fields(self) -> tuple[Field, ...]:
        """Fields of every sample, in order."""
        return self.manifest.fields

    @property
    def class_names(self) -> dict[str, tuple[str, ...]]:
        """Class names by field: ``dataset.class_names["label"][dataset[0]["label"]]``."""
        return {each.name: each.classes for each in self.fields if each.classes}

    @property
    def classes(self) -> list[str]:
        """Class names in the order of their numbers, as in torchvision's ``ImageFolder``.

        These are the classes of the only field with class names, without counting ``split``; or,
        without such a field, the categories of the boxes in a detection dataset.

        Raises:
            AttributeError: No field has class names, or several have: use ``class_names``.
        """
        named = {name: found for name, found in self.class_names.items() if name != SPLIT}
        if len(named) == 1:
            return list(*named.values())
        if not named and (categories := self._categories()):
            return categories
        raise AttributeError(
            f"{self._name} has {'several' if named else 'no'} fields with class names"
            + (f": {', '.join(named)}. Use class_names[FIELD]" if named else "")
        )

    @property
    def class_to_idx(self) -> dict[str, int]:
        """Number of each class name, as in torchvision's ``ImageFolder``. See ``classes``."""
        return {name: number for number, name in enumerate(self.classes)}

    def _categories(self) -> list[str]:
        match self.manifest.options.get("info"):
            case {"categories": [*found]}:
                return [str(each["name"]) for each in found if isinstance(each, dict)]
        return []

    @property
    def splits(self) -> tuple[str, ...]:
        """Names of the splits, such as ("train", "val"); () if there are none. See ``split``."""
        return splits_of(self.fields)

    def split_sizes(self) -> dict[str, int]:
        """Returns the number of samples of each split that has samples."""
        ranges = self._split_ranges() if self.splits else {}
        return {name: len(ids) for name, ids in ranges.items() if len(ids)}

    def split(self, name: str) -> npt.NDArray[np.int64]:
        """Returns the ids of all samples of one split.

        Args:
            name: One of ``splits``.

        Raises:
            ConfigError: There is no such split.

        Examples:
            >>> train_ids = dataset.split("train")
        """
        return np.array(self._ids_of(name), np.int64)

    def column(self, name: str) -> npt.NDArray[Any]:
        """Returns a read-only array with one number per sample.

        Int and float fields have a column. Image fields have ``NAME.width`` and ``NAME.height``.

        Args:
            name: Name of the column.

        Raises:
            ConfigError: There is no such column.
            CorruptShard: The file is damaged. Its checksum is compared at the first call.

        A column above 256 MiB is copied by every call; a smaller one is copied once.

        Examples:
            >>> class_counts = numpy.bincount(dataset.column("label"))
        """
        rows = self.column_rows(name)
        return rows if isinstance(rows, np.ndarray) else rows[:]

    def column_rows(self, name: str) -> AnyColumn:
        """Returns a column whose rows are read when it is indexed, if it is a large one."""
        column = self._whole_column(name)
        if len(self) == self.manifest.n_samples:
            return column
        if name == "_blocks":  # a block belongs to one split
            blocks = column[:]
            return blocks[(blocks[:, 0] >= self.ids.start) & (blocks[:, 0] < self.ids.stop)]
        if isinstance(column, ColumnFile):
            return column.view(self.ids.start, self.ids.stop)
        return column[self.ids.start : self.ids.stop]

    def _whole_column(self, name: str) -> AnyColumn:
        if name not in self._columns:
            columns = {column.name: column for column in self.manifest.columns}
            if name not in columns:
                raise ConfigError(
                    f"column {name!r:.60}: {self._name} has {', '.join(columns)} (int and float "
                    "fields, and image sizes)"
                )
            self._columns[name] = self._read_column(columns[name])
        return self._columns[name]

    def _read_column(self, column: Column) -> AnyColumn:
        return open_rows(self.path, column)

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
        """(id of the first sample, number of samples) of every block, in order.

        A block is a run of samples that are stored together in one shard.
        """
        blocks = self.column("_blocks")
        bounds = np.concatenate(([self.ids.start], blocks.sum(axis=1)))
        starts = self._starts[(self._starts >= self.ids.start) & (self._starts < self.ids.stop)]
        if not (
            np.array_equal(blocks[:, 0], bounds[:-1])
            and (blocks[:, 1] > 0).all()
            and np.isin(starts, blocks[:, 0]).all()
            and bounds[-1] == self.ids.stop
        ):
            raise CorruptShard(
                f"{self._name}: the blocks do not cover the samples of each shard in order. Pack "
                "the dataset again.",
                shard="columns/_blocks.npy",
            )
        return blocks

    def record(self, index: SupportsIndex) -> Record:
        """Returns the checked, encoded bytes of one sample."""
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
        """Returns the checked parts of a sample."""
        return self._parts(self._number(index))

    def _parts(self, sample_id: int) -> list[Part]:
        return self.reader(sample_id).record(sample_id)

    def reader(self, sample_id: int) -> ShardReader:
        return self._reader(bisect.bisect_right(self._firsts, sample_id) - 1)

    def _reader(self, place: int) -> ShardReader:
        reader = self._readers.get(place)
        if reader is None:
            # All threads use the first reader, because each keeps its file open.
            reader = self._readers.setdefault(
                place,
                ShardReader(self._folders[place], self.manifest.shards[place], verify=self.verify),
            )
        return reader

    def files(
        self, ids: npt.NDArray[np.int64]
    ) -> tuple[
        list[_core.ShardFile | None],
        npt.NDArray[np.int64],
        npt.NDArray[np.int64],
        dict[int, CorruptShard],
    ]:
        """Returns what the native core needs to read samples ``ids``.

        These are the files of all shards (None unless open), the shard index and the key of each
        sample, and the errors by shard index. The shards of ``ids`` are opened.
        """
        shards = np.searchsorted(self._starts, ids, side="right") - 1
        faults: dict[int, CorruptShard] = {}
        for place in set(shards.tolist()) if len(self._files) > 1 else (0,):
            if self._files[place] is None:
                try:
                    self._files[place] = cast("_core.ShardFile", self._reader(place).file())
                except CorruptShard as error:
                    faults[place] = error
        return self._files, shards, ids + self._shifts[shards], faults

    def locate(self, ids: npt.ArrayLike) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """Returns which of the joined datasets samples come from, and their ids in it.

        Args:
            ids: Ids of samples, such as ``batch["id"]``.

        Returns:
            The index in ``paths`` and the id in that dataset, for each of ``ids``.

        Raises:
            IndexError: There is no such id.

        Examples:
            >>> numbers, ids = fastload.open(["day1", "day2"]).locate([0, 7])
        """
        checked = np.asarray(ids, np.int64)
        if checked.size and not 0 <= checked.min() <= checked.max() < self.manifest.n_samples:
            raise IndexError(
                f"ids {checked.min()} to {checked.max()}: expected 0 to "
                f"{self.manifest.n_samples - 1}"
            )
        return self._located(checked)

    def _located(
        self, ids: npt.NDArray[np.int64]
    ) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        return np.zeros_like(ids), ids

    def _number(self, index: SupportsIndex) -> int:
        """Returns the id of the sample at an index."""
        number = operator.index(index)
        count = len(self.ids)
        if not -count <= number < count:
            raise IndexError(f"sample {number}: the dataset has {count} samples")
        return self.ids[number]


def open_dataset(
    path: str | os.PathLike[str] | Sequence[str | os.PathLike[str] | Dataset],
    *,
    split: str | None = None,
    verify: str = "size",
) -> Dataset:
    """Opens a packed dataset, or joins several of them in memory.

    The checksum of every record is verified when it is read, and that of the tree pages when a
    shard is opened. Every page that locates a record is checked against the size of the file. A
    damaged dataset raises an error; it does not crash the process.

    Args:
        path: Folder written by ``fastload pack``. A list of folders, or of opened datasets, is
            joined: the result has the samples and ids of ``fastload.merge``, and nothing is
            written. The datasets must have the same fields and classes. ``locate`` returns which
            dataset a sample comes from. A dataset that is listed twice has its samples twice.
        split: Only the samples of this split, e.g. ``"train"``. None (default) and ``"all"`` are
            all samples.
        verify: ``"size"`` checks the size of every shard, and the tree pages of each shard before
            it is first read. ``"full"`` also checks the BLAKE3 digest of the shard. Default:
            ``"size"``.

    Returns:
        The dataset.

    Raises:
        StoreError: The folder does not exist or cannot be read.
        CorruptManifest: The manifest is missing or damaged.
        CorruptShard: A shard is missing or has the wrong size.
        ConfigError: There is no such split, or the datasets of a list cannot be joined.

    Examples:
        >>> dataset = fastload.open("packed", split="train")
        >>> dataset[0]["image"], dataset.classes, dataset.column("label")
        >>> both = fastload.open(["day1", "day2"], split="train")
    """
    if not isinstance(path, Sequence) or isinstance(path, str):
        return Dataset(path, split=split, verify=verify)
    from fastload._store.joined import join  # not at the top, because it imports this module

    opened = [each if isinstance(each, Dataset) else Dataset(each, verify=verify) for each in path]
    return join(opened, split=split)
