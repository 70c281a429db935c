"""WebDataset: tar shards, a sample is a run of members with one name up to the first dot.

Nothing is extracted: members are read in place by their offsets, so their names can do no harm.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from fastload._pack.files import (
    IMAGE_SUFFIXES,
    file_stamp,
    open_inside,
    printable_or_repr,
    raw_name,
    walk,
)
from fastload._pack.sources.base import (
    Encoded,
    Info,
    Json,
    Ref,
    Sample,
    Value,
    raise_if_refused,
    refused,
)
from fastload._pack.sources.columns import ColumnType, convert, field_name
from fastload._pack.sources.jsontext import config_errors, parse_json
from fastload._pack.sources.numbers import parse_npy
from fastload._pack.sources.tarindex import Member, tar_members
from fastload._store.fields import Field
from fastload._store.kinds import BYTES, IMAGE, INT, JSON, NUMBERS, STR, FieldKind
from fastload.errors import BadImage, ConfigError

INFERRED_SAMPLES = 1000
_PARTS = re.compile(r"((?:.*/)?[^./][^./]*)\.([^/]+)", re.DOTALL)
_KINDS: dict[str, FieldKind] = {
    "cls": INT,
    "cls2": INT,
    "index": INT,
    "id": INT,
    "json": JSON,
    "jsn": JSON,
    "txt": STR,
    "text": STR,
    "transcript": STR,
    "npy": NUMBERS,
}
_PICKLES = ("pyd", "pickle", "pkl", "pth", "pt")
_NAMES = {"cls": "label", "id": "id_"}


class WebDatasetSource:
    """A folder of ``.tar`` shards, or one of them.

    ``types``: kind of an extension (``{"seg.png": "mask"}``). ``classes``: names of the values of ``cls``.
    An image extension alone becomes field ``image``, ``cls`` becomes ``label``, ``left.jpg`` becomes ``left``.
    """

    name = "webdataset"
    thread_safe = True

    def __init__(
        self,
        path: str | Path,
        *,
        types: Mapping[str, str] | None = None,
        classes: Sequence[str] = (),
    ) -> None:
        self.path = Path(path)
        self.root = self.path if self.path.is_dir() else self.path.parent
        self._shards = _shards(self.path)
        self._stamps = {shard: self._stamp(shard) for shard in self._shards}
        self._types = {
            extension.lower(): ColumnType.parse(extension, text)
            for extension, text in (types or {}).items()
        }
        if any(each.is_class for each in self._types.values()):
            raise ConfigError(
                f"{self.path}: kind 'class' is for lists; here name the classes (--classes a,b,c)"
            )
        if any(each.is_list for each in self._types.values()):
            raise ConfigError(
                f"{self.path}: kinds 'list of ...' are for lists; a member is one value"
            )
        self._extensions = self._find_extensions()
        self._classes = tuple(classes)
        fields = {
            name: Field(
                name, kind, classes=self._classes if name == "label" and kind is INT else ()
            )
            for name, kind in self._extensions.values()
        }
        self.fields = tuple(sorted(fields.values(), key=lambda field: not field.kind.is_image))
        self.info: Info = {}

    def refs(self) -> Iterator[Ref]:
        """Shard, then extension, offset and size of each member of the sample."""
        for shard in self._shards:
            for key, members in self._samples(shard):
                bad = next((member for member in members if member.refused), None)
                if bad is not None:
                    yield refused(printable_or_repr(f"{shard}!{bad.name}".rstrip("!")), bad.refused)
                else:
                    parts: list[Json] = [
                        [_extension(member.name), member.offset, member.size] for member in members
                    ]
                    yield [printable_or_repr(shard), printable_or_repr(key), *parts]

    def load(self, ref: Ref) -> Sample:
        """One sample, read from its places in the tar."""
        raise_if_refused(ref)
        if not isinstance(ref, list):
            raise ConfigError(
                f"{self.path}: {ref!r:.60} is no place in a tar; the listing is not of this source"
            )
        shard = raw_name(str(ref[0]))
        source = f"{ref[0]}!{ref[1]}"
        values: dict[str, Value] = {}
        with open_inside(self.root, shard) as file:
            if self._stamps.get(shard) != file_stamp(file):
                raise ConfigError(
                    f"{printable_or_repr(shard)}: changed since it was listed; start the pack again"
                )
            for part in ref[2:]:
                extension, offset, size = part if isinstance(part, list) else ("", 0, 0)
                member = f"{source}.{extension}"
                name, kind = self._field(str(extension), member)
                if name in values:
                    raise BadImage(f"the sample has two members for field {name!r}", source=member)
                file.seek(int(str(offset)))
                values[name] = self._value(file.read(int(str(size))), kind, str(extension), member)
        return Sample(values, source=source)

    def _value(self, data: bytes, kind: FieldKind, extension: str, member: str) -> Value:
        if self._classes and self._extensions[extension][0] == "label":
            text = data.decode(errors="replace").strip()
            if text in self._classes:
                return self._classes.index(text)
        return _decoded(data, kind, extension, member)

    def _field(self, extension: str, member: str) -> tuple[str, FieldKind]:
        if extension not in self._extensions:
            raise BadImage(
                f"extension {extension!r} did not occur in the first {INFERRED_SAMPLES} samples: give it a "
                f"type (--type {extension}=bytes)",
                source=member,
            )
        return self._extensions[extension]

    def _samples(self, shard: str) -> Iterator[tuple[str, list[Member]]]:
        with config_errors():
            file = open_inside(self.root, shard)
        with file:
            named = (
                member
                for member in tar_members(file)
                if member.refused or _PARTS.fullmatch(member.name)
            )
            for key, members in itertools.groupby(named, key=lambda member: _key(member.name)):
                yield key, list(members)

    def _stamp(self, shard: str) -> tuple[int, int]:
        with config_errors(), open_inside(self.root, shard) as file:
            return file_stamp(file)

    def _find_extensions(self) -> dict[str, tuple[str, FieldKind]]:
        """Extension to field name and kind, from the first samples and what the user says."""
        groups = itertools.chain.from_iterable(self._samples(shard) for shard in self._shards)
        first = [
            [_extension(member.name) for member in members if not member.refused]
            for _, members in itertools.islice(groups, INFERRED_SAMPLES)
        ]
        images = {suffix[1:] for suffix in IMAGE_SUFFIXES}
        # image.jpg beside image.png (a mask, often) in one sample: both keep their extension as their name.
        several = any(len(images.intersection(extensions)) > 1 for extensions in first)
        found: dict[str, tuple[str, FieldKind]] = {}
        for extension in dict.fromkeys(
            [*itertools.chain(*first), *self._types, *(() if several else sorted(images))]
        ):
            stem, _, last = extension.rpartition(".")
            kind = IMAGE if last in images else _KINDS.get(last, BYTES)
            if extension in self._types:
                kind = self._types[extension].kind
            if last in _PICKLES and extension not in self._types:
                raise ConfigError(
                    f"{self.path}: members {extension!r} are Python pickles, which can run code: they "
                    f"are not read. Say --type {extension}=bytes to keep the bytes as they are"
                )
            plain = "image" if last in images and not several else _NAMES.get(last, last)
            found[extension] = (field_name(stem.replace(".", "_") or plain), kind)
        if not any(first):
            raise ConfigError(
                f"{self.path}: no samples in {len(self._shards)} tar files; expected members as 0001.jpg"
            )
        return {
            extension: (name, self._same_kind(name, found))
            for extension, (name, _) in found.items()
            if any(name == found[seen][0] for seen in itertools.chain(*first, self._types))
        }

    def _same_kind(self, name: str, found: Mapping[str, tuple[str, FieldKind]]) -> FieldKind:
        kinds = {kind for other, kind in found.values() if other == name}
        if len(kinds) > 1:
            raise ConfigError(
                f"{self.path}: two extensions become field {name!r}, as {' and '.join(sorted(map(str, kinds)))}; "
                "give both one type (--type EXTENSION=KIND)"
            )
        return kinds.pop()


def looks_like(path: Path) -> str:
    """Why this is a WebDataset, or nothing."""
    shards = [path.name] if path.is_file() and path.suffix == ".tar" else _tars_in(path)
    return f"tar shards ({shards[0]})" if shards else ""


def _tars_in(path: Path) -> list[str]:
    entries = path.iterdir() if path.is_dir() else ()
    return sorted(entry.name for entry in entries if entry.suffix == ".tar")


def _shards(path: Path) -> list[str]:
    if not path.is_dir():
        return [path.name]
    found = [entry.path for entry in walk(path) if entry.path.endswith((".tar", ".tar.gz", ".tgz"))]
    packed = [name for name in found if not name.endswith(".tar")]
    if packed or not found:
        what = f"{packed[0]} is compressed: unpack it first (gzip -d)" if packed else "no .tar file"
        raise ConfigError(f"{path}: {what}")
    return found


def _key(name: str) -> str:
    match = _PARTS.fullmatch(name)
    return match[1] if match else name


def _extension(name: str) -> str:
    match = _PARTS.fullmatch(name)
    return match[2].lower() if match else ""


def _decoded(data: bytes, kind: FieldKind, extension: str, member: str) -> Value:
    if kind.decoded_by_pool:
        return Encoded(data, member)
    if kind is BYTES:
        return data
    if extension.endswith("npy"):
        array = parse_npy(data, member)
        return array if kind is NUMBERS else convert(array.tolist(), kind, extension, member)
    if kind is JSON:
        return convert(parse_json(data, member), kind, extension, member)
    try:
        text = data.decode()
        return convert(text if kind is STR else text.strip(), kind, extension, member)
    except UnicodeDecodeError:
        raise BadImage(f"expected {kind} as text, found {data[:40]!r}", source=member) from None
