"""The DALI backend: decode, slice, resize and flip on the GPU (or the same graph on the CPU, in tests).

DALI's resize repeats the edge pixel where the others leave the outside out, so its outermost pixels
differ from theirs by up to 32; all others are within 1.
"""

from __future__ import annotations

import time
import weakref
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

import numpy as np
import torch
import torch.utils.dlpack

from fastload._decode.backend import DecodeBatch, DecodeResult, Filter
from fastload._decode.gpu.base import BatchOutcome, GpuBackend, write_pixels
from fastload._decode.gpu.cpu_fallback import FallbackTicket
from fastload._decode.gpu.requirements import Requirements
from fastload._decode.gpu.staging import Streams

if TYPE_CHECKING:
    from fastload._decode.gpu.dali_pipeline import GraphKind, Run, RunQueue

_MIN_BATCH = 16  # slots of the smallest pipeline; a larger batch gets a larger one, by doubling
_MAX_GPU_THREADS = 16  # of DALI on a GPU: each takes 16 MB of its memory


class OutputLease(Protocol):
    """Takes outputs out of a pipeline, and keeps DALI's buffers while work is queued that reads them."""

    def take(self, pipeline: Any) -> Any:
        """The oldest outputs, in order with the current stream."""

    def hold(self, *things: object) -> None:
        """Keeps DALI's buffers until what was queued to read them is done."""


class CpuOutputLease:
    """On the CPU nothing is queued."""

    def take(self, pipeline: Any) -> Any:
        """Waits for the outputs. No stream: DALI would ask the driver for it."""
        return pipeline.share_outputs()

    def hold(self, *things: object) -> None:
        """The copy is done: nothing to keep."""


@dataclass(frozen=True, slots=True)
class DaliRun:
    """The rows of a batch that are in a pipeline."""

    kind: GraphKind
    queue: RunQueue
    run: Run


@dataclass(frozen=True, slots=True)
class DaliTicket:
    """A batch in flight: some rows in DALI, the others on the CPU."""

    batch: DecodeBatch
    streams: Streams
    dali: DaliRun | None  # None if DALI has nothing to do
    fallback: FallbackTicket | None


class DaliBackend(GpuBackend):
    """Decodes with DALI; with ``hardware`` the GPU's JPEG engine decodes everything."""

    name: ClassVar = "dali"
    needs: ClassVar = Requirements(
        "nvidia.dali",
        {12: "nvidia-dali-cuda120", 13: "nvidia-dali-cuda130"},
        {12: "'fastload-vision[dali]'", 13: "'fastload-vision[dali-cuda130]'"},
    )
    edge_error: ClassVar = 32
    max_cut_threads: ClassVar = 4

    def __init__(
        self,
        *,
        threads: int | None = None,
        device: str | torch.device = "cpu",
        hardware: bool = False,
    ) -> None:
        super().__init__(threads=threads, device=device, hardware=hardware)
        self._lease: OutputLease = self._new_lease()
        self._all: list[RunQueue] = []
        self._queues: dict[GraphKind, RunQueue] = {}
        # DALI reads from memory maps that others would close.
        self._end = weakref.finalize(self, _drain, self._all)
        self._end.atexit = False  # then DALI ends its pipelines by itself

    def _new_lease(self) -> OutputLease:
        if self.device.type == "cpu":
            return CpuOutputLease()
        from fastload._common.cuda import CudaOutputLease

        return CudaOutputLease()

    def submit(self, batch: DecodeBatch) -> DaliTicket:
        """Cuts the streams, then pushes them into the pipeline of their kind."""
        self.check_output(batch)
        streams = self._alike(batch, self._cutter.cut(batch))
        fallback = self._fallback.submit(batch, streams.rest)
        if not len(streams.rows):
            return DaliTicket(batch, streams, None, fallback)
        from fastload._decode.gpu.dali_pipeline import arguments

        requests = batch.requests[streams.rows]
        size = _size(batch)
        kind = self._kind(batch, requests, size)
        queue = self._queue_for(kind, len(requests))
        run = queue.push(streams.data, arguments(requests, streams.boxes, size, kind), batch)
        return DaliTicket(batch, streams, DaliRun(kind, queue, run), fallback)

    def collect(self, ticket: DaliTicket) -> DecodeResult:
        """Waits for DALI and the CPU. A failed run is redone on the CPU, where only bad samples fail."""
        outcome = BatchOutcome(ticket.batch)
        rows = ticket.streams.rows
        started = time.perf_counter_ns()
        outcome.add_time("cut", ticket.streams.took_ns, rows)
        if ticket.dali is not None:
            run = ticket.dali.run
            ticket.dali.queue.wait(run)
            if run.error is None:
                self._write(run, ticket, outcome)
                outcome.add_time("decode", time.perf_counter_ns() - started, rows)
            else:
                self._fallback.redo(ticket.batch, rows, outcome)
        self._fallback.collect(ticket.fallback, outcome)
        return outcome.result()

    def _write(self, run: Run, ticket: DaliTicket, outcome: BatchOutcome) -> None:
        """DALI's pixels into the output. On a GPU: read the buffer, lease it, only then release it."""
        rows = ticket.streams.rows
        dense = run.outputs[0].as_tensor()
        # DALI's memory; the current stream waits for it.
        pixels: torch.Tensor = torch.utils.dlpack.from_dlpack(dense)
        write_pixels(pixels, ticket.batch, rows)
        skipped = uniform_rows(pixels, ticket.batch, rows) if self._hardware else rows[:0]
        self._lease.hold(run.outputs, dense, pixels)
        run.outputs = None
        if len(skipped):  # the JPEG engine may skip an image and report success
            self._fallback.redo(ticket.batch, skipped, outcome)

    def _alike(self, batch: DecodeBatch, streams: Streams) -> Streams:
        """Rows with another filter than the first go to the CPU: a graph has one. Plans never mix them.

        Nearest, too: DALI computes positions in float32 and takes the other neighbor at ties (0.1 %
        of the pixels of 64 photos).
        """
        filters = batch.requests["filter"][streams.rows]
        same = (filters == filters[:1]) & (filters != Filter.NEAREST)
        if same.all():
            return streams
        return Streams(
            streams.rows[same],
            [data for data, good in zip(streams.data, same, strict=True) if good],
            streams.boxes[same],
            streams.sizes[same],
            np.sort(np.concatenate([streams.rest, streams.rows[~same]])),
            streams.took_ns,
        )

    def _kind(self, batch: DecodeBatch, requests: Any, size: tuple[int, int]) -> GraphKind:
        from fastload._decode.gpu.dali_pipeline import GraphKind

        fills = (requests["out_h"] == size[0]) & (requests["out_w"] == size[1])
        gray = batch.pixels.color == "gray"
        fill = batch.pixels.fill_values(1 if gray else 3)
        if batch.pixels.color == "bgr":
            fill = fill[::-1]
        padded = GraphKind(gray, int(requests["filter"][0]), fill, self._hardware)
        # A letterboxed batch may need no border: the existing graph gives the same pixels.
        return padded if padded in self._queues or not fills.all() else replace(padded, fill=None)

    def _queue_for(self, kind: GraphKind, n: int) -> RunQueue:
        queue = self._queues.get(kind)
        if queue is None or queue.max_batch < n:
            from fastload._decode.gpu.dali_pipeline import RunQueue, make_pipeline

            gpu = self.device.type == "cuda"
            max_batch = max(_MIN_BATCH, 1 << (n - 1).bit_length())
            pipeline = make_pipeline(
                kind,
                max_batch=max_batch,
                threads=min(self.threads, _MAX_GPU_THREADS) if gpu else self.threads,
                device_id=self.device.index if gpu else None,
                gpu=gpu,
            )
            queue = RunQueue(pipeline, max_batch=max_batch, take=self._lease.take)
            self._queues[kind] = queue
            self._all.append(queue)
        return queue

    def close(self) -> None:
        """Waits for the runs in flight, then ends the threads."""
        self._end()
        self._queues.clear()
        super().close()


def uniform_rows(pixels: torch.Tensor, batch: DecodeBatch, rows: Any) -> Any:
    """The rows whose pixels, without borders, all have one color: what a skipped image looks like."""
    asked = batch.requests[rows]
    size = _size(batch)
    if ((asked["out_h"] == size[0]) & (asked["out_w"] == size[1])).all():
        flat = (pixels == pixels[:, :1, :1]).flatten(1).all(1)
    else:
        boxes = zip(
            *(asked[name].tolist() for name in ("pad_left", "pad_top", "out_w", "out_h")),
            strict=True,
        )
        inner = [
            image[top : top + h, left : left + w]
            for image, (left, top, w, h) in zip(pixels, boxes, strict=True)
        ]
        flat = torch.stack([(image == image[:1, :1]).all() for image in inner])
    return rows[flat.cpu().numpy()]


def _size(batch: DecodeBatch) -> tuple[int, int]:
    height, width = (
        batch.output.shape[2:] if batch.pixels.layout == "nchw" else batch.output.shape[1:3]
    )
    return int(height), int(width)


def _drain(queues: list[RunQueue]) -> None:
    for queue in queues:
        queue.drain()
    queues.clear()
