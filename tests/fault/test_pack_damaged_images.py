"""T6 and T8 on the packing side: fuzzed and mutated images are skipped by name or packed right, in bounded time and memory.

Each pack runs in a watched child with a limit on its address space. It must come to its end by itself: no signal, no hang, no
exception but the BadImage that skips one sample. What it accepted must decode to the pixels that a strict decoder finds in the
original, and the good images in between must be right.
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
PEAK_KB = 1 << 20  # resident, files mapped included
RARE = ("410", "2x2,2x2,1x1")  # in the corpus: samplings that simplejpeg does not know
STUCK_S = 20  # without one sample coming out


@functools.cache
def odd_files() -> list[Path]:
    return sorted(
        path
        for path in (corpus_dir() / "odd").rglob("*")
        if path.is_file() and path.suffix in (".jpg", ".jpeg")
    )


@functools.cache
def victims() -> list[bytes]:
    """The smaller photographs: 1,500 mutations are to be decoded several times over."""
    return sorted((path.read_bytes() for path in photos()), key=len)[10:50]


@functools.cache
def other_victims() -> list[bytes]:
    """Files of the other formats, and JPEGs that Pillow converts."""
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


def one_bit(data: bytearray, rng: random.Random, _: bytes) -> None:
    data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)


def one_byte(data: bytearray, rng: random.Random, _: bytes) -> None:
    data[rng.randrange(len(data))] = rng.randrange(256)


def zeros(data: bytearray, rng: random.Random, _: bytes) -> None:
    at = rng.randrange(len(data))
    data[at : at + 4096] = bytes(len(data[at : at + 4096]))


def inserted(data: bytearray, rng: random.Random, _: bytes) -> None:
    at = rng.randrange(len(data))
    data[at:at] = rng.randbytes(rng.choice((1, 2, 16, 1000)))


def deleted(data: bytearray, rng: random.Random, _: bytes) -> None:
    at = rng.randrange(len(data))
    del data[at : at + rng.choice((1, 2, 16, 1000))]


def spliced(data: bytearray, rng: random.Random, other: bytes) -> None:
    data[rng.randrange(len(data)) :] = other[rng.randrange(len(other)) :]


MUTATIONS: tuple[Callable[[bytearray, random.Random, bytes], None], ...] = (
    one_bit,
    one_byte,
    zeros,
    inserted,
    deleted,
    spliced,
)


def mutated(files: list[bytes], number: int) -> bytes:
    """The ``number``-th mutation: the same in every process."""
    rng = random.Random(f"{SEED} {number}")
    data = bytearray(rng.choice(files))
    MUTATIONS[number % len(MUTATIONS)](data, rng, rng.choice(files))
    return bytes(data)


def bytes_of(name: str) -> bytes:
    """What is packed under a name."""
    kind, _, number = name.partition(" ")
    if kind == "odd":
        return odd_files()[int(number)].read_bytes()
    if kind == "good":
        return victims()[int(number) % len(victims())]
    return mutated(victims() if kind == "photo" else other_victims(), int(number))


def names_of(which: str) -> list[str]:
    """All damaged ones of a kind, and a good one after every 25."""
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


class Damaged(Listed):
    """Makes each file when it is asked for."""

    def __init__(self, names: list[str]) -> None:
        super().__init__([], (IMAGE,))
        self.names = names

    def refs(self) -> Iterator[Ref]:
        yield from self.names

    def load(self, ref: Ref) -> Sample:
        os.write(1, f"{ref}\n".encode())  # so that a crash has a name
        return Sample({"image": Encoded(bytes_of(str(ref)), str(ref))}, source=str(ref))


def pack_in_child(which: str, dest: str) -> None:
    resource.setrlimit(resource.RLIMIT_AS, (ADDRESS_SPACE, ADDRESS_SPACE))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    faulthandler.enable()

    def alive(_: object) -> None:
        faulthandler.dump_traceback_later(STUCK_S, exit=True)

    Packer(
        Damaged(names_of(which)),
        Path(dest),
        PackOptions(on_error="skip", jobs=2),
        on_progress=alive,
    ).run()
    faulthandler.cancel_dump_traceback_later()
    print(json.dumps({"peak_kb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss}))


def expected_pixels(data: bytes) -> NDArray[np.uint8] | None:
    """What a strict decoder sees in the original, upright; None where it finds damage. Pillow for what only Pillow reads."""
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
            if header.ordinary:  # for the colours of CMYK ask Pillow
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
    """Runs in a child as well: the references must not take the test down either."""
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
    """With the native core and without it."""
    corpus_dir()
    if request.param == "on":
        pytest.importorskip("fastload._core", reason="not run: no native core")
    with Zygote(
        tmp_path_factory.mktemp("logs"),
        ("tests.fault.test_pack_damaged_images", "PIL.TiffImagePlugin", "PIL.WebPImagePlugin"),
        FASTLOAD_NATIVE=str(request.param),
    ) as process:
        for function in (victims, other_victims, odd_files):
            process.warm(function)
        process.name = str(request.param)
        yield process


@pytest.mark.parametrize("which", ["odd", "photo", "other"])
def test_damaged_images_are_skipped_by_name_or_packed_right(
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
    found: dict[str, Any] = json.loads(
        checked.output.splitlines()[-1]
    )  # libtiff may have said something before
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
    assert len(skipped) > len(names) / 10  # the files are damaged indeed
    assert len(found["accepted"]) > len(names) / 30
