"""WebDataset: tar shards in which consecutive members with the same stem form a sample.

The stem is the name up to the first dot. Nothing is extracted: members are read in place by
offset, so their names can do no harm.
"""

from __future__ import annotations

import contextlib
import io
import itertools
import os
import re
import tarfile
import weakref
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from fastload._pack.files import (
    IMAGE_SUFFIXES,
    MAX_FILE_BYTES,
    as_path,
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
    with_along,
)
from fastload._pack.sources.columns import ColumnType, convert, field_name
from fastload._pack.sources.jsontext import config_errors, parse_json
from fastload._pack.sources.numbers import parse_npy
from fastload._store.fields import Field
from fastload._store.kinds import BYTES, IMAGE, INT, JSON, NUMBERS, STR, FieldKind
from fastload.errors import BadImage, ConfigError

INFERRED_SAMPLES = 1000
MAX_OPEN_SHARDS = 64
MAX_NAME_BYTES = 64 << 10  # a long-name or pax header; tarfile would read gigabytes
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


@dataclass(frozen=True, slots=True)
class Member:
    """One regular file in a tar. ``refused`` is the reason not to read it, or empty."""

    name: str
    offset: int
    size: int
    refused: str = ""


class TarFiles:
    """The samples of a folder of ``.tar`` shards or of a single shard. Thread-safe."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.root = path if path.is_dir() else path.parent
        self.shards = _shards(path)
        self._stamps = {shard: self._stamp(shard) for shard in self.shards}
        self._files: dict[str, io.FileIO] = {}
        weakref.finalize(self, _close_all, self._files)

    def refs(self) -> Iterator[Ref]:
        """Yields shard, stem, and extension, offset and size of each member of a sample."""
        for shard in self.shards:
            for key, members in self.samples(shard):
                bad = next((member for member in members if member.refused), None)
                if bad is not None:
                    yield refused(printable_or_repr(f"{shard}!{bad.name}".rstrip("!")), bad.refused)
                else:
                    parts: list[Json] = [
                        [stem_and_extension(member.name)[1], member.offset, member.size]
                        for member in members
                    ]
                    yield [printable_or_repr(shard), printable_or_repr(key), *parts]

    def source(self, ref: Ref) -> str:
        """Returns the name of a sample. Raises BadImage if it is refused."""
        raise_if_refused(ref)
        if not isinstance(ref, list):
            raise ConfigError(
                f"{self.path}: {ref!r:.60} is not a sample in a tar. "
                "The listing belongs to another source"
            )
        return f"{ref[0]}!{ref[1]}"

    def read(self, ref: Ref) -> Iterator[tuple[str, str, bytes]]:
        """Yields extension, name and content of each member of a sample."""
        source = self.source(ref)
        name, _, *parts = ref if isinstance(ref, list) else ["", ""]
        shard = raw_name(str(name))
        with self._opened(shard) as file:
            if self._stamps.get(shard) != file_stamp(file):
                raise ConfigError(
                    f"{printable_or_repr(shard)}: changed since it was listed. Start the pack again"
                )
            for part in parts:
                extension, offset, size = part if isinstance(part, list) else ("", 0, 0)
                data = os.pread(file.fileno(), int(str(size)), int(str(offset)))
                yield str(extension), f"{source}.{extension}", data

    @contextlib.contextmanager
    def _opened(self, shard: str) -> Iterator[io.FileIO]:
        """Keeps the first shards open: opening takes as long as packing a sample of 1 KB."""
        file = self._files.get(shard)
        if file is None and len(self._files) < MAX_OPEN_SHARDS:
            new = open_inside(self.root, shard)
            file = self._files.setdefault(shard, new)
            if file is not new:  # another thread was faster
                new.close()
        if file is not None:
            yield file
            return
        with open_inside(self.root, shard) as file:
            yield file

    def samples(self, shard: str) -> Iterator[tuple[str, list[Member]]]:
        with config_errors():
            file = open_inside(self.root, shard)
        with file:
            named = (
                member
                for member in tar_members(file)
                if member.refused or _PARTS.fullmatch(member.name)
            )
            for key, members in itertools.groupby(
                named, key=lambda member: stem_and_extension(member.name)[0]
            ):
                yield key, list(members)

    def _stamp(self, shard: str) -> tuple[int, int]:
        with config_errors(), open_inside(self.root, shard) as file:
            return file_stamp(file)


class WebDatasetSource:
    """Reads a folder of ``.tar`` shards or a single shard.

    A single image extension becomes field ``image``, ``cls`` becomes ``label``, and ``left.jpg``
    becomes ``left``.

    Args:
        path: Folder or ``.tar`` file.
        types: Kind per extension, e.g. ``{"seg.png": "mask"}``.
        classes: Class names of the values of ``cls``, in label order.
        along: Fields with one entry per box of another field, e.g. ``{"labels": "boxes"}``.
    """

    name = "webdataset"
    thread_safe = True

    def __init__(
        self,
        path: str | Path,
        *,
        types: Mapping[str, str] | None = None,
        classes: Sequence[str] = (),
        along: Mapping[str, str] | None = None,
    ) -> None:
        self.path = as_path(path)
        self._tars = TarFiles(self.path)
        self._types = {
            extension.lower(): ColumnType.parse(extension, text)
            for extension, text in (types or {}).items()
        }
        if any(each.is_class for each in self._types.values()):
            raise ConfigError(
                f"{self.path}: kind 'class' is only for lists. Pass the class names with --classes"
            )
        if any(each.is_list for each in self._types.values()):
            raise ConfigError(
                f"{self.path}: kind 'list of ...' is only for lists. A member is one value"
            )
        self._extensions = self._find_extensions()
        self._classes = tuple(classes)
        fields = {
            name: Field(
                name, kind, classes=self._classes if name == "label" and kind is INT else ()
            )
            for name, kind in self._extensions.values()
        }
        ordered = sorted(fields.values(), key=lambda field: not field.kind.is_image)
        self.fields = with_along(ordered, along)
        self.info: Info = {}

    def refs(self) -> Iterator[Ref]:
        return self._tars.refs()

    def load(self, ref: Ref) -> Sample:
        values: dict[str, Value] = {}
        for extension, member, data in self._tars.read(ref):
            if extension not in self._extensions:
                raise BadImage(
                    f"extension {extension!r} is not in the first {INFERRED_SAMPLES} samples. "
                    f"Pass its type with --type {extension}=bytes",
                    source=member,
                )
            name, kind = self._extensions[extension]
            if name in values:
                raise BadImage(f"the sample has two members for field {name!r}", source=member)
            label = data.decode(errors="replace").strip() if name == "label" else None
            values[name] = (
                self._classes.index(label)
                if label in self._classes
                else _decoded(data, kind, extension, member)
            )
        return Sample(values, source=self._tars.source(ref))

    def _find_extensions(self) -> dict[str, tuple[str, FieldKind]]:
        """Returns field name and kind per extension, from the first samples and ``types``."""
        groups = itertools.chain.from_iterable(
            self._tars.samples(shard) for shard in self._tars.shards
        )
        first = [
            [stem_and_extension(member.name)[1] for member in members if not member.refused]
            for _, members in itertools.islice(groups, INFERRED_SAMPLES)
        ]
        images = {suffix[1:] for suffix in IMAGE_SUFFIXES}
        # If a sample has image.jpg and image.png (often a mask), fields are named by extension.
        several = any(len(images.intersection(extensions)) > 1 for extensions in first)
        found: dict[str, tuple[str, FieldKind]] = {}
        for extension in dict.fromkeys(
            [*itertools.chain(*first), *self._types, *(() if several else sorted(images))]
        ):
            stem, _, last = extension.rpartition(".")
            kind = IMAGE if last in images else _KINDS.get(last, BYTES)
            if extension in self._types:
                kind = self._types[extension].kind
            elif last in _PICKLES:
                raise ConfigError(
                    f"{self.path}: members {extension!r} are Python pickles, which can run code, "
                    f"and are not read. Pass --type {extension}=bytes to store the bytes"
                )
            plain = "image" if last in images and not several else _NAMES.get(last, last)
            found[extension] = (field_name(stem.replace(".", "_") or plain), kind)
        if not any(first):
            raise ConfigError(
                f"{self.path}: no samples in {len(self._tars.shards)} tar files. Expected members "
                "such as 0001.jpg"
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
                f"{self.path}: two extensions have the field name {name!r}, as "
                f"{' and '.join(sorted(map(str, kinds)))}. Pass one type for both with "
                "--type EXTENSION=KIND"
            )
        return kinds.pop()


def _close_all(files: dict[str, io.FileIO]) -> None:
    for file in files.values():
        file.close()


def looks_like(path: Path) -> str:
    """Returns why the path is a WebDataset, or an empty string."""
    shards = [path.name] if path.is_file() and path.suffix == ".tar" else _tars_in(path)
    return f"tar shards ({shards[0]})" if shards else ""


def _tars_in(path: Path) -> list[str]:
    return sorted(entry.name for entry in path.glob("*.tar"))


def _shards(path: Path) -> list[str]:
    if not path.is_dir():
        return [path.name]
    found = [entry.path for entry in walk(path) if entry.path.endswith((".tar", ".tar.gz", ".tgz"))]
    packed = [name for name in found if not name.endswith(".tar")]
    if packed or not found:
        what = f"{packed[0]} is compressed. Run gzip -d first" if packed else "no .tar file"
        raise ConfigError(f"{path}: {what}")
    return found


def stem_and_extension(name: str) -> tuple[str, str]:
    match = _PARTS.fullmatch(name)
    return (match[1], match[2].lower()) if match else (name, "")


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


def tar_members(file: io.FileIO) -> Iterator[Member]:
    """Yields the regular files of a tar in bounded memory. A damaged end is one refused member."""
    size = os.fstat(file.fileno()).st_size
    position = 0
    long_name = ""
    pax_size = -1
    while position + 512 <= size:
        block = os.pread(file.fileno(), 512, position)
        if not any(block):
            return
        if not long_name and pax_size < 0 and (plain := _plain_member(block)) is not None:
            name, length = plain
            start = position + 512
            if 0 <= length <= min(size - start, MAX_FILE_BYTES):
                yield Member(name, start, length)
                position = start + (length + 511) // 512 * 512
                continue
        try:
            header = tarfile.TarInfo.frombuf(block, "utf-8", "surrogateescape")
        except tarfile.HeaderError as error:
            yield Member(
                "", position, 0, f"damaged at byte {position}: {error}. The rest is not read"
            )
            return
        length = pax_size if pax_size >= 0 and header.isreg() else header.size
        start = position + 512
        position = start + (length + 511) // 512 * 512
        name = long_name or header.name
        if length < 0 or start + length > size:
            yield Member(
                name, start, 0, f"truncated: its {length} bytes exceed the tar of {size} bytes"
            )
            return
        if header.type in (tarfile.GNUTYPE_LONGNAME, tarfile.XHDTYPE):
            if length > MAX_NAME_BYTES:
                yield Member(
                    name,
                    start,
                    0,
                    f"name header of {length} bytes: expected at most {MAX_NAME_BYTES}",
                )
                return
            data = os.pread(file.fileno(), length, start)
            if header.type == tarfile.XHDTYPE:
                long_name, pax_size = _pax(data)
            else:
                long_name = data.rstrip(b"\0").decode("utf-8", "surrogateescape")
            continue
        if header.type in (tarfile.REGTYPE, tarfile.AREGTYPE, tarfile.CONTTYPE):
            large = f"has {length} bytes, expected at most {MAX_FILE_BYTES}"
            yield Member(name, start, length, large if length > MAX_FILE_BYTES else "")
        long_name = ""
        pax_size = -1


def _plain_member(block: bytes) -> tuple[str, int] | None:
    """Returns name and size of a regular file without a name prefix, otherwise None.

    It takes a third of the time of tarfile, which then reads the other headers and reports a wrong
    checksum.
    """
    if block[156:157] != tarfile.REGTYPE or block[345]:
        return None
    stored = block[148:156]
    try:
        length = int(block[124:136].partition(b"\0")[0], 8)
        checksum = int(stored.partition(b"\0")[0], 8)
    except ValueError:
        return None
    # The low half of Adler-32 is the sum of all bytes plus 1, modulo 65521. The checksum counts its
    # own field as spaces.
    total = (zlib.adler32(block) & 0xFFFF) - 1 - sum(stored) + 8 * ord(" ")
    if (total - checksum) % 65521:
        return None
    return block[:100].partition(b"\0")[0].decode("utf-8", "surrogateescape"), length


def _pax(data: bytes) -> tuple[str, int]:
    """Returns path and size of a pax header ("LENGTH key=value\\n" ...), "" and -1 if missing."""
    path = ""
    size = -1
    while data:
        digits, _, _ = data[:20].partition(b" ")
        length = int(digits) if digits.isdigit() else 0
        key, _, value = data[len(digits) + 1 : length - 1].partition(b"=")
        if key == b"path":
            path = value.decode("utf-8", "surrogateescape")
        elif key == b"size" and value.isdigit() and len(value) < 20:
            size = int(value)
        data = data[length:] if length > len(digits) + 1 else b""
    return path, size
