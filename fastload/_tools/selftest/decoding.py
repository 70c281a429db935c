"""The material of the self-test: generated JPEGs, batches of them, and loaders."""

from __future__ import annotations

import functools
import io
import shutil
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import simplejpeg
import torch
from numpy.typing import NDArray
from PIL import Image

import fastload
from fastload import transforms
from fastload._common.native import core
from fastload._decode.backend import (
    Codec,
    DecodeBackend,
    DecodeBatch,
    DecodeResult,
    PixelFormat,
    new_requests,
)
from fastload._decode.gpu.staging import StreamCutter
from fastload._decode.registry import default_cpu_backend, find_backend
from fastload._store.record import JPEG
from fastload._tools.scenes.photo import photo

Pixels = NDArray[np.uint8]
_QUALITY = 90
PixelArray = NDArray[np.int16]  # pixel values with a sign, for differences
MOST_SAMPLES = 2_000  # of the dataset that the user passes
Epoch = dict[int, torch.Tensor]


@dataclass(frozen=True, slots=True)
class Task:
    """The input of a stage."""

    backend: str
    device: str
    dataset: Path  # the user's packed dataset, or the generated one
    generated: Path  # generated packed dataset, which a stage may copy and damage
    folder: Path  # for files of this stage


@dataclass(frozen=True, slots=True)
class JpegFile:
    kind: str
    data: bytes
    width: int
    height: int


@functools.cache
def generated() -> tuple[JpegFile, ...]:
    """All subsamplings, odd sizes, sides of one pixel, restart markers, progressive, CMYK."""
    found = [_plain(kind, 231, 173) for kind in ("444", "422", "420", "440", "411", "gray")]
    found += [
        _plain(kind, width, height)
        for kind in ("420", "444")
        for width, height in ((1, 1), (1, 40), (41, 1), (17, 9))
    ]
    found += [
        _by_pillow("progressive", 200, 150, progressive=True),
        _by_pillow("restart markers", 200, 151, restart_marker_rows=1),
        _by_pillow("CMYK", 160, 120, mode="CMYK"),
    ]
    return (*found, *_packed(found[:6]))


@functools.cache
def photographs(count: int, width: int = 320, height: int = 240) -> tuple[JpegFile, ...]:
    """Ordinary images, alternating 4:2:0 and 4:4:4."""
    return tuple(
        _encoded(("420", "444")[i % 2], _pixels(width + 16 * (i % 5), height + 8 * (i % 3), i))
        for i in range(count)
    )


def _packed(images: list[JpegFile]) -> list[JpegFile]:
    """Rewritten like `fastload pack` does: restart markers and optimized Huffman tables."""
    module = core()
    if module is None:
        return []
    return [
        JpegFile(f"packed {each.kind}", module.rewrite(each.data).jpeg, each.width, each.height)
        for each in images
    ]


def _plain(kind: str, width: int, height: int) -> JpegFile:
    size = "" if min(width, height) > 100 else f" {width}x{height}"
    return replace(_encoded(kind, _pixels(width, height)), kind=kind + size)


def _encoded(kind: str, pixels: Pixels) -> JpegFile:
    height, width = pixels.shape[:2]
    gray = kind == "gray"
    data = simplejpeg.encode_jpeg(
        np.ascontiguousarray(pixels[:, :, :1]) if gray else pixels,
        _QUALITY,
        "GRAY" if gray else "RGB",
        kind,
    )
    return JpegFile(kind, bytes(data), width, height)


def _by_pillow(
    kind: str, width: int, height: int, *, mode: str = "RGB", **options: object
) -> JpegFile:
    file = io.BytesIO()
    Image.fromarray(_pixels(width, height)).convert(mode).save(
        file, "JPEG", quality=_QUALITY, **options
    )
    return JpegFile(kind, file.getvalue(), width, height)


@functools.cache
def _large(seed: int) -> Pixels:
    return np.asarray(photo(np.random.default_rng([seed, 1]), 400, 300))


def _pixels(width: int, height: int, seed: int = 0) -> Pixels:
    return np.ascontiguousarray(_large(seed)[:height, :width])


@dataclass(frozen=True, slots=True)
class Decoded:
    """A decoded batch: the pixels (h, w, 3) of each image, or None and a reason."""

    images: list[PixelArray | None]
    reasons: dict[int, str]
    n_here: int  # images that the GPU library decodes itself; the CPU decodes the others


def open_backend(
    name: str, device: str, *, hardware: bool = False, threads: int = 2
) -> DecodeBackend:
    return find_backend(name).make(threads=threads, device=device, hardware=hardware)


def cpu_backend() -> DecodeBackend:
    """The backend that the others are compared with."""
    return default_cpu_backend().make(threads=1)


def run(
    backend: DecodeBackend,
    sources: Sequence[bytes],
    canvas: tuple[int, int],
    *,
    pixels: PixelFormat | None = None,
    **request: Any,
) -> DecodeResult:
    """Decodes ``sources`` to a uint8 tensor on the device of the backend.

    ``canvas`` is the (width, height) of every slot. Keywords are columns of the requests.
    """
    requests = new_requests(len(sources))
    requests["exact"] = 1
    requests["out_w"], requests["out_h"] = canvas
    for name, values in request.items():
        requests[name] = values
    pixels = pixels or PixelFormat(fill=7)
    channels = {"gray": 1, "stored": 2}.get(pixels.color, 3)
    output = torch.zeros(
        (len(sources), canvas[1], canvas[0], channels), dtype=torch.uint8, device=backend.device
    )
    return backend.collect(backend.submit(DecodeBatch(sources, requests, output, pixels)))


def decode(backend: DecodeBackend, images: Sequence[JpegFile]) -> Decoded:
    """Decodes whole images at their own size, each in the corner of a slot of the largest size."""
    sizes = [(each.width, each.height) for each in images]
    canvas = (max(w for w, _ in sizes), max(h for _, h in sizes))
    data = [each.data for each in images]
    result = run(backend, data, canvas, out_w=[w for w, _ in sizes], out_h=[h for _, h in sizes])
    values = pixel_values(result)
    found = [
        None if slot in result.reasons else values[slot, :h, :w]
        for slot, (w, h) in enumerate(sizes)
    ]
    return Decoded(found, dict(result.reasons), _served(data))


def pixel_values(result: DecodeResult) -> PixelArray:
    """The output in host memory, as signed integers."""
    return torch.as_tensor(result.output).cpu().numpy().astype(np.int16)


def raw_request(pixels: PixelArray) -> dict[str, Any]:
    """The columns of a request for raw pixels (h, w, 3)."""
    height, width, channels = pixels.shape
    return {
        "codec": Codec.RAW,
        "raw_w": width,
        "raw_h": height,
        "raw_channels": channels,
        "raw_bits": 8,
    }


def _served(data: Sequence[bytes]) -> int:
    """How many of the streams are passed to the GPU decoder."""
    requests = new_requests(len(data))
    requests["out_w"] = requests["out_h"] = 1
    cutter = StreamCutter(threads=1)
    try:
        return len(
            cutter.cut(DecodeBatch(data, requests, np.zeros((len(data), 1, 1, 3), np.uint8))).rows
        )
    finally:
        cutter.close()


def make_generated(folder: Path) -> Path:
    """Packs a dataset of generated images."""
    samples = [
        {"image": image.data, "label": i % 3} for i, image in enumerate(photographs(24, 200, 150))
    ]
    fastload.pack(samples, folder / "packed", fields={"image": "image", "label": "int"}, jobs=1)
    return folder / "packed"


def make_loader(
    task: Task,
    *,
    batch_size: int,
    dataset: Path | None = None,
    shuffle: bool = True,
    **options: Any,
) -> Any:
    """Loads random crops of 96 x 96 pixels and sample ids on the device of the task."""
    plan = [transforms.RandomResizedCrop(96), transforms.HorizontalFlip()]
    packed = fastload.open(dataset or task.dataset, split="all")
    image = next(field.name for field in packed.fields if field.kind.is_image)
    return fastload.DataLoader(
        packed,
        batch_size=batch_size,
        shuffle=shuffle,
        seed=11,
        transform=plan,
        fields=(image, "id"),
        num_workers=2,
        backend=task.backend,
        device=None if task.device == "cpu" else task.device,
        **options,
    )


def epoch(loader: Any) -> Epoch:
    """Maps sample ids to pixels in host memory, for at most about ``MOST_SAMPLES`` samples."""
    found: Epoch = {}
    for batch in loader:
        found |= samples(batch)
        if len(found) >= MOST_SAMPLES:
            break
    loader.close()
    return found


def samples(batch: Any) -> Epoch:
    """Maps the sample ids of one batch to pixels."""
    (name,) = (each for each in batch if each != "id")
    pixels = batch[name].cpu()
    return {int(number): pixels[place].clone() for place, number in enumerate(batch["id"].tolist())}


def resumed(task: Task, *, batch_size: int, after: int) -> Epoch:
    """One epoch from two loaders: the second resumes after ``after`` batches of the first."""
    first = make_loader(task, batch_size=batch_size)
    found: Epoch = {}
    for count, batch in enumerate(first, 1):
        found |= samples(batch)
        if count == after:
            state = first.state_dict()
            break
    first.close()
    second = make_loader(task, batch_size=batch_size)
    second.load_state_dict(state)
    return found | epoch(second)


def damaged_copy(task: Task) -> tuple[Path, list[int]]:
    """Copies the generated dataset and changes one byte in the images of three samples.

    They are in the first, a middle and the last batch of four. Returns the copy and the ids.
    """
    copy = task.folder / "damaged"
    shutil.copytree(task.generated, copy)
    packed = fastload.open(copy)
    order = packed.column("_source_index").argsort(kind="stable")
    bad = sorted(int(order[place]) for place in (1, len(packed) // 2 + 1, len(packed) - 2))
    pieces = []
    for number in bad:
        part = next(each for each in packed.parts(number) if each.codec == JPEG)
        middle = len(part.data) // 2
        pieces.append((Path(packed.reader(number).path), bytes(part.data[middle : middle + 64])))
    del packed, part
    for path, piece in pieces:
        data = bytearray(path.read_bytes())
        data[data.index(piece) + 32] ^= 0x55
        path.write_bytes(data)
    return copy, bad
