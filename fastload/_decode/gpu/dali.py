"""The DALI backend: decode, slice, resize and flip on the GPU (or, for tests, the same graph on the CPU).

DALI's resize repeats the edge pixel where the others leave the outside out, so its outermost pixel ring differs from theirs by up to
32 levels; everything inside is within 1.
"""

from __future__ import annotations

import time
import weakref
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import torch
import torch.utils.dlpack

from fastload._common.cpus import available_cpus
from fastload._decode.backend import DecodeBatch, DecodeResult, Filter
from fastload._decode.gpu.cpu_fallback import Outcomes, Rest, RestTicket
from fastload._decode.gpu.requirements import checked_device, require
from fastload._decode.gpu.staging import StreamCutter, Streams
from fastload._decode.gpu.write_pixels import write_levels
from fastload.errors import ConfigError

if TYPE_CHECKING:
    from fastload._decode.gpu.dali_graph import Kind
    from fastload._decode.gpu.dali_runs import Run, Runs

_SMALLEST = 16  # slots of the smallest pipeline; a larger batch gets a larger one, by doubling
_MOST_THREADS = 16  # of DALI on a GPU: each takes 16 MB of its memory


class Hands(Protocol):
    """How outputs come out of a pipeline into torch."""

    def take(self, pipeline: Any) -> Any:
        """The oldest outputs, in order with the current stream."""

    def lease(self, *things: object) -> None:
        """Keeps DALI's buffers until what was queued to read them is done."""


class CpuHands:
    """Nothing is queued: what is copied is copied."""

    def take(self, pipeline: Any) -> Any:
        """Waits for them. A stream is out of the question: DALI would ask the driver."""
        return pipeline.share_outputs()

    def lease(self, *things: object) -> None:
        """They may go."""


@dataclass(frozen=True, slots=True)
class DaliTicket:
    """A batch under way: some rows in DALI, the rest on the CPU."""

    batch: DecodeBatch
    streams: Streams
    kind: Kind | None  # of the graph that has it; None where DALI has nothing to do
    runs: Runs | None
    run: Run | None
    rest: RestTicket | None


class DaliBackend:
    """Decodes with DALI on ``device``; ``threads`` are for Huffman decoding and for the rows left to the CPU.

    ``hardware``: the GPU's JPEG engine decodes everything; only after ``fastload selftest`` has passed on this machine.
    """

    name = "dali"

    def __init__(
        self,
        *,
        threads: int | None = None,
        device: str | torch.device = "cpu",
        hardware: bool = False,
    ) -> None:
        self.device = checked_device(device)
        if hardware and self.device.type == "cpu":
            raise ConfigError(
                "hardware=True: the JPEG engine is a part of GPUs; with device='cpu' leave it out"
            )
        if threads is not None and not 1 <= threads <= 1024:
            raise ConfigError(
                f"threads {threads!r}: expected 1 to 1024, or None for one per available processor"
            )
        require(self.name, self.device, hardware=hardware)
        self._threads, self._hardware = threads or available_cpus(), hardware
        self._cutter, self._rest = (
            StreamCutter(threads=min(self._threads, 4)),
            Rest(threads=self._threads),
        )
        self._hands: Hands = self._new_hands()
        self._all: list[Runs] = []
        self._runs: dict[Kind, Runs] = {}
        self._end = weakref.finalize(
            self, _drain, self._all
        )  # DALI reads from maps that others would close
        self._end.atexit = False  # then DALI ends its pipelines by itself

    def _new_hands(self) -> Hands:
        if self.device.type == "cpu":
            return CpuHands()
        from fastload._common.cuda import DaliHands

        return DaliHands()

    def submit(self, batch: DecodeBatch) -> DaliTicket:
        """Cuts the streams, then pushes them into the pipeline of their kind."""
        if torch.as_tensor(batch.output).device != self.device:
            raise ConfigError(
                f"output: expected on {self.device}, found on {torch.as_tensor(batch.output).device}"
            )
        streams = self._alike(batch, self._cutter.cut(batch))
        rest = self._rest.submit(batch, streams.rest)
        if not len(streams.rows):
            return DaliTicket(batch, streams, None, None, None, rest)
        from fastload._decode.gpu.dali_graph import arguments

        requests, size = batch.requests[streams.rows], _size(batch)
        kind = self._kind(batch, requests, size)
        runs = self._runs_for(kind, len(requests))
        run = runs.push(streams.data, arguments(requests, streams.boxes, size, kind), batch)
        return DaliTicket(batch, streams, kind, runs, run, rest)

    def collect(self, ticket: DaliTicket) -> DecodeResult:
        """Waits for DALI and the CPU. A run that failed is done again on the CPU, where only the bad sample fails."""
        outcomes, rows, started = (
            Outcomes(ticket.batch),
            ticket.streams.rows,
            time.perf_counter_ns(),
        )
        outcomes.took("cut", ticket.streams.took_ns, rows)
        if ticket.runs is not None and ticket.run is not None:
            ticket.runs.wait(ticket.run)
            if ticket.run.error is None:
                self._written(ticket.run, ticket, outcomes)
                outcomes.took("decode", time.perf_counter_ns() - started, rows)
            else:
                self._rest.redo(ticket.batch, rows, outcomes)
        self._rest.collect(ticket.rest, outcomes)
        return outcomes.result()

    def _written(self, run: Run, ticket: DaliTicket, outcomes: Outcomes) -> None:
        """DALI's pixels into the output. The order matters on a GPU: read its buffer, then lease it, only then let go of it."""
        rows, dense = ticket.streams.rows, run.outputs[0].as_tensor()
        levels: torch.Tensor = torch.utils.dlpack.from_dlpack(
            dense
        )  # DALI's memory; the current stream waits for it
        write_levels(levels, ticket.batch, rows)
        flat = constant(levels, ticket.batch, rows) if self._hardware else rows[:0]
        self._hands.lease(run.outputs, dense, levels)
        run.outputs = None
        if len(flat):  # the JPEG engine may skip an image and report success
            self._rest.redo(ticket.batch, flat, outcomes)

    def _alike(self, batch: DecodeBatch, streams: Streams) -> Streams:
        """Rows with another filter than the first go to the CPU: a graph has one. Plans never mix them.

        Nearest, too: DALI computes places in float32 and takes the other neighbour at ties (0.1 % of the pixels of 64 photos).
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

    def _kind(self, batch: DecodeBatch, requests: Any, size: tuple[int, int]) -> Kind:
        from fastload._decode.gpu.dali_graph import Kind

        fills = (requests["out_h"] == size[0]) & (requests["out_w"] == size[1])
        gray = batch.pixels.colour == "gray"
        levels = batch.pixels.fill_levels(1 if gray else 3)
        padded = Kind(
            gray,
            int(requests["filter"][0]),
            levels[::-1] if batch.pixels.colour == "bgr" else levels,
            self._hardware,
        )
        # A letterboxed batch may happen to need no border: the same pixels by the graph that is there, not by a new one.
        return padded if padded in self._runs or not fills.all() else replace(padded, fill=None)

    def _runs_for(self, kind: Kind, n: int) -> Runs:
        runs = self._runs.get(kind)
        if runs is None or runs.max_batch < n:
            from fastload._decode.gpu.dali_graph import make_pipeline
            from fastload._decode.gpu.dali_runs import Runs

            number = self.device.index if self.device.type == "cuda" else None
            threads = self._threads if number is None else min(self._threads, _MOST_THREADS)
            max_batch = max(_SMALLEST, 1 << (n - 1).bit_length())
            pipeline = make_pipeline(
                kind, max_batch=max_batch, threads=threads, device_id=number, gpu=number is not None
            )
            runs = self._runs[kind] = Runs(pipeline, max_batch=max_batch, take=self._hands.take)
            self._all.append(runs)
        return runs

    def close(self) -> None:
        """Lets what is under way end, then ends the threads."""
        self._end()
        self._runs.clear()
        self._cutter.close()
        self._rest.close()


def constant(levels: torch.Tensor, batch: DecodeBatch, rows: Any) -> Any:
    """Those of ``rows`` whose pixels, borders apart, are all of one colour: what a skipped image looks like."""
    asked = batch.requests[rows]
    size = _size(batch)
    if ((asked["out_h"] == size[0]) & (asked["out_w"] == size[1])).all():
        flat = (levels == levels[:, :1, :1]).flatten(1).all(1)
    else:
        boxes = zip(
            *(asked[name].tolist() for name in ("pad_left", "pad_top", "out_w", "out_h")),
            strict=True,
        )
        inner = [
            image[top : top + h, left : left + w]
            for image, (left, top, w, h) in zip(levels, boxes, strict=True)
        ]
        flat = torch.stack([(image == image[:1, :1]).all() for image in inner])
    return rows[flat.cpu().numpy()]


def _size(batch: DecodeBatch) -> tuple[int, int]:
    height, width = (
        batch.output.shape[2:] if batch.pixels.layout == "nchw" else batch.output.shape[1:3]
    )
    return int(height), int(width)


def _drain(all_runs: list[Runs]) -> None:
    for runs in all_runs:
        runs.drain()
    all_runs.clear()
