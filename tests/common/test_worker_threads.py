"""Worker threads produce the same pixels and leave other torch threads unchanged."""

from __future__ import annotations

import threading
from concurrent.futures import CancelledError

import numpy as np
import pytest
import torch

from fastload import transforms as T
from fastload._common.threads import WorkerThreads
from fastload._finish.batch import Finish, compute_alone, set_own_threads
from fastload.transforms import compile_fields
from tests.loading import wait_until

PLAN = compile_fields(
    [T.Resize(64, 64), T.ColorJitter(brightness=0.4, contrast=0.4, saturation=0.4, hue=0.2)],
    ("image",),
)["image"]


def test_worker_threads_produce_the_same_pixels() -> None:
    images = torch.from_numpy(
        np.random.default_rng(0).integers(0, 256, (150, 64, 64, 3), dtype=np.uint8)
    )
    sizes = np.full((150, 2), 64)
    parameters = PLAN.rows(np.arange(150), sizes, seed=1, epoch=0).parameters
    finish = Finish(PLAN)
    alone = finish(images, parameters)
    assert torch.equal(finish(images, parameters, helpers=WorkerThreads(3, "test")), alone)
    assert not torch.equal(alone, finish(images, parameters[::-1].copy()))


def test_the_torch_thread_limit_applies_only_to_worker_threads() -> None:
    if set_own_threads is int:
        pytest.skip("not run: torch without OpenMP")
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    try:

        def bound() -> int:
            compute_alone()
            return torch.get_num_threads()

        assert WorkerThreads(1, "test").submit(bound).result() == 1
        assert torch.get_num_threads() == 3
        found: list[int] = []
        later = threading.Thread(target=lambda: found.append(torch.get_num_threads()))
        later.start()
        later.join()
        assert found == [3]  # torch.set_num_threads(1) in the helper would have changed this
    finally:
        torch.set_num_threads(before)


def test_worker_threads_return_errors_and_continue() -> None:
    helpers = WorkerThreads(2, "test")
    with pytest.raises(ZeroDivisionError):
        list(helpers.map(lambda n: 1 // n, [1, 0]))
    assert list(helpers.map(lambda n: 2 * n, range(50))) == [2 * n for n in range(50)]


@pytest.mark.parametrize("how", ["dropped", "closed"])
def test_dropped_worker_threads_end_and_cancel_queued_jobs(how: str) -> None:
    helpers = WorkerThreads(1, "fastload-test-helper")
    go_on, begun = threading.Event(), threading.Event()
    done: list[int] = []

    def first() -> None:
        begun.set()
        go_on.wait(300)

    jobs = [helpers.submit(first), *(helpers.submit(done.append, number) for number in range(5))]
    begun.wait(300)
    if how == "closed":
        helpers.close()
    else:
        del helpers
    go_on.set()
    assert wait_until(
        lambda: (
            not [
                each
                for each in threading.enumerate()
                if each.name.startswith("fastload-test-helper")
            ]
        )
    )
    assert done == []
    with pytest.raises(CancelledError):
        jobs[-1].result(timeout=300)


def test_a_job_for_closed_worker_threads_is_cancelled_immediately() -> None:
    helpers = WorkerThreads(1, "test")
    assert helpers.submit(len, "abc").result() == 3
    helpers.close()
    with pytest.raises(CancelledError):
        helpers.submit(len, "abc").result(timeout=300)
