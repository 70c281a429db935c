"""Batches of the DALI backend: bad samples, dropped tickets, threads, reuse of pipelines."""

from __future__ import annotations

import gc
import threading
import weakref
from typing import Any

import numpy as np
import torch

from fastload._decode.backend import DecodeBatch, PixelFormat, Status, new_requests
from fastload._decode.gpu.dali import DaliBackend, uniform_rows
from tests.decoding import pixels_of, record
from tests.gpu_backends import dali, needs_dali
from tests.jpeg_samples import encode, sample_image

JPEGS = [encode(sample_image(60 + i, 50, seed=i), "420") for i in range(6)]


def batch_of(jpegs: list[bytes], **columns: Any) -> DecodeBatch:
    requests = new_requests(len(jpegs))
    requests["out_w"], requests["out_h"] = 40, 30
    for name, value in columns.items():
        requests[name] = value
    return DecodeBatch(
        jpegs, requests, np.zeros((len(jpegs), 30, 40, 3), np.uint8), PixelFormat(fill=9)
    )


def expected(number: int) -> Any:
    return pixels_of(dali(), JPEGS[number], (40, 30))


def damaged_stream() -> bytes:
    """Returns a JPEG with valid markers and a broken Huffman table, which fails a DALI batch.

    DALI decodes data that end too early without an error; records have checksums for that reason.
    """
    jpeg = bytearray(JPEGS[1])
    table = jpeg.find(b"\xff\xc4")
    jpeg[table + 5] = 255
    return bytes(jpeg)


def test_a_bad_sample_fails_the_dali_run_but_not_the_other_samples() -> None:
    batch = batch_of([JPEGS[0], damaged_stream(), JPEGS[2]])
    ticket = dali().submit(batch)
    assert ticket.streams.rows.tolist() == [0, 1, 2], "the bad sample must reach DALI"
    result = dali().collect(ticket)
    assert ticket.dali.run.error is not None, "DALI decoded it, so this test has no effect"
    assert result.status.tolist() == [Status.OK, Status.BAD_IMAGE, Status.OK]
    assert result.reasons.keys() == {1}
    assert (np.asarray(batch.output)[1] == 9).all()
    for slot in (0, 2):
        assert (
            abs(np.asarray(batch.output)[slot].astype(int) - expected(slot))[1:-1, 1:-1].max() <= 1
        )
    after = dali().collect(dali().submit(batch_of(JPEGS)))
    assert after.ok
    assert np.array_equal(after.output[5], expected(5))


def test_a_damaged_record_never_reaches_dali() -> None:
    good, offset = record(JPEGS[0])
    broken = bytearray(good)
    broken[-40] ^= 1
    batch = batch_of([good, bytes(broken), good], offset=offset, size=len(JPEGS[0]), check=1)
    ticket = dali().submit(batch)
    assert ticket.streams.rows.tolist() == [0, 2]
    result = dali().collect(ticket)
    assert result.status.tolist() == [Status.OK, Status.CORRUPT, Status.OK]
    assert np.array_equal(result.output[2], expected(0))


def test_bombs_never_reach_dali() -> None:
    bomb = bytearray(JPEGS[0])
    frame = bomb.find(b"\xff\xc0")
    bomb[frame + 5 : frame + 9] = (16000).to_bytes(2, "big") * 2
    ticket = dali().submit(batch_of([JPEGS[0], bytes(bomb)]))
    assert ticket.streams.rows.tolist() == [0]
    assert dali().collect(ticket).status.tolist() == [Status.OK, Status.BAD_IMAGE]


class Source(np.ndarray[Any, Any]):
    """Bytes that support weak references."""


def test_the_sources_of_a_dropped_batch_are_held_until_dali_has_finished() -> None:
    needs_dali()
    backend = DaliBackend(threads=1)
    source = np.frombuffer(JPEGS[0], np.uint8).copy().view(Source)
    watched = weakref.ref(source)
    ticket = backend.submit(batch_of([source] * 6))  # type: ignore[list-item]
    del ticket, source
    gc.collect()
    assert watched() is not None
    backend.close()
    gc.collect()
    assert watched() is None


def test_two_threads_can_share_a_backend() -> None:
    wanted = [expected(i) for i in range(6)]
    wrong: list[int] = []

    def work(first: int) -> None:
        for i in range(first, first + 25):
            tickets = [dali().submit(batch_of([JPEGS[(i + k) % 6]])) for k in range(3)]
            found = [dali().collect(ticket).output[0] for ticket in tickets]
            wrong.extend(i for k in range(3) if not np.array_equal(found[k], wanted[(i + k) % 6]))

    threads = [threading.Thread(target=work, args=(first,)) for first in (0, 3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_a_batch_without_padding_reuses_the_pipeline_with_padding() -> None:
    needs_dali()
    backend = DaliBackend(threads=1)
    with_border = backend.submit(batch_of(JPEGS[:2], out_w=[40, 30]))
    without = backend.submit(batch_of(JPEGS[:2]))
    assert with_border.dali is not None
    assert without.dali is not None
    assert with_border.dali.queue is without.dali.queue
    assert backend.collect(with_border).ok
    assert np.array_equal(backend.collect(without).output[1], expected(1))
    backend.close()


def test_images_of_a_single_color_are_found() -> None:
    """The JPEG engine leaves a single color if it skips an image; padding is ignored."""
    batch = batch_of(JPEGS[:4], out_w=[40, 30, 40, 30], pad_left=[0, 5, 0, 5])
    pixels = torch.randint(
        0, 256, (4, 30, 40, 3), dtype=torch.uint8, generator=torch.Generator().manual_seed(0)
    )
    pixels[2] = torch.tensor([4, 5, 6], dtype=torch.uint8)
    pixels[3, :, 5:35] = 0
    assert uniform_rows(pixels, batch, np.arange(4)).tolist() == [2, 3]
    assert uniform_rows(pixels[:3:2], batch, np.array([0, 2])).tolist() == [2]
    assert uniform_rows(pixels[:1], batch, np.array([0])).tolist() == []
