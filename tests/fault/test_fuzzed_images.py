"""Damaged and hostile images cause no crash, hang or excessive memory."""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fastload._common.native import core
from fastload._decode.backend import Status
from tests.corpus import corpus_dir, photos
from tests.jpeg_samples import encode, sample_image

pytestmark = pytest.mark.skipif(core() is None, reason="not run: no native core")
ROOT = Path(__file__).resolve().parents[2]
LONG = os.environ.get("FASTLOAD_LONG") == "1"
HANG_S = 600  # a file takes milliseconds; a busy machine must not count as a hang
MAX_PEAK_MB = 1024
Result = dict[str, Any]


class DecodeChild:
    """A child process that decodes files. It is restarted after a crash or a hang."""

    def __init__(self) -> None:
        self.deaths: list[str] = []
        self._start()

    def _start(self) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-X", "faulthandler", "-m", "tests.fault.decode_child"],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        self.ready = selectors.DefaultSelector()
        assert self.process.stdout is not None
        self.ready.register(self.process.stdout, selectors.EVENT_READ)

    def decode_result(self, name: str, data: bytes) -> Result | None:
        """Decodes one file; None if the child crashed or hung."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(len(data).to_bytes(8, "little") + data)
        self.process.stdin.flush()
        line = self.process.stdout.readline() if self.ready.select(HANG_S) else b""
        if line:
            found: Result = json.loads(line)
            return found
        hung = self.process.poll() is None and not self.ready.select(0)
        self.close()
        self.deaths.append(
            f"{name}: {'hangs' if hung else f'kills the process ({self.process.returncode})'}"
        )
        self._start()
        return None

    def close(self) -> None:
        self.process.kill()
        self.process.communicate()
        self.ready.close()


@contextlib.contextmanager
def decode_child() -> Iterator[DecodeChild]:
    child = DecodeChild()
    try:
        yield child
    finally:
        child.close()


def examine(files: Sequence[tuple[str, bytes]]) -> list[Result]:
    """Decodes every file in a child; fails the test if a file causes harm."""
    with decode_child() as child:
        results = [(name, child.decode_result(name, data)) for name, data in files]
        assert not child.deaths
    good = [decode_result for _, decode_result in results if decode_result]
    wrong = [
        name
        for name, decode_result in results
        if decode_result and not decode_result["next_is_correct"]
    ]
    assert not wrong, f"the good image after these was wrong: {wrong[:5]}"
    strange = [
        (name, decode_result)
        for name, decode_result in results
        if decode_result and set(decode_result["status"]) - {Status.OK, Status.BAD_IMAGE}
    ]
    assert not strange
    assert max(decode_result["peak_mb"] for decode_result in good) < MAX_PEAK_MB
    return good


def test_odd_images_neither_crash_nor_hang() -> None:
    files = [
        (path.name, path.read_bytes())
        for path in sorted((corpus_dir() / "odd").rglob("*"))
        if path.is_file()
    ]
    assert len(files) > 1900
    kinds = Counter(decode_result["status"][0] for decode_result in examine(files))
    assert kinds[Status.OK] > 10  # rare, but legal
    assert kinds[Status.BAD_IMAGE] > 1000


def test_odd_images_have_the_same_status_in_the_reference_backend() -> None:
    from tests.decoding import native, reference, run

    files = [path for path in sorted((corpus_dir() / "odd").rglob("*")) if path.is_file()]
    data = [path.read_bytes() for path in files]
    native_status, reference_status = (
        run(backend(), data, (16, 12)).status for backend in (native, reference)
    )
    differ = {
        path.name
        for path, one, other in zip(files, native_status, reference_status, strict=True)
        if one != other
    }
    # simplejpeg cannot read sampling factors without a name, such as 4:1:0.
    assert all(
        run(native(), [path.read_bytes()], (16, 12)).ok for path in files if path.name in differ
    )
    assert len(differ) < len(files) / 200


def test_results_do_not_depend_on_previous_images() -> None:
    files = [
        (path.name, path.read_bytes())
        for path in sorted((corpus_dir() / "odd").rglob("*"))
        if path.is_file()
    ][::17]
    forth, back = examine(files), examine(files[::-1])[::-1]
    assert [decode_result["status"] for decode_result in forth] == [
        decode_result["status"] for decode_result in back
    ]
    assert [decode_result["crc"] for decode_result in forth] == [
        decode_result["crc"] for decode_result in back
    ]


def mutate(data: bytes, other: bytes, random: np.random.Generator) -> bytes:
    """Changes a bit, a byte or 4 KiB, or inserts, deletes or splices bytes."""
    changed, at = bytearray(data), int(random.integers(2, len(data)))
    kind = int(random.integers(6))
    if kind == 0:
        changed[at] ^= 1 << int(random.integers(8))
    elif kind == 1:
        changed[at] = int(random.integers(256))
    elif kind == 2:
        changed[at : at + 4096] = bytes(min(4096, len(data) - at))
    elif kind == 3:
        changed[at:at] = random.bytes(int(random.integers(1, 64)))
    elif kind == 4:
        del changed[at : at + int(random.integers(1, 4096))]
    else:
        changed[at:] = other[int(random.integers(len(other))) :]
    return bytes(changed)


def test_damaged_photos_neither_crash_nor_hang() -> None:
    random = np.random.default_rng(8)
    intact = [path.read_bytes() for path in photos(40)]
    files = [
        (f"mutation {i}", mutate(intact[i % len(intact)], intact[i * 7 % len(intact)], random))
        for i in range(5000 if LONG else 400)
    ]
    kinds = Counter(decode_result["status"][0] for decode_result in examine(files))
    assert kinds[Status.BAD_IMAGE] > len(files) // 10


def test_every_damaged_record_is_detected() -> None:
    from tests.decoding import native, record, run

    random = np.random.default_rng(9)
    jpeg = encode(sample_image(160, 120), "420")
    intact, offset = record(jpeg)
    sources = [mutate(intact, intact[::-1], random) for _ in range(5000 if LONG else 600)]
    sources = [source for source in sources if source != intact]
    result = run(native(), sources, (32, 24), offset=offset, size=len(jpeg), check=1)
    assert set(result.status.tolist()) == {int(Status.CORRUPT)}
    run(native(), [intact], (32, 24), offset=offset, size=len(jpeg), check=1).raise_first()


def test_decompression_bombs_raise_before_memory_is_allocated() -> None:
    """Tiny files with the headers of huge images: the header alone decides."""
    jpeg = encode(sample_image(16, 16), "444")
    at = jpeg.index(b"\xff\xc0") + 5
    sizes = [(65535, 65535), (16385, 16), (16, 16385), (16000, 16000), (8000, 7999), (2000, 2000)]
    files = [
        jpeg[:at] + height.to_bytes(2, "big") + width.to_bytes(2, "big") + jpeg[at + 4 :]
        for width, height in sizes
    ]
    results = examine([(str(size), data) for size, data in zip(sizes, files, strict=True)])
    assert all(decode_result["status"] == [Status.BAD_IMAGE] * 3 for decode_result in results)
    assert (
        max(decode_result["peak_mb"] for decode_result in results)
        - min(decode_result["peak_mb"] for decode_result in results)
        < 4
    )


def test_memory_stays_flat() -> None:
    """Anonymous memory, files and threads stay constant over good and bad images.

    FASTLOAD_LONG=1 decodes 100,000 images.
    """
    rounds = 100_000 if LONG else 8_000
    command = [sys.executable, "-m", "tests.fault.decode_child", "--many", str(rounds)]
    done = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, timeout=7200, check=True
    )
    samples = json.loads(done.stdout)
    after_warm_up = [sample["anonymous_kb"] for sample in samples[len(samples) // 10 :]]
    slope = (
        float(np.polyfit(np.linspace(0, 0.9 * rounds, len(after_warm_up)), after_warm_up, 1)[0])
        * 1024
    )
    assert slope < (16 if LONG else 64), (
        f"{slope:.1f} bytes per decode: {after_warm_up[:3]} ... {after_warm_up[-3:]} kB"
    )
    assert len({sample["threads"] for sample in samples[1:]}) == 1
    assert len({sample["files"] for sample in samples[1:]}) == 1
