"""Makes hostile datasets: a number, length or pointer is wrong, and all checksums are right.

An attacker can compute the checksums and digests of a changed dataset. ``make_hostile`` changes
LMDB pages, records, columns and the manifest of a small dataset at random, then seals it.
"""

from __future__ import annotations

import json
import random
import shutil
import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from blake3 import blake3

import fastload
from fastload._common.checksum import crc32c
from fastload._store import manifest
from fastload._store.lmdb_tree import META_BYTES, PAGE
from fastload._store.record import CRC_FROM, HEADER, MAGIC, ROW
from tests.fault.trials import make_dataset
from tests.jpeg_samples import encode, sample_image

EDGES = (
    *(0, 1, 2, 7, 8, 16, 255, 4095, 4096, 4097, 65535, 65536, 1 << 20, (1 << 26) + 1),
    *((1 << bits) + plus for bits in (31, 32, 40, 48, 63, 64) for plus in (-1, 0)),
)


def make_bases(folder: Path) -> list[Path]:
    """Makes undamaged datasets: all kinds of fields, photos with restart indexes, tiny records."""
    make_dataset(folder / "kinds", n_samples=10)
    images = [encode(sample_image(60 + 20 * i, 50 + 10 * i, i), "420") for i in range(4)]
    for name, count, some in (("photos", 8, images), ("tiny", 260, images[:1])):
        fastload.pack(
            ({"image": some[i % len(some)], "label": i % 3} for i in range(count)),
            folder / name,
            fields={"image": "image", "label": "int"},
        )
    return [folder / name for name in ("kinds", "photos", "tiny")]


Attack = Callable[["Files"], None]


@dataclass(slots=True)
class Files:
    """The contents of a dataset, to be changed by attacks."""

    random: random.Random
    manifest: dict[str, Any]
    shards: dict[str, bytearray]
    columns: dict[str, bytearray]

    def value(self, size: int = 8) -> int:
        """A number that is at the edge of something, or random."""
        edges = [
            *EDGES,
            *(len(data) + plus for data in self.shards.values() for plus in (-1, 0, 1)),
        ]
        edges += [len(data) // PAGE + plus for data in self.shards.values() for plus in (-1, 0, 1)]
        some = (
            self.random.choice(edges) if self.random.random() < 0.7 else self.random.getrandbits(64)
        )
        return some & ((1 << 8 * size) - 1)

    def shard(self) -> bytearray:
        return self.shards[self.random.choice(sorted(self.shards))]

    def put(self, data: bytearray, position: int, size: int) -> None:
        """Replaces a number of ``size`` bytes."""
        position = max(0, min(position, len(data) - size))
        data[position : position + size] = self.value(size).to_bytes(size, "little")


def make_hostile(base: Path, dest: Path, seed: int, *chosen: Attack) -> str:
    """Writes a hostile copy of a dataset, by default with random attacks; returns a description."""
    shutil.copytree(base, dest)
    found = json.loads((dest / manifest.NAME).read_bytes())
    del found["crc32c"]
    files = Files(
        random.Random(seed),
        found,
        {each["name"]: bytearray((dest / each["name"]).read_bytes()) for each in found["shards"]},
        {path.stem: bytearray(path.read_bytes()) for path in (dest / "columns").iterdir()},
    )
    attacks = chosen or files.random.choices(ATTACKS, k=files.random.choice((1, 1, 1, 2, 4)))
    for attack in attacks:
        attack(files)
    _seal(files, dest)
    return f"{base.name}, seed {seed}: {', '.join(each.__name__ for each in attacks)}"


def _pages(data: bytearray) -> list[int]:
    """Returns the offsets of the branch and leaf pages."""
    kinds = range(META_BYTES, len(data) - PAGE, PAGE)
    return [at for at in kinds if int.from_bytes(data[at + 10 : at + 12], "little") in (1, 2)]


def _nodes(data: bytearray, page: int) -> list[int]:
    if page + PAGE > len(data):  # another attack has shortened the file
        return []
    end = int.from_bytes(data[page + 12 : page + 14], "little")
    count = max(0, min(end, PAGE) - 16) // 2
    offsets = struct.unpack_from(f"<{count}H", data, page + 16)
    return [page + min(offset, PAGE - 24) for offset in offsets]


def attack_meta(files: Files) -> None:
    data = files.shard()
    place = files.random.choice([0, PAGE]) + files.random.choice(
        (8, 10, 16, 20, 40, 44, 46, *range(88, 152, 8))
    )
    files.put(data, place, files.random.choice((2, 4, 8)))


def attack_page(files: Files) -> None:
    data = files.shard()
    page = files.random.choice(_pages(data) or [META_BYTES])
    place, size = files.random.choice(((0, 8), (8, 2), (10, 2), (12, 2), (14, 2), (16, 2), (18, 2)))
    files.put(data, page + place, size)


def attack_node(files: Files) -> None:
    data = files.shard()
    page = files.random.choice(_pages(data) or [META_BYTES])
    node = files.random.choice(_nodes(data, page) or [page])
    place, size = files.random.choice(((0, 2), (2, 2), (0, 4), (4, 2), (6, 2), (8, 8), (16, 8)))
    files.put(data, node + place, size)


def attack_pointers(files: Files) -> None:
    """Lets all values on overflow pages start outside the file."""
    data = files.shard()
    for page in _pages(data):
        for node in _nodes(data, page) if data[page + 10] == 2 else ():
            if data[node + 4] & 1:
                data[node + 16 : node + 24] = (len(data) // PAGE + 10).to_bytes(8, "little")


def attack_cycle(files: Files) -> None:
    """Lets a branch or the root point to any page of the tree, such as itself."""
    data = files.shard()
    pages = _pages(data)
    target = files.random.choice(pages or [0]) // PAGE
    branches = [at for at in pages if data[at + 10] == 1]
    if branches:
        node = files.random.choice(_nodes(data, files.random.choice(branches)))
        data[node : node + 6] = target.to_bytes(6, "little")
    for meta in (0, PAGE):
        data[meta + 128 : meta + 136] = target.to_bytes(8, "little")


def _records(data: bytearray) -> Iterator[tuple[int, int]]:
    """Yields offset and length of each record."""
    at = -1
    while (at := data.find(MAGIC, at + 1)) >= 0:
        length = HEADER.unpack_from(data, at)[5] if at + HEADER.size <= len(data) else 0
        if HEADER.size <= length <= len(data) - at:
            yield at, length


def _in_record(files: Files, change: Callable[[bytearray, int, int], None]) -> None:
    data = files.shard()
    places = list(_records(data))
    if not places:
        return
    at, length = files.random.choice(places)
    change(data, at, length)
    data[at + 4 : at + 8] = crc32c(bytes(data[at + CRC_FROM : at + length])).to_bytes(4, "little")


def attack_record_header(files: Files) -> None:
    place, size = files.random.choice(((0, 4), (8, 1), (9, 1), (10, 2), (12, 4), (16, 8)))
    _in_record(files, lambda data, at, _length: files.put(data, at + place, size))


def attack_part_table(files: Files) -> None:
    def change(data: bytearray, at: int, length: int) -> None:
        parts = max(
            1, min(int.from_bytes(data[at + 10 : at + 12], "little"), length // ROW.size - 1)
        )
        place, size = files.random.choice(
            (
                (0, 2),
                (2, 2),
                (4, 1),
                (5, 1),
                (6, 1),
                (7, 1),
                (8, 4),
                (12, 4),
                (16, 2),
                (18, 2),
                (20, 2),
                (22, 1),
                (23, 1),
            )
        )
        row = files.random.randrange(parts)
        files.put(data, at + HEADER.size + ROW.size * row + place, size)

    _in_record(files, change)


def attack_payload(files: Files) -> None:
    def change(data: bytearray, at: int, length: int) -> None:
        for _ in range(files.random.choice((1, 3, 20))):
            place = at + HEADER.size + files.random.randrange(max(1, length - HEADER.size))
            files.put(data, place, files.random.choice((1, 2, 4)))

    _in_record(files, change)


def attack_column(files: Files) -> None:
    data = files.columns[files.random.choice(sorted(files.columns))]
    for _ in range(files.random.choice((1, 2, 10))):
        files.put(data, files.random.randrange(len(data) // 8) * 8, 8)


def attack_manifest(files: Files) -> None:
    """Changes one number of the manifest."""
    found = files.manifest
    rows = [found, *found["shards"], *found["columns"]]
    row = files.random.choice(rows)
    numbers = [key for key, value in row.items() if type(value) is int and key != "version"]
    if numbers:
        row[files.random.choice(numbers)] = files.value(files.random.choice((1, 4, 8)))
    else:
        column = files.random.choice(found["columns"])
        column["shape"] = [files.value(4) for _ in column["shape"]]


def attack_counts(files: Files) -> None:
    """Changes the number of samples everywhere, so that the manifest agrees with itself."""
    found = files.manifest
    shard = found["shards"][-1]
    shard["records"] = files.random.choice((1, shard["records"] + 1, 1 << 20, 1 << 32, 1 << 39))
    found["n_samples"] = sum(each["records"] for each in found["shards"])
    for column in found["columns"]:
        if column["name"] != "_blocks":
            column["shape"] = [found["n_samples"]]
            width = int(column["dtype"][2])
            column["size"] = manifest.COLUMN_HEADER + width * found["n_samples"]


def attack_length(files: Files) -> None:
    """Shortens or extends a shard."""
    data = files.shard()
    end = files.random.choice(
        (len(data) // 2 // PAGE * PAGE, len(data) - PAGE, files.random.randrange(len(data)))
    )
    del data[max(end, META_BYTES) :]
    if files.random.random() < 0.3:
        data += bytes(PAGE * files.random.randrange(4))


ATTACKS = (
    attack_meta,
    attack_page,
    attack_node,
    attack_pointers,
    attack_cycle,
    attack_record_header,
    attack_part_table,
    attack_payload,
    attack_payload,
    attack_column,
    attack_manifest,
    attack_counts,
    attack_length,
)


def _seal(files: Files, dest: Path) -> None:
    """Updates sizes, stamps, digests and checksums, as an attacker would."""
    content = blake3()
    for row in files.manifest["shards"]:
        data = files.shards.get(row["name"])
        if data is None:
            continue
        stamp = manifest.stamp_page(
            row["base"] & ((1 << 64) - 1), row["records"] & ((1 << 64) - 1), row["stamp"]
        )
        data[-manifest.STAMP_BYTES :] = stamp
        if row["size"] < 1 << 40:  # otherwise the size is the attack
            row["size"] = len(data)
        row["index_size"] = min(row["index_size"], len(data))
        index = data[:META_BYTES] + data[len(data) - row["index_size"] :]
        row["index_crc32c"] = f"{crc32c(bytes(index)):08x}"
        row["blake3"] = blake3(data[META_BYTES:] + data[:META_BYTES]).hexdigest()
        content.update(bytes.fromhex(row["blake3"]))
        (dest / row["name"]).write_bytes(data)
    for column in files.manifest["columns"]:
        data = files.columns[column["name"]]
        column["crc32c"] = f"{crc32c(bytes(data)):08x}"
        (dest / "columns" / f"{column['name']}.npy").write_bytes(data)
    files.manifest["content"] = content.hexdigest()
    (dest / manifest.NAME).write_bytes(manifest.seal(json.dumps(files.manifest)[1:-1].encode()))
