"""Several packed datasets as one ``Dataset`` in memory. Nothing is written.

The manifest is that of a merged dataset, and the shards stay where they are. A shard with samples
of two splits is listed twice, once with the ids of each. The rest of fastload sees one dataset.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple, SupportsIndex, cast

import numpy as np
import numpy.typing as npt

from fastload._store.dataset import Dataset
from fastload._store.fields import SPLIT
from fastload._store.joining import Ids, Input, joined_properties, pieces, unite
from fastload._store.manifest import Column, Manifest, Shard, content_of
from fastload.errors import ConfigError


def join(datasets: Sequence[Dataset], *, split: str | None = None) -> JoinedDataset:
    """Joins opened datasets; raises ConfigError if that is not possible."""
    if not datasets:
        raise ConfigError("found an empty list of datasets: expected at least one packed dataset")
    if any(isinstance(each, JoinedDataset) for each in datasets):
        raise ConfigError("found a list of datasets in a list of datasets: pass one flat list")
    names = dict.fromkeys(each.split_name for each in datasets)
    if len(names) > 1:
        shown = ", ".join(f"{each.paths[0]} (split={each.split_name!r:.60})" for each in datasets)
        raise ConfigError(
            f"the datasets were opened with different splits: {shown}. Open them without split and "
            "pass split for all of them"
        )
    opened_with = datasets[0].split_name
    if split is not None and opened_with not in (None, split):
        raise ConfigError(
            f"split={split!r:.60} contradicts the datasets, which were opened with "
            f"split={opened_with!r:.60}: pass one of them"
        )
    return JoinedDataset(datasets, split=split or opened_with)


class _Place(NamedTuple):
    """The samples of one split in one shard of a dataset, which get the ids from ``start`` on."""

    number: int  # index of the dataset in the list
    shard: Shard
    low: int  # id of the first sample in its own dataset
    n_samples: int
    start: int

    @property
    def high(self) -> int:
        return self.low + self.n_samples

    def renumbered_shard(self) -> Shard:
        """Returns the shard with the ids of the joined dataset."""
        return self.shard._replace(first=self.start - (self.low - self.shard.first))


class JoinedDataset(Dataset):
    """The samples of several datasets, ordered by split and then by dataset."""

    def __init__(self, datasets: Sequence[Dataset], *, split: str | None = None) -> None:
        self.datasets = tuple(each.with_split(None) for each in datasets)
        fields, inputs = unite(self.datasets)
        for each in inputs[1:]:
            _check_numbers(inputs[0], each)
        self._inputs = inputs
        numbers = {id(each): number for number, each in enumerate(inputs)}
        self._places: list[_Place] = []
        start = 0
        for source, shard, low, high in pieces(fields, inputs):
            self._places.append(_Place(numbers[id(source)], shard, low, high - low, start))
            start += high - low
        self.paths = tuple(each.path for each in self.datasets)
        self.verify = "full" if any(each.verify == "full" for each in self.datasets) else "size"
        manifests = [each.manifest for each in self.datasets]
        self.manifest = Manifest(
            n_samples=start,
            fields=fields,
            properties=joined_properties(inputs),
            shards=tuple(place.renumbered_shard() for place in self._places),
            columns=tuple(_joined_columns(manifests)),
            content=content_of(place.shard for place in self._places),
            tool=manifests[0].tool,
            seed=manifests[0].seed,
            order=manifests[0].order,
            skipped=sum(each.skipped for each in manifests),
            converted=dict(sum((Counter(each.converted) for each in manifests), Counter())),
            options=manifests[0].options,
        )
        self._set_shards(
            [self.paths[place.number] for place in self._places],
            [place.start for place in self._places],
        )
        self.split_name = split
        self.ids = self._ids_of(split)

    def __getstate__(self) -> tuple[tuple[Dataset, ...], str | None]:  # type: ignore[override]
        return self.datasets, self.split_name

    def __setstate__(self, state: tuple[tuple[Dataset, ...], str | None]) -> None:  # type: ignore[override]
        datasets, split = state
        self.__init__(datasets, split=split)  # type: ignore[misc]

    def __getattr__(self, name: str) -> Any:
        if name == "path":
            raise AttributeError("several datasets have no common path: use paths")
        raise AttributeError(f"'Dataset' object has no attribute {name!r}")

    def __getitem__(self, index: SupportsIndex) -> dict[str, Any]:
        sample = super().__getitem__(index)
        if sample.get(SPLIT) is not None:  # the record has the number in its own dataset
            sample[SPLIT] = int(self._whole_column(SPLIT)[self._number(index)])
        return sample

    def select(self, split: str | None) -> Dataset:
        chosen = cast("JoinedDataset", super().select(split))
        for path, found in zip(self.paths, chosen.ranges(), strict=True):
            if not found:
                name = "" if chosen.split_name is None else f"split {chosen.split_name!r} of "
                raise ConfigError(f"{name}{path} has no samples: remove it from the list")
        return chosen

    def ranges(self) -> list[tuple[range, ...]]:
        """Returns the selected ids of each dataset, in order. With one split, it is one range."""
        found: list[list[range]] = [[] for _ in self.datasets]
        for place in self._places:
            low = max(place.start, self.ids.start)
            high = min(place.start + place.n_samples, self.ids.stop)
            own = found[place.number]
            if own and own[-1].stop == low < high:
                own[-1] = range(own[-1].start, high)
            elif low < high:
                own.append(range(low, high))
        return [tuple(own) for own in found]

    def _located(self, ids: Ids) -> tuple[Ids, Ids]:
        places = np.searchsorted(self._starts, ids, side="right") - 1
        numbers = np.array([place.number for place in self._places], np.int64)
        shifts = np.array([place.low - place.start for place in self._places], np.int64)
        return numbers[places], ids + shifts[places]

    def _read_column(self, column: Column) -> npt.NDArray[Any]:
        # Read without the cache of each dataset, which would keep the values in memory twice.
        columns = [
            each._read_column(next(own for own in each.manifest.columns if own.name == column.name))
            for each in self.datasets
        ]
        if column.name == "_blocks":
            rows = self._block_rows([each[:] for each in columns])
        else:
            rows = [
                self._inputs[place.number].renumbered(
                    column.name, columns[place.number][place.low : place.high]
                )
                for place in self._places
            ]
        joined = np.concatenate(rows or [each[:] for each in columns])
        joined.setflags(write=False)
        return joined

    def _block_rows(self, columns: Sequence[npt.NDArray[Any]]) -> list[npt.NDArray[Any]]:
        """Returns the blocks of each place: a block belongs to one shard and one split."""
        found = []
        for place in self._places:
            blocks = columns[place.number]
            own = slice(*np.searchsorted(blocks[:, 0], (place.low, place.high)))
            found.append(np.add(blocks[own], (place.start - place.low, 0)))
        return found


def _check_numbers(first: Input, other: Input) -> None:
    """Raises ConfigError if the records of two datasets number fields or classes differently.

    Splits may differ: the loader does not read them from records.
    """
    one = first.dataset
    two = other.dataset
    for own, found in zip(one.fields, two.fields, strict=True):
        if own.name != found.name:
            raise ConfigError(
                f"the fields have different orders: {one.path} has "
                f"{', '.join(each.name for each in one.fields)}, {two.path} has "
                f"{', '.join(each.name for each in two.fields)}. {_MERGE}"
            )
        if own.name != SPLIT and own.classes != found.classes:
            raise ConfigError(
                f"field {own.name!r} has different classes: {_first_difference(one, two, own.name)}"
                f". {_MERGE}, with classes matched by name"
            )


_MERGE = "Join the datasets with fastload.merge, which copies the records that change"


def _first_difference(one: Dataset, two: Dataset, field: str) -> str:
    lists = [each.class_names.get(field, ()) for each in (one, two)]
    number = next(
        (n for n, (own, found) in enumerate(zip(*lists, strict=False)) if own != found),
        min(map(len, lists)),
    )
    shown = [
        f"{each.path} has {names[number]!r:.60}" if number < len(names) else f"{each.path} has none"
        for each, names in zip((one, two), lists, strict=True)
    ]
    return f"for class {number}, {' and '.join(shown)}"


def _joined_columns(manifests: Sequence[Manifest]) -> list[Column]:
    """Returns the columns of the first dataset with the rows of all. They are in no file."""
    found = []
    for column in manifests[0].columns:
        own = [next(c for c in each.columns if c.name == column.name) for each in manifests]
        rows = sum(each.shape[0] for each in own)
        shape = (rows, *column.shape[1:])
        found.append(replace(column, shape=shape, size=sum(each.size for each in own), crc32c=""))
    return found
