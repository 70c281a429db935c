"""Finishes a decoded uint8 or uint16 batch: pixel operations, normalization, layout.

Without pixel operations, the decoder normalizes while it writes. The result is bit-identical:
(pixel value - mean) / std in float32, then rounded to the dtype.

On the CPU, helper threads process chunks of a batch, and torch uses a single thread in each of
them. By default torch would distribute every operation over OpenMP threads and spin until the
slowest one is done. Next to busy decode threads, that makes small operations ten times slower.
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import Tensor

from fastload._common.threads import WorkerThreads
from fastload._finish import color, warp  # noqa: F401 - importing them registers kernels
from fastload._finish.kernels import run_op
from fastload._plan.field_plan import FieldPlan
from fastload._plan.transform import Params, op_columns
from fastload._plan.warps import VERTICAL_FLIP
from fastload.errors import ConfigError

Allocate = Callable[[tuple[int, ...], torch.dtype], Tensor]
DTYPES = {
    "uint8": torch.uint8,
    "uint16": torch.uint16,
    "float16": torch.float16,
    "bfloat16": torch.bfloat16,
    "float32": torch.float32,
}
# Values per chunk. A chunk fits into the cache of a CPU, or into the memory of a GPU (4 bytes per
# value, several copies).
_CHUNK_CPU = 1_200_000
_CHUNK_DEVICE = 100_000_000

# ``torch.set_num_threads`` in a thread also changes the setting of threads that start later,
# including those of the trainer (torch 2.13). OpenMP's own function changes only the calling
# thread. torch loads OpenMP with global symbols if it uses it.
# Without OpenMP, ``int`` does nothing.
set_own_threads: Callable[[int], object] = getattr(ctypes.CDLL(None), "omp_set_num_threads", int)
_local = threading.local()


def compute_alone() -> None:
    """Makes torch operations of this thread run on this thread only. Repeated calls are cheap."""
    if not getattr(_local, "alone", False):
        torch.get_num_threads()  # sets the thread's number on first use, which would undo ours
        set_own_threads(1)
        _local.alone = True


class Finish:
    """Finishes images (n, height, width, channels) with the parameters of their plan rows.

    Images are uint8 or uint16.
    Images are RGB or have one channel. The work runs on their device. The object is thread-safe,
    because it has no state that changes between calls.
    """

    def __init__(self, plan: FieldPlan) -> None:
        self.ops = plan.ops
        self.output = plan.output
        columns = op_columns(plan.ops)
        self._before = [each for each in columns if not each[0].after_normalize]
        self._after = [each for each in columns if each[0].after_normalize]

    @property
    def decoder_suffices(self) -> bool:
        """Whether a normalizing decoder can do everything except for vertical flips."""
        return all(op.name == VERTICAL_FLIP.name for op in self.ops)

    @property
    def decoded_dtype(self) -> torch.dtype:
        """The dtype of the images that ``__call__`` takes."""
        return DTYPES[f"uint{self.output.bits}"]

    @torch.no_grad()
    def __call__(
        self,
        images: Tensor,
        parameters: Params,
        *,
        out: Tensor | None = None,
        helpers: WorkerThreads | None = None,
    ) -> Tensor:
        """Returns the finished batch.

        Args:
            images: (n, height, width, channels) of ``decoded_dtype``.
            parameters: One row of parameters per image.
            out: Memory for the result, from ``empty``; None to allocate it.
            helpers: Threads that process chunks if the images are on the CPU.
        """
        self._check(images, parameters)
        if out is None:
            out = self.empty(
                images.shape,
                lambda size, dtype: torch.empty(size, dtype=dtype, device=images.device),
            )
        planar = out.permute(0, 3, 1, 2) if self.output.layout == "NHWC" else out
        if not self.ops and not out.is_floating_point():
            planar.copy_(images.permute(0, 3, 1, 2))
            return out
        on_device = torch.from_numpy(parameters).to(images.device, non_blocking=True)
        n_values = _CHUNK_CPU if images.device.type == "cpu" else _CHUNK_DEVICE
        chunk = max(1, n_values // max(1, images[:1].numel()))

        def finish(start: int) -> None:
            part = slice(start, start + chunk)
            planes = images[part].permute(0, 3, 1, 2)
            x = planes.to(torch.float32, memory_format=torch.contiguous_format)
            planar[part] = self._finished(x, parameters[part], on_device[part])

        def finish_alone(start: int) -> None:
            compute_alone()
            with torch.no_grad():  # the setting is per thread
                finish(start)

        starts = range(0, len(images), chunk)
        if helpers is None or images.device.type != "cpu":
            for start in starts:
                finish(start)
        else:
            for _ in helpers.map(finish_alone, starts):
                pass
        return out

    @torch.no_grad()
    def flip_finished(
        self, finished: Tensor, parameters: Params, *, helpers: WorkerThreads
    ) -> None:
        """Applies vertical flips in place to images that a decoder has normalized and laid out.

        All operations must be vertical flips.
        """
        slots = np.flatnonzero(parameters.sum(axis=1) % 2).tolist()
        rows_axis = 1 if self.output.layout == "NCHW" else 0

        def flip_alone(slot: int) -> None:
            compute_alone()
            with torch.no_grad():
                finished[slot] = finished[slot].flip(rows_axis)

        if finished.device.type == "cpu":
            for _ in helpers.map(flip_alone, slots):
                pass
        elif slots:
            finished[slots] = finished[slots].flip(1 + rows_axis)

    def empty(self, shape: Sequence[int], allocate: Allocate) -> Tensor:
        """Allocates the result for images of ``shape`` (n, height, width, channels)."""
        n, height, width, channels = shape
        dtype = DTYPES[self.output.dtype]
        if self.output.layout == "NCHW":
            return allocate((n, channels, height, width), dtype)
        memory = allocate((n, height, width, channels), dtype)
        return memory if self.output.layout == "NHWC" else memory.permute(0, 3, 1, 2)

    def _finished(self, x: Tensor, parameters: Params, on_device: Tensor) -> Tensor:
        for op, columns in self._before:
            x = run_op(op, x, parameters[:, columns], on_device[:, columns])
        x = self._normalized(x)
        for op, columns in self._after:
            x = run_op(op, x, parameters[:, columns], on_device[:, columns])
        return x

    def _normalized(self, x: Tensor) -> Tensor:
        if not DTYPES[self.output.dtype].is_floating_point:
            return x.round_()
        for values, apply in ((self.output.mean, x.sub_), (self.output.std, x.div_)):
            if values not in ((0.0,), (1.0,)):
                apply(torch.tensor(values, dtype=torch.float32, device=x.device).view(1, -1, 1, 1))
        return x

    def _check(self, images: Tensor, parameters: Params) -> None:
        if images.dtype != self.decoded_dtype or images.ndim != 4:
            raise ConfigError(
                f"images are {images.dtype} {tuple(images.shape)}: "
                f"expected {self.decoded_dtype} (n, height, width, channels)"
            )
        expected = (len(images), sum(op.n_params for op in self.ops))
        if parameters.shape != expected:
            raise ConfigError(
                f"parameters have shape {parameters.shape}: expected {expected} "
                f"for {len(images)} images of this plan"
            )
        channels = images.shape[3]
        if self.ops and channels not in (1, 3):
            raise ConfigError(
                f"images have {channels} channels: expected 1 or 3 for transforms that change "
                "pixel values"
            )
        written = [(op.values_argument, op.channel_values) for op in self.ops if op.channel_values]
        for what, values in (("Normalize", self.output.mean), *written):
            if len(values) not in (1, channels):
                raise ConfigError(
                    f"{what} has values for {len(values)} channels, but the images have "
                    f"{channels}. Pass one value, or one per channel"
                )
