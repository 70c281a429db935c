"""The order of calls in ``CudaDecodeStream``, with recorders instead of streams and events.

No GPU runs here, so the tests do not check results.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch

from fastload._common.cuda import CudaDecodeStream

DEVICE = torch.device("cuda", 3)


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    found: list[str] = []

    class Stream:
        cuda_stream = 4711

        def __init__(self, device: object = None, name: str = "own") -> None:
            self.name = name

        def wait_event(self, event: Any) -> None:
            found.append(f"{self.name} waits for {event.where}")

        def synchronize(self) -> None:
            found.append(f"host waits for {self.name}")

    class Event:
        where = ""

        def record(self, stream: Stream) -> None:
            self.where = stream.name
            found.append(f"event on {stream.name}")

    @contextmanager
    def inside(stream: Stream) -> Iterator[None]:
        found.append(f"enter {stream.name}")
        yield
        found.append(f"leave {stream.name}")

    monkeypatch.setattr(torch.cuda, "Stream", Stream)
    monkeypatch.setattr(torch.cuda, "Event", Event)
    monkeypatch.setattr(torch.cuda, "stream", inside)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: Stream(name="feeder's"))
    return found


def test_the_kernel_waits_for_the_feeder_stream_and_the_cpu_for_the_kernel(
    calls: list[str],
) -> None:
    stream = CudaDecodeStream(DEVICE)
    ready = stream.mark()
    with stream.after(ready):
        calls.append("kernel")
    stream.synchronize()
    assert calls == [
        "event on feeder's",
        "own waits for feeder's",
        "enter own",
        "kernel",
        "leave own",
        "host waits for own",
    ]
    assert stream.decode_arguments == {"cuda_stream": 4711}


def test_work_on_internal_buffers_does_not_wait(calls: list[str]) -> None:
    stream = CudaDecodeStream(DEVICE)
    with stream.after(None):
        calls.append("pattern")
    assert calls == ["enter own", "pattern", "leave own"]


def test_memory_returns_a_view_of_the_address(
    calls: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: dict[str, object] = {}
    monkeypatch.setattr(
        torch,
        "as_tensor",
        lambda thing, device: seen.update(thing.__cuda_array_interface__, device=device),
    )
    CudaDecodeStream(DEVICE).memory(4096, 999)
    assert seen == {
        "shape": (999,),
        "typestr": "|u1",
        "data": (4096, False),
        "version": 2,
        "device": DEVICE,
    }
