"""The decode pool: many batches, dropped tickets, changing numbers of threads, closing."""

from __future__ import annotations

import contextlib
import gc
import os
import pickle
import sys
import threading
import weakref
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fastload._common.cpus import available_cpus
from fastload._common.native import core
from fastload._decode.backend import Codec, DecodeBatch, DecodeResult, Status, new_requests
from fastload.errors import ConfigError
from tests.decoding import native, pixels_of
from tests.jpeg_samples import encode, sample_image

pytestmark = pytest.mark.skipif(core() is None, reason="not run: no native core")
SMALL = encode(sample_image(96, 64), "420")
LARGE = encode(sample_image(1600, 1200), "444", 90)  # takes about 30 ms


def backend(threads: int = 2) -> Any:
    from fastload._decode.native import NativeBackend

    return NativeBackend(threads=threads)


def batch(n: int, data: bytes = SMALL, fill: int = 0) -> DecodeBatch:
    requests = new_requests(n)
    requests["out_w"], requests["out_h"] = 32, 24
    return DecodeBatch([data] * n, requests, np.full((n, 24, 32, 3), fill, np.uint8))


def is_correct(result: DecodeResult) -> bool:
    expected = pixels_of(native(), SMALL, (32, 24))
    return result.ok and all(np.array_equal(slot, expected) for slot in np.asarray(result.output))


def test_every_batch_in_flight_has_its_own_results() -> None:
    with backend() as pool:
        tickets = [pool.submit(batch(1 + i % 7)) for i in range(200)]
        assert all(is_correct(pool.collect(ticket)) for ticket in reversed(tickets))


def test_raw_samples_that_threads_claim_in_groups_reach_their_slots() -> None:
    n = 333  # not a multiple of the claim size
    pixels = np.random.default_rng(0).integers(1, 256, (n, 6, 8, 3), np.uint8)
    requests = new_requests(n)
    requests["codec"], requests["size"], requests["raw_channels"], requests["raw_bits"] = (
        Codec.RAW,
        6 * 8 * 3,
        3,
        8,
    )
    requests["raw_w"] = requests["out_w"] = 8
    requests["raw_h"] = requests["out_h"] = 6
    bad = [0, 7, 100, 331, 332]
    requests["size"][bad] -= 1
    with backend(3) as pool:
        for _ in range(20):
            result = pool.collect(
                pool.submit(
                    DecodeBatch([one.tobytes() for one in pixels], requests, np.zeros_like(pixels))
                )
            )
            assert sorted(result.reasons) == bad
            assert all("143 bytes, expected 144" in reason for reason in result.reasons.values())
            good = np.setdiff1d(np.arange(n), bad)
            assert np.array_equal(np.asarray(result.output)[good], pixels[good])


def test_a_ticket_can_be_collected_twice() -> None:
    with backend() as pool:
        ticket = pool.submit(batch(3))
        assert is_correct(pool.collect(ticket))
        assert pool.done(ticket)
        assert is_correct(pool.collect(ticket))


def test_dropping_a_ticket_cancels_its_batch_and_stops_writes() -> None:
    with backend(1) as pool:
        first = batch(200, LARGE)
        ticket = pool.submit(first)
        del ticket
        done = np.asarray(first.output).reshape(200, -1).any(axis=1)
        assert done.sum() < 200, "every sample was done before the ticket was dropped"
        before = np.asarray(first.output).copy()
        assert is_correct(pool.collect(pool.submit(batch(5))))
        assert np.array_equal(first.output, before), (
            "a sample was written after its ticket was dropped"
        )


def test_sources_and_output_live_as_long_as_the_batch() -> None:
    class Bytes(bytearray):
        pass

    with backend() as pool:
        sources = [Bytes(SMALL) for _ in range(20)]
        watched = weakref.ref(sources[0])
        request = batch(20)
        ticket = pool.submit(DecodeBatch(sources, request.requests, request.output))
        with pytest.raises(BufferError):
            sources[0].extend(b"x")  # locked during decoding
        del sources
        gc.collect()
        assert is_correct(pool.collect(ticket))
        assert watched() is not None
        del ticket
        gc.collect()
        assert watched() is None


def test_the_number_of_threads_can_change_while_batches_are_in_flight() -> None:
    with backend(1) as pool:
        tickets = []
        for i in range(60):
            pool.threads = 1 + i % 5
            assert pool.threads == 1 + i % 5
            tickets.append(pool.submit(batch(9)))
        assert all(is_correct(pool.collect(ticket)) for ticket in tickets)
        for wrong in (0, -1, 1025):
            with pytest.raises(ConfigError):
                pool.threads = wrong
        assert is_correct(pool.collect(pool.submit(batch(2))))


@pytest.mark.skipif(
    sys.platform != "linux", reason="not run: on other systems the priority belongs to the process"
)
def test_decode_threads_have_a_name_and_a_lower_priority() -> None:
    own = os.getpriority(os.PRIO_PROCESS, 0)
    with backend(3) as pool:
        assert is_correct(pool.collect(pool.submit(batch(20))))
        threads = []
        for task in Path("/proc/self/task").iterdir():
            with contextlib.suppress(OSError):  # a thread of an earlier test has just ended
                if (task / "comm").read_text() == "fastload-decode\n":
                    threads.append(int(task.name))
        assert threads  # maybe not all three: one may not have started yet
        assert {os.getpriority(os.PRIO_PROCESS, thread) for thread in threads} == {min(own + 5, 19)}
    assert os.getpriority(os.PRIO_PROCESS, 0) == own, "the priority of the caller changed"


@pytest.mark.parametrize("threads", [0, -3, 2000])
def test_invalid_numbers_of_threads_raise(threads: int) -> None:
    with pytest.raises(ConfigError, match="threads"):
        backend(threads)


def test_the_default_is_one_thread_per_processor() -> None:
    from fastload._decode.native import NativeBackend

    assert NativeBackend().threads == available_cpus()


def test_closing_cancels_samples_that_have_not_started() -> None:
    pool = backend(1)
    tickets = [pool.submit(batch(50, LARGE)) for _ in range(3)]
    pool.close()
    results = [pool.collect(ticket) for ticket in tickets]
    assert {int(status) for result in results for status in result.status} <= {
        Status.OK,
        Status.CANCELLED,
    }
    assert (results[2].status == Status.CANCELLED).all()
    with pytest.raises(RuntimeError, match="closed"):
        pool.submit(batch(1))
    pool.close()


def test_waiting_can_time_out_and_resume() -> None:
    with backend(1) as pool:
        ticket = pool.submit(batch(20, LARGE))
        with pytest.raises(TimeoutError, match="20"):
            pool.collect(ticket, timeout_s=0.001)
        assert pool.collect(ticket, timeout_s=300).ok


def test_waiting_releases_the_gil() -> None:
    with backend(1) as pool:
        ticket = pool.submit(batch(20, LARGE))
        ran = threading.Event()
        threading.Thread(target=ran.set).start()
        assert pool.collect(ticket).ok
        assert ran.is_set()


def test_several_python_threads_share_a_pool() -> None:
    good: list[bool] = []
    with backend() as pool:

        def work() -> None:
            good.extend(is_correct(pool.collect(pool.submit(batch(5)))) for _ in range(20))

        threads = [threading.Thread(target=work) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert good == [True] * 80


def test_a_backend_survives_pickling() -> None:
    with backend(3) as pool:
        again = pickle.loads(pickle.dumps(pool))
        assert again.threads == 3
        assert is_correct(again.collect(again.submit(batch(2))))
