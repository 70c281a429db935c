"""nvImageCodec, batch by batch: streams in, images out, each proven to be written.

The library's hardware path marks a whole batch as decoded from one return code, and it was seen to
skip images. So buffers are kept from batch to batch, 256 bytes spread over each are set to a pattern
before decoding, and an image that still has the pattern in a sixteenth of its length afterwards counts
as not decoded.
"""

from __future__ import annotations

import ctypes
import os
import weakref
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray

from fastload._decode.gpu.fused import use_kernel

PROBES = 256
GROUP = 16
POOL_BYTES = 1 << 30  # buffers beyond this are given back after the batch that needed them


class DecodeStream(Protocol):
    """The stream that decoding and the fused kernel are queued on.

    ``synchronize`` waits for all of it: the JPEG engine ignores streams.
    """

    decode_arguments: dict[str, int]

    def mark(self) -> object:
        """A point in the caller's stream."""

    def after(self, point: object) -> AbstractContextManager[object]:
        """Work inside is queued here, after ``point`` of the caller's stream."""

    def synchronize(self) -> None:
        """Waits until nothing is queued."""

    def memory(self, address: int, n_bytes: int) -> torch.Tensor:
        """A view of the bytes at this address, not a copy."""


class HostStream:
    """The CPU: nothing is queued."""

    decode_arguments: dict[str, int] = {}  # noqa: RUF012 - never written

    def mark(self) -> object:
        """There is no queue."""
        return None

    def after(self, point: object) -> AbstractContextManager[object]:
        """The caller's own thread."""
        return nullcontext(point)

    def synchronize(self) -> None:
        """Everything is done already."""

    def memory(self, address: int, n_bytes: int) -> torch.Tensor:
        """Without ctypes, which keeps a little for each view."""
        return torch.from_numpy(np.asarray(_HostBytes(address, n_bytes)))


class _HostBytes:
    """Bytes of a buffer that is not numpy's, in words that numpy understands."""

    def __init__(self, address: int, n_bytes: int) -> None:
        self.__array_interface__ = {
            "shape": (n_bytes,),
            "typestr": "|u1",
            "data": (address, False),
            "version": 3,
        }


class Buffer:
    """An image of the library's and where its pixels are.

    The address is read anew only when the buffer has grown: each look at ``__array_interface__`` loses 32 bytes (nvImageCodec 0.9.0.20).
    """

    def __init__(self, image: Any) -> None:
        self.image = image
        self.capacity = 0
        self.address = 0
        self.grown()

    def grown(self) -> bool:
        """Whether it is another buffer than when this was last asked."""
        capacity = int(self.image.capacity)
        if capacity == self.capacity:
            return False
        self.capacity = capacity
        self.address = address(self.image)
        return True


class NvImageDecoder:
    """The decoder of one device and its buffers; for one thread."""

    def __init__(
        self, device: torch.device, stream: DecodeStream, *, threads: int, hardware: bool
    ) -> None:
        self._stream = stream
        self._hardware = hardware
        self._decoder = new_decoder(device, threads=threads, hardware=hardware)
        self._pool: list[Buffer] = []  # the largest first
        _all.add(self)

    def decode(
        self, data: Sequence[memoryview], sizes: NDArray[np.int32], *, gray: bool
    ) -> list[torch.Tensor | None]:
        """(height, width, channels) uint8, RGB or gray, valid until the next call; None where it was not decoded.

        Returns with work queued on the stream; nothing may be queued there when it is called.
        """
        # Large images into large buffers, or in time each of them would be as large as the largest image.
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
            # What was in this memory before is unknown; after one decode it is known, so decode again.
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
        """Decodes into buffers that are there. Those that had to grow are named: they could not be checked."""
        if not buffers:
            return [], []
        held = [i for i, buffer in enumerate(buffers) if buffer.capacity >= n_bytes[i]]
        spots = [self._stream.memory(buffers[i].address, n_bytes[i]) for i in held]
        with self._stream.after(None):
            write_pattern(spots)
        self._stream.synchronize()  # the pattern is there before the engine writes, whatever it thinks of streams
        images = self._run(data, [buffer.image for buffer in buffers], gray=gray)
        found = [
            None if image is None else buffer for image, buffer in zip(images, buffers, strict=True)
        ]
        changed = [i for i, buffer in enumerate(buffers) if buffer.grown()]
        with self._stream.after(None):
            # After the decoding: decode() makes this stream wait for its own.
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
        """Gives memory back where very large images have come by; nothing may be queued."""
        if sum(buffer.capacity for buffer in self._pool) > POOL_BYTES:
            self._pool.clear()

    def abandon(self) -> None:
        """Leaves decoder and buffers as they are for ever."""
        for each in (self._decoder, self._pool):
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(each))  # never destroyed, at exit neither
        self._decoder = None
        self._pool = []


_all: weakref.WeakSet[NvImageDecoder] = weakref.WeakSet()


def _abandon_all() -> None:
    """In a forked child: the decoder's threads are not here, and destroying it would wait for them."""
    for images in list(_all):
        images.abandon()
    _all.clear()


os.register_at_fork(after_in_child=_abandon_all)


def new_decoder(device: torch.device, *, threads: int, hardware: bool) -> Any:
    """Without a driver both the device number and the backend must say CPU: either alone fails at once or at every image."""
    import nvidia.nvimgcodec as nv

    kinds = nv.BackendKind
    # It takes no more, and complains on stderr
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
    # All or nothing to the engine: with a share of each batch, pixels would depend on what else is in it.
    return nv.Decoder(
        device_id=device.index or 0,
        max_num_cpu_threads=threads,
        options=":fancy_upsampling=1",
        backends=[nv.Backend(kind, load_hint=1.0) for kind in chain],
    )


def address(image: Any) -> int:
    """Where its pixels are, on the host or the device."""
    import nvidia.nvimgcodec as nv

    name = (
        "__array_interface__"
        if image.buffer_kind == nv.ImageBufferKind.STRIDED_HOST
        else "__cuda_array_interface__"
    )
    return int(getattr(image, name)["data"][0])


def write_pattern(spots: list[torch.Tensor], *, triton: bool | None = None) -> None:
    """Into each buffer. ``triton``: as in `fused.use_kernel`."""
    if spots and use_kernel(spots[0].device, triton):
        _probed(spots, write=True)
        return
    for spot in spots:
        places = _places(len(spot), spot.device)
        spot[places] = _pattern(places)


def has_pattern(spots: list[torch.Tensor], *, triton: bool | None = None) -> list[bool]:
    """Whether a sixteenth of a buffer still holds it; waits for the answer."""
    if not spots:
        return []
    if use_kernel(spots[0].device, triton):
        return [bool(each) for each in _probed(spots, write=False).tolist()]
    found = []
    for spot in spots:
        places = _places(len(spot), spot.device)
        found.append((spot[places] == _pattern(places)).view(-1, GROUP).all(1).any())
    return [bool(each) for each in torch.stack(found).tolist()]


def _probed(spots: list[torch.Tensor], *, write: bool) -> torch.Tensor:
    """One launch for all buffers."""
    from fastload._decode.gpu.fused_kernel import launch_probe

    rows = torch.tensor([[spot.data_ptr(), len(spot)] for spot in spots], dtype=torch.int64).to(
        spots[0].device
    )
    unwritten = torch.zeros(len(spots), dtype=torch.int32, device=spots[0].device)
    launch_probe(rows, unwritten, write=write, groups=PROBES // GROUP, group=GROUP)
    return unwritten


def _places(n_bytes: int, device: torch.device) -> torch.Tensor:
    return torch.arange(PROBES, device=device) * (n_bytes - 1) // (PROBES - 1)


def _pattern(places: torch.Tensor) -> torch.Tensor:
    """Bytes that no image has at so many places at once."""
    return ((places * 2654435761 >> 13) & 0xFF).to(torch.uint8)
