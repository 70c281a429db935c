"""The nvJPEG backend: nvImageCodec decodes the cut streams, and one fused kernel builds the batch.

It runs on CUDA devices, and on the CPU in tests. If its decoder is bit-identical to libjpeg, as on
the CPU, its pixels equal those of the native core with ``exact=True``. nvImageCodec does not
support DCT scaling.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Iterator
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np
import torch

from fastload._decode.backend import DecodeBatch, DecodeResult, Status
from fastload._decode.gpu.base import (
    FallbackTicket,
    GpuBackend,
    Requirements,
    add_time,
    empty_result,
)
from fastload._decode.gpu.fused import JOB, Jobs, kernel_problem, place
from fastload._decode.gpu.nvimgcodec import DecodeStream, HostStream, NvImageDecoder
from fastload._decode.gpu.staging import Rows, Streams
from fastload.errors import MissingPart

CHUNK_BYTES = 512 << 20  # of decoded pixels; a batch of 256 photos of 500x375 has 144 MB


@dataclass(slots=True)
class Decoded:
    """Result of the decode thread."""

    failed: list[int] = field(default_factory=list)  # slots
    decode_ns: int = 0
    resize_ns: int = 0


@dataclass(frozen=True, slots=True)
class NvjpegTicket:
    """A batch in flight: nvImageCodec decodes some rows, and the CPU decodes the others."""

    batch: DecodeBatch
    streams: Streams
    decoded: Future[Decoded]
    fallback: FallbackTicket | None


class NvjpegBackend(GpuBackend):
    """Decodes with nvImageCodec. With ``hardware``, the JPEG engine decodes supported images."""

    name: ClassVar = "nvjpeg"
    needs: ClassVar = Requirements(
        "nvidia.nvimgcodec",
        {12: "nvidia-nvimgcodec-cu12", 13: "nvidia-nvimgcodec-cu13"},
        {12: "'fastload-vision[nvjpeg]'", 13: "nvidia-nvimgcodec-cu13 nvidia-nvjpeg"},
        nvjpeg_wheels={12: "nvidia-nvjpeg-cu12", 13: "nvidia-nvjpeg"},
    )
    edge_error: ClassVar = 1

    def _start(self) -> None:
        self._stream: DecodeStream = self._new_stream()
        try:
            self._images = NvImageDecoder(
                self.device, self._stream, threads=self.threads, hardware=self._hardware
            )
        except RuntimeError as error:  # although ``missing`` found nothing
            raise MissingPart(
                f"backend={self.name!r} cannot run on {self.device}: nvImageCodec does not start "
                f"({error}). Run 'fastload selftest' for details, or use backend='native'"
            ) from None
        self._warn_without_kernel()
        # One thread, because decode() blocks and its buffers hold one batch.
        self._thread = ThreadPoolExecutor(1, "fastload-nvjpeg")

    def _new_stream(self) -> DecodeStream:
        if self.device.type == "cpu":
            return HostStream()
        from fastload._common.cuda import CudaDecodeStream

        return CudaDecodeStream(self.device)

    def _warn_without_kernel(self) -> None:
        """Without the kernel the pixels are the same, but each image needs about 40 launches."""
        if self.device.type == "cpu":
            return
        with self._stream.after(None):  # Triton launches on the current device
            problem = kernel_problem(self.device)
        if problem:
            warnings.warn(
                f"backend={self.name!r} on {self.device}: {problem}. torch resizes one image at a "
                "time, which is slower",
                RuntimeWarning,
                stacklevel=3,
            )

    def submit(self, batch: DecodeBatch) -> NvjpegTicket:
        """Cuts the streams in this thread; the decode thread decodes and resizes."""
        self.check_output(batch)
        streams = self._cutter.cut(batch)
        decoded = self._thread.submit(self._run, batch, streams, self._stream.mark())
        return NvjpegTicket(batch, streams, decoded, self._fallback.submit(batch, streams.fallback))

    def collect(self, ticket: NvjpegTicket) -> DecodeResult:
        """Waits for all rows. The CPU decodes failed rows again and reports the reason."""
        result = empty_result(ticket.batch)
        rows = ticket.streams.rows
        add_time(result, "cut", ticket.streams.elapsed_ns, rows)
        try:
            decoded = ticket.decoded.result()
        except CancelledError:
            result.status[rows] = Status.CANCELLED
            result.reasons.update(dict.fromkeys(rows.tolist(), "the backend was closed"))
        else:
            add_time(result, "decode", decoded.decode_ns, rows)
            add_time(result, "resize", decoded.resize_ns, rows)
            self._fallback.redo(ticket.batch, np.array(sorted(decoded.failed), np.intp), result)
        self._fallback.collect(ticket.fallback, result)
        return result

    def _run(self, batch: DecodeBatch, streams: Streams, ready: object) -> Decoded:
        """Runs in the decode thread. ``ready`` marks when the caller's stream frees the output."""
        done = Decoded()
        for which in _chunks(streams, gray=batch.pixels.color == "gray"):
            try:
                self._chunk(batch, streams, which, ready, done)
            except RuntimeError as error:  # raised by the library; the next batch can still succeed
                warnings.warn(
                    f"backend={self.name!r} on {self.device}: decoding {len(which)} images failed "
                    f"({error}). The CPU decodes them instead",
                    RuntimeWarning,
                    stacklevel=2,
                )
                done.failed += streams.rows[which].tolist()
        return done

    def _chunk(
        self, batch: DecodeBatch, streams: Streams, which: Rows, ready: object, done: Decoded
    ) -> None:
        """Decodes one chunk. See ``fastload._common.cuda.CudaDecodeStream`` for the order."""
        started = time.perf_counter_ns()
        self._stream.synchronize()  # no queued work reads the buffers
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
        self._stream.synchronize()  # the output is written, and the buffers can be reused
        self._images.trim()
        done.decode_ns += decoded - started
        done.resize_ns += time.perf_counter_ns() - decoded

    def close(self) -> None:
        """Waits for the batch that is being decoded. Later batches are CANCELLED."""
        self._thread.shutdown(wait=True, cancel_futures=True)
        super().close()


def _chunks(streams: Streams, *, gray: bool) -> Iterator[Rows]:
    """Yields indices into ``streams`` in chunks of at most CHUNK_BYTES, or of one larger image."""
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
    columns = {
        "slot": slots,
        "in_w": streams.boxes[which, 2],
        "in_h": streams.boxes[which, 3],
        "left": requests["pad_left"],
        "top": requests["pad_top"],
        **{name: requests[name] for name in ("out_w", "out_h", "flip", "filter")},
    }
    jobs = np.zeros(len(which), JOB)
    for name, column in columns.items():
        jobs[name] = column
    return jobs
