"""Fuzzed and mutate images are skipped by name or packed correctly, in bounded time and memory.

Each pack run is a watched child with limited address space. It must end without a signal or a hang,
and only BadImage may skip a sample. Accepted images must decode to the pixels that a strict decoder
finds in the original, and the good images in between must be correct.
"""

from __future__ import annotations

import faulthandler
import functools
import io
import json
import os
import random
import resource
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import simplejpeg
from numpy.typing import NDArray
from PIL import Image

from fastload._pack.options import PackOptions
from fastload._pack.packer import Packer
from fastload._pack.sources.base import Encoded, Ref, Sample
from fastload._store.dataset import open_dataset
from fastload._store.jpeg_header import parse_markers
from fastload._store.pixels import upright
from tests.corpus import corpus_dir, photos
from tests.forking import Zygote
from tests.packing import IMAGE, Listed, file_of, log_of, pixels

LONG = os.environ.get("FASTLOAD_LONG") == "1"
SEED = int(os.environ.get("FASTLOAD_SEED", "1"))
N_MUTATIONS = 5000 if LONG else 1500
ADDRESS_SPACE = 2 << 30
PEAK_KB = 1 << 20  # resident memory, including mapped files
RARE = ("410", "2x2,2x2,1x1")  # samplings in the corpus that simplejpeg cannot read
STUCK_S = 300  # longest time without a sample


@functools.cache
def odd_files() -> list[Path]:
    return sorted(
        path
        for path in (corpus_dir() / "odd").rglob("*")
        if path.is_file() and path.suffix in (".jpg", ".jpeg")
    )


@functools.cache
def photos_to_mutate() -> list[bytes]:
    """Small photographs, because 1,500 mutations are decoded several times."""
    return sorted((path.read_bytes() for path in photos()), key=len)[10:50]


@functools.cache
def other_files_to_mutate() -> list[bytes]:
    """Files of other formats, and JPEGs that Pillow converts."""
    rgb, gray = pixels(70, 50, grain=3), pixels(70, 50, gray=True, grain=3)
    exif = Image.Exif()
    exif[0x0112] = 6
    cmyk = io.BytesIO()
    Image.fromarray(np.dstack([rgb, gray]), "CMYK").save(cmyk, "JPEG")
    return [
        file_of(rgb, "PNG", exif=exif),
        file_of(gray, "PNG"),
        file_of(rgb, "WEBP", exif=exif),
        file_of(rgb, "WEBP", lossless=True),
        file_of(rgb, "BMP"),
        file_of(rgb, "TIFF", exif=exif),
        file_of(rgb, "TIFF", compression="tiff_lzw"),
        file_of(gray, "TIFF", compression="tiff_adobe_deflate"),
        file_of(gray, "GIF"),
        file_of(rgb, "PPM"),
        cmyk.getvalue(),
        file_of(rgb, progressive=True, exif=exif, restart_marker_blocks=2),
    ]


def flip_bit(data: bytearray, rng: random.Random, _: bytes) -> None:
    data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)


def change_byte(data: bytearray, rng: random.Random, _: bytes) -> None:
    data[rng.randrange(len(data))] = rng.randrange(256)


def zero_block(data: bytearray, rng: random.Random, _: bytes) -> None:
    at = rng.randrange(len(data))
    data[at : at + 4096] = bytes(len(data[at : at + 4096]))


def insert(data: bytearray, rng: random.Random, _: bytes) -> None:
    at = rng.randrange(len(data))
    data[at:at] = rng.randbytes(rng.choice((1, 2, 16, 1000)))


def delete(data: bytearray, rng: random.Random, _: bytes) -> None:
    at = rng.randrange(len(data))
    del data[at : at + rng.choice((1, 2, 16, 1000))]


def splice(data: bytearray, rng: random.Random, other: bytes) -> None:
    data[rng.randrange(len(data)) :] = other[rng.randrange(len(other)) :]


MUTATIONS: tuple[Callable[[bytearray, random.Random, bytes], None], ...] = (
    flip_bit,
    change_byte,
    zero_block,
    insert,
    delete,
    splice,
)


def mutate(files: list[bytes], number: int) -> bytes:
    """Returns mutation ``number``, which is the same in every process."""
    rng = random.Random(f"{SEED} {number}")
    data = bytearray(rng.choice(files))
    MUTATIONS[number % len(MUTATIONS)](data, rng, rng.choice(files))
    return bytes(data)


def bytes_of(name: str) -> bytes:
    """Returns the file that is packed under a name."""
    kind, _, number = name.partition(" ")
    if kind == "odd":
        return odd_files()[int(number)].read_bytes()
    if kind == "good":
        return photos_to_mutate()[int(number) % len(photos_to_mutate())]
    return mutate(photos_to_mutate() if kind == "photo" else other_files_to_mutate(), int(number))


def names_of(which: str) -> list[str]:
    """Returns the names of all damaged files of a kind, with a good one after every 25."""
    every = 7 if which.endswith("/7") else 1
    kinds = {"odd": len(odd_files()), "photo": N_MUTATIONS, "other": N_MUTATIONS // 2}
    names = [
        f"{which.partition('/')[0]} {i}" for i in range(0, kinds[which.partition("/")[0]], every)
    ]
    return [
        each
        for i, name in enumerate(names)
        for each in ([name, f"good {i}"] if i % 25 == 24 else [name])
    ]


class DamagedSource(Listed):
    """Creates each file on request."""

    def __init__(self, names: list[str]) -> None:
        super().__init__([], (IMAGE,))
        self.names = names

    def refs(self) -> Iterator[Ref]:
        yield from self.names

    def load(self, ref: Ref) -> Sample:
        os.write(1, f"{ref}\n".encode())  # names the file that causes a crash
        return Sample({"image": Encoded(bytes_of(str(ref)), str(ref))}, source=str(ref))


def pack_in_child(which: str, dest: str) -> None:
    resource.setrlimit(resource.RLIMIT_AS, (ADDRESS_SPACE, ADDRESS_SPACE))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    faulthandler.enable()

    def restart_watchdog(_: object) -> None:
        faulthandler.dump_traceback_later(STUCK_S, exit=True)

    Packer(
        DamagedSource(names_of(which)),
        Path(dest),
        PackOptions(on_error="skip", jobs=2),
        on_progress=restart_watchdog,
    ).run()
    faulthandler.cancel_dump_traceback_later()
    print(json.dumps({"peak_kb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss}))


def expected_pixels(data: bytes) -> NDArray[np.uint8] | None:
    """Returns the upright pixels of a strict decoder, or None if it finds damage.

    Pillow decodes the formats that only Pillow reads.
    """
    if data[:2] == b"\xff\xd8":
        header = parse_markers(data)
        if header.subsampling not in RARE:
            try:
                found = simplejpeg.decode_jpeg(
                    data,
                    colorspace={1: "GRAY", 4: "CMYK"}.get(header.components, "RGB"),
                    strict=True,
                )
            except ValueError:
                return None
            if header.ordinary:  # Pillow converts CMYK colors
                return np.asarray(upright(found, header.orientation))
    with Image.open(io.BytesIO(data)) as image:
        image.load()
        orientation = image.getexif().get(0x0112, 1)
        if image.mode.startswith("I"):
            array = (np.asarray(image).astype(np.uint32) >> 8).astype(np.uint8)
        else:
            array = np.asarray(image.convert("L" if image.mode in ("1", "L", "LA") else "RGB"))
    return np.asarray(
        upright(
            array.reshape(*array.shape[:2], -1), orientation if isinstance(orientation, int) else 1
        )
    )


def assert_accepted(dest: str) -> None:
    """Checks accepted images, in a child because the reference decoders may crash."""
    import warnings

    warnings.simplefilter("ignore")
    dataset = open_dataset(dest)
    wrong, loose = [], []
    for i in range(len(dataset)):
        name = dataset.source(i)
        expected = expected_pixels(bytes_of(name))
        if expected is None:
            loose.append(name)
        elif not np.array_equal(dataset[i]["image"], expected):
            wrong.append(name)
    print(
        json.dumps(
            {
                "wrong": wrong,
                "loose": loose,
                "accepted": [dataset.source(i) for i in range(len(dataset))],
            }
        )
    )


@pytest.fixture(scope="module", params=["on", "off"])
def zygote(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Zygote]:
    """Runs with and without the native core."""
    corpus_dir()
    if request.param == "on":
        pytest.importorskip("fastload._core", reason="not run: no native core")
    with Zygote(
        tmp_path_factory.mktemp("logs"),
        ("tests.fault.test_pack_damaged_images", "PIL.TiffImagePlugin", "PIL.WebPImagePlugin"),
        FASTLOAD_NATIVE=str(request.param),
    ) as process:
        for function in (photos_to_mutate, other_files_to_mutate, odd_files):
            process.warm(function)
        process.name = str(request.param)
        yield process


@pytest.mark.parametrize("which", ["odd", "photo", "other"])
def test_damaged_images_are_skipped_by_name_or_packed_correctly(
    tmp_path: Path, zygote: Zygote, which: str
) -> None:
    which = which if LONG or zygote.name == "on" else f"{which}/7"
    names, dest = names_of(which), tmp_path / "packed"
    outcome = zygote.run(pack_in_child, which, str(dest), timeout_s=900)
    assert outcome.code == 0, outcome.output[-3000:]
    assert json.loads(outcome.output.splitlines()[-1])["peak_kb"] < PEAK_KB
    skipped = {line["source"]: line["why"] for line in log_of(dest) if line["event"] == "skipped"}
    checked = zygote.run(assert_accepted, str(dest), timeout_s=900)
    assert checked.code == 0, checked.output[-3000:]
    # libtiff may have printed other lines before.
    found: dict[str, Any] = json.loads(checked.output.splitlines()[-1])
    assert sorted([*skipped, *found["accepted"]]) == sorted(names)
    assert all(skipped.values())
    assert not [name for name in skipped if name.startswith("good")]
    assert found["wrong"] == []
    assert found["loose"] == []
    print(
        f"\n{which}, native core {zygote.name}, seed {SEED}: {len(found['accepted'])} accepted, {len(skipped)} skipped: "
        f"{Counter(why.split(':')[0][:40] for why in skipped.values()).most_common(8)}",
        file=sys.stderr,
    )
    assert len(skipped) > len(names) / 10  # the mutations have an effect
    assert len(found["accepted"]) > len(names) / 30
