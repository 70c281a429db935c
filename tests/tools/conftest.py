"""A clock for tests that plant durations."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import pytest

from fastload._tools.doctor.loader import stages


@pytest.fixture
def exact_sleeps(monkeypatch: pytest.MonkeyPatch) -> None:
    """Replaces the clock: ``time.sleep`` takes exactly its seconds, other code no time.

    A busy machine then changes no result. Threads of earlier tests keep the real clock. Worker
    processes have their own copy of the clock, so tests with workers cannot use it.
    """
    others = {*threading.enumerate()} - {threading.current_thread()}
    now = 0.0
    lock = threading.Lock()
    real_sleep, real_counter = time.sleep, time.perf_counter

    def advance(seconds: float) -> float:
        nonlocal now
        with lock:
            now += seconds
            return now

    def sleep(seconds: float) -> None:
        if threading.current_thread() in others:
            real_sleep(seconds)
        else:
            advance(seconds)

    def perf_counter() -> float:
        # A microsecond per call, so that a loop that waits for a time ends.
        return real_counter() if threading.current_thread() in others else advance(1e-6)

    monkeypatch.setattr(time, "sleep", sleep)
    monkeypatch.setattr(time, "perf_counter", perf_counter)
    monkeypatch.setattr(time, "thread_time", lambda: 0.0)
    monkeypatch.setattr(stages, "_SCHEDSTAT", Path("/does/not/exist"))
