"""Batches in DALI: bad samples, odd sizes, any order, dropped ones, two pipelines at once."""

from __future__ import annotations

import gc
import subprocess
import sys
import threading
import weakref
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fastload._common.checksum import crc32c
from fastload._decode.backend import DecodeBatch, PixelFormat, Status, new_requests
from fastload._decode.gpu.dali import DaliBackend, uniform_rows
from fastload.errors import ConfigError
from tests.decoding import pixels_of, run
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


def test_a_bad_batch_between_good_ones_under_way() -> None:
    batches = [batch_of(JPEGS[i % 4 :]) for i in range(5)]
    batches[2] = batch_of([JPEGS[0], b"", damaged_stream(), JPEGS[3][:-2], JPEGS[3]])
    results = [dali().collect(ticket) for ticket in [dali().submit(batch) for batch in batches]]
    assert [sorted(result.reasons) for result in results] == [[], [], [1, 2, 3], [], []]
    for i in (0, 1, 3, 4):
        assert np.array_equal(results[i].output[0], expected(i % 4))


def test_a_damaged_record_never_reaches_dali() -> None:
    body = bytes([1, 0, 1, 0]) + (48 + len(JPEGS[0])).to_bytes(4, "little") + bytes(32) + JPEGS[0]
    record = b"FLR1" + crc32c(body).to_bytes(4, "little") + body
    broken = bytearray(record)
    broken[-40] ^= 1
    batch = batch_of([record, bytes(broken), record], offset=48, size=len(JPEGS[0]), check=1)
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


@pytest.mark.parametrize("sizes", [[0], [1], [6, 0, 3, 1], [40, 2, 100]], ids=str)
def test_batches_of_any_size(sizes: list[int]) -> None:
    needs_dali()
    backend = DaliBackend(threads=1)
    tickets = [backend.submit(batch_of([JPEGS[i % 6] for i in range(size)])) for size in sizes]
    for size, ticket in zip(sizes, tickets, strict=True):
        result = backend.collect(ticket)
        assert result.ok
        assert len(result.status) == size
        assert all(np.array_equal(result.output[i], expected(i % 6)) for i in range(size))
    backend.close()


def test_fewer_requests_than_slots_leave_the_other_slots_alone() -> None:
    batch = batch_of(JPEGS[:2])
    output = np.full((5, 30, 40, 3), 7, np.uint8)
    assert dali().collect(dali().submit(DecodeBatch(batch.sources, batch.requests, output))).ok
    assert (output[2:] == 7).all()
    assert np.array_equal(output[1], expected(1))


def test_batches_may_be_collected_in_any_order_and_dropped() -> None:
    tickets = [dali().submit(batch_of([JPEGS[i]])) for i in range(6)]
    del tickets[2], tickets[0]
    for place, number in ((3, 5), (0, 1), (2, 4), (1, 3)):
        assert np.array_equal(dali().collect(tickets[place]).output[0], expected(number))
    assert np.array_equal(
        dali().collect(dali().submit(batch_of([JPEGS[0]]))).output[0], expected(0)
    )


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


def test_two_pipelines_in_two_threads() -> None:
    needs_dali()
    wrong: list[int] = []

    def work(first: int) -> None:
        backend = DaliBackend(threads=1)
        for i in range(first, first + 20):
            result = backend.collect(backend.submit(batch_of([JPEGS[i % 6], JPEGS[(i + 1) % 6]])))
            if not (
                result.ok
                and np.array_equal(result.output[0], wanted[i % 6])
                and np.array_equal(result.output[1], wanted[(i + 1) % 6])
            ):
                wrong.append(i)
        backend.close()

    wanted = [expected(i) for i in range(6)]
    threads = [threading.Thread(target=work, args=(first,)) for first in (0, 3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


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


def test_python_ends_with_batches_under_way() -> None:
    needs_dali()
    code = (
        "from tests.decode.test_dali_batches import *\n"
        "backend = DaliBackend(threads=1)\n"
        "tickets = [backend.submit(batch_of(JPEGS)) for _ in range(9)]\n"
        "backend.collect(tickets[1]).raise_first()\n"
        "print('fine')\n"
    )
    ended = subprocess.run(
        [sys.executable, "-W", "error", "-c", code],
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "fine\n", "")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"hardware": True}, "JPEG engine is a part of GPUs"),
        ({"threads": 0}, "threads 0"),
        ({"device": "mps"}, "device='mps'"),
        ({"device": "gpu"}, "device='gpu'"),
    ],
    ids=str,
)
def test_options_that_cannot_be_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        DaliBackend(**options)
    run(dali(), JPEGS[:1], (40, 30)).raise_first()


@pytest.mark.parametrize(
    "output",
    [
        np.zeros((1, 30, 40, 4), np.uint8),
        np.zeros((1, 30, 40, 1), np.uint8),
        np.zeros((0, 30, 40, 3), np.uint8),
    ],
    ids=lambda output: str(output.shape),
)
def test_an_output_that_cannot_hold_the_batch_raises(output: Any) -> None:
    with pytest.raises(ConfigError, match="output"):
        run(dali(), JPEGS[:1], (40, 30), output=output)
    run(dali(), JPEGS[:1], (40, 30)).raise_first()


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


def test_a_forked_child_ends_and_the_parent_goes_on() -> None:
    """DALI's threads are not in the child, and nothing there waits for them."""
    needs_dali()
    code = (
        "import os, sys\n"
        "from tests.decode.test_dali_batches import *\n"
        "backend = DaliBackend(threads=1)\n"
        "tickets = [backend.submit(batch_of(JPEGS)) for _ in range(4)]\n"
        "child = os.fork()\n"
        "if child:\n"
        "    assert os.waitpid(child, 0)[1] == 0\n"
        "    assert all(backend.collect(ticket).ok for ticket in tickets)\n"
        "    print('fine')\n"
        "else:\n"
        "    del tickets\n"
        "    sys.exit(0)\n"
    )
    ended = subprocess.run(
        [sys.executable, "-c", code],
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert (ended.returncode, ended.stdout) == (0, "fine\n"), ended.stderr


def test_images_of_one_colour_are_found() -> None:
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
