"""Maps pixel operations to the functions that compute them.

A kernel takes the operation, the batch and the parameters, and returns the result. It may overwrite
the batch. A batch is float32 (n, channels, height, width) with pixel values 0..op.white, RGB or
one channel. Parameters are (n, op.n_params) on the same device.

Operations that move pixels have a second kernel for masks, which are uint8 (n, height, width,
bytes). It selects the nearest pixel and never interpolates. Its last argument is the value of
pixels outside the mask, (bytes,).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor

from fastload._plan.transform import Params, PixelOp, op_columns

Kernel = Callable[[PixelOp, Tensor, Tensor], Tensor]
MaskKernel = Callable[[PixelOp, Tensor, Tensor, Tensor], Tensor]
_AnyKernel = TypeVar("_AnyKernel", bound=Callable[..., Tensor])

KERNELS: dict[str, Kernel] = {}
MASK_KERNELS: dict[str, MaskKernel] = {}


def kernel(name: str, table: dict[str, Any] = KERNELS) -> Callable[[_AnyKernel], _AnyKernel]:
    """Registers the decorated function for an operation in KERNELS or MASK_KERNELS."""

    def register(function: _AnyKernel) -> _AnyKernel:
        table[name] = function
        return function

    return register


def run_op(op: PixelOp, batch: Tensor, params: Params, on_device: Tensor) -> Tensor:
    """Runs one operation. ``on_device`` is a copy of ``params`` on the device of the batch.

    Samples that the operation does not change are skipped if they are the majority, or if the
    kernel would not preserve them exactly.
    """
    active = np.flatnonzero(~op.is_noop(params))
    if not len(active):
        return batch
    run = KERNELS[op.name]
    if len(active) == len(batch) or (op.preserves_noops and 2 * len(active) > len(batch)):
        return run(op, batch, on_device)
    which = torch.from_numpy(active).to(batch.device, non_blocking=True)
    changed = run(op, batch.index_select(0, which), on_device.index_select(0, which))
    return batch.index_copy_(0, which, changed)


def warp_masks(masks: Tensor, ops: Sequence[PixelOp], params: Tensor, fill: Tensor) -> Tensor:
    """Applies the operations that move pixels to masks."""
    for op, columns in op_columns(ops):
        if op.moves_pixels:
            masks = MASK_KERNELS[op.name](op, masks, params[:, columns], fill)
    return masks
