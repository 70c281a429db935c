"""The CPU backend: cut, decode, resize and layout in one pass, in threads of the native core."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING, ClassVar, TypedDict, cast

import numpy as np
from numpy.typing import NDArray

from fastload._common.native import core, native_status
from fastload._decode.backend import (
    COLORS,
    STAGES,
    DecodeBatch,
    DecodeResult,
    PixelFormat,
    check_batch,
    check_threads,
)
from fastload.errors import ConfigError, MissingPart

if TYPE_CHECKING:
    import torch

    from fastload import _core


@dataclass(frozen=True, slots=True)
class NativeTicket:
    """A batch under way. Dropping it takes back what is not begun and waits for the samples that are."""

    batch: DecodeBatch
    ticket: _core.Ticket


class NativeBackend:
    """Decodes on ``threads`` native threads (None: as many as this process may use processors).

    The threads begin with the first batch. After a fork the child gets its own; a batch begun before belongs to the parent.
    """

    name: ClassVar = "native"
    adjustable_threads: ClassVar = True
    survives_fork: ClassVar = True
    checks_crc: ClassVar = True
    edge_error: ClassVar = 1

    @classmethod
    def missing(cls, device: torch.device, *, hardware: bool = False) -> str:
        """Why the native core is not here."""
        del device, hardware
        return "" if core() is not None else str(native_status())

    def __init__(self, *, threads: int | None = None) -> None:
        module = core()
        if module is None:
            raise MissingPart(f"decoding with the native backend: {native_status()}")
        self._pool: _core.Pool = module.Pool(check_threads(threads))

    @property
    def device(self) -> torch.device:
        """The CPU."""
        return _cpu()

    @property
    def threads(self) -> int:
        """How many threads decode; may be set at any time, a thread too many ends after its sample.

        ConfigError where the system gives no more: those that it gave decode.
        """
        return self._pool.threads

    @threads.setter
    def threads(self, n: int) -> None:
        checked = check_threads(n)
        try:
            self._pool.threads = checked
        except ValueError as error:
            raise ConfigError(f"decoding on {n} threads: {error}") from None

    def submit(self, batch: DecodeBatch) -> NativeTicket:
        """Queues a batch behind those under way."""
        check_batch(batch)
        try:
            # As bytes, a copy: a view would call Python code in numpy, which takes longer beside threads that have emptied the caches.
            ticket = self._pool.submit(
                batch.sources,
                batch.requests.tobytes(),
                _memory(batch.output),
                **_told(
                    batch.pixels, batch.output.shape[1 if batch.pixels.layout == "nchw" else 3]
                ),
            )
        except (ValueError, TypeError) as error:
            raise ConfigError(f"decoding a batch of {len(batch.requests)}: {error}") from None
        return NativeTicket(batch, ticket)

    def collect(self, ticket: NativeTicket, *, timeout_s: float | None = None) -> DecodeResult:
        """Waits for a batch (Ctrl-C is answered meanwhile); TimeoutError after ``timeout_s``: then call it again."""
        if not ticket.ticket.wait(timeout_s):
            raise TimeoutError(
                f"decoding a batch of {len(ticket.batch.requests)}: not done after {timeout_s} s"
            )
        found = ticket.ticket.result()
        statuses = np.frombuffer(found.statuses, np.uint8)
        times_ns = np.frombuffer(found.times_ns, np.uint32).reshape(-1, len(STAGES))
        return DecodeResult(statuses, times_ns, found.reasons, ticket.batch.output)

    def done(self, ticket: NativeTicket) -> bool:
        return ticket.ticket.done

    def unfinished(self, ticket: NativeTicket) -> list[int]:
        """Slots that threads decode right now: what a batch that does not end waits for."""
        return self._pool.in_flight(ticket.ticket)

    def close(self) -> None:
        """Ends the threads, each after its sample; what is not begun is CANCELLED. Also done when Python exits."""
        self._pool.close()

    def __enter__(self) -> NativeBackend:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def __reduce__(self) -> tuple[object, ...]:
        return (_rebuilt, (self.threads,))


class _Told(TypedDict):
    planar: bool
    color: int
    fill: tuple[int, ...]
    mean: tuple[float, ...]
    std: tuple[float, ...]


@functools.lru_cache
def _told(pixels: PixelFormat, channels: int) -> _Told:
    """What the core is told about an output. A loader's batches all have the same."""
    return {
        "planar": pixels.layout == "nchw",
        "color": COLORS.index(pixels.color),
        "fill": pixels.fill_values(channels),
        "mean": pixels.mean_values(channels),
        "std": pixels.std_values(channels),
    }


@functools.cache
def _cpu() -> torch.device:
    import torch

    return torch.device("cpu")


def _memory(output: torch.Tensor | NDArray[np.generic]) -> object:
    """What the core writes to. A tensor's own ``__dlpack__`` looks at streams and devices first, in Python, at every call."""
    return output if isinstance(output, np.ndarray) else _to_dlpack()(output)


@functools.cache
def _to_dlpack() -> Callable[[torch.Tensor], object]:
    from torch.utils.dlpack import to_dlpack  # type: ignore[attr-defined]   # documented, but not in its list

    return cast("Callable[[torch.Tensor], object]", to_dlpack)


def _rebuilt(threads: int) -> NativeBackend:
    return NativeBackend(threads=threads)
