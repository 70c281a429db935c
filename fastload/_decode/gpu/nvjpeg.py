"""The nvJPEG backend: nvImageCodec decodes the cut streams, one fused kernel makes the batch of them. For CUDA; on the CPU for tests.

Where its decoder agrees with libjpeg to the bit, as on the CPU, pixels equal those of the native core with ``exact=True``. It never decodes
at a smaller scale: nvImageCodec does not offer that.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Iterator
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
import torch

from fastload._common.cpus import available_cpus
from fastload._decode.backend import DecodeBatch, DecodeResult, Status
from fastload._decode.gpu.cpu_fallback import Outcomes, Rest, RestTicket
from fastload._decode.gpu.fused import JOB, Jobs, kernel_trouble, place
from fastload._decode.gpu.nvjpeg_images import HostLane, Images, Lane
from fastload._decode.gpu.requirements import checked_device, require
from fastload._decode.gpu.staging import StreamCutter, Streams
from fastload.errors import ConfigError, MissingPart

if TYPE_CHECKING:
    from fastload._decode.gpu.staging import Rows

CHUNK_BYTES = 512 << 20  # decoded pixels at a time; a batch of 256 photos of 500x375 has 144 MB


@dataclass(slots=True)
class Done:
    """What became of the rows that were decoded here."""

    failed: list[int] = field(default_factory=list)  # slots
    decode_ns: int = 0
    resize_ns: int = 0


@dataclass(frozen=True, slots=True)
class NvjpegTicket:
    """A batch under way: some rows here, the rest on the CPU."""

    batch: DecodeBatch
    streams: Streams
    done: Future[Done]
    rest: RestTicket | None


class NvjpegBackend:
    """Decodes with nvImageCodec on ``device``; ``threads`` are for cutting, Huffman decoding and the rows left to the CPU.

    ``hardware``: the GPU's JPEG engine decodes what it can; only after ``fastload selftest`` has passed on this machine.
    """

    name = "nvjpeg"

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
        threads = threads or available_cpus()
        self._lane: Lane = self._new_lane()
        try:
            self._images = Images(self.device, self._lane, threads=threads, hardware=hardware)
        except RuntimeError as error:  # in spite of all that `require` has looked at
            raise MissingPart(
                f"decoding with backend='nvjpeg' on {self.device}: nvImageCodec does not start ({error}): "
                "run 'fastload selftest' to see what is here, or use backend='native'"
            ) from None
        self._warn_without_kernel()
        self._cutter, self._rest = StreamCutter(threads=threads), Rest(threads=threads)
        self._thread = ThreadPoolExecutor(
            1, "fastload-nvjpeg"
        )  # decode() blocks, and its buffers serve one batch at a time

    def _new_lane(self) -> Lane:
        if self.device.type == "cpu":
            return HostLane()
        from fastload._common.cuda import CudaLane

        return CudaLane(self.device)

    def _warn_without_kernel(self) -> None:
        """What the user gets instead is right, but slow: some 40 launches a picture."""
        with self._lane.stream(
            None
        ):  # Triton launches on the current device, which may be another one
            trouble = kernel_trouble(self.device) if self.device.type == "cuda" else ""
        if trouble:
            warnings.warn(
                f"backend 'nvjpeg' on {self.device}: {trouble}; torch resizes picture by picture, slowly",
                RuntimeWarning,
                stacklevel=3,
            )

    def submit(self, batch: DecodeBatch) -> NvjpegTicket:
        """Cuts the streams here, decodes and resizes in a thread of its own."""
        output = torch.as_tensor(batch.output)
        if output.device != self.device:
            raise ConfigError(f"output: expected on {self.device}, found on {output.device}")
        streams = self._cutter.cut(batch)
        done = self._thread.submit(self._run, batch, streams, self._lane.mark())
        return NvjpegTicket(batch, streams, done, self._rest.submit(batch, streams.rest))

    def collect(self, ticket: NvjpegTicket) -> DecodeResult:
        """Waits for all rows. What was not decoded here is tried on the CPU, which says what is wrong with it."""
        outcomes, rows = Outcomes(ticket.batch), ticket.streams.rows
        outcomes.took("cut", ticket.streams.took_ns, rows)
        try:
            done = ticket.done.result()
        except CancelledError:
            outcomes.status[rows] = Status.CANCELLED
            outcomes.reasons.update(dict.fromkeys(rows.tolist(), "the backend was closed"))
        else:
            outcomes.took("decode", done.decode_ns, rows)
            outcomes.took("resize", done.resize_ns, rows)
            self._rest.redo(ticket.batch, np.array(sorted(done.failed), np.intp), outcomes)
        self._rest.collect(ticket.rest, outcomes)
        return outcomes.result()

    def _run(self, batch: DecodeBatch, streams: Streams, ready: object) -> Done:
        """In the thread. ``ready``: from that point of the caller's queue on, the output's memory is ours."""
        done = Done()
        for which in _chunks(streams, gray=batch.pixels.colour == "gray"):
            try:
                self._chunk(batch, streams, which, ready, done)
            except RuntimeError as error:  # the library's own; the next batch may be all right
                warnings.warn(
                    f"backend 'nvjpeg' on {self.device}: decoding {len(which)} images failed ({error}); the CPU decodes them",
                    RuntimeWarning,
                    stacklevel=2,
                )
                done.failed += streams.rows[which].tolist()
        return done

    def _chunk(
        self, batch: DecodeBatch, streams: Streams, which: Rows, ready: object, done: Done
    ) -> None:
        """The order matters on a GPU: see `fastload._common.cuda.CudaLane`."""
        started = time.perf_counter_ns()
        self._lane.settle()  # nobody reads the buffers any more
        pictures = self._images.decode(
            [streams.data[i] for i in which],
            streams.sizes[which],
            gray=batch.pixels.colour == "gray",
        )
        decoded = time.perf_counter_ns()
        good = [i for i, picture in zip(which, pictures, strict=True) if picture is not None]
        done.failed += streams.rows[np.setdiff1d(which, good)].tolist()
        parts = [picture for picture in pictures if picture is not None]
        boxes = streams.boxes[good].tolist()
        parts = [
            picture[y : y + h, x : x + w]
            for picture, (x, y, w, h) in zip(parts, boxes, strict=True)
        ]
        with self._lane.stream(ready):
            place(_jobs(batch, streams, good), parts, torch.as_tensor(batch.output), batch.pixels)
        self._lane.settle()  # the pixels are in the output; the buffers may be written again
        self._images.trim()
        done.decode_ns += decoded - started
        done.resize_ns += time.perf_counter_ns() - decoded

    def close(self) -> None:
        """Lets the batch that is being decoded end; those behind it are CANCELLED."""
        self._thread.shutdown(wait=True, cancel_futures=True)
        self._cutter.close()
        self._rest.close()


def _chunks(streams: Streams, *, gray: bool) -> Iterator[Rows]:
    """Places in ``streams``, so many at a time that their pixels fit the memory set aside; a larger picture goes alone."""
    n_bytes = streams.sizes.astype(np.int64).prod(1) * (1 if gray else 3)
    start = 0
    while start < len(n_bytes):
        total = np.cumsum(n_bytes[start:])
        stop = start + max(1, int(np.searchsorted(total, CHUNK_BYTES, side="right")))
        yield np.arange(start, min(stop, len(n_bytes)))
        start = stop


def _jobs(batch: DecodeBatch, streams: Streams, which: list[int]) -> Jobs:
    asked, slots = batch.requests[streams.rows[which]], streams.rows[which]
    jobs = np.zeros(len(which), JOB)
    jobs["in_w"], jobs["in_h"] = streams.boxes[which][:, 2], streams.boxes[which][:, 3]
    for name in ("out_w", "out_h", "flip", "filter"):
        jobs[name] = asked[name]
    jobs["left"], jobs["top"], jobs["slot"] = asked["pad_left"], asked["pad_top"], slots
    return jobs
