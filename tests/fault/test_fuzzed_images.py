"""T6, T8: damaged and hostile images, in a child that is watched: no signal, no hang, bounded memory, the next good image right."""

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
from tests.jpeg_samples import encode, picture

pytestmark = pytest.mark.skipif(core() is None, reason="not run: no native core")
ROOT = Path(__file__).resolve().parents[2]
LONG = os.environ.get("FASTLOAD_LONG") == "1"
HANG_S = 60  # a file takes milliseconds; a busy machine is no hang
MAX_PEAK_MB = 1024
Verdict = dict[str, Any]


class Watched:
    """A child (decode_child.py) that decodes the files it is told; started again where one of them ends it."""

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

    def verdict(self, name: str, data: bytes) -> Verdict | None:
        """What became of one file; None if it took the child with it."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(len(data).to_bytes(8, "little") + data)
        self.process.stdin.flush()
        line = self.process.stdout.readline() if self.ready.select(HANG_S) else b""
        if line:
            found: Verdict = json.loads(line)
            return found
        hung = self.process.poll() is None and not self.ready.select(0)
        self.close()
        self.deaths.append(
            f"{name}: {'hangs' if hung else f'ends the process ({self.process.returncode})'}"
        )
        self._start()
        return None

    def close(self) -> None:
        self.process.kill()
        self.process.communicate()
        self.ready.close()


@contextlib.contextmanager
def watched() -> Iterator[Watched]:
    child = Watched()
    try:
        yield child
    finally:
        child.close()


def examine(files: Sequence[tuple[str, bytes]]) -> list[Verdict]:
    """Every file through the child; fails the test where one does harm."""
    with watched() as child:
        verdicts = [(name, child.verdict(name, data)) for name, data in files]
        assert not child.deaths
    good = [verdict for _, verdict in verdicts if verdict]
    wrong = [name for name, verdict in verdicts if verdict and not verdict["next_is_right"]]
    assert not wrong, f"the good image behind these was not right: {wrong[:5]}"
    strange = [
        (name, verdict)
        for name, verdict in verdicts
        if verdict and set(verdict["status"]) - {Status.OK, Status.BAD_IMAGE}
    ]
    assert not strange
    assert max(verdict["peak_mb"] for verdict in good) < MAX_PEAK_MB
    return good


def test_odd_images_do_no_harm() -> None:
    files = [
        (path.name, path.read_bytes())
        for path in sorted((corpus_dir() / "odd").rglob("*"))
        if path.is_file()
    ]
    assert len(files) > 1900
    kinds = Counter(verdict["status"][0] for verdict in examine(files))
    assert kinds[Status.OK] > 10  # rare, but legal
    assert kinds[Status.BAD_IMAGE] > 1000


def test_odd_images_meet_the_same_verdict_in_the_reference() -> None:
    from tests.decoding import native, reference, run

    files = [path for path in sorted((corpus_dir() / "odd").rglob("*")) if path.is_file()]
    data = [path.read_bytes() for path in files]
    ours, theirs = (run(backend(), data, (16, 12)).status for backend in (native, reference))
    differ = {
        path.name for path, own, other in zip(files, ours, theirs, strict=True) if own != other
    }
    # simplejpeg's library does not read the first kind at all (4:1:0 and other factors without a name of their own).
    assert all(
        run(native(), [path.read_bytes()], (16, 12)).ok for path in files if path.name in differ
    )
    assert len(differ) < len(files) / 200


def test_verdicts_do_not_depend_on_what_was_decoded_before() -> None:
    files = [
        (path.name, path.read_bytes())
        for path in sorted((corpus_dir() / "odd").rglob("*"))
        if path.is_file()
    ][::17]
    forth, back = examine(files), examine(files[::-1])[::-1]
    assert [verdict["status"] for verdict in forth] == [verdict["status"] for verdict in back]
    assert [verdict["crc"] for verdict in forth] == [verdict["crc"] for verdict in back]


def mutated(data: bytes, other: bytes, random: np.random.Generator) -> bytes:
    """One way of damage: a bit, a byte, 4 KiB of zeros, bytes more, bytes less, two files in one."""
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


def test_damaged_photos_do_no_harm() -> None:
    random = np.random.default_rng(8)
    intact = [path.read_bytes() for path in photos(40)]
    files = [
        (f"mutation {i}", mutated(intact[i % len(intact)], intact[i * 7 % len(intact)], random))
        for i in range(5000 if LONG else 400)
    ]
    kinds = Counter(verdict["status"][0] for verdict in examine(files))
    assert kinds[Status.BAD_IMAGE] > len(files) // 10


def test_every_damaged_record_is_detected() -> None:
    from tests.decoding import native, record, run

    random = np.random.default_rng(9)
    jpeg = encode(picture(160, 120), "420")
    intact, offset = record(jpeg)
    sources = [mutated(intact, intact[::-1], random) for _ in range(5000 if LONG else 600)]
    sources = [source for source in sources if source != intact]
    result = run(native(), sources, (32, 24), offset=offset, size=len(jpeg), check=1)
    assert set(result.status.tolist()) == {int(Status.CORRUPT)}
    run(native(), [intact], (32, 24), offset=offset, size=len(jpeg), check=1).raise_first()


def test_bombs_are_refused_before_memory_is_taken() -> None:
    """Headers of huge images on tiny bodies; limits come from the header alone."""
    jpeg = encode(picture(16, 16), "444")
    at = jpeg.index(b"\xff\xc0") + 5
    sizes = [(65535, 65535), (16385, 16), (16, 16385), (16000, 16000), (8000, 7999), (2000, 2000)]
    files = [
        jpeg[:at] + height.to_bytes(2, "big") + width.to_bytes(2, "big") + jpeg[at + 4 :]
        for width, height in sizes
    ]
    verdicts = examine([(str(size), data) for size, data in zip(sizes, files, strict=True)])
    assert all(verdict["status"] == [Status.BAD_IMAGE] * 3 for verdict in verdicts)
    assert (
        max(verdict["peak_mb"] for verdict in verdicts)
        - min(verdict["peak_mb"] for verdict in verdicts)
        < 4
    )


def test_memory_stays_flat() -> None:
    """100,000 decodes with FASTLOAD_LONG=1; good and bad images, all paths: anonymous memory, files and threads."""
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
