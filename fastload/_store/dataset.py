"""A packed dataset, open for reading: ``fastload.open(path)``."""

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

import fastload._store.pixels  # noqa: F401 - a first import in a decode thread could fail for lack of files or memory
from fastload._common.public import public
from fastload._store.columns import open_column
from fastload._store.fields import Field, decode_value
from fastload._store.folder import check_sizes, read_manifest
from fastload._store.record import DATA, SOURCE_FIELD, Part, source_of
from fastload._store.shard import VERIFY, ShardReader, warn_if_remote
from fastload.errors import BadImage, ConfigError, CorruptShard, RecordError, StoreError

if TYPE_CHECKING:
    from fastload import _core

SPLIT = "split"  # the int field whose classes are the names of the splits, where the source had any


@dataclass(frozen=True, slots=True)
class Record:
    """One sample as it is stored. The bytes are views into the shard's map, which they keep alive."""

    id: int
    parts: Sequence[Part]
    fields: tuple[Field, ...]

    @property
    def source(self) -> str:
        """The original path, relative to the packed folder where there was one; '' if it was not kept."""
        return source_of(self.parts)

    def raw(self, field: str, item: int = 0, *, role: int = DATA) -> memoryview:
        """The encoded bytes of one field: a JPEG file, an array with its header ...; raises KeyError without it."""
        number = next((n for n, each in enumerate(self.fields) if each.name == field), -1)
        for part in self.parts:
            if (part.field, part.item, part.role) == (number, item, role):
                return memoryview(part.data)
        raise KeyError(f"sample {self.id} has no field {field!r} with item {item} and role {role}")


@public()
class Dataset:
    """Samples by number: ``ds[i]`` is a dict of decoded fields, None where a sample lacks one.

    Images are uint8 (or uint16) arrays of (height, width, channels), upright, RGB or one channel of gray. It pickles as
    its path, may be used after a fork and by several threads, and serves a plain torch DataLoader as it is. ``fastload.open`` makes one.
    """

    def __init__(self, path: str | os.PathLike[str], *, verify: str = "size") -> None:
        if verify not in VERIFY:
            raise ConfigError(f"verify={verify!r:.40}: expected one of {', '.join(VERIFY)}")
        self.path = Path(path).absolute()
        self.verify = verify
        self.manifest = read_manifest(self.path)
        check_sizes(self.path, self.manifest)
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
                f"{path} was packed anew since this process got its name: start again to use the new one"
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
        """The fields of every sample, in order."""
        return self.manifest.fields

    @property
    def classes(self) -> dict[str, tuple[str, ...]]:
        """The class names of each field that has them: ``ds.classes["label"][ds[0]["label"]]``."""
        return {each.name: each.classes for each in self.fields if each.classes}

    @property
    def splits(self) -> tuple[str, ...]:
        """The names of the splits ("train", "val" ...), () if there are none; see ``split``."""
        return self.classes.get(SPLIT, ())

    def split(self, name: str) -> npt.NDArray[np.int64]:
        """The numbers of all samples of one split."""
        if name not in self.splits:
            raise ConfigError(
                f"split {name!r:.60}: {self.path} has {', '.join(self.splits) or 'no splits'}"
            )
        return np.flatnonzero(self.column(SPLIT) == self.splits.index(name))

    def column(self, name: str) -> npt.NDArray[Any]:
        """One number per sample, mapped and read-only; its checksum is compared when it is first asked for."""
        array = self._columns.get(name)
        if array is None:
            described = next((each for each in self.manifest.columns if each.name == name), None)
            if described is None:
                raise ConfigError(
                    f"column {name!r:.60}: {self.path} has "
                    f"{', '.join(each.name for each in self.manifest.columns)}: int and float fields, and sizes of images"
                )
            array = self._columns[name] = open_column(self.path, described)
        return array

    def sizes(self, field: str = "") -> npt.NDArray[np.uint16]:
        """(height, width) of every sample's image, as loaded; of the first image field unless one is named."""
        field = field or next(
            (each.name for each in self.fields if each.kind.is_image and not each.list), ""
        )
        return np.stack((self.column(f"{field}.height"), self.column(f"{field}.width")), axis=1)

    @property
    def blocks(self) -> npt.NDArray[np.int64]:
        """(first sample, samples) of every block, in order: runs of samples that lie together in one shard."""
        blocks = self.column("_blocks")
        ends = blocks.sum(axis=1)
        starts = np.concatenate(([0], ends[:-1]))
        in_shard = np.isin(np.array(self._firsts, np.int64), blocks[:, 0]).all()
        last = int(ends[-1]) if len(ends) else 0
        if not (
            np.array_equal(blocks[:, 0], starts[: len(blocks)])
            and (blocks[:, 1] > 0).all()
            and in_shard
            and last == len(self)
        ):
            raise CorruptShard(
                f"{self.path}: the blocks do not cover the samples of each shard in order; pack again",
                shard="columns/_blocks.npy",
            )
        return blocks

    def record(self, index: SupportsIndex) -> Record:
        """One sample's stored bytes, checked, without a copy."""
        sample_id = self._number(index)
        return Record(sample_id, self.reader(sample_id).record(sample_id), self.fields)

    def raw(self, index: SupportsIndex, field: str, item: int = 0) -> memoryview:
        """The encoded bytes of one field: ``ds.raw(0, "image")`` is a JPEG file."""
        return self.record(index).raw(field, item)

    def source(self, index: SupportsIndex) -> str:
        """The original path of a sample; '' if it was not kept."""
        return source_of(self.parts(index))

    def parts(self, index: SupportsIndex) -> list[Part]:
        """The parts of a sample, checked; for the loader: quicker than ``record``, and valid while this lives."""
        sample_id = self._number(index)
        reader = self.reader(sample_id)
        return reader.check(sample_id, reader.get(sample_id))

    def reader(self, sample_id: int) -> ShardReader:
        """The reader of the shard that holds a sample."""
        return self._reader(bisect.bisect_right(self._firsts, sample_id) - 1)

    def _reader(self, place: int) -> ShardReader:
        reader = self._readers.get(place)
        if reader is None:
            # The first thread's reader wins: the bytes of a reader without references would be unmapped.
            reader = self._readers.setdefault(
                place, ShardReader(self.path, self.manifest.shards[place], verify=self.verify)
            )
        return reader

    def maps(
        self, ids: npt.NDArray[np.int64]
    ) -> tuple[list[_core.ShardMap | None], npt.NDArray[np.int64], dict[int, CorruptShard]]:
        """For the native core: all shards' maps (those of these samples open), the shard of each sample, and which are damaged."""
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
            raise IndexError(f"sample {number} of {count}")
        return number + count if number < 0 else number


def open_dataset(path: str | os.PathLike[str], *, verify: str = "size") -> Dataset:
    """Opens a packed dataset.

    Every record is checked when it is read. ``verify="full"`` also compares each shard's SHA-256 before it is first
    mapped: a damaged LMDB page, which no record's checksum covers, can end the process.

        dataset = fastload.open("packed")
        dataset[0]["image"], dataset.classes["label"], dataset.column("label")
    """
    return Dataset(path, verify=verify)
