"""Reads a dataset, written from docs/FORMAT.md alone. Argument: the folder.

Prints every column, then every sample, as JSON.
"""

import json
import struct
import sys
import zlib
from pathlib import Path
from typing import Any

import google_crc32c
import lmdb
from blake3 import blake3


def value(kind: str, codec: int, data: bytes, shape: list[int]) -> Any:
    if codec == 5:
        dims = struct.unpack_from(f"<{data[1]}Q", data, 8)
        return [
            list(dims),
            [
                n
                for (n,) in struct.iter_unpack(
                    "<" + "BbHhIiQqefd?"[data[0]], data[8 + 8 * len(dims) :]
                )
            ],
        ]
    if kind in ("int", "float"):
        return struct.unpack("<q" if kind == "int" else "<d", data)[0]
    if kind in ("str", "json"):
        return json.loads(data) if kind == "json" else data.decode()
    return [*shape, (zlib.decompress(data) if codec == 4 else data).hex()]


def sample(record: Any, number: int, fields: dict[int, tuple[str, str, bool]]) -> dict[str, Any]:
    magic, crc, version, n_parts, length, key = struct.unpack_from("<4sIHHIQ", record)
    assert (magic, version, length, key) == (b"FLR1", 1, len(record), number)
    assert crc == google_crc32c.value(record[8:])
    out: dict[str, Any] = {name: [] if many else None for name, _, many in fields.values()}
    end = 24 + 24 * n_parts
    for row in struct.iter_unpack("<HHBBBBIIHHHBB", record[24:end]):
        field, _, codec, role, channels, bits, offset, size, width, height, _, orientation, _ = row
        assert offset == end + -end % 8
        end = offset + size
        name, kind, many = fields.get(field, ("source", "str", False))
        got = value(kind, codec, record[offset:end], [width, height, channels, bits, orientation])
        if role == 0:
            out[name] = [*out[name], got] if many else got
    assert end == len(record)
    return out


folder = Path(sys.argv[1])
manifest = json.loads(text := (folder / "manifest.json").read_bytes())
assert text[-26:] == b',\n "crc32c": "%08x"\n}\n' % google_crc32c.value(text[:-26])
assert (manifest["format"], manifest["version"]) == ("fastload", 3)
for column in manifest["columns"]:
    rows = (folder / column.get("folder", "columns") / f"{column['name']}.npy").read_bytes()
    assert int(column["crc32c"], 16) == google_crc32c.value(rows)
    letter = {"<i8": "<q", "<f8": "<d", "<u2": "<H"}[column["dtype"]]
    print(
        json.dumps(
            [
                column["name"],
                column["shape"],
                [row for (row,) in struct.iter_unpack(letter, rows[128:])],
            ]
        )
    )
fields = {
    i: (field["name"], field["kind"], field["list"]) for i, field in enumerate(manifest["fields"])
}
for shard in manifest["shards"]:
    stamp = struct.pack(
        "<4s4xQQ32s4040x", b"FLS1", shard["base"], shard["records"], bytes.fromhex(shard["stamp"])
    )
    data = (folder / shard["name"]).read_bytes()
    digest = blake3(data[8192:] + data[:8192]).hexdigest()
    assert (len(data), data[-4096:], digest) == (shard["size"], stamp, shard["blake3"])
    index = data[:8192] + data[-shard["index_size"] :]
    assert google_crc32c.value(index) == int(shard["index_crc32c"], 16)
    with (
        lmdb.open(str(folder / shard["name"]), subdir=False, readonly=True, lock=False) as env,
        env.begin() as transaction,
    ):
        for key in range(shard["base"], shard["base"] + shard["records"]):
            print(json.dumps(sample(transaction.get(key.to_bytes(8, "big")), key, fields)))
