"""Sources and packs of small datasets for tests, and digests of the output."""

from __future__ import annotations

import hashlib
import io
import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import lmdb
import numpy as np
from numpy.typing import NDArray
from PIL import Image

from fastload._pack.options import PackOptions
from fastload._pack.packer import Packer, PackProgress, PackResult
from fastload._pack.sources.base import AnySource, Encoded, Info, Ref, Sample
from fastload._pack.sources.folder import FolderSource
from fastload._store.fields import Field
from fastload.errors import BadImage

IMAGE = Field("image", "image")
LABEL = Field("label", "int", classes=("ant", "bee", "cow"))
# The smallest sizes that are allowed.
SMALL_SHARDS: dict[str, Any] = {"shard_size": 1 << 20, "block_size": 1 << 17}


class Listed:
    """A source of samples in memory. Loading a BadImage in the list raises it."""

    name = "listed"
    thread_safe = True

    def __init__(
        self,
        samples: Sequence[Sample | BadImage],
        fields: tuple[Field, ...] = (IMAGE, LABEL),
        *,
        info: Info | None = None,
    ) -> None:
        self.samples = samples
        self.fields = fields
        self.info: Info = info or {}

    def refs(self) -> Iterator[Ref]:
        yield from range(len(self.samples))

    def load(self, ref: Ref) -> Sample:
        sample = self.samples[int(str(ref))]
        if isinstance(sample, BadImage):
            raise BadImage(sample.why, source=sample.source)
        return sample


class Streamed:
    """A stream of samples: one order, readable once."""

    name = "streamed"

    def __init__(
        self, samples: Iterable[Sample | BadImage], fields: tuple[Field, ...] = (IMAGE, LABEL)
    ) -> None:
        self.samples = samples
        self.fields = fields
        self.info: Info = {}
        self.n_samples = None

    def __iter__(self) -> Iterator[Sample | BadImage]:
        return iter(self.samples)


def make_source(
    given: Sequence[Sample | BadImage], fields: tuple[Field, ...], *, stream: bool
) -> AnySource:
    """Returns the same samples as a stream or as a listed source."""
    return Streamed(given, fields) if stream else Listed(given, fields)


def pixels(
    width: int, height: int, *, seed: int = 0, gray: bool = False, grain: int = 8
) -> NDArray[np.uint8]:
    """Returns smooth noise, (H, W, 3) or (H, W). A smaller grain gives larger JPEGs."""
    rng = np.random.default_rng(seed)
    small = rng.integers(
        0,
        256,
        (-(-height // grain) + 1, -(-width // grain) + 1) + (() if gray else (3,)),
        dtype=np.uint8,
    )
    return np.asarray(Image.fromarray(small).resize((width, height), Image.Resampling.BILINEAR))


def file_of(array: NDArray[Any], kind: str = "JPEG", **options: Any) -> bytes:
    """Returns an image file of these pixels."""
    out = io.BytesIO()
    Image.fromarray(array).save(out, kind, **options)
    return out.getvalue()


def image_sample(data: bytes | NDArray[np.generic], name: str = "a.jpg", **values: Any) -> Sample:
    """Returns a sample with one image, given as a file or as pixels, and other values."""
    return Sample(
        {"image": Encoded(data, name) if isinstance(data, bytes) else data, **values}, source=name
    )


def samples(
    count: int,
    *,
    size: int = 32,
    extra_bytes: int = 0,
    labels: Callable[[int], int] = lambda i: i % 3,
) -> list[Sample | BadImage]:
    """Returns different JPEGs with a label.

    ``extra_bytes`` adds a field ``blob`` of random bytes, to fill shards quickly.
    """
    rng = np.random.default_rng(count)
    return [
        image_sample(
            file_of(pixels(size + i % 5, size, seed=i)),
            f"{i:04}.jpg",
            label=labels(i),
            **({"blob": rng.bytes(extra_bytes)} if extra_bytes else {}),
        )
        for i in range(count)
    ]


def class_folders(
    root: Path, *, per_class: int = 10, classes: Sequence[str] = LABEL.classes, size: int = 32
) -> Path:
    """Writes ROOT/ant/0000.jpg, ... and returns ROOT."""
    for number, name in enumerate(classes):
        (root / name).mkdir(parents=True)
        for i in range(per_class):
            (root / name / f"{i:04}.jpg").write_bytes(
                file_of(pixels(size + i % 3, size, seed=100 * number + i))
            )
    return root


def pack(
    source: AnySource | Path | Sequence[Sample | BadImage],
    dest: Path,
    *,
    name: str = "",
    on_progress: Callable[[PackProgress], None] | None = None,
    **options: Any,
) -> PackResult:
    """Packs a source, a folder of class folders, or a list of samples."""
    if isinstance(source, Path):
        source = FolderSource(source)
    elif isinstance(source, list):
        source = Listed(source)
    return Packer(source, dest, PackOptions(**options), name=name, on_progress=on_progress).run()  # type: ignore[arg-type]


def content(dest: Path) -> str:
    """Returns the SHA-256 over all keys and values of all shards, read directly with lmdb."""
    digest = hashlib.sha256()
    for shard in sorted(dest.glob("shard-*.lmdb")):
        with (
            lmdb.open(str(shard), subdir=False, readonly=True, lock=False, max_spare_txns=0) as env,
            env.begin() as transaction,
        ):
            for key, value in transaction.cursor():
                digest.update(key + value)
    return digest.hexdigest()


def tree(dest: Path) -> dict[str, str]:
    """Returns the SHA-256 of every file below a folder, including hidden files."""
    return {
        str(path.relative_to(dest)): "folder"
        if path.is_dir()
        else hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(dest.rglob("*"))
    }


def log_of(dest: Path) -> list[dict[str, str]]:
    """Returns the lines of pack-log.jsonl."""
    return [json.loads(line) for line in (dest / "pack-log.jsonl").read_text().splitlines()]


def _cmyk_jpeg() -> bytes:
    out = io.BytesIO()
    Image.fromarray(np.full((16, 16, 4), 90, np.uint8), "CMYK").save(out, "JPEG")
    return out.getvalue()


CONVERTED_JPEG = _cmyk_jpeg()
