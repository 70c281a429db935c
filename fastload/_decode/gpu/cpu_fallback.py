"""The rows of a batch that a GPU decoder does not serve, or failed at: the CPU decodes them and copies them into place.

Raw pixels, masks, turned images, unusual JPEGs, and samples that cannot be decoded at all, whose reason is then the CPU's.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray

from fastload._common.native import core
from fastload._decode.backend import STAGES, DecodeBackend, DecodeBatch, DecodeResult

if TYPE_CHECKING:
    from fastload._decode.gpu.staging import Rows


class Outcomes:
    """How a batch goes, as it is found out; every sample is OK until somebody says otherwise."""

    def __init__(self, batch: DecodeBatch) -> None:
        n = len(batch.requests)
        self._output = batch.output
        self.status: NDArray[np.uint8] = np.zeros(n, np.uint8)
        self.times_ns: NDArray[np.uint32] = np.zeros((n, len(STAGES)), np.uint32)
        self.reasons: dict[int, str] = {}

    def took(self, stage: str, nanoseconds: int, rows: Rows) -> None:
        """So long for all these rows together: each gets its part."""
        if len(rows):
            self.times_ns[rows, STAGES.index(stage)] = min(nanoseconds // len(rows), 2**32 - 1)

    def result(self) -> DecodeResult:
        """What ``collect`` returns."""
        return DecodeResult(self.status, self.times_ns, self.reasons, self._output)


@dataclass(frozen=True, slots=True)
class RestTicket:
    """Some rows of a batch under way on the CPU."""

    batch: DecodeBatch
    rows: Rows
    pixels: torch.Tensor  # the output itself, where it can be written in place
    ticket: Any  # the CPU backend's


class Rest:
    """The native core, or the reference where that was not built, on ``threads`` threads. Made with the first row it gets."""

    def __init__(self, *, threads: int) -> None:
        self._threads = threads
        self._backend: DecodeBackend[Any] | None = None

    def submit(self, batch: DecodeBatch, rows: Rows) -> RestTicket | None:
        """Begins to decode these rows (ascending); None where there are none."""
        if not len(rows):
            return None
        output = torch.as_tensor(batch.output)
        here = output.device.type == "cpu" and len(rows) == len(batch.requests)
        pixels = output if here else torch.empty((len(rows), *output.shape[1:]), dtype=output.dtype)
        requests = batch.requests[rows]  # a copy
        requests["exact"] = 1  # as GPU decoders do it: pixels may not depend on who decoded them
        ticket = self._decoder().submit(DecodeBatch(batch.sources, requests, pixels, batch.pixels))
        return RestTicket(batch, rows, pixels, ticket)

    def collect(self, ticket: RestTicket | None, outcomes: Outcomes) -> None:
        """Waits for them; their pixels are in place, or will be by work queued on the current stream."""
        if ticket is None:
            return
        result = self._decoder().collect(ticket.ticket)
        output = torch.as_tensor(ticket.batch.output)
        if ticket.pixels is not output and ticket.pixels.data_ptr() != output.data_ptr():
            # From pageable memory: the copy has been read when .to() returns, so `pixels` may go.
            output.index_copy_(
                0, torch.from_numpy(ticket.rows).to(output.device), ticket.pixels.to(output.device)
            )
        outcomes.status[ticket.rows], outcomes.times_ns[ticket.rows] = (
            result.status,
            result.times_ns,
        )
        outcomes.reasons.update({int(ticket.rows[row]): why for row, why in result.reasons.items()})

    def redo(self, batch: DecodeBatch, rows: Rows, outcomes: Outcomes) -> None:
        """At once, for rows that the GPU decoder failed at: the bad ones are named, the others get their pixels."""
        self.collect(self.submit(batch, rows), outcomes)

    def _decoder(self) -> DecodeBackend[Any]:
        if self._backend is None:
            if core() is not None:
                from fastload._decode.native import NativeBackend

                self._backend = NativeBackend(threads=self._threads)
            else:
                from fastload._decode.reference import ReferenceBackend

                self._backend = ReferenceBackend(threads=self._threads)
        return self._backend

    def close(self) -> None:
        """Ends its threads."""
        if self._backend is not None:
            self._backend.close()
