"""The CPU backend: threads of the native core cut, decode, resize and normalize in one pass."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING, Any, ClassVar, cast

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
    """A batch in flight.

    Dropping the ticket cancels the samples that have not started and waits for the others.
    """

    batch: DecodeBatch
    ticket: _core.Ticket


class NativeBackend:
    """Decodes on ``threads`` native threads (None: one per CPU available to this process).

    The threads start with the first batch. After a fork, the child starts its own threads. Batches
    that were submitted before the fork belong to the parent.
    """

    name: ClassVar = "native"
    adjustable_threads: ClassVar = True
    survives_fork: ClassVar = True
    checks_crc: ClassVar = True
    edge_error: ClassVar = 1

    @classmethod
    def missing(cls, device: torch.device, *, hardware: bool = False) -> str:
        del device, hardware
        return "" if core() is not None else str(native_status())

    def __init__(self, *, threads: int | None = None) -> None:
        module = core()
        if module is None:
            raise MissingPart(f"backend='native' is not available: {native_status()}")
        self._pool: _core.Pool = module.Pool(check_threads(threads))

    @property
    def device(self) -> torch.device:
        return _cpu()

    @property
    def threads(self) -> int:
        """Number of decode threads. Can be set at any time.

        Surplus threads exit after their current sample. If the system refuses to start a thread,
        the setter raises ConfigError, and the threads that did start continue to decode.
        """
        return self._pool.threads

    @threads.setter
    def threads(self, n: int) -> None:
        checked = check_threads(n)
        try:
            self._pool.threads = checked
        except ValueError as error:
            raise ConfigError(f"threads={n}: {error}") from None

    def submit(self, batch: DecodeBatch) -> NativeTicket:
        check_batch(batch)
        try:
            # tobytes() copies, but a view would run Python code in NumPy, which is slower while the
            # decode threads evict the caches.
            ticket = self._pool.submit(
                batch.sources,
                batch.requests.tobytes(),
                _memory(batch.output),
                **_format_arguments(batch.pixels, batch.channels),
            )
        except (ValueError, TypeError) as error:
            raise ConfigError(f"batch of {len(batch.requests)} samples: {error}") from None
        return NativeTicket(batch, ticket)

    def collect(self, ticket: NativeTicket, *, timeout_s: float | None = None) -> DecodeResult:
        """Waits for a batch. Ctrl-C interrupts the wait.

        Raises TimeoutError after ``timeout_s`` seconds; the caller can then call it again.
        """
        if not ticket.ticket.wait(timeout_s):
            raise TimeoutError(
                f"batch of {len(ticket.batch.requests)} samples: not decoded after {timeout_s} s"
            )
        found = ticket.ticket.result()
        statuses = np.frombuffer(found.statuses, np.uint8)
        times_ns = np.frombuffer(found.times_ns, np.uint32).reshape(-1, len(STAGES))
        return DecodeResult(statuses, times_ns, found.reasons, ticket.batch.output)

    def done(self, ticket: NativeTicket) -> bool:
        return ticket.ticket.done

    def unfinished(self, ticket: NativeTicket) -> list[int]:
        """Returns the slots that threads are decoding now."""
        return self._pool.in_flight(ticket.ticket)

    def close(self) -> None:
        """Stops each thread after its current sample. Also runs at interpreter exit.

        Samples that have not started are CANCELLED.
        """
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
        return functools.partial(NativeBackend, threads=self.threads), ()


@functools.lru_cache
def _format_arguments(pixels: PixelFormat, channels: int) -> dict[str, Any]:
    """Returns the arguments that describe an output. All batches of a loader share them."""
    return {
        "planar": pixels.layout == "nchw",
        "color": COLORS.index(pixels.color),
        "fill": pixels.fill_values(channels),
        "mean": pixels.mean_values(channels),
        "std": pixels.std_values(channels),
        "bits": pixels.bits,
    }


@functools.cache
def _cpu() -> torch.device:
    import torch

    return torch.device("cpu")


def _memory(output: torch.Tensor | NDArray[np.generic]) -> object:
    """Returns the object that the core writes to.

    ``to_dlpack`` is faster than ``Tensor.__dlpack__``, which checks streams and devices in Python.
    """
    return output if isinstance(output, np.ndarray) else _to_dlpack()(output)


@functools.cache
def _to_dlpack() -> Callable[[torch.Tensor], object]:
    from torch.utils.dlpack import to_dlpack  # type: ignore[attr-defined]  # not in __all__

    return cast("Callable[[torch.Tensor], object]", to_dlpack)
