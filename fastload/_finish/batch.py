"""A decoded uint8 batch becomes what the trainer gets: pixel operations, normalization, layout.

Without pixel operations the decoder normalizes while it writes. The bits are the same: (pixel value
- mean) / std in float32, then rounded to the dtype.

On the CPU, chunks of a batch are distributed over helper threads, and each computes alone. torch
would distribute every single operation over OpenMP threads and wait, spinning, for the slowest:
beside busy decode threads small operations take ten times as long.
"""

from __future__ import annotations

import ctypes
import threading

import numpy as np
import torch
from torch import Tensor

from fastload._common.threads import WorkerThreads
from fastload._finish import color, warp  # noqa: F401 - importing them registers kernels
from fastload._finish.kernels import run_op
from fastload._plan.field_plan import FieldPlan
from fastload._plan.transform import Params, op_columns
from fastload._plan.warps import FlipVertically
from fastload.errors import ConfigError

_DTYPES = {
    "uint8": torch.uint8,
    "float16": torch.float16,
    "bfloat16": torch.bfloat16,
    "float32": torch.float32,
}
# Values per chunk: few enough for the cache on the CPU, and for the memory (4 bytes each, several
# copies) on a GPU.
_CHUNK_CPU = 1_200_000
_CHUNK_DEVICE = 100_000_000

# torch has loaded OpenMP with global symbols, where it uses it. ``torch.set_num_threads`` in a thread
# also changes what threads started later get, the trainer's included (torch 2.13). OpenMP's own
# function changes the calling thread only.
_set_num_threads = getattr(ctypes.CDLL(None), "omp_set_num_threads", None)
_local = threading.local()


def compute_alone() -> None:
    """From now on torch operations of this thread use this thread only; cheap when repeated."""
    if not getattr(_local, "alone", False):
        torch.get_num_threads()  # torch sets a thread's number on first use and would undo ours
        if _set_num_threads is not None:
            _set_num_threads(1)
        _local.alone = True


class Finish:
    """Call it with (n, height, width, channels) uint8 images and the parameters of their rows.

    Images are RGB or have one channel; they decide the device. Thread-safe: it keeps only constants
    between calls.
    """

    def __init__(self, plan: FieldPlan) -> None:
        self.ops = plan.ops
        self.output = plan.output
        columns = op_columns(plan.ops)
        self._before = [each for each in columns if not each[0].after_normalize]
        self._after = [each for each in columns if each[0].after_normalize]

    @property
    def decoder_suffices(self) -> bool:
        """Whether a decoder that normalizes can do all but vertical flips (``flip_finished``)."""
        return all(isinstance(op, FlipVertically) for op in self.ops)

    @torch.no_grad()
    def __call__(
        self,
        images: Tensor,
        parameters: Params,
        *,
        out: Tensor | None = None,
        helpers: WorkerThreads | None = None,
    ) -> Tensor:
        """The finished batch, in ``out`` if given (see ``empty``); ``helpers`` work on the CPU."""
        self._check(images, parameters)
        out = self.empty(images.shape, images.device) if out is None else out
        planar = out.permute(0, 3, 1, 2) if self.output.layout == "NHWC" else out
        if not self.ops and self.output.dtype == "uint8":
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
            with torch.no_grad():  # also per thread
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
        """Flips images vertically in place; all operations must be vertical flips.

        ``finished``: (n, ...), normalized and laid out by a decoder.
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

    def empty(self, shape: tuple[int, ...], device: torch.device | str) -> Tensor:
        """Memory for the result of images of ``shape`` (n, height, width, channels)."""
        n, height, width, channels = shape
        dtype = _DTYPES[self.output.dtype]
        if self.output.layout == "NHWC":
            return torch.empty((n, height, width, channels), dtype=dtype, device=device)
        last = self.output.layout == "channels_last"
        memory = torch.channels_last if last else torch.contiguous_format
        return torch.empty(
            (n, channels, height, width), dtype=dtype, device=device, memory_format=memory
        )

    def _finished(self, x: Tensor, parameters: Params, on_device: Tensor) -> Tensor:
        for op, columns in self._before:
            x = run_op(op, x, parameters[:, columns], on_device[:, columns])
        x = self._normalized(x)
        for op, columns in self._after:
            x = run_op(op, x, parameters[:, columns], on_device[:, columns])
        return x

    def _normalized(self, x: Tensor) -> Tensor:
        if self.output.dtype == "uint8":
            return x.round_()
        for values, apply in ((self.output.mean, x.sub_), (self.output.std, x.div_)):
            if values not in ((0.0,), (1.0,)):
                apply(torch.tensor(values, dtype=torch.float32, device=x.device).view(1, -1, 1, 1))
        return x

    def _check(self, images: Tensor, parameters: Params) -> None:
        if images.dtype != torch.uint8 or images.ndim != 4:
            raise ConfigError(
                "finishing a batch: expected uint8 (n, height, width, channels), "
                f"found {images.dtype} {tuple(images.shape)}"
            )
        expected = (len(images), sum(op.n_params for op in self.ops))
        if parameters.shape != expected:
            raise ConfigError(
                f"finishing {len(images)} images: expected parameters of {expected}, "
                f"found {parameters.shape}: rows of another plan?"
            )
        channels = images.shape[3]
        if self.ops and channels not in (1, 3):
            raise ConfigError(
                "finishing a batch: colors can be changed in RGB and in grayscale images, "
                f"these have {channels} channels"
            )
        written = [(op.values_argument, op.channel_values) for op in self.ops if op.channel_values]
        for what, values in (("Normalize", self.output.mean), *written):
            if len(values) not in (1, channels):
                raise ConfigError(
                    f"{what} has numbers for {len(values)} channels, the images have {channels}; "
                    "one number serves any"
                )
