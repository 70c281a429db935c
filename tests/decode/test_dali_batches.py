"""Batches in DALI: bad samples, odd sizes, any order, dropped ones, two pipelines at once."""

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
from tests.jpeg_samples import encode, picture

JPEGS = [encode(picture(60 + i, 50, seed=i), "420") for i in range(6)]


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
    """All markers are in order, but a Huffman table has 255 codes of one bit: DALI fails the whole batch for it.

    Data that merely end too early it decodes without a word, which is why records have checksums.
    """
    jpeg = bytearray(JPEGS[1])
    table = jpeg.find(b"\xff\xc4")
    jpeg[table + 5] = 255
    return bytes(jpeg)


def test_dali_loses_the_batch_of_a_bad_sample_and_we_do_not() -> None:
    batch = batch_of([JPEGS[0], damaged_stream(), JPEGS[2]])
    ticket = dali().submit(batch)
    assert ticket.streams.rows.tolist() == [0, 1, 2], "it must get as far as DALI"
    result = dali().collect(ticket)
    assert ticket.dali.run.error is not None, "DALI decoded it: this test tests nothing"
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
    """Bytes that can be watched."""


def test_dali_holds_the_sources_of_a_dropped_batch_until_it_is_through_and_no_longer() -> None:
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


def test_one_backend_for_two_threads() -> None:
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


def test_a_letterboxed_batch_without_borders_needs_no_new_pipeline() -> None:
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


def test_images_of_one_color_are_found() -> None:
    """What the JPEG engine leaves where it skips an image; borders do not count."""
    batch = batch_of(JPEGS[:4], out_w=[40, 30, 40, 30], pad_left=[0, 5, 0, 5])
    levels = torch.randint(
        0, 256, (4, 30, 40, 3), dtype=torch.uint8, generator=torch.Generator().manual_seed(0)
    )
    levels[2] = torch.tensor([4, 5, 6], dtype=torch.uint8)
    levels[3, :, 5:35] = 0
    assert uniform_rows(levels, batch, np.arange(4)).tolist() == [2, 3]
    assert uniform_rows(levels[:3:2], batch, np.array([0, 2])).tolist() == [2]
    assert uniform_rows(levels[:1], batch, np.array([0])).tolist() == []
