"""manifest.json: reads, checks and writes the description of a dataset.

The file is untrusted input. Unknown keys, numbers out of range, names with path separators and
counts that disagree are errors. The last line holds a CRC-32C of all bytes before it
(docs/FORMAT.md).
"""

from __future__ import annotations

import errno
import os
import re
import stat
import struct
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import NamedTuple

from blake3 import blake3

from fastload._common import files, strict_json
from fastload._common.checksum import crc32c
from fastload._common.strict_json import Json, Row, count, text, typed
from fastload._store.fields import Field, check_references
from fastload._store.properties import Properties
from fastload._store.record import HEADER, MAX_FIELDS
from fastload.errors import ConfigError, CorruptManifest, StoreError

FORMAT = "fastload"
VERSION = 3
NAME = "manifest.json"
MAX_BYTES = 64 * 1024 * 1024
MAX_DEPTH = 8
MAX_SAMPLES = 1 << 40
MAX_SHARDS = 1_000_000
MAX_FILE = 1 << 46  # bytes of one shard or column
MAX_NAME = 1024  # characters of a class name or of the tool name
SHARD_NAME = re.compile(r"shard-[0-9]{5,7}(\.[1-9][0-9]{0,5})?\.lmdb")
COLUMN_HEADER = 128  # bytes before the rows of columns/NAME.npy
STAMP_MAGIC = b"FLS1"
STAMP_BYTES = 4096  # one page, so that the size of the file stays a multiple of LMDB's page size
ORDERS = ("shuffle", "source")

_KEYS = frozenset(
    (
        "format",
        "version",
        "tool",
        "n_samples",
        "fields",
        "shards",
        "columns",
        "seed",
        "order",
        "options",
        "skipped",
        "converted",
        "content",
        "crc32c",
    )
)
_FIELD_KEYS = frozenset(("name", "kind", "list"))
_FIELD_OPTIONS = frozenset(("classes", "image", "along"))
_SHARD_KEYS = frozenset(
    ("name", "size", "records", "first", "base", "index_size", "index_crc32c", "blake3", "stamp")
)
_COLUMN_KEYS = frozenset(("name", "dtype", "shape", "size", "crc32c"))
_COLUMN_OPTIONS = frozenset(("folder",))
COLUMNS_FOLDER = re.compile(r"columns(-[1-9][0-9]{0,6})?")
_SEAL = re.compile(rb',\n "crc32c": "([0-9a-f]{8})"\n}\n')
_SEAL_BYTES = 26
_DIGEST = re.compile(r"[0-9a-f]{64}")
_CRC32C = re.compile(r"[0-9a-f]{8}")


class Shard(NamedTuple):
    """One LMDB file with the samples ``first`` to ``first + records - 1``.

    The file itself does not contain ``first``: its keys and records count from ``base``. The same
    file can therefore be part of several datasets, and a skipped sample changes no other shard.
    It is a tuple because a dataset may have thousands of shards.
    """

    name: str
    size: int  # bytes
    records: int
    first: int  # id of its first sample in this dataset
    base: int  # key of its first sample
    index_size: int  # bytes at the end of the file: tree pages without records, and the stamp page
    index_crc32c: str  # of the two meta pages and the index
    blake3: str  # of the file, with its first 8,192 bytes hashed last
    stamp: str  # BLAKE3 of the record headers; also stored in the last page, see stamp_page

    def key(self, sample_id: int) -> int:
        """Returns the number of a sample in LMDB and in its record."""
        return sample_id - self.first + self.base


@dataclass(frozen=True, slots=True)
class Column:
    """One columns/NAME.npy; ``crc32c`` (8 hex digits) covers the whole file of ``size`` bytes."""

    name: str
    dtype: str  # "<i8", "<f8", "<u2"
    shape: tuple[int, ...]
    size: int
    crc32c: str
    folder: str = "columns"  # an append writes the next version to "columns-1", "columns-2", ...

    @property
    def file(self) -> str:
        return f"{self.folder}/{self.name}.npy"


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """The contents of manifest.json."""

    n_samples: int
    fields: tuple[Field, ...]
    properties: tuple[Properties, ...]  # of the fields, in the same order
    shards: tuple[Shard, ...]
    columns: tuple[Column, ...]
    content: str  # see content_of
    tool: str = ""
    seed: int = 0
    order: str = "shuffle"
    skipped: int = 0  # source samples that were not packed
    converted: dict[str, int] = field(default_factory=dict)
    options: dict[str, Json] = field(default_factory=dict)


def stamp_page(base: int, records: int, stamp: str) -> bytes:
    """Returns the last 4,096 bytes of a shard, which follow LMDB's pages and identify the shard.

    Without them, a shard of another dataset with the same size and record count would be accepted.
    """
    return struct.pack("<4s4xQQ32s", STAMP_MAGIC, base, records, bytes.fromhex(stamp)).ljust(
        STAMP_BYTES, b"\0"
    )


def content_of(shards: Iterable[Shard]) -> str:
    """Returns ``Manifest.content``: the BLAKE3 digest of the binary digests of the shards."""
    return blake3(b"".join(bytes.fromhex(shard.blake3) for shard in shards)).hexdigest()


def expected_columns(fields: tuple[Field, ...]) -> dict[str, str]:
    """Returns {name: dtype} of all columns of a dataset with these fields.

    ``_blocks`` has two numbers per row, the others have one.
    """
    found = {"_blocks": "<i8", "_source_index": "<i8"}
    for each in fields:
        if not each.list:
            found |= each.kind.columns(each.name)
    return found


def read_manifest(folder: Path) -> Manifest:
    """Reads and checks the manifest of a dataset.

    Raises CorruptManifest, or StoreError if there is no such folder.
    """
    try:
        data = files.read_regular(folder / NAME, max_bytes=MAX_BYTES)
    except OSError as error:
        raise _read_error(folder, error) from None
    try:
        return parse(data)
    except CorruptManifest as error:
        raise CorruptManifest(f"opening {folder}: {error}") from None


def _read_error(folder: Path, error: OSError) -> StoreError:
    if error.errno not in (errno.ENOENT, errno.ENOTDIR):
        why = "a link; links are not followed" if error.errno == errno.ELOOP else error.strerror
        return CorruptManifest(f"opening dataset {folder}: {NAME}: {why}")
    try:
        # One call only, because a packer may create the folder concurrently.
        mode = folder.stat().st_mode
    except OSError:
        mode = 0
    if not stat.S_ISDIR(mode):
        what = "found a file, expected a folder written by fastload pack"
        failure = StoreError(f"opening dataset {folder}: {what if mode else 'no such folder'}")
        failure.errno = error.errno
        return failure
    names = os.listdir(folder)  # noqa: PTH208 - names are sufficient
    if any(name.startswith("shard-") for name in names):
        why = (
            "a pack that has not finished. Run the same 'fastload pack' command again; it resumes "
            "where it stopped"
        )
    else:
        why = "not a fastload dataset. Create one with 'fastload pack SOURCE DEST'"
    return CorruptManifest(f"opening dataset {folder}: no {NAME}: {why}")


def parse(data: bytes) -> Manifest:
    """Parses and checks a manifest; raises only CorruptManifest."""
    try:
        return _parse(data)
    except ValueError as error:
        raise CorruptManifest(f"{NAME}: {error}") from None


def _parse(data: bytes) -> Manifest:
    if len(data) > MAX_BYTES:
        raise ValueError(f"{len(data)} bytes, expected at most {MAX_BYTES}")
    _check_seal(data)
    loaded = typed("top level", strict_json.loads(data, max_depth=MAX_DEPTH), dict)
    if loaded.get("format") != FORMAT:
        raise ValueError(
            f"format {loaded.get('format')!r:.40}, expected {FORMAT!r}: not a fastload dataset"
        )
    if loaded.get("version") != VERSION or type(loaded["version"]) is not int:
        action = (
            "pack the dataset again"
            if loaded.get("version") in (1, 2)
            else "install a newer fastload"
        )
        raise ValueError(
            f"format version {loaded.get('version')!r:.40}, this fastload reads version {VERSION}: "
            f"{action}"
        )
    top = Row.of("top level", loaded, _KEYS)
    n_samples = top.number("n_samples", MAX_SAMPLES)
    if loaded["order"] not in ORDERS:
        raise ValueError(f"order {loaded['order']!r:.40}, expected one of {', '.join(ORDERS)}")
    converted = top.get("converted", dict)
    fields, properties = _fields(top.get("fields", list), n_samples)
    manifest = Manifest(
        n_samples=n_samples,
        fields=fields,
        properties=properties,
        shards=tuple(_shards(top.get("shards", list), n_samples)),
        columns=tuple(_columns(top.get("columns", list))),
        tool=top.text("tool", most=MAX_NAME),
        seed=top.number("seed", (1 << 64) - 1),
        order=str(loaded["order"]),
        skipped=top.number("skipped", MAX_SAMPLES),
        content=top.matching("content", _DIGEST),
        converted={
            text("converted", key, MAX_NAME): count(key, converted[key], MAX_SAMPLES)
            for key in converted
        },
        options=top.get("options", dict),
    )
    _check_columns(manifest)
    return manifest


def dump(manifest: Manifest) -> bytes:
    """Returns the bytes of manifest.json: deterministic, one line per shard.

    Raises ConfigError if ``parse`` would reject the result.
    """
    values: dict[str, Json] = {
        "format": FORMAT,
        "version": VERSION,
        "tool": manifest.tool,
        "n_samples": manifest.n_samples,
        "fields": [
            field_json(each, properties=properties.as_json())
            for each, properties in zip(manifest.fields, manifest.properties, strict=True)
        ],
        "shards": [shard._asdict() for shard in manifest.shards],
        "columns": [_column_json(column) for column in manifest.columns],
        "seed": manifest.seed,
        "order": manifest.order,
        "options": manifest.options,
        "skipped": manifest.skipped,
        "converted": dict(manifest.converted),
        "content": manifest.content,
    }
    try:
        data = seal(",\n".join(_lines(values)).encode())
        parse(data)
    except (TypeError, ValueError, CorruptManifest) as error:
        raise ConfigError(f"writing {NAME}: {error}") from None
    return data


def seal(body: bytes) -> bytes:
    """Adds the braces and the checksum line to the text of a manifest."""
    body = b"{\n" + body
    return body + b',\n "crc32c": "%08x"\n}\n' % crc32c(body)


def _lines(values: dict[str, Json]) -> Iterator[str]:
    for key, value in values.items():
        if isinstance(value, list) and value:
            rows = ",\n".join(f"  {strict_json.dumps(row)}" for row in value)
            yield f' "{key}": [\n{rows}\n ]'
        else:
            yield f' "{key}": {strict_json.dumps(value)}'


def field_json(each: Field, **others: Json) -> dict[str, Json]:
    """Returns a field as JSON, for ``parse_fields``. ``others``: values to add to it."""
    row: dict[str, Json] = {
        "name": each.name,
        "kind": each.kind.name,
        "list": each.list,
        **others,
    }
    if each.classes:
        row["classes"] = list(each.classes)
    if each.image:
        row["image"] = each.image
    if each.along:
        row["along"] = each.along
    return row


def _check_seal(data: bytes) -> None:
    found = _SEAL.fullmatch(data[-_SEAL_BYTES:])
    if found is None:
        raise ValueError(
            f"{len(data)} bytes that do not end with a checksum line: truncated, damaged, or not "
            "written by fastload"
        )
    crc = crc32c(memoryview(data)[:-_SEAL_BYTES])
    if crc != int(found[1], 16):
        raise ValueError(
            f"checksum 0x{crc:08x}, expected 0x{int(found[1], 16):08x}: damaged or edited by hand; "
            "restore it from a copy, or pack again"
        )


def parse_fields(
    values: list[Json], *, others: frozenset[str] = frozenset()
) -> dict[Field, dict[str, Json]]:
    """Checks the results of ``field_json``. Returns fields with all values; raises ValueError."""
    if len(values) > MAX_FIELDS:
        raise ValueError(f"{len(values)} fields, expected at most {MAX_FIELDS}")
    found: dict[Field, dict[str, Json]] = {}
    names: set[str] = set()
    for value in values:
        row = Row.of("a field", value, _FIELD_KEYS | others, _FIELD_OPTIONS)
        classes = row.get("classes", list) if "classes" in row.values else []
        each = Field(
            row.text("name", most=MAX_NAME),
            row.text("kind", most=MAX_NAME),
            list=row.get("list", bool),
            classes=tuple(text("a class", name, MAX_NAME) for name in classes),
            **{
                key: row.text(key, most=MAX_NAME) for key in ("image", "along") if key in row.values
            },
        )
        if each.name in names:
            raise ValueError(f"field {each.name!r} occurs twice")
        names.add(each.name)
        found[each] = row.values
    check_references(tuple(found))
    return found


def _fields(values: list[Json], n_samples: int) -> tuple[tuple[Field, ...], tuple[Properties, ...]]:
    found = parse_fields(values, others=frozenset(("properties",)))
    return tuple(found), tuple(
        Properties.from_json(f"properties of field {each.name!r}", row["properties"], n_samples)
        for each, row in found.items()
    )


def _shards(values: list[Json], n_samples: int) -> Iterator[Shard]:
    if len(values) > MAX_SHARDS:
        raise ValueError(f"{len(values)} shards, expected at most {MAX_SHARDS}")
    names: set[str] = set()
    first = 0
    for value in values:
        row = Row.of("a shard", value, _SHARD_KEYS)
        size = row.number("size", MAX_FILE)
        shard = Shard(
            row.matching("name", SHARD_NAME),
            size,
            # A reader may reserve memory for this many records.
            row.number("records", size // HEADER.size),
            row.number("first", MAX_SAMPLES),
            row.number("base", MAX_SAMPLES),
            row.number("index_size", size),
            row.matching("index_crc32c", _CRC32C),
            row.matching("blake3", _DIGEST),
            row.matching("stamp", _DIGEST),
        )
        if shard.name in names:
            raise ValueError(f"{shard.name} occurs twice")
        if shard.first != first or not shard.records:
            raise ValueError(
                f"{shard.name}: {shard.records} records, starting at sample {shard.first}; "
                f"expected at least 1, starting at sample {first}"
            )
        if not STAMP_BYTES <= shard.index_size <= shard.size - 2 * STAMP_BYTES:
            raise ValueError(
                f"{shard.name}: an index of {shard.index_size} bytes, expected {STAMP_BYTES} to "
                f"{shard.size - 2 * STAMP_BYTES}"
            )
        names.add(shard.name)
        first += shard.records
        yield shard
    if first != n_samples:
        raise ValueError(f"n_samples is {n_samples}, but the shards hold {first}")


def _columns(values: list[Json]) -> Iterator[Column]:
    for value in values:
        row = Row.of("a column", value, _COLUMN_KEYS, _COLUMN_OPTIONS)
        shape = tuple(
            count("a column: shape", length, MAX_SAMPLES) for length in row.get("shape", list)
        )
        yield Column(
            row.text("name", most=MAX_NAME),
            row.text("dtype", most=MAX_NAME),
            shape,
            row.number("size", MAX_FILE),
            row.matching("crc32c", _CRC32C),
            row.matching("folder", COLUMNS_FOLDER) if "folder" in row.values else "columns",
        )


def _column_json(column: Column) -> dict[str, Json]:
    row: dict[str, Json] = {**asdict(column), "shape": list(column.shape)}
    if column.folder == "columns":
        del row["folder"]
    return row


def _check_columns(manifest: Manifest) -> None:
    """Requires exactly the columns that the fields imply, so that no name can leave the folder."""
    expected = expected_columns(manifest.fields)
    names = [column.name for column in manifest.columns]
    if sorted(names) != sorted(expected):
        raise ValueError(
            f"columns {', '.join(names)!r:.200}, expected {', '.join(expected)!r:.200}"
        )
    for column in manifest.columns:
        width = 2 if column.name == "_blocks" else 1
        rows = column.shape[0] if width == 2 and column.shape else manifest.n_samples
        shape = (rows, 2) if width == 2 else (rows,)
        size = COLUMN_HEADER + int(expected[column.name][2]) * rows * width
        if column.dtype != expected[column.name] or column.shape != shape or column.size != size:
            raise ValueError(
                f"column {column.name}: {column.dtype} {column.shape} in {column.size} bytes, "
                f"expected {expected[column.name]} {shape} in {size}"
            )
