"""How several packed datasets become one: which ones fit, and how their samples are numbered.

``fastload.merge`` and ``fastload.append`` write the result, and ``fastload.open`` of a list keeps
it in memory. The samples of each split stay one range of ids: the result has the samples of the
first split of all datasets, then those of the second, and so on.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fastload._store.dataset import Dataset
from fastload._store.fields import Field, splits_of, with_classes
from fastload._store.kinds import INT
from fastload._store.manifest import Shard
from fastload._store.properties import Properties
from fastload._store.record import SOURCE_FIELD, Part
from fastload.errors import ConfigError

Ids = NDArray[np.int64]
# Keys of a source's info that are counts, so that two datasets may differ in them.
_COUNTS = ("annotations_without_image",)


@dataclass(frozen=True, slots=True)
class Input:
    """A dataset whose samples are taken, and how its fields and classes are numbered in the result.

    ``fields`` has the number in the result of each field. ``classes`` has, per class field whose
    numbers change, the new number of each class.
    """

    dataset: Dataset
    fields: tuple[int, ...]
    classes: Mapping[str, Ids] = field(default_factory=dict)
    first_source: int = 0  # position in the joined sources of its first source sample
    positions: Ids | None = None  # positions in the source by id; default: those of the dataset

    def column(self, name: str, ids: Ids) -> NDArray[Any]:
        """Returns the values of a column of the result."""
        if name == "_source_index" and self.positions is not None:
            return self.renumbered(name, self.positions[ids])
        return self.renumbered(name, self.dataset.column_rows(name)[ids])

    def renumbered(self, name: str, values: NDArray[Any]) -> NDArray[Any]:
        """Returns values of a column with the class numbers and source positions of the result."""
        if name == "_source_index":
            return np.asarray(values + self.first_source)
        if name in self.classes:
            known = ~INT.is_missing(values)
            values = values.copy()
            values[known] = self.classes[name][values[known]]
        return values

    def must_copy(self, ids: Ids) -> bool:
        """Returns whether the records of these samples differ in the result."""
        return self.fields != tuple(range(len(self.fields))) or any(
            not np.array_equal(self.column(name, ids), self.dataset.column_rows(name)[ids])
            for name in self.classes
        )

    def parts(self, sample_id: int) -> Iterator[Part]:
        """Yields the checked parts of a sample with the numbers of the result."""
        for part in self.dataset.parts(sample_id):
            if part.field == SOURCE_FIELD:
                yield part
                continue
            own = self.dataset.fields[part.field]
            if own.name in self.classes:
                number = int(self.classes[own.name][int(INT.decode(own, part))])
                yield INT.encode(self.fields[part.field], 0, Field(own.name, INT), number)
            else:
                yield part._replace(field=self.fields[part.field])


def described(each: Field) -> str:
    """Returns all attributes of a field except its class names."""
    others = {
        name: value
        for name in each.__dataclass_fields__
        if name not in ("name", "kind", "list", "classes") and (value := getattr(each, name))
    }
    return (
        f"{'list of ' if each.list else ''}{each.kind}{' with classes' if each.classes else ''}"
        + "".join(f", {name}={value!r}" for name, value in others.items())
    )


def unite(datasets: Sequence[Dataset]) -> tuple[tuple[Field, ...], list[Input]]:
    """Returns the fields of the joined dataset and how each dataset is numbered in it.

    Raises ConfigError if the datasets cannot be joined.
    """
    first = datasets[0]
    names = [each.name for each in first.fields]
    for other in datasets[1:]:
        check_fields(first.fields, other.fields, str(first.path), str(other.path))
        _check_info(first, other)
    classes: dict[str, tuple[str, ...]] = {}
    for each in first.fields:
        lists = [dataset.class_names.get(each.name, ()) for dataset in datasets]
        for owner, one in zip(datasets, lists, strict=True):
            if len(set(one)) < len(one) and one != lists[0]:
                raise ConfigError(
                    f"{owner.path}: field {each.name!r} has two classes of the same name, so they "
                    f"cannot be matched with those of {first.path}"
                )
        known = dict.fromkeys(name for one in lists[1:] for name in one if name not in lists[0])
        classes[each.name] = (*lists[0], *known)
    fields = tuple(with_classes(each, classes[each.name]) for each in first.fields)
    inputs = []
    first_source = 0
    for dataset in datasets:
        changed: dict[str, Ids] = {}
        for name, own in dataset.class_names.items():
            numbers = [*range(len(own))]
            if own != classes[name][: len(own)]:
                numbers = [classes[name].index(each) for each in own]
                changed[name] = np.array(numbers, np.int64)
        order = tuple(names.index(each.name) for each in dataset.fields)
        inputs.append(Input(dataset, order, changed, first_source))
        first_source += len(dataset) + dataset.manifest.skipped
    return fields, inputs


def check_fields(
    one: tuple[Field, ...], other: tuple[Field, ...], one_name: str, other_name: str
) -> None:
    """Raises ConfigError if two datasets have different fields. Class names may differ."""
    found = {each.name: described(each) for each in other}
    expected = {each.name: described(each) for each in one}
    for name in dict.fromkeys((*expected, *found)):
        if expected.get(name) != found.get(name):
            raise ConfigError(
                f"field {name!r} differs: {one_name} has {expected.get(name, 'no such field')}, "
                f"{other_name} has {found.get(name, 'no such field')}. "
                "Pack both with the same fields"
            )


def _check_info(one: Dataset, other: Dataset) -> None:
    """Raises ConfigError if numbers have different meanings in both, such as categories."""
    infos: list[dict[str, Any]] = []
    for each in (one, other):
        info = each.manifest.options.get("info")
        infos.append(info if isinstance(info, dict) else {})
    for key in dict.fromkeys((*infos[0], *infos[1])):
        if key not in _COUNTS and infos[0].get(key) != infos[1].get(key):
            raise ConfigError(
                f"info[{key!r}] differs: {one.path} has {infos[0].get(key)!r:.100}, {other.path} "
                f"has {infos[1].get(key)!r:.100}. The same number would mean different things"
            )


class Piece(NamedTuple):
    """The samples ``low`` to ``high - 1`` of a dataset: those of one split in one shard."""

    source: Input
    shard: Shard
    low: int
    high: int

    @property
    def is_whole(self) -> bool:
        """Whether all records of the shard are in it."""
        return self.high - self.low == self.shard.records


def pieces(fields: tuple[Field, ...], inputs: Sequence[Input]) -> Iterator[Piece]:
    """Yields the samples of the joined dataset in order: by split, then by dataset."""
    for split in splits_of(fields) or ("",):
        for source in inputs:
            chosen = _range_of(source.dataset, split)
            for shard in source.dataset.manifest.shards:
                low = max(chosen.start, shard.first)
                high = min(chosen.stop, shard.first + shard.records)
                if low < high:
                    yield Piece(source, shard, low, high)


def _range_of(dataset: Dataset, split: str) -> range:
    """Returns the ids of a split, which may be missing. Without splits, all ids."""
    names = splits_of(dataset.fields)
    return dataset.with_split(split).ids if split in names else range(0 if names else len(dataset))


def joined_properties(inputs: Sequence[Input]) -> tuple[Properties, ...]:
    """Returns the properties of the fields of the joined dataset."""
    found = tuple(Properties() for _ in inputs[0].fields)
    for each in inputs:
        for number, properties in zip(each.fields, each.dataset.manifest.properties, strict=True):
            found[number].merge(properties)
    return found
