"""Samples made by Python: any iterable of dicts, any map-style torch Dataset."""

from __future__ import annotations

import contextlib
import itertools
from collections import deque
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence, Sized
from typing import Protocol, TypeAlias, TypeVar, runtime_checkable

from fastload._pack.sources.base import AnySource, Info, Ref, Sample, Value
from fastload._pack.sources.objects import checked, infer_field, is_empty
from fastload._store.fields import Field
from fastload._store.kinds import KINDS
from fastload.errors import BadImage, ConfigError

Item = TypeVar("Item")
_HEAD = 64  # items inspected where the first has an empty list
FieldsGiven: TypeAlias = "Mapping[str, str] | Sequence[Field] | None"


@runtime_checkable
class MapStyle(Protocol):
    """What torch calls a map-style dataset."""

    def __len__(self) -> int: ...

    def __getitem__(self, index: int, /) -> object: ...


def open_python(items: Iterable[object] | MapStyle, *, fields: FieldsGiven = None) -> AnySource:
    """A source of these items: dicts, or tuples ``(image, label)``, or tuples in the order of ``fields``.

    A dict may have ``source``, a text that names the sample in messages.
    ``fields``: ``{"name": "kind"}`` (``"list of image"`` for lists) or Fields; default: what the first item suggests, and
    where it has an empty list the next one that has more.
    """
    if any(
        base.__module__.startswith("torch.utils.data") and base.__name__ == "DataLoader"
        for base in type(items).__mro__
    ):
        raise ConfigError(
            "cannot pack a DataLoader: it yields batches, already changed for training; give its dataset, "
            "fastload.pack(loader.dataset, ...), without random transforms, ToTensor and Normalize"
        )
    # torch's IterableDataset has [i] as well.
    streams = any(base.__name__ == "IterableDataset" for base in type(items).__mro__)
    if isinstance(items, MapStyle) and not streams and not isinstance(items, (Mapping, str, bytes)):
        return MapSource(items, fields=fields)
    if isinstance(items, Iterable) and not isinstance(items, (Mapping, str, bytes)):
        return IterableSource(items, fields=fields)
    raise ConfigError(
        f"cannot pack a {type(items).__name__}: expected an iterable of dicts, or a dataset with len() "
        "and [i]"
    )


class MapSource:
    """A dataset with ``len()`` and ``[i]``; asked by one thread at a time, since its code is not ours."""

    name = "python"
    thread_safe = False

    def __init__(self, items: MapStyle, *, fields: FieldsGiven = None) -> None:
        self._items = items
        self._length = len(items)
        if not self._length:
            raise ConfigError(f"{type(items).__name__}: no samples")
        self._shape = _Shape.of(self._head(), fields, getattr(items, "classes", ()))
        self.fields = self._shape.fields
        self.info: Info = {}

    def refs(self) -> Iterator[Ref]:
        """The indices."""
        yield from range(self._length)

    def load(self, ref: Ref) -> Sample:
        """One item; whatever the dataset raises is one bad sample."""
        index = int(str(ref))
        return self._shape.sample(self._item(index), index)

    def _head(self) -> Iterator[object]:
        yield self._item(0)
        for index in range(1, min(self._length, _HEAD)):
            with contextlib.suppress(BadImage):  # told when its turn comes
                yield self._item(index)

    def _item(self, index: int) -> object:
        try:
            return self._items[index]
        except Exception as error:  # foreign code: any class may come
            raise BadImage(
                f"the dataset raised {type(error).__name__}: {error}", source=f"item {index}"
            ) from error


def pop_all(items: deque[Item]) -> Iterator[Item]:
    """All of them; none stays in memory after it was yielded."""
    while items:
        yield items.popleft()


class IterableSource:
    """An iterable, a generator included; read once, in its own order."""

    name = "python"

    def __init__(self, items: Iterable[object], *, fields: FieldsGiven = None) -> None:
        self._items = items
        self._once = iter(items) is items
        self._started = False
        self._peeked: deque[object] = deque()
        self._shape = _Shape.of(self._head(), fields, getattr(items, "classes", ()))
        self.fields = self._shape.fields
        self.info: Info = {}
        self.n_samples = len(items) if isinstance(items, Sized) else None

    def __iter__(self) -> Iterator[Sample | BadImage]:
        if self._once and self._started:
            raise ConfigError(
                "an iterator can be read once only; give a fresh one, or an iterable that starts again"
            )
        self._started = True
        items = itertools.chain(pop_all(self._peeked), self._items) if self._once else self._items
        for index, item in enumerate(items):
            try:
                sample: Sample | BadImage = self._shape.sample(item, index)
            except BadImage as error:
                sample = error
            yield sample

    def _head(self) -> Iterator[object]:
        found = False
        for item in itertools.islice(iter(self._items), _HEAD):
            found = True
            if self._once:
                self._peeked.append(item)
            yield item
        if not found:
            raise ConfigError(f"{type(self._items).__name__}: no samples")


class _Shape:
    """How an item is taken apart."""

    def __init__(
        self, fields: tuple[Field, ...], known_by: str, guessed: Collection[str] = ()
    ) -> None:
        self.fields = fields
        self._known_by = known_by
        self._guessed = guessed  # names of those that were empty wherever one looked
        self._by_name = {field.name: field for field in fields}
        if not fields or len(self._by_name) != len(fields):
            raise ConfigError(
                f"fields {[field.name for field in fields]}: expected at least one, and no name twice"
            )

    @classmethod
    def of(cls, head: Iterator[object], fields: FieldsGiven, classes: object) -> _Shape:
        """From what the user says; else from the head of the items, of which no more is taken than is needed."""
        if fields is not None:
            given = _parse_fields(fields)
            return cls(given, f"fields= ({', '.join(each.name for each in given)}) lacks")
        names: tuple[str, ...] = ()
        if isinstance(classes, (list, tuple)) and all(isinstance(name, str) for name in classes):
            names = tuple(classes)
        values = _named(next(head), (), "the first item")
        values.pop("source", None)
        empty = {name for name, value in values.items() if is_empty(value)}
        while empty and (item := next(head, None)) is not None:
            found = {
                name: value
                for name, value in _named(item, (), "one of the first items").items()
                if name in empty and value is not None and not is_empty(value)
            }
            values.update(found)
            empty -= found.keys()
        inferred = [infer_field(name, value) for name, value in values.items() if value is not None]
        # The second of a pair, as in torchvision's segmentation datasets.
        if Field("label", "image") in inferred:
            raise ConfigError(
                "field 'label': an image; say what it is: fields={'image': 'image', 'label': 'mask'} where its pixels are "
                "numbers of classes, 'label': 'image' where it is a picture"
            )
        label = Field("label", "int")
        labeled = Field("label", "int", classes=names)
        return cls(
            tuple(labeled if field == label else field for field in inferred),
            "the first item had not",
            empty,
        )

    def sample(self, item: object, index: int) -> Sample:
        where = f"item {index}"
        values = _named(item, tuple(self._by_name), where)
        source = values.pop("source", None)
        unknown = [name for name in values if name not in self._by_name]
        if unknown:
            raise BadImage(
                f"has {', '.join(map(repr, unknown[:5]))}, which {self._known_by}; name all fields "
                "(fields={name: kind}), or leave these out of the samples",
                source=where,
            )
        made = {
            name: self._checked(value, self._by_name[name], where) for name, value in values.items()
        }
        return Sample(made, source=source if isinstance(source, str) else where)

    def _checked(self, value: object, field: Field, where: str) -> Value:
        try:
            return checked(value, field, where)
        except BadImage as error:
            if field.name not in self._guessed:
                raise
            raise BadImage(
                f"{error.why}; it was empty in the first items and taken for {field.kind}: name all kinds, as in "
                f"fields={{{field.name!r}: 'list of points', ...}}",
                source=where,
            ) from None


def _parse_fields(fields: Mapping[str, str] | Sequence[Field]) -> tuple[Field, ...]:
    wanted: Sequence[object] = tuple(fields.values() if isinstance(fields, Mapping) else fields)
    if not all(isinstance(each, str if isinstance(fields, Mapping) else Field) for each in wanted):
        raise ConfigError(
            f"fields={fields!r:.80}: expected names and kinds, e.g. {{'image': 'image', 'label': 'int'}}, or a list of "
            f"fastload.Field; kinds are {', '.join(KINDS)}, and 'list of' each"
        )
    if isinstance(fields, Mapping):
        return tuple(
            Field(name, kind.removeprefix("list of "), list=kind.startswith("list of "))
            for name, kind in fields.items()
        )
    return tuple(fields)


def _named(item: object, names: tuple[str, ...], where: str) -> dict[str, object]:
    """The parts of an item by name: a dict's own, a tuple's by position, a bare image's ``image``."""
    if isinstance(item, Mapping):
        return {str(name): value for name, value in item.items()}
    if isinstance(item, tuple) and hasattr(item, "_asdict"):
        return dict(item._asdict())
    if not isinstance(item, (tuple, list)):
        item = (item,)
    names = names or ("image", "label")
    if len(item) > len(names):
        raise ConfigError(
            f"{where}: a tuple of {len(item)} for the fields {', '.join(names)}; name all of them "
            "(fields={name: kind})"
        )
    return dict(zip(names, item, strict=False))
