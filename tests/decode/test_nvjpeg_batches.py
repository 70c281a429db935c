"""Batches of the nvJPEG backend: bad files, skipped images, order of calls, memory, fork."""

from __future__ import annotations

import gc
import os
import re
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fastload._decode.backend import Status
from fastload._decode.gpu import nvimgcodec
from fastload._decode.gpu import nvjpeg as module
from fastload._decode.gpu.nvimgcodec import (
    GROUP,
    PROBES,
    HostStream,
    address,
    has_pattern,
    write_pattern,
)
from tests.decoding import native, run
from tests.gpu_backends import needs_nvimgcodec, nvjpeg
from tests.jpeg_samples import encode, sample_image

JPEGS = [
    encode(sample_image(120 + 8 * i, 90 + 4 * i, i), ("420", "444", "gray")[i % 3])
    for i in range(6)
]


def new_backend() -> Any:
    needs_nvimgcodec()
    from fastload._decode.gpu.nvjpeg import NvjpegBackend

    return NvjpegBackend(threads=1)


def expected(sources: list[bytes], to: tuple[int, int] = (60, 45)) -> Any:
    return np.asarray(run(native(), sources, to, exact=1).output)


def test_the_native_core_reports_why_a_stream_cannot_be_decoded() -> None:
    """nvImageCodec returns None, and the native core reports the reason."""
    table = JPEGS[0].index(b"\xff\xc4")
    bogus = JPEGS[0][: table + 5] + b"\xff" * 16 + JPEGS[0][table + 21 :]
    found, wanted = (
        run(backend, [JPEGS[1], bogus, JPEGS[3]], (60, 45), exact=1)
        for backend in (nvjpeg(), native())
    )
    assert (
        found.status.tolist() == wanted.status.tolist() == [Status.OK, Status.BAD_IMAGE, Status.OK]
    )
    assert found.reasons == wanted.reasons
    assert np.array_equal(found.output, wanted.output)


def test_large_batches_are_decoded_in_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "CHUNK_BYTES", 2 * 120 * 90 * 3)
    assert np.array_equal(run(nvjpeg(), JPEGS, (60, 45), exact=1).output, expected(JPEGS))


def test_buffers_beyond_the_limit_are_freed(monkeypatch: pytest.MonkeyPatch) -> None:
    backend = new_backend()
    monkeypatch.setattr(nvimgcodec, "POOL_BYTES", 100_000)
    for _ in range(2):
        assert np.array_equal(run(backend, JPEGS, (60, 45), exact=1).output, expected(JPEGS))
        assert not backend._images._pool
    backend.close()


class Skipping:
    """A decoder that reports success for all images, but does not write one of them."""

    def __init__(self, decoder: Any, skipped: int) -> None:
        self.decoder, self.skipped = decoder, skipped

    def decode(self, streams: list[Any], *, images: list[Any] | None, **options: Any) -> list[Any]:
        if images is None:  # new memory with unknown content
            found = list(self.decoder.decode(streams, images=None, **options))
            HostStream().memory(address(found[self.skipped]), found[self.skipped].capacity).fill_(
                123
            )
            return found
        skipped = images[self.skipped]
        before = HostStream().memory(address(skipped), skipped.capacity).clone()
        found = list(self.decoder.decode(streams, images=images, **options))
        HostStream().memory(address(skipped), len(before)).copy_(before)
        return found


@pytest.mark.parametrize("skipped", [0, 3, 5])
def test_the_native_core_decodes_an_image_that_was_not_written(skipped: int) -> None:
    backend = new_backend()
    run(backend, JPEGS, (60, 45)).raise_first()  # creates buffers that contain these images
    others = [encode(sample_image(100, 80, 20 + i), "444") for i in range(6)]
    backend._images._decoder = Skipping(backend._images._decoder, skipped)
    assert np.array_equal(run(backend, others, (60, 45), exact=1).output, expected(others))
    backend._images._hardware = True  # also if buffers must be created first
    backend._images._pool.clear()
    assert np.array_equal(run(backend, JPEGS, (60, 45), exact=1).output, expected(JPEGS))
    backend.close()


def test_the_pattern_distinguishes_written_and_unwritten_buffers() -> None:
    spots = [
        torch.randint(0, 256, (n,), dtype=torch.uint8, generator=torch.manual_seed(n))
        for n in (1000, 200_000, 7)
    ]
    assert has_pattern(spots)[:2] == [False, False]
    write_pattern(spots)
    assert has_pattern(spots) == [True, True, True]
    spots[1][:100_000] = 5  # half of an image counts as unwritten
    assert has_pattern(spots)[1]
    spots[1][100_000:] = 5
    assert not has_pattern(spots)[1]
    assert PROBES % GROUP == 0
    assert has_pattern([]) == []


class RecordingStream(HostStream):
    """Records the order of calls and does the real work."""

    def __init__(self) -> None:
        self.calls: list[str] = []

    def mark(self) -> object:
        self.calls.append("mark")
        return "ready"

    @contextmanager
    def after(self, point: object) -> Iterator[None]:
        self.calls.append("stream" if point is None else f"stream after {point}")
        yield

    def synchronize(self) -> None:
        self.calls.append("synchronize")


def test_the_cpu_synchronizes_before_each_decode_and_before_it_returns_the_output() -> None:
    backend = new_backend()
    stream = RecordingStream()
    run(backend, JPEGS, (60, 45)).raise_first()
    decoder = backend._images._decoder

    class Recording:
        def decode(self, *args: Any, **options: Any) -> Any:
            stream.calls.append("decode")
            return decoder.decode(*args, **options)

    backend._stream = backend._images._stream = stream
    backend._images._decoder = Recording()
    run(backend, JPEGS, (60, 45)).raise_first()
    # Wait for earlier work; write the pattern and wait for it; decode; test the pattern; run the
    # kernel after the allocation of the output; wait.
    assert stream.calls == [
        "mark",
        "synchronize",
        "stream",
        "synchronize",
        "decode",
        "stream",
        "stream after ready",
        "synchronize",
    ]
    backend.close()


def test_an_error_of_the_library_causes_a_warning_and_loses_no_sample() -> None:
    backend = new_backend()

    class Failing:
        def decode(self, *args: Any, **options: Any) -> Any:
            raise RuntimeError("CUDA Runtime failure: '#2'")

    decoder, backend._images._decoder = backend._images._decoder, Failing()
    with pytest.warns(RuntimeWarning, match="'#2'"):
        result = run(backend, JPEGS, (60, 45), exact=1)
    assert np.array_equal(result.output, expected(JPEGS))
    backend._images._decoder = decoder
    assert np.array_equal(run(backend, JPEGS, (60, 45), exact=1).output, expected(JPEGS))
    backend.close()


def test_a_forked_child_does_not_destroy_the_decoder() -> None:
    """The decoder threads exist in the parent only; destroying it in the child could hang."""
    backend = new_backend()
    run(backend, JPEGS, (60, 45)).raise_first()
    with warnings.catch_warnings():
        warnings.simplefilter(
            "ignore", DeprecationWarning
        )  # Python 3.12: "multi-threaded, use of fork() may lead to deadlocks"
        child = os.fork()
    if not child:
        code = 0 if backend._images._decoder is None and not backend._images._pool else 1
        del backend
        gc.collect()
        os._exit(code)
    assert os.waitpid(child, 0)[1] == 0
    assert np.array_equal(run(backend, JPEGS, (60, 45), exact=1).output, expected(JPEGS))
    backend.close()


def anonymous_kib() -> int:
    return int(re.findall(r"RssAnon:\s+(\d+)", Path("/proc/self/status").read_text())[0])


def test_memory_stays_flat_over_many_batches() -> None:
    """Image sizes change in each batch, so buffers are reassigned; one sample per batch is bad."""
    backend = new_backend()
    rng = np.random.default_rng(0)
    files = [
        encode(sample_image(int(w), int(h), i), "420")
        for i, (w, h) in enumerate(rng.integers(16, 96, (40, 2)))
    ] + [JPEGS[0][:300]]
    many = int(os.environ.get("FASTLOAD_LONG") == "1") * 20_000 or 300
    output = np.zeros((8, 24, 32, 3), np.uint8)
    sizes = []
    for number in range(many):
        sources = [files[i] for i in rng.integers(0, 40, 7)] + [files[40]]
        assert len(run(backend, sources, (32, 24), output=output).reasons) == 1
        if number in (many // 3, many - 1):
            gc.collect()
            sizes.append(anonymous_kib())
    backend.close()
    assert sizes[1] - sizes[0] < 4096, (
        f"{sizes[0]} KiB after {many // 3} batches, {sizes[1]} KiB after {many}"
    )
