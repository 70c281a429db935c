"""Decodes batches with nvImageCodec and verifies that each image was written.

The hardware path of the library derives the status of a whole batch from one return code, and has
been observed to skip images. The decoder therefore reuses its buffers, and writes a pattern to 256
bytes spread over each buffer before decoding. If one sixteenth of a buffer still contains the
pattern afterwards, the image counts as not decoded.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from types import SimpleNamespace
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray

from fastload._decode.gpu.base import abandoned_after_fork, leak
from fastload._decode.gpu.fused import use_kernel

PROBES = 256
GROUP = 16
POOL_BYTES = 1 << 30  # if the buffers exceed this, they are freed after the batch


class DecodeStream(Protocol):
    """The stream for decoding and the fused kernel.

    The JPEG engine ignores streams, so ``synchronize`` waits for all work.
    """

    decode_arguments: dict[str, int]

    def mark(self) -> object:
        """Returns the current point of the caller's stream."""

    def after(self, point: object) -> AbstractContextManager[object]:
        """Queues the work inside the context on this stream, after ``point`` of the caller's."""

    def synchronize(self) -> None:
        """Waits until all queued work is done."""

    def memory(self, address: int, n_bytes: int) -> torch.Tensor:
        """Returns a view of the bytes at this address."""


class HostStream:
    """A DecodeStream for the CPU, where no work is queued."""

    decode_arguments: dict[str, int] = {}  # noqa: RUF012 - never modified

    def mark(self) -> object:
        return None

    def after(self, point: object) -> AbstractContextManager[object]:
        return nullcontext(point)

    def synchronize(self) -> None:
        """Does nothing."""

    def memory(self, address: int, n_bytes: int) -> torch.Tensor:
        """Returns a view. ctypes would leak a few bytes per view."""
        interface = {"shape": (n_bytes,), "typestr": "|u1", "data": (address, False), "version": 3}
        return torch.from_numpy(np.asarray(SimpleNamespace(__array_interface__=interface)))


class Buffer:
    """An image object of nvImageCodec and the address of its pixels.

    The address is read only after the buffer has grown, because each access of
    ``__array_interface__`` leaks 32 bytes (nvImageCodec 0.9.0.20).
    """

    def __init__(self, image: Any) -> None:
        self.image = image
        self.capacity = 0
        self.address = 0
        self.refresh()

    def refresh(self) -> bool:
        """Updates the address; returns whether the memory has changed since the last call."""
        capacity = int(self.image.capacity)
        if capacity == self.capacity:
            return False
        self.capacity = capacity
        self.address = address(self.image)
        return True


class NvImageDecoder:
    """A decoder for one device with its buffers. It is not thread-safe."""

    def __init__(
        self, device: torch.device, stream: DecodeStream, *, threads: int, hardware: bool
    ) -> None:
        self._stream = stream
        self._hardware = hardware
        self._decoder = new_decoder(device, threads=threads, hardware=hardware)
        self._pool: list[Buffer] = []  # largest first
        abandoned_after_fork.add(self)

    def decode(
        self, data: Sequence[memoryview], sizes: NDArray[np.int32], *, gray: bool
    ) -> list[torch.Tensor | None]:
        """Decodes to (height, width, channels) uint8, RGB or gray; None for a failed image.

        The images are valid until the next call. The stream must be idle before the call, and work
        is queued on it afterwards.
        """
        # Assign large images to large buffers. Otherwise every buffer would eventually grow to the
        # size of the largest image.
        order = np.argsort(-sizes.astype(np.int64).prod(1), kind="stable").tolist()
        n_bytes = [int(sizes[i][0]) * int(sizes[i][1]) * (1 if gray else 3) for i in order]
        found = self._decode([data[i] for i in order], n_bytes, gray=gray)
        images: list[torch.Tensor | None] = [None] * len(order)
        for place, size, buffer in zip(order, n_bytes, found, strict=True):
            width, height = sizes[place].tolist()
            if (
                buffer is not None
                and buffer.image.shape == (height, width, 1 if gray else 3)
                and buffer.image.strides[0] * height == size
            ):
                images[place] = self._stream.memory(buffer.address, size).view(height, width, -1)
        return images

    def _decode(
        self, data: list[memoryview], n_bytes: list[int], *, gray: bool
    ) -> list[Buffer | None]:
        reused = self._pool[: len(data)]
        found, changed = self._into(reused, data[: len(reused)], n_bytes, gray=gray)
        if len(reused) < len(data):
            fresh = [
                None if image is None else Buffer(image)
                for image in self._run(data[len(reused) :], None, gray=gray)
            ]
            changed += [len(reused) + i for i in range(len(fresh))]
            found += fresh
        if self._hardware and changed:
            # The pattern check did not cover this new memory, because its content was unknown.
            # Decode these images again, now with the pattern in place.
            again = {i: buffer for i in changed if (buffer := found[i]) is not None}
            second, _ = self._into(
                [*again.values()], [data[i] for i in again], [n_bytes[i] for i in again], gray=gray
            )
            for i, buffer in zip(again, second, strict=True):
                found[i] = buffer
        self._pool = (
            reused
            + self._pool[len(data) :]
            + [buffer for buffer in found[len(reused) :] if buffer is not None]
        )
        self._pool.sort(key=lambda buffer: -buffer.capacity)
        return found

    def _into(
        self, buffers: list[Buffer], data: list[memoryview], n_bytes: list[int], *, gray: bool
    ) -> tuple[list[Buffer | None], list[int]]:
        """Decodes into existing buffers. Also returns the indices of buffers that had to grow.

        The pattern check does not cover buffers that had to grow.
        """
        if not buffers:
            return [], []
        held = [i for i, buffer in enumerate(buffers) if buffer.capacity >= n_bytes[i]]
        spots = [self._stream.memory(buffers[i].address, n_bytes[i]) for i in held]
        with self._stream.after(None):
            write_pattern(spots)
        # The JPEG engine ignores streams, so the pattern must be complete before it starts.
        self._stream.synchronize()
        images = self._run(data, [buffer.image for buffer in buffers], gray=gray)
        found = [
            None if image is None else buffer for image, buffer in zip(images, buffers, strict=True)
        ]
        changed = [i for i, buffer in enumerate(buffers) if buffer.refresh()]
        with self._stream.after(None):
            # Runs after the decoding, because decode() makes this stream wait for its own stream.
            unwritten = has_pattern(spots)
        for i, bad in zip(held, unwritten, strict=True):
            if bad and i not in changed:
                found[i] = None
        return found, changed

    def _run(
        self, data: Sequence[memoryview], images: list[Any] | None, *, gray: bool
    ) -> list[Any]:
        import nvidia.nvimgcodec as nv

        params = nv.DecodeParams(
            apply_exif_orientation=False,
            color_spec=nv.ColorSpec.GRAY if gray else nv.ColorSpec.SRGB,
        )
        streams = [nv.CodeStream(each) for each in data]
        return list(
            self._decoder.decode(
                streams, images=images, params=params, **self._stream.decode_arguments
            )
        )

    def trim(self) -> None:
        """Frees the buffers if large images have made them exceed POOL_BYTES.

        The stream must be idle.
        """
        if sum(buffer.capacity for buffer in self._pool) > POOL_BYTES:
            self._pool.clear()

    def abandon(self) -> None:
        """Leaks decoder and buffers."""
        leak(self._decoder, self._pool)
        self._decoder = None
        self._pool = []


def new_decoder(device: torch.device, *, threads: int, hardware: bool) -> Any:
    """Creates an nvImageCodec decoder.

    Without a driver, both device id and backend must be set to CPU. With only one of them, the
    decoder fails immediately or for each image.
    """
    import nvidia.nvimgcodec as nv

    kinds = nv.BackendKind
    # The library rejects more threads with a message on stderr.
    threads = min(threads, max(1, (os.cpu_count() or 1) - 1))
    if device.type == "cpu":
        return nv.Decoder(
            device_id=nv.NVIMGCODEC_DEVICE_CPU_ONLY,
            max_num_cpu_threads=threads,
            backends=[nv.Backend(kinds.CPU_ONLY)],
        )
    chain = [
        *([kinds.HW_GPU_ONLY] if hardware else []),
        kinds.GPU_ONLY,
        kinds.HYBRID_CPU_GPU,
        kinds.CPU_ONLY,
    ]
    # The JPEG engine decodes all images or none. Otherwise pixels would depend on the other images
    # of the batch.
    return nv.Decoder(
        device_id=device.index or 0,
        max_num_cpu_threads=threads,
        options=":fancy_upsampling=1",
        backends=[nv.Backend(kind, load_hint=1.0) for kind in chain],
    )


def address(image: Any) -> int:
    """Returns the address of the pixels, on the host or the device."""
    import nvidia.nvimgcodec as nv

    name = (
        "__array_interface__"
        if image.buffer_kind == nv.ImageBufferKind.STRIDED_HOST
        else "__cuda_array_interface__"
    )
    return int(getattr(image, name)["data"][0])


def write_pattern(spots: list[torch.Tensor], *, triton: bool | None = None) -> None:
    """Writes the pattern to each buffer. ``triton`` is that of ``fused.use_kernel``."""
    if spots and use_kernel(spots[0].device, triton):
        _probed(spots, write=True)
        return
    for spot in spots:
        positions = _positions(len(spot), spot.device)
        spot[positions] = _pattern(positions)


def has_pattern(spots: list[torch.Tensor], *, triton: bool | None = None) -> list[bool]:
    """Whether one sixteenth of a buffer still contains the pattern. Waits for the result."""
    if not spots:
        return []
    if use_kernel(spots[0].device, triton):
        return [bool(each) for each in _probed(spots, write=False).tolist()]
    unwritten = [
        (spot[positions] == _pattern(positions)).view(-1, GROUP).all(1).any()
        for spot in spots
        for positions in [_positions(len(spot), spot.device)]
    ]
    return [bool(each) for each in torch.stack(unwritten).tolist()]


def _probed(spots: list[torch.Tensor], *, write: bool) -> torch.Tensor:
    """Probes all buffers with one kernel launch."""
    from fastload._decode.gpu.fused_kernel import launch_probe

    rows = torch.tensor([[spot.data_ptr(), len(spot)] for spot in spots], dtype=torch.int64).to(
        spots[0].device
    )
    unwritten = torch.zeros(len(spots), dtype=torch.int32, device=spots[0].device)
    launch_probe(rows, unwritten, write=write, groups=PROBES // GROUP, group=GROUP)
    return unwritten


def _positions(n_bytes: int, device: torch.device) -> torch.Tensor:
    return torch.arange(PROBES, device=device) * (n_bytes - 1) // (PROBES - 1)


def _pattern(positions: torch.Tensor) -> torch.Tensor:
    """Returns bytes that no real image contains at all these positions."""
    return ((positions * 2654435761 >> 13) & 0xFF).to(torch.uint8)
