"""The order of calls in ``fastload/_common/cuda.py``, with recorders instead of streams and events.

No GPU runs here. The tests do not check results, only that a copy precedes its event and that
memory is released after the event.
"""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
import torch

from fastload._common.cuda import LEASES, CudaOutputLease, CudaTransfer, numbered
from fastload._decode.backend import DecodeBatch, new_requests
from fastload._decode.gpu import dali as dali_module
from fastload._decode.gpu.base import write_pixels
from tests.gpu_backends import needs_dali
from tests.jpeg_samples import encode, sample_image

DEVICE = torch.device("cuda", 3)


class Calls(list[str]):
    """The recorded calls in order. ``passed`` is the status of all events."""

    passed = False

    @contextmanager
    def inside(self, name: str) -> Iterator[None]:
        self.append(f"enter {name}")
        yield
        self.append(f"leave {name}")


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> Calls:
    found = Calls()

    class Stream:
        def __init__(self, device: object = None, name: str = "own") -> None:
            self.name = name

        def wait_event(self, event: object) -> None:
            found.append(f"{self.name} waits for event")

    class Event:
        def record(self, stream: Any = None) -> None:
            found.append(f"record event on {stream.name if stream else 'current'}")

        def query(self) -> bool:
            return found.passed

        def synchronize(self) -> None:
            found.append("wait for event")

    monkeypatch.setattr(torch.cuda, "Stream", Stream)
    monkeypatch.setattr(torch.cuda, "Event", Event)
    monkeypatch.setattr(torch.cuda, "stream", lambda stream: found.inside(stream.name))
    monkeypatch.setattr(
        torch.cuda,
        "current_stream",
        lambda device=None: Stream(name="trainer's" if device else "current"),
    )
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 5)
    return found


class Recorded(torch.Tensor):
    """A tensor that records the calls of its methods."""

    calls: Calls
    called: str
    is_cuda = False

    def pin_memory(self, device: Any = None) -> Recorded:
        self.calls.append(f"pin {self.called}")
        return self

    def to(self, *arguments: Any, **options: Any) -> Recorded:
        self.calls.append(
            f"copy {self.called} to {arguments[0]}{' without waiting' if options.get('non_blocking') else ''}"
        )
        return self

    def record_stream(self, stream: Any) -> None:
        self.calls.append(f"keep {self.called} for {stream.name}")


def recorded(calls: Calls, name: str, *, on_gpu: bool = False) -> Recorded:
    tensor = torch.zeros(1).as_subclass(Recorded)
    tensor.calls, tensor.called = calls, name
    tensor.is_cuda = on_gpu
    return tensor


def test_a_batch_is_pinned_and_copied_before_its_event_and_the_trainer_waits_for_it(
    calls: Calls,
) -> None:
    transfer = CudaTransfer(DEVICE)
    sent = transfer.send(
        {"image": recorded(calls, "image", on_gpu=True), "label": recorded(calls, "label")}
    )
    assert calls == [
        "enter own",
        "pin label",
        "copy image to cuda:3 without waiting",
        "copy label to cuda:3 without waiting",
        "record event on own",
        "leave own",
    ]
    calls.clear()
    transfer.receive(sent)
    assert calls == [
        "trainer's waits for event",
        "keep image for trainer's",
        "keep label for trainer's",
    ]


def test_a_staged_copy_blocks(calls: Calls) -> None:
    transfer = CudaTransfer(DEVICE)
    with transfer.stream():
        transfer.stage(recorded(calls, "pixels"))
    assert calls == ["enter own", "copy pixels to cuda:3", "leave own"]
    assert transfer.device == DEVICE


def test_a_device_without_an_index_is_the_current_device_of_the_thread(calls: Calls) -> None:
    assert numbered(torch.device("cuda")) == torch.device("cuda", 5)
    assert numbered(DEVICE) == DEVICE


class OnCpu(CudaOutputLease):
    """Leases of the GPU with outputs of the CPU."""

    def take(self, pipeline: Any) -> Any:
        return pipeline.share_outputs()


class Watched:
    """A replacement for a DALI buffer."""


def test_dali_gets_the_current_stream(calls: Calls) -> None:
    class Pipeline:
        def share_outputs(self, stream: Any) -> str:
            calls.append(f"outputs for {stream.name}")
            return "outputs"

    assert CudaOutputLease().take(Pipeline()) == "outputs"
    assert calls == ["outputs for current"]


def test_a_buffer_is_kept_until_the_event_after_its_copy_has_passed(calls: Calls) -> None:
    lease, buffer = CudaOutputLease(), Watched()
    alive = weakref.ref(buffer)
    lease.hold(buffer)
    del buffer
    assert calls == ["record event on current"]
    assert alive() is not None
    calls.passed = True
    lease.hold(Watched())
    gc.collect()
    assert alive() is None


def test_the_number_of_leases_of_a_lagging_gpu_is_limited(calls: Calls) -> None:
    lease = CudaOutputLease()
    buffers = [Watched() for _ in range(LEASES + 2)]
    alive = [weakref.ref(each) for each in buffers]
    while buffers:
        lease.hold(buffers.pop(0))
    assert calls == ["record event on current"] * (LEASES + 1) + [
        "wait for event",
        "record event on current",
        "wait for event",
    ]
    gc.collect()
    assert [each() is not None for each in alive] == [False, False] + [True] * LEASES


def test_dali_pixels_are_copied_then_leased_then_released(
    calls: Calls, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Runs the real DALI on the CPU; only streams and events are recorders."""
    needs_dali()
    copied = write_pixels

    def copy(*arguments: Any) -> None:
        calls.append("copy")
        copied(*arguments)

    monkeypatch.setattr(dali_module, "write_pixels", copy)
    backend = dali_module.DaliBackend(threads=1)
    backend._lease = OnCpu()
    requests = new_requests(1)
    requests["out_w"], requests["out_h"] = 20, 20
    held = []
    for _ in range(2):
        ticket = backend.submit(
            DecodeBatch(
                [encode(sample_image(40, 40), "420")], requests, np.zeros((1, 20, 20, 3), np.uint8)
            )
        )
        assert backend.collect(ticket).ok
        held.append(len(backend._lease._held))
        assert ticket.dali is not None
        assert ticket.dali.run.outputs is None, "only the lease holds DALI's buffer now"
        calls.passed = True
    assert calls == ["copy", "record event on current"] * 2
    assert held == [1, 0]
    backend.close()
