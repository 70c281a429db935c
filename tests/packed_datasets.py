"""Small datasets packed for tests, and functions that damage them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import lmdb
import numpy as np
from blake3 import blake3
from PIL import Image

from fastload._common import files
from fastload._common.checksum import crc32c
from fastload._pack.sources.base import Encoded, Info, Sample
from fastload._store import manifest
from fastload._store.columns import ColumnWriter, open_column
from fastload._store.fields import Field
from fastload._store.manifest import Manifest, Shard, read_manifest
from fastload._store.record import DATA, Part, encode_record, parse_record
from tests.packing import Listed, file_of, pack

CLASSES = ("cat", "dog", "emu")


def photo(
    width: int, height: int, *, seed: int, gray: bool = False, noise: float = 0.0, **options: Any
) -> bytes:
    """Returns a JPEG of smooth colors and optional noise, which increases its size."""
    rng = np.random.default_rng(seed)
    channels = () if gray else (3,)
    small = Image.fromarray(rng.integers(0, 256, (5, 6, *channels), dtype=np.uint8))
    pixels = np.asarray(small.resize((width, height), Image.Resampling.BICUBIC)).astype(np.float64)
    pixels += noise * rng.normal(size=pixels.shape)
    return file_of(pixels.clip(0, 255).astype(np.uint8), **{"quality": 90, **options})


def pack_folder(root: Path, *, count: int = 40, val: int = 0, order: str = "shuffle") -> Path:
    """Packs classes cat, dog and emu into at least two shards of several blocks.

    Every fifth image is gray, every seventh is progressive. ``val`` of the images are in a second
    split.
    """
    for i in range(count):
        split = ("train" if i % (count // val) else "val") if val else "."
        path = root / "source" / split / CLASSES[3 * i // count] / f"{i:03}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(
            photo(
                200 + 8 * (i % 3),
                160,
                seed=i,
                gray=i % 5 == 0,
                noise=60,
                quality=95,
                progressive=i % 7 == 0,
            )
        )
    pack(root / "source", root / "packed", shard_size=1 << 20, block_size=200_000, order=order)
    return root / "packed"


def pack_samples(
    dest: Path,
    fields: Sequence[Field],
    samples: Sequence[Mapping[str, Any]],
    *,
    info: Info | None = None,
    **options: Any,
) -> Path:
    """Packs samples, by default in their order."""
    listed = [
        Sample(dict(values), source=f"samples/{number:03}") for number, values in enumerate(samples)
    ]
    pack(Listed(listed, tuple(fields), info=info), dest, **{"order": "source", **options})
    return dest


def encoded(data: bytes) -> Encoded:
    """Returns an image file as a source passes it to the packer."""
    return Encoded(data, "image")


def values_of(dataset: Path, shard: Shard) -> dict[int, bytes]:
    """Returns all record values of a shard by sample id."""
    with (
        lmdb.open(str(dataset / shard.name), subdir=False, readonly=True, lock=False) as env,
        env.begin() as transaction,
    ):
        return {
            int.from_bytes(key, "big") - shard.base + shard.first: value
            for key, value in transaction.cursor()
        }


def value_of(dataset: Path, sample_id: int) -> bytes:
    return values_of(dataset, shard_of(dataset, sample_id))[sample_id]


def shard_of(dataset: Path, sample_id: int) -> Shard:
    return next(
        each
        for each in read_manifest(dataset).shards
        if each.first <= sample_id < each.first + each.records
    )


def put_value(dataset: Path, sample_id: int, value: bytes | None) -> None:
    """Replaces one record (None removes it) and updates size and digests in the manifest."""
    put_values(dataset, shard_of(dataset, sample_id), {sample_id: value})


def put_values(dataset: Path, shard: Shard, changed: Mapping[int, bytes | None]) -> None:
    """Replaces records of one shard, as ``put_value`` does."""
    found = read_manifest(dataset)
    values = {**values_of(dataset, shard), **changed}
    path = dataset / shard.name
    path.unlink()
    with (
        lmdb.open(str(path), subdir=False, lock=False, map_size=1 << 30) as env,
        env.begin(write=True) as transaction,
    ):
        for key, each in sorted(values.items()):
            if each is not None:
                transaction.put(shard.key(key).to_bytes(8, "big"), each)
    with path.open("ab") as file:
        file.write(manifest.stamp_page(shard.base, shard.records, shard.stamp))
    data = path.read_bytes()
    row = shard._replace(
        size=len(data),
        index_size=4096,  # LMDB writes its tree pages between the records
        index_crc32c=f"{crc32c(data[:8192] + data[-4096:]):08x}",
        blake3=blake3(data[8192:] + data[:8192]).hexdigest(),
    )
    write_manifest(
        dataset,
        replace(found, shards=tuple(row if each == shard else each for each in found.shards)),
    )


def change_parts(dataset: Path, sample_id: int, change: Callable[[list[Part]], list[Part]]) -> None:
    """Rebuilds one record with other parts and updates all checksums."""
    key = shard_of(dataset, sample_id).key(sample_id)
    parts = parse_record(memoryview(value_of(dataset, sample_id)), key)
    put_value(dataset, sample_id, encode_record(key, change(parts)))


def spoil_image(dataset: Path, sample_id: int) -> None:
    """Replaces the first field of a sample by bytes that are not a JPEG. All checksums match."""
    change_parts(
        dataset,
        sample_id,
        lambda parts: [
            part._replace(data=b"?" * 300) if (part.field, part.role) == (0, DATA) else part
            for part in parts
        ],
    )


def change_column(dataset: Path, name: str, change: Callable[[Any], Any]) -> None:
    """Rewrites a column through ``change(rows)`` and updates its checksum in the manifest."""
    found = read_manifest(dataset)
    column = next(each for each in found.columns if each.name == name)
    rows = np.array(open_column(dataset, column))
    changed = change(rows)
    with ColumnWriter(dataset, name, column.dtype, width=2 if name == "_blocks" else 1) as writer:
        writer.append(rows if changed is None else changed)
        written = writer.finish()
    write_manifest(
        dataset,
        replace(
            found, columns=tuple(written if each.name == name else each for each in found.columns)
        ),
    )


def write_manifest(dataset: Path, changed: Manifest) -> None:
    files.write_atomically(dataset / manifest.NAME, manifest.dump(changed))


def flip(path: Path, position: int) -> None:
    """Inverts one byte of a file in place."""
    with path.open("r+b") as file:
        file.seek(position)
        byte = file.read(1)[0]
        file.seek(position)
        file.write(bytes([byte ^ 0xFF]))
