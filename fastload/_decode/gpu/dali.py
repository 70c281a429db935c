"""The DALI backend: decodes, slices, resizes and flips on the GPU. Tests run its graph on the CPU.

At the border, DALI's resize repeats the edge pixel, while the other backends ignore outside pixels.
Its outermost pixels therefore differ from theirs by up to 32. All other pixels differ by at most 1.
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
from fastload._decode.gpu.base import (
    FallbackTicket,
    GpuBackend,
    Requirements,
    add_time,
    empty_result,
    write_pixels,
)
from fastload._decode.gpu.staging import Streams

if TYPE_CHECKING:
    from fastload._decode.gpu.dali_pipeline import GraphKind, Run, RunQueue

_MIN_BATCH = 16  # slots of the smallest pipeline; larger pipelines double the number
_MAX_GPU_THREADS = 16  # each DALI thread uses 16 MB of GPU memory


class OutputLease(Protocol):
    """Takes outputs out of a pipeline and keeps their buffers while queued work reads them."""

    def take(self, pipeline: Any) -> Any:
        """Returns the oldest outputs, ordered with the current stream."""

    def hold(self, *things: object) -> None:
        """Keeps DALI's buffers until the work that is now queued has finished."""


class CpuOutputLease:
    """On the CPU no work is queued."""

    def take(self, pipeline: Any) -> Any:
        """Waits for the outputs. Passes no stream, because DALI would query the driver for it."""
        return pipeline.share_outputs()

    def hold(self, *things: object) -> None:
        """Does nothing, because the copy has finished."""


@dataclass(frozen=True, slots=True)
class DaliRun:
    """Rows of a batch that DALI is decoding."""

    queue: RunQueue
    run: Run


@dataclass(frozen=True, slots=True)
class DaliTicket:
    """A batch in flight: DALI decodes some rows, and the CPU decodes the others."""

    batch: DecodeBatch
    streams: Streams
    dali: DaliRun | None  # None if DALI decodes no row
    fallback: FallbackTicket | None


class DaliBackend(GpuBackend):
    """Decodes with DALI. With ``hardware``, the JPEG engine of the GPU decodes all images."""

    name: ClassVar = "dali"
    needs: ClassVar = Requirements(
        "nvidia.dali",
        {12: "nvidia-dali-cuda120", 13: "nvidia-dali-cuda130"},
        {12: "'fastload-vision[dali]'", 13: "'fastload-vision[dali-cuda130]'"},
    )
    edge_error: ClassVar = 32
    max_cut_threads: ClassVar = 4

    def _start(self) -> None:
        self._lease: OutputLease = self._new_lease()
        self._all: list[RunQueue] = []
        self._queues: dict[GraphKind, RunQueue] = {}
        # DALI reads from the memory of records, which must outlive its runs.
        self._end = weakref.finalize(self, _drain, self._all)
        self._end.atexit = False  # DALI stops its pipelines at exit

    def _new_lease(self) -> OutputLease:
        if self.device.type == "cpu":
            return CpuOutputLease()
        from fastload._common.cuda import CudaOutputLease

        return CudaOutputLease()

    def submit(self, batch: DecodeBatch) -> DaliTicket:
        self.check_output(batch)
        streams = self._with_one_filter(batch, self._cutter.cut(batch))
        fallback = self._fallback.submit(batch, streams.fallback)
        if not len(streams.rows):
            return DaliTicket(batch, streams, None, fallback)
        from fastload._decode.gpu.dali_pipeline import arguments

        requests = batch.requests[streams.rows]
        kind = self._kind(batch, requests)
        queue = self._queue_for(kind, len(requests))
        run = queue.push(streams.data, arguments(requests, streams.boxes, batch.size, kind), batch)
        return DaliTicket(batch, streams, DaliRun(queue, run), fallback)

    def collect(self, ticket: DaliTicket) -> DecodeResult:
        """Waits for DALI and the CPU.

        One bad image fails a DALI run. The CPU then decodes all its rows, and only bad images fail.
        """
        result = empty_result(ticket.batch)
        rows = ticket.streams.rows
        started = time.perf_counter_ns()
        add_time(result, "cut", ticket.streams.elapsed_ns, rows)
        if ticket.dali is not None:
            run = ticket.dali.run
            ticket.dali.queue.wait(run)
            if run.error is None:
                self._write(run, ticket, result)
                add_time(result, "decode", time.perf_counter_ns() - started, rows)
            else:
                self._fallback.redo(ticket.batch, rows, result)
        self._fallback.collect(ticket.fallback, result)
        return result

    def _write(self, run: Run, ticket: DaliTicket, result: DecodeResult) -> None:
        """Writes DALI's pixels to the output.

        On a GPU the order matters: queue the copy, lease the buffer, then release it.
        """
        rows = ticket.streams.rows
        dense = run.outputs[0].as_tensor()
        # A view of DALI's memory; the current stream waits for it.
        pixels: torch.Tensor = torch.utils.dlpack.from_dlpack(dense)
        write_pixels(pixels, ticket.batch, rows)
        skipped = uniform_rows(pixels, ticket.batch, rows) if self._hardware else rows[:0]
        self._lease.hold(run.outputs, dense, pixels)
        run.outputs = None
        if len(skipped):  # the JPEG engine can skip an image and still report success
            self._fallback.redo(ticket.batch, skipped, result)

    def _with_one_filter(self, batch: DecodeBatch, streams: Streams) -> Streams:
        """Moves rows with another filter than the first to the CPU, because a graph has one filter.

        Plans never mix filters. Rows with the nearest filter also go to the CPU: DALI computes
        positions in float32 and picks the other neighbor at ties (0.1 % of the pixels of 64
        photos).
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
            np.sort(np.concatenate([streams.fallback, streams.rows[~same]])),
            streams.elapsed_ns,
        )

    def _kind(self, batch: DecodeBatch, requests: Any) -> GraphKind:
        from fastload._decode.gpu.dali_pipeline import GraphKind

        gray = batch.pixels.color == "gray"
        fill = batch.pixels.fill_values(1 if gray else 3)
        if batch.pixels.color == "bgr":
            fill = fill[::-1]
        padded = GraphKind(gray, int(requests["filter"][0]), fill, self._hardware)
        # A batch without padding can also use an existing graph with padding: the pixels are equal.
        if padded in self._queues or not _fills_output(requests, batch):
            return padded
        return replace(padded, fill=None)

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
        """Waits for the runs in flight, then stops the threads."""
        self._end()
        self._queues.clear()
        super().close()


def uniform_rows(pixels: torch.Tensor, batch: DecodeBatch, rows: Any) -> Any:
    """Returns the rows with a single color (without padding), which may be skipped images."""
    requests = batch.requests[rows]
    if _fills_output(requests, batch):
        flat = (pixels == pixels[:, :1, :1]).flatten(1).all(1)
    else:
        boxes = zip(
            *(requests[name].tolist() for name in ("pad_left", "pad_top", "out_w", "out_h")),
            strict=True,
        )
        inner = [
            image[top : top + h, left : left + w]
            for image, (left, top, w, h) in zip(pixels, boxes, strict=True)
        ]
        flat = torch.stack([(image == image[:1, :1]).all() for image in inner])
    return rows[flat.cpu().numpy()]


def _fills_output(requests: Any, batch: DecodeBatch) -> bool:
    """Whether no request needs padding."""
    height, width = batch.size
    return bool(((requests["out_h"] == height) & (requests["out_w"] == width)).all())


def _drain(queues: list[RunQueue]) -> None:
    for queue in queues:
        queue.drain()
    queues.clear()
