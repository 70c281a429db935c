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
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import NamedTuple

from fastload._common import files, strict_json
from fastload._common.checksum import crc32c
from fastload._common.strict_json import Json, Row, count, text, typed
from fastload._store.fields import Field
from fastload._store.record import MAX_FIELDS
from fastload.errors import ConfigError, CorruptManifest, StoreError

FORMAT = "fastload"
VERSION = 2
NAME = "manifest.json"
MAX_BYTES = 64 * 1024 * 1024
MAX_DEPTH = 8
MAX_SAMPLES = 1 << 40
MAX_SHARDS = 1_000_000
MAX_FILE = 1 << 46  # bytes of one shard or column
MAX_NAME = 1024  # characters of a class name or of the tool name
SHARD_NAME = re.compile(r"shard-[0-9]{5,7}\.lmdb")
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
_FIELD_OPTIONS = frozenset(("classes", "image"))
_SHARD_KEYS = frozenset(("name", "size", "records", "first", "sha256", "stamp"))
_COLUMN_KEYS = frozenset(("name", "dtype", "shape", "size", "crc32c"))
_SEAL = re.compile(rb',\n "crc32c": "([0-9a-f]{8})"\n}\n')
_SEAL_BYTES = 26
_SHA256 = re.compile(r"[0-9a-f]{64}")
_CRC32C = re.compile(r"[0-9a-f]{8}")


class Shard(NamedTuple):
    """One LMDB file with the samples ``first`` to ``first + records - 1``.

    It is a tuple because a dataset may have thousands of shards.
    """

    name: str
    size: int  # bytes
    records: int
    first: int
    sha256: str  # of the file, with its first 8,192 bytes hashed last
    stamp: str  # SHA-256 over the record headers; also stored in the last page, see stamp_page


@dataclass(frozen=True, slots=True)
class Column:
    """One columns/NAME.npy; ``crc32c`` (8 hex digits) covers the whole file of ``size`` bytes."""

    name: str
    dtype: str  # "<i8", "<f8", "<u2"
    shape: tuple[int, ...]
    size: int
    crc32c: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """The contents of manifest.json."""

    n_samples: int
    fields: tuple[Field, ...]
    shards: tuple[Shard, ...]
    columns: tuple[Column, ...]
    content: str  # SHA-256 over the shards' binary SHA-256 digests, in order
    tool: str = ""
    seed: int = 0
    order: str = "shuffle"
    skipped: int = 0  # source samples that were not packed
    converted: dict[str, int] = field(default_factory=dict)
    options: dict[str, Json] = field(default_factory=dict)


def stamp_page(first: int, records: int, stamp: str) -> bytes:
    """Returns the last 4,096 bytes of a shard, which follow LMDB's pages and identify the shard.

    Without them, a shard of another dataset with the same size and record count would be accepted.
    """
    return struct.pack("<4s4xQQ32s", STAMP_MAGIC, first, records, bytes.fromhex(stamp)).ljust(
        STAMP_BYTES, b"\0"
    )


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
            "pack the dataset again" if loaded.get("version") == 1 else "install a newer fastload"
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
    manifest = Manifest(
        n_samples=n_samples,
        fields=_fields(top.get("fields", list)),
        shards=tuple(_shards(top.get("shards", list), n_samples)),
        columns=tuple(_columns(top.get("columns", list))),
        tool=top.text("tool", most=MAX_NAME),
        seed=top.number("seed", (1 << 64) - 1),
        order=str(loaded["order"]),
        skipped=top.number("skipped", MAX_SAMPLES),
        content=top.matching("content", _SHA256),
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
        "fields": [_field_json(each) for each in manifest.fields],
        "shards": [shard._asdict() for shard in manifest.shards],
        "columns": [{**asdict(column), "shape": list(column.shape)} for column in manifest.columns],
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


def _field_json(each: Field) -> dict[str, Json]:
    row: dict[str, Json] = {"name": each.name, "kind": each.kind.name, "list": each.list}
    if each.classes:
        row["classes"] = list(each.classes)
    if each.image:
        row["image"] = each.image
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


def _fields(values: list[Json]) -> tuple[Field, ...]:
    if len(values) > MAX_FIELDS:
        raise ValueError(f"{len(values)} fields, expected at most {MAX_FIELDS}")
    found: dict[str, Field] = {}
    for value in values:
        row = Row.of("a field", value, _FIELD_KEYS, _FIELD_OPTIONS)
        classes = row.get("classes", list) if "classes" in row.values else []
        each = Field(
            row.text("name", most=MAX_NAME),
            row.text("kind", most=MAX_NAME),
            list=row.get("list", bool),
            classes=tuple(text("a class", name, MAX_NAME) for name in classes),
            image=row.text("image", most=MAX_NAME) if "image" in row.values else "",
        )
        if each.name in found:
            raise ValueError(f"field {each.name!r} occurs twice")
        found[each.name] = each
    for name, each in found.items():
        if each.image and not (each.image in found and found[each.image].kind.is_image):
            raise ValueError(
                f"field {name!r}: image={each.image!r:.70}: expected the name of an image field"
            )
    return tuple(found.values())


def _shards(values: list[Json], n_samples: int) -> Iterator[Shard]:
    if len(values) > MAX_SHARDS:
        raise ValueError(f"{len(values)} shards, expected at most {MAX_SHARDS}")
    names: set[str] = set()
    first = 0
    for value in values:
        row = Row.of("a shard", value, _SHARD_KEYS)
        shard = Shard(
            row.matching("name", SHARD_NAME),
            row.number("size", MAX_FILE),
            row.number("records", MAX_SAMPLES),
            row.number("first", MAX_SAMPLES),
            row.matching("sha256", _SHA256),
            row.matching("stamp", _SHA256),
        )
        if shard.name in names:
            raise ValueError(f"{shard.name} occurs twice")
        if shard.first != first or not shard.records:
            raise ValueError(
                f"{shard.name}: {shard.records} records, starting at sample {shard.first}; "
                f"expected at least 1, starting at sample {first}"
            )
        names.add(shard.name)
        first += shard.records
        yield shard
    if first != n_samples:
        raise ValueError(f"n_samples is {n_samples}, but the shards hold {first}")


def _columns(values: list[Json]) -> Iterator[Column]:
    for value in values:
        row = Row.of("a column", value, _COLUMN_KEYS)
        shape = tuple(
            count("a column: shape", length, MAX_SAMPLES) for length in row.get("shape", list)
        )
        yield Column(
            row.text("name", most=MAX_NAME),
            row.text("dtype", most=MAX_NAME),
            shape,
            row.number("size", MAX_FILE),
            row.matching("crc32c", _CRC32C),
        )


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
