"""Python samples: an iterable of dicts or a map-style torch Dataset."""

from __future__ import annotations

import contextlib
import itertools
from collections import deque
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence, Sized
from dataclasses import replace
from typing import Protocol, TypeAlias, TypeVar, runtime_checkable

from fastload._pack.sources.base import AnySource, Info, Ref, Sample, Value
from fastload._pack.sources.objects import checked, infer_field, is_empty
from fastload._store.fields import Field
from fastload._store.kinds import KINDS
from fastload.errors import BadImage, ConfigError

Item = TypeVar("Item")
_HEAD = 64  # items inspected if the first has an empty list
FieldsGiven: TypeAlias = "Mapping[str, str] | Sequence[Field] | None"


@runtime_checkable
class MapStyle(Protocol):
    """A map-style dataset in the sense of torch."""

    def __len__(self) -> int: ...

    def __getitem__(self, index: int, /) -> object: ...


def open_python(items: Iterable[object] | MapStyle, *, fields: FieldsGiven = None) -> AnySource:
    """Opens dicts, tuples ``(image, label)``, or tuples in the order of ``fields`` as a source.

    A dict may have ``source``, a text that names the sample in messages. ``fields`` is
    ``{"name": "kind"}`` (``"list of image"`` for lists) or a list of Field. By default the first
    item decides, and for an empty list the next item that has values.
    """
    if any(
        base.__module__.startswith("torch.utils.data") and base.__name__ == "DataLoader"
        for base in type(items).__mro__
    ):
        raise ConfigError(
            "cannot pack a DataLoader: it yields augmented batches. Pass its dataset without "
            "random transforms, ToTensor and Normalize: fastload.pack(loader.dataset, ...)"
        )
    # torch's IterableDataset also defines [i].
    streams = any(base.__name__ == "IterableDataset" for base in type(items).__mro__)
    if isinstance(items, MapStyle) and not streams and not isinstance(items, (Mapping, str, bytes)):
        return MapSource(items, fields=fields)
    if isinstance(items, Iterable) and not isinstance(items, (Mapping, str, bytes)):
        return IterableSource(items, fields=fields)
    raise ConfigError(
        f"cannot pack a {type(items).__name__}: expected an iterable of dicts, or a dataset with "
        "len() and [i]"
    )


class MapSource:
    """A dataset with ``len()`` and ``[i]``. One thread at a time calls it: its code is unknown."""

    name = "python"
    thread_safe = False

    def __init__(self, items: MapStyle, *, fields: FieldsGiven = None) -> None:
        self._items = items
        self._length = len(items)
        if not self._length:
            raise ConfigError(f"{type(items).__name__}: no samples")
        self._shape = _Shape.of(self._head(), fields, _class_names(items))
        self.fields = self._shape.fields
        self.info: Info = {}

    def refs(self) -> Iterator[Ref]:
        yield from range(self._length)

    def load(self, ref: Ref) -> Sample:
        """Loads one item. Any exception of the dataset is one bad sample."""
        index = int(str(ref))
        return self._shape.sample(self._item(index), index)

    def _head(self) -> Iterator[object]:
        yield self._item(0)
        for index in range(1, min(self._length, _HEAD)):
            with contextlib.suppress(BadImage):  # reported when the sample is packed
                yield self._item(index)

    def _item(self, index: int) -> object:
        try:
            return self._items[index]
        except Exception as error:  # unknown code may raise any class
            raise BadImage(
                f"the dataset raised {type(error).__name__}: {error}", source=f"item {index}"
            ) from error


def pop_all(items: deque[Item]) -> Iterator[Item]:
    """Yields all items and keeps no reference to them."""
    while items:
        yield items.popleft()


class IterableSource:
    """An iterable or generator, read once in its own order."""

    name = "python"

    def __init__(self, items: Iterable[object], *, fields: FieldsGiven = None) -> None:
        self._items = items
        self._once = iter(items) is items
        self._started = False
        self._peeked: deque[object] = deque()
        self._shape = _Shape.of(self._head(), fields, _class_names(items))
        self.fields = self._shape.fields
        self.info: Info = {}
        self.n_samples = len(items) if isinstance(items, Sized) else None

    def __iter__(self) -> Iterator[Sample | BadImage]:
        if self._once and self._started:
            raise ConfigError(
                "an iterator can be read only once. Pass a new one, or an iterable that can restart"
            )
        self._started = True
        items = itertools.chain(pop_all(self._peeked), self._items) if self._once else self._items
        for index, item in enumerate(items):
            try:
                yield self._shape.sample(item, index)
            except BadImage as error:
                yield error

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
    """Splits an item into the values of its fields."""

    def __init__(
        self, fields: tuple[Field, ...], known_by: str, guessed: Collection[str] = ()
    ) -> None:
        self.fields = fields
        self._known_by = known_by
        self._guessed = guessed  # names of fields that were empty in all inspected items
        self._by_name = {field.name: field for field in fields}
        if not fields or len(self._by_name) != len(fields):
            raise ConfigError(
                f"fields {[field.name for field in fields]}: expected at least one name, without "
                "duplicates"
            )

    @classmethod
    def of(
        cls, head: Iterator[object], fields: FieldsGiven, classes: Mapping[str, tuple[str, ...]]
    ) -> _Shape:
        """Uses ``fields`` if given. Otherwise infers them from as few items as needed.

        ``classes`` has the class names of int fields.
        """

        def with_classes(field: Field) -> Field:
            is_bare = field == Field(field.name, "int")
            return replace(field, classes=classes.get(field.name, ())) if is_bare else field

        if fields is not None:
            given = tuple(map(with_classes, _parse_fields(fields)))
            return cls(given, f"fields= ({', '.join(each.name for each in given)})")
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
        # The second value of a pair, as in torchvision's segmentation datasets.
        if Field("label", "image") in inferred:
            raise ConfigError(
                "field 'label' is an image. Pass fields={'image': 'image', 'label': 'mask'} if its "
                "pixels are class numbers, or 'label': 'image' if it is an image"
            )
        return cls(tuple(map(with_classes, inferred)), "the first item", empty)

    def sample(self, item: object, index: int) -> Sample:
        where = f"item {index}"
        values = _named(item, tuple(self._by_name), where)
        source = values.pop("source", None)
        if unknown := [name for name in values if name not in self._by_name]:
            raise BadImage(
                f"has {', '.join(map(repr, unknown[:5]))}, which {self._known_by} does not have. "
                "Pass all fields (fields={name: kind}), or remove these from the samples",
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
                f"{error.why}. The field was empty in the first items and inferred as "
                f"{field.kind}: pass all kinds, "
                f"e.g. fields={{{field.name!r}: 'list of points', ...}}",
                source=where,
            ) from None


def _class_names(items: object) -> dict[str, tuple[str, ...]]:
    """Returns the class names that a dataset object has, by field.

    torchvision datasets have ``classes``, Hugging Face datasets have ``features["label"].names``. A
    ``Subset`` has them in its ``dataset``.
    """
    while hasattr(items, "dataset") and not (hasattr(items, "classes") or _features(items)):
        items = items.dataset
    names = {name: getattr(feature, "names", ()) for name, feature in _features(items).items()}
    return {
        str(name): tuple(listed)
        for name, listed in {"label": getattr(items, "classes", ()), **names}.items()
        if isinstance(listed, (list, tuple)) and all(isinstance(each, str) for each in listed)
    }


def _features(items: object) -> Mapping[str, object]:
    features = getattr(items, "features", None)
    return features if isinstance(features, Mapping) else {}


def _parse_fields(fields: Mapping[str, str] | Sequence[Field]) -> tuple[Field, ...]:
    wanted: Sequence[object] = tuple(fields.values() if isinstance(fields, Mapping) else fields)
    if not all(isinstance(each, str if isinstance(fields, Mapping) else Field) for each in wanted):
        raise ConfigError(
            f"fields={fields!r:.80}: expected names and kinds, e.g. "
            "{'image': 'image', 'label': 'int'}, or a list of fastload.Field. "
            f"Kinds are {', '.join(KINDS)}, each also as 'list of KIND' or 'KIND along BOXES'"
        )
    if isinstance(fields, Mapping):
        return tuple(_parse_kind(name, kind) for name, kind in fields.items())
    return tuple(fields)


def _parse_kind(name: str, text: str) -> Field:
    kind, _, along = text.partition(" along ")
    is_list = kind.startswith("list of ")
    return Field(name, kind.removeprefix("list of "), list=is_list, along=along)


def _named(item: object, names: tuple[str, ...], where: str) -> dict[str, object]:
    """Returns the values of an item by name: dict keys, tuple positions, or ``image``."""
    if isinstance(item, Mapping):
        return {str(name): value for name, value in item.items()}
    if isinstance(item, tuple) and hasattr(item, "_asdict"):
        return dict(item._asdict())
    if not isinstance(item, (tuple, list)):
        item = (item,)
    names = names or ("image", "label")
    if len(item) > len(names):
        raise ConfigError(
            f"{where}: a tuple of {len(item)} values for the fields {', '.join(names)}. Pass all "
            "fields (fields={name: kind})"
        )
    return dict(zip(names, item, strict=False))
