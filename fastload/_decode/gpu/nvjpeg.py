"""The nvJPEG backend: nvImageCodec decodes the cut streams, one fused kernel makes the batch of them.

It runs on CUDA devices, and on the CPU in tests. Where its decoder agrees with libjpeg to the bit, as
on the CPU, pixels equal those of the native core with ``exact=True``. It never decodes at a smaller
scale: nvImageCodec does not offer that.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Iterator
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar

import numpy as np
import torch

from fastload._decode.backend import DecodeBatch, DecodeResult, Status
from fastload._decode.gpu.base import BatchOutcome, GpuBackend
from fastload._decode.gpu.cpu_fallback import FallbackTicket
from fastload._decode.gpu.fused import JOB, Jobs, kernel_trouble, place
from fastload._decode.gpu.nvimgcodec import DecodeStream, HostStream, NvImageDecoder
from fastload._decode.gpu.requirements import Requirements
from fastload._decode.gpu.staging import Streams
from fastload.errors import MissingPart

if TYPE_CHECKING:
    from fastload._decode.gpu.staging import Rows

CHUNK_BYTES = 512 << 20  # decoded pixels at a time; a batch of 256 photos of 500x375 has 144 MB


@dataclass(slots=True)
class Decoded:
    """What the decode thread did with its rows."""

    failed: list[int] = field(default_factory=list)  # slots
    decode_ns: int = 0
    resize_ns: int = 0


@dataclass(frozen=True, slots=True)
class NvjpegTicket:
    """A batch in flight: some rows here, the others on the CPU."""

    batch: DecodeBatch
    streams: Streams
    decoded: Future[Decoded]
    fallback: FallbackTicket | None


class NvjpegBackend(GpuBackend):
    """Decodes with nvImageCodec; with ``hardware`` the GPU's JPEG engine decodes what it can."""

    name: ClassVar = "nvjpeg"
    needs: ClassVar = Requirements(
        "nvidia.nvimgcodec",
        {12: "nvidia-nvimgcodec-cu12", 13: "nvidia-nvimgcodec-cu13"},
        {12: "'fastload-vision[nvjpeg]'", 13: "nvidia-nvimgcodec-cu13 nvidia-nvjpeg"},
        nvjpeg_wheels={12: "nvidia-nvjpeg-cu12", 13: "nvidia-nvjpeg"},
    )
    edge_error: ClassVar = 1

    def __init__(
        self,
        *,
        threads: int | None = None,
        device: str | torch.device = "cpu",
        hardware: bool = False,
    ) -> None:
        super().__init__(threads=threads, device=device, hardware=hardware)
        self._stream: DecodeStream = self._new_stream()
        try:
            self._images = NvImageDecoder(
                self.device, self._stream, threads=self.threads, hardware=hardware
            )
        except RuntimeError as error:  # although `missing` found nothing
            raise MissingPart(
                f"decoding with backend={self.name!r} on {self.device}: nvImageCodec does not start "
                f"({error}): run 'fastload selftest' to see what is here, or use backend='native'"
            ) from None
        self._warn_without_kernel()
        # One thread: decode() blocks, and its buffers serve one batch at a time.
        self._thread = ThreadPoolExecutor(1, "fastload-nvjpeg")

    def _new_stream(self) -> DecodeStream:
        if self.device.type == "cpu":
            return HostStream()
        from fastload._common.cuda import CudaDecodeStream

        return CudaDecodeStream(self.device)

    def _warn_without_kernel(self) -> None:
        """Without the kernel the pixels are right, but slow: some 40 launches per image."""
        if self.device.type == "cpu":
            return
        with self._stream.after(None):  # Triton launches on the current device
            trouble = kernel_trouble(self.device)
        if trouble:
            warnings.warn(
                f"backend {self.name!r} on {self.device}: {trouble}; torch resizes image by image, "
                "slowly",
                RuntimeWarning,
                stacklevel=3,
            )

    def submit(self, batch: DecodeBatch) -> NvjpegTicket:
        """Cuts the streams here, decodes and resizes in a thread of its own."""
        self.check_output(batch)
        streams = self._cutter.cut(batch)
        decoded = self._thread.submit(self._run, batch, streams, self._stream.mark())
        return NvjpegTicket(batch, streams, decoded, self._fallback.submit(batch, streams.rest))

    def collect(self, ticket: NvjpegTicket) -> DecodeResult:
        """Waits for all rows. Rows that failed here are redone on the CPU, which gives the reason."""
        outcome = BatchOutcome(ticket.batch)
        rows = ticket.streams.rows
        outcome.add_time("cut", ticket.streams.took_ns, rows)
        try:
            decoded = ticket.decoded.result()
        except CancelledError:
            outcome.status[rows] = Status.CANCELLED
            outcome.reasons.update(dict.fromkeys(rows.tolist(), "the backend was closed"))
        else:
            outcome.add_time("decode", decoded.decode_ns, rows)
            outcome.add_time("resize", decoded.resize_ns, rows)
            failed = np.array(sorted(decoded.failed), np.intp)
            self._fallback.redo(ticket.batch, failed, outcome)
        self._fallback.collect(ticket.fallback, outcome)
        return outcome.result()

    def _run(self, batch: DecodeBatch, streams: Streams, ready: object) -> Decoded:
        """In the thread. From the point ``ready`` of the caller's stream on, the output is ours."""
        done = Decoded()
        for which in _chunks(streams, gray=batch.pixels.color == "gray"):
            try:
                self._chunk(batch, streams, which, ready, done)
            except RuntimeError as error:  # the library's own; the next batch may be all right
                warnings.warn(
                    f"backend {self.name!r} on {self.device}: decoding {len(which)} images failed "
                    f"({error}); the CPU decodes them",
                    RuntimeWarning,
                    stacklevel=2,
                )
                done.failed += streams.rows[which].tolist()
        return done

    def _chunk(
        self, batch: DecodeBatch, streams: Streams, which: Rows, ready: object, done: Decoded
    ) -> None:
        """The order matters on a GPU: see `fastload._common.cuda.CudaDecodeStream`."""
        started = time.perf_counter_ns()
        self._stream.synchronize()  # nothing reads the buffers any more
        images = self._images.decode(
            [streams.data[i] for i in which],
            streams.sizes[which],
            gray=batch.pixels.color == "gray",
        )
        decoded = time.perf_counter_ns()
        good = [i for i, image in zip(which, images, strict=True) if image is not None]
        done.failed += streams.rows[np.setdiff1d(which, good)].tolist()
        boxes = streams.boxes[good].tolist()
        crops = [
            image[y : y + h, x : x + w]
            for image, (x, y, w, h) in zip((i for i in images if i is not None), boxes, strict=True)
        ]
        with self._stream.after(ready):
            place(_jobs(batch, streams, good), crops, torch.as_tensor(batch.output), batch.pixels)
        self._stream.synchronize()  # the output is written; the buffers may be reused
        self._images.trim()
        done.decode_ns += decoded - started
        done.resize_ns += time.perf_counter_ns() - decoded

    def close(self) -> None:
        """Waits for the batch that is being decoded; later batches are CANCELLED."""
        self._thread.shutdown(wait=True, cancel_futures=True)
        super().close()


def _chunks(streams: Streams, *, gray: bool) -> Iterator[Rows]:
    """Indices into ``streams``, as many at a time as fit CHUNK_BYTES; a larger image goes alone."""
    n_bytes = streams.sizes.astype(np.int64).prod(1) * (1 if gray else 3)
    start = 0
    while start < len(n_bytes):
        total = np.cumsum(n_bytes[start:])
        stop = start + max(1, int(np.searchsorted(total, CHUNK_BYTES, side="right")))
        yield np.arange(start, min(stop, len(n_bytes)))
        start = stop


def _jobs(batch: DecodeBatch, streams: Streams, which: list[int]) -> Jobs:
    slots = streams.rows[which]
    requests = batch.requests[slots]
    jobs = np.zeros(len(which), JOB)
    jobs["slot"] = slots
    jobs["in_w"] = streams.boxes[which, 2]
    jobs["in_h"] = streams.boxes[which, 3]
    jobs["left"] = requests["pad_left"]
    jobs["top"] = requests["pad_top"]
    for name in ("out_w", "out_h", "flip", "filter"):
        jobs[name] = requests[name]
    return jobs
