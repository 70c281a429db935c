"""Which function computes which pixel operation.

A kernel takes the operation, the batch and the parameters, and returns the result; it may overwrite
the batch. Batches are float32 pixel values 0..255, RGB or one channel, (n, channels, height, width).
Parameters are (n, op.n_params) on the same device. Operations that move pixels have a second kernel
for masks, (n, height, width, bytes) of uint8, which picks pixels and never mixes them; its last
argument is the mask's padding, (bytes,).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor

from fastload._plan.transform import Params, PixelOp, op_columns

Kernel = Callable[[Any, Tensor, Tensor], Tensor]
MaskKernel = Callable[[Any, Tensor, Tensor, Tensor], Tensor]
_AnyKernel = TypeVar("_AnyKernel", bound=Callable[..., Tensor])

KERNELS: dict[type[PixelOp], Kernel] = {}
MASK_KERNELS: dict[type[PixelOp], MaskKernel] = {}


def kernel(
    op: type[PixelOp], table: dict[type[PixelOp], Any] = KERNELS
) -> Callable[[_AnyKernel], _AnyKernel]:
    """Registers the decorated function for an operation, in KERNELS or in MASK_KERNELS."""

    def register(function: _AnyKernel) -> _AnyKernel:
        table[op] = function
        return function

    return register


def run_op(op: PixelOp, batch: Tensor, params: Params, on_device: Tensor) -> Tensor:
    """Runs one operation; ``params`` and ``on_device`` hold the same numbers.

    Samples that it leaves unmodified are skipped if they are many, or if the kernel would not
    preserve them.
    """
    active = np.flatnonzero(~op.is_noop(params))
    if not len(active):
        return batch
    run = KERNELS[type(op)]
    if len(active) == len(batch) or (op.preserves_noops and 2 * len(active) > len(batch)):
        return run(op, batch, on_device)
    which = torch.from_numpy(active).to(batch.device, non_blocking=True)
    changed = run(op, batch.index_select(0, which), on_device.index_select(0, which))
    return batch.index_copy_(0, which, changed)


def warp_masks(masks: Tensor, ops: Sequence[PixelOp], params: Tensor, fill: Tensor) -> Tensor:
    """Moves masks as the operations move the pixels of their image."""
    for op, columns in op_columns(ops):
        if op.moves_pixels:
            masks = MASK_KERNELS[type(op)](op, masks, params[:, columns], fill)
    return masks
