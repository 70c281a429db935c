"""Decodes on the CPU the rows of a batch that a GPU decoder does not serve, or failed to decode.

These are raw pixels, masks, rotated images, unusual JPEGs, and samples that cannot be decoded at
all, for which the CPU backend gives the reason.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from fastload._decode.backend import DecodeBackend, DecodeBatch
from fastload._decode.registry import default_cpu_backend

if TYPE_CHECKING:
    from fastload._decode.gpu.base import BatchOutcome
    from fastload._decode.gpu.staging import Rows


@dataclass(frozen=True, slots=True)
class FallbackTicket:
    """Some rows of a batch in flight on the CPU."""

    batch: DecodeBatch
    rows: Rows
    pixels: torch.Tensor  # the output itself if it can be written in place
    ticket: Any  # the CPU backend's


class CpuFallback:
    """The default CPU backend on ``threads`` threads, started with the first row it gets."""

    def __init__(self, *, threads: int) -> None:
        self._threads = threads
        self._backend: DecodeBackend | None = None

    def submit(self, batch: DecodeBatch, rows: Rows) -> FallbackTicket | None:
        """Starts to decode these rows (ascending); None if there are none."""
        if not len(rows):
            return None
        output = torch.as_tensor(batch.output)
        in_place = output.device.type == "cpu" and len(rows) == len(batch.requests)
        pixels = (
            output if in_place else torch.empty((len(rows), *output.shape[1:]), dtype=output.dtype)
        )
        requests = batch.requests[rows]  # a copy
        requests["exact"] = 1  # as GPU decoders do it: pixels may not depend on who decoded them
        if self._backend is None:
            self._backend = default_cpu_backend().make(threads=self._threads)
        ticket = self._backend.submit(DecodeBatch(batch.sources, requests, pixels, batch.pixels))
        return FallbackTicket(batch, rows, pixels, ticket)

    def collect(self, ticket: FallbackTicket | None, outcome: BatchOutcome) -> None:
        """Waits; the pixels are in place, or will be by work queued on the current stream."""
        if ticket is None or self._backend is None:
            return
        result = self._backend.collect(ticket.ticket)
        output = torch.as_tensor(ticket.batch.output)
        if ticket.pixels.data_ptr() != output.data_ptr():
            # From pageable memory: .to() returns after the copy was read, so `pixels` may go.
            rows = torch.from_numpy(ticket.rows).to(output.device)
            output.index_copy_(0, rows, ticket.pixels.to(output.device))
        outcome.add(ticket.rows, result)

    def redo(self, batch: DecodeBatch, rows: Rows, outcome: BatchOutcome) -> None:
        """Decodes rows now that the GPU decoder failed at: bad ones get a reason, others pixels."""
        self.collect(self.submit(batch, rows), outcome)

    def close(self) -> None:
        """Ends its threads."""
        if self._backend is not None:
            self._backend.close()
