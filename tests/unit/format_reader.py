"""Reads a dataset from docs/FORMAT.md alone: prints every column, then every sample, as JSON. Argument: the folder."""
import json
import struct
import sys
import zlib
from pathlib import Path
from typing import Any

import google_crc32c
import lmdb

NUMBERS = ["B", "b", "H", "h", "I", "i", "Q", "q", "e", "f", "d", "?"]


def value(kind: str, codec: int, data: bytes, shape: list[int]) -> Any:
    if codec == 5:
        dims = struct.unpack_from(f"<{data[1]}Q", data, 8)
        return [list(dims), [row for (row,) in struct.iter_unpack("<" + NUMBERS[data[0]], data[8 + 8 * len(dims):])]]
    if kind in ("int", "float"):
        return struct.unpack("<q" if kind == "int" else "<d", data)[0]
    if kind in ("str", "json"):
        return json.loads(data) if kind == "json" else data.decode()
    return [*shape, (zlib.decompress(data) if codec == 4 else data).hex()]


def sample(record: Any, number: int, fields: list[Any]) -> dict[str, Any]:
    magic, crc, version, zero, n_parts, length, found = struct.unpack_from("<4sIBBHIQ", record)
    assert (magic, version, found, length, zero) == (b"FLR1", 1, number, len(record), 0)
    assert google_crc32c.value(record[8:]) == crc
    out: dict[str, Any] = {field["name"]: [] if field["list"] else None for field in fields}
    names = {number: (field["name"], field["kind"], field["list"]) for number, field in enumerate(fields)}
    end = 24 + 24 * n_parts
    for row in struct.iter_unpack("<HHBBBBIIHHHBB", record[24:end]):
        field, _, codec, role, channels, bits, offset, size, width, height, _, orientation, _ = row
        assert offset == end + -end % 8
        end = offset + size
        name, kind, many = names.get(field, ("source", "str", False))
        got = value(kind, codec, record[offset:end], [width, height, channels, bits, orientation])
        if role == 0:
            out[name] = [*out[name], got] if many else got
    assert end == len(record)
    return out


folder = Path(sys.argv[1])
text = (folder / "manifest.json").read_bytes()
manifest = json.loads(text)
assert (manifest["format"], manifest["version"]) == ("fastload", 1)
assert text[-26:] == b',\n "crc32c": "%08x"\n}\n' % google_crc32c.value(text[:-26])
for column in manifest["columns"]:
    rows = (folder / "columns" / f"{column['name']}.npy").read_bytes()
    assert int(column["crc32c"], 16) == google_crc32c.value(rows)
    letter = {"<i8": "<q", "<f8": "<d", "<u2": "<H"}[column["dtype"]]
    print(json.dumps([column["name"], column["shape"], [row for (row,) in struct.iter_unpack(letter, rows[128:])]]))
for shard in manifest["shards"]:
    path = folder / shard["name"]
    assert (path.is_symlink(), path.stat().st_size) == (False, shard["size"])
    with lmdb.open(str(path), subdir=False, readonly=True, lock=False) as env, env.begin() as transaction:
        for key in range(shard["first"], shard["first"] + shard["records"]):
            print(json.dumps(sample(transaction.get(key.to_bytes(8, "big")), key, manifest["fields"])))
