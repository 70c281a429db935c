"""Compares two packed datasets: ``diff``."""

from __future__ import annotations

import hashlib
import os
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from fastload._common.formatting import count
from fastload._common.public import public
from fastload._pack.datasets.assembly import OnProgress
from fastload._store.dataset import Dataset
from fastload._store.fields import Field
from fastload._store.joining import described
from fastload._store.kinds import INT
from fastload._store.record import SOURCE_FIELD, Part, source_of

_SHOWN = 20  # samples per list in the summary


@public()
@dataclass(frozen=True, slots=True)
class DiffResult:
    """Differences between two datasets. ``str(result)`` is the summary of ``fastload diff``.

    Attributes:
        one: Folder of the first dataset.
        two: Folder of the second dataset.
        n_equal: Samples that are in both datasets with the same bytes.
        fields: Differences between the fields, one line each.
        added: Sources of the samples that are only in the second dataset.
        removed: Sources of the samples that are only in the first dataset.
        changed: Sources of the samples whose values differ.

    Examples:
        >>> fastload.diff("monday", "tuesday").added  # doctest: +SKIP
        ['cat/17.jpg']
    """

    one: Path
    two: Path
    n_equal: int
    fields: tuple[str, ...]
    added: tuple[str, ...]
    removed: tuple[str, ...]
    changed: tuple[str, ...]

    @property
    def equal(self) -> bool:
        """Whether both datasets have the same fields and samples, in any order."""
        return not (self.fields or self.added or self.removed or self.changed)

    def as_json(self) -> dict[str, object]:
        """Returns the result as a dict that ``json.dumps`` accepts."""
        return {**asdict(self), "one": str(self.one), "two": str(self.two), "equal": self.equal}

    def __str__(self) -> str:
        lines = [
            f"{self.one} and {self.two}: {count(self.n_equal, 'equal sample')}, "
            f"{len(self.added)} added, {len(self.removed)} removed, {len(self.changed)} changed",
            *self.fields,
        ]
        for mark, sources in (("+", self.added), ("-", self.removed), ("~", self.changed)):
            lines += [f"{mark} {source}" for source in sources[:_SHOWN]]
            if len(sources) > _SHOWN:
                lines.append(f"{mark} and {len(sources) - _SHOWN} more (--json lists all)")
        return "\n".join(lines)


@public()
def diff(
    one: str | os.PathLike[str],
    two: str | os.PathLike[str],
    *,
    on_progress: OnProgress | None = None,
) -> DiffResult:
    """Compares the samples of two packed datasets by their source and their stored bytes.

    The order of samples and fields, the shards, the numbers of classes and splits do not matter:
    a class is compared by its name. Datasets with the same shards are equal without reading them.
    Samples that were packed without a source are matched by their bytes. Memory: about 200 bytes
    per sample.

    Args:
        one: Folder written by ``fastload pack``.
        two: Another one.
        on_progress: Called with the number of samples done and in total.

    Returns:
        What was added, removed and changed from ``one`` to ``two``.

    Raises:
        StoreError: A dataset cannot be read.
        CorruptShard: A record is damaged.

    Examples:
        >>> fastload.diff("monday", "tuesday").equal  # doctest: +SKIP
        False
    """
    left = Dataset(one)
    right = Dataset(two)
    fields = tuple(_field_differences(left.fields, right.fields))
    if left.manifest.content == right.manifest.content and left.fields == right.fields:
        return DiffResult(left.path, right.path, len(left), fields, (), (), ())
    total = len(left) + len(right)
    found: dict[str, Counter[bytes]] = defaultdict(Counter)
    for number, (source, digest) in enumerate(_digests(left), start=1):
        found[source][digest] += 1
        if on_progress is not None:
            on_progress(number, total)
    n_equal = 0
    extra: dict[str, Counter[bytes]] = defaultdict(Counter)
    for number, (source, digest) in enumerate(_digests(right), start=len(left) + 1):
        if found[source][digest]:
            found[source][digest] -= 1
            n_equal += 1
        else:
            extra[source][digest] += 1
        if on_progress is not None:
            on_progress(number, total)
    added: list[str] = []
    removed: list[str] = []
    changed: list[str] = []
    for source in sorted({*found, *extra}):
        before = found[source].total()
        after = extra[source].total()
        both = min(before, after) if source else 0
        changed += [source] * both
        removed += [source] * (before - both)
        added += [source] * (after - both)
    return DiffResult(
        left.path, right.path, n_equal, fields, tuple(added), tuple(removed), tuple(changed)
    )


def _digests(dataset: Dataset) -> Iterator[tuple[str, bytes]]:
    """Yields source and digest of the values of each sample."""
    for sample_id in range(len(dataset)):
        parts = dataset.parts(sample_id)
        digest = hashlib.blake2b(digest_size=16)
        for part in sorted(parts, key=lambda part: _name(dataset, part)):
            name = _name(dataset, part)
            data = part.data
            if part.field != SOURCE_FIELD and (own := dataset.fields[part.field]).classes:
                data = own.classes[int(INT.decode(own, part))].encode()
            head = (*name, part.codec, part.channels, part.bits, part.width, part.height)
            digest.update(repr((*head, part.interval, part.orientation, len(data))).encode())
            digest.update(data)
        yield source_of(parts), digest.digest()


def _name(dataset: Dataset, part: Part) -> tuple[str, int, int]:
    name = "" if part.field == SOURCE_FIELD else dataset.fields[part.field].name
    return name, part.item, part.role


def _field_differences(one: tuple[Field, ...], two: tuple[Field, ...]) -> Iterator[str]:
    before = {each.name: each for each in one}
    after = {each.name: each for each in two}
    for name in sorted({*before, *after}):
        first = before.get(name)
        second = after.get(name)
        if first is None or second is None:
            yield f"field {name}: only in the {'first' if second is None else 'second'} dataset"
        elif described(first) != described(second):
            yield f"field {name}: {described(first)} → {described(second)}"
        elif {*first.classes} != {*second.classes}:
            lost = ", ".join(sorted({*first.classes} - {*second.classes}))
            new = ", ".join(sorted({*second.classes} - {*first.classes}))
            yield f"field {name}: classes" + f" - {lost}" * bool(lost) + f" + {new}" * bool(new)
