"""Datasets whose stages sleep for known times."""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path
from typing import Any

import simplejpeg
import torch


def slow_decode(data: bytes) -> int:
    """Replaces simplejpeg.decode_jpeg in tests."""
    time.sleep(0.040)
    return len(data)


def slow_collate(items: list[Any]) -> torch.Tensor:
    time.sleep(0.040)
    return torch.tensor(items)


class Slow(torch.utils.data.Dataset[int]):
    """Decode 40 ms, transform 30 ms, other 20 ms, and a read if there is a pipe."""

    def __init__(self, count: int = 1000, pipe: SlowPipe | None = None) -> None:
        self.count, self.pipe = count, pipe
        self.transform = Sleeping(0.030)

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> int:
        if index >= self.count:
            raise IndexError(index)
        if self.pipe is not None:
            self.pipe.read()
        simplejpeg.decode_jpeg(b"ignored")
        time.sleep(0.020)
        return int(self.transform(index))


class Sleeping:
    def __init__(self, seconds: float) -> None:
        self.seconds = seconds

    def __call__(self, value: int) -> int:
        time.sleep(self.seconds)
        return value


class SlowPipe:
    """A named pipe that delivers one byte per reader after a delay, like slow storage."""

    def __init__(self, path: Path, seconds: float) -> None:
        self._path, self._seconds, self._ended = path, seconds, False
        self._closed = threading.Semaphore(0)
        os.mkfifo(path)
        self._thread = threading.Thread(target=self._serve)

    def _serve(self) -> None:
        while not self._ended:
            file = os.open(self._path, os.O_WRONLY)  # returns when a reader has opened it
            time.sleep(self._seconds)
            if not self._ended:
                os.write(file, b"x")
            os.close(file)
            self._closed.acquire()  # the reader sees the end before the next one opens the pipe

    def read(self) -> None:
        with open(self._path, "rb") as file:
            file.read()
        self._closed.release()

    def __enter__(self) -> SlowPipe:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended = True
        reader = os.open(self._path, os.O_RDONLY | os.O_NONBLOCK)  # the thread may wait for one
        self._closed.release()
        self._thread.join()
        os.close(reader)


class Batches:
    """An iterable of ``count`` batches, each after a sleep."""

    def __init__(self, count: int, seconds: float) -> None:
        self.count, self.seconds, self.given = count, seconds, 0

    def __iter__(self) -> Any:
        for _ in range(self.count):
            time.sleep(self.seconds)
            self.given += 1
            yield torch.zeros(6, 2)
