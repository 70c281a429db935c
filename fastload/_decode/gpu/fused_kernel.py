"""The fused Triton kernel: crop, resize, flip, pad, color order, normalization and layout.

One program computes one tile of one output image. Its outer loop runs over the vertical taps, its
inner loop over the horizontal taps. The sum of each row is rounded to 8 bits, as between the two
passes of Pillow, and then added to the vertical sum with its weight. All arithmetic is integer, so
the result does not depend on the GPU. At scale s each input row is summed twice, because two output
rows use it. That is cheaper than a second pass through memory: it reads (2 s + 1)^2 bytes per
output pixel of an image that stays in the L1 cache.

Set ``TRITON_INTERPRET=1`` before the first import to run the kernel on CPU tensors. This is slow;
tests without a GPU use it.
"""

# mypy: disable-error-code="no-untyped-def, untyped-decorator"
# Triton evaluates annotations and supports only its own.
# ruff: noqa: N803, PLR0915, PLR0917 - Triton's constants are upper case; a kernel is one function

from __future__ import annotations

import torch
import triton
import triton.language as tl

from fastload._decode.gpu.fused import HALF, PRECISION, Taps

# 8 x 32 pixels on 4 warps. A warp covers one row, so its loads share cache lines. ptxas for sm_80
# reports 47 registers without spilling (16 x 32: 72). Not tuned: no GPU has run it yet.
TILE_Y, TILE_X = 8, 32
# The kernel computes no floats, but Triton 3.9 warns without this option.
LAUNCH = {"num_warps": 4, "enable_fp_fusion": False}
N_COLUMNS = 13  # of a job, see fused.JOB

_SHIFT = tl.constexpr(PRECISION)
_ROUND = tl.constexpr(HALF)
_COLUMNS = tl.constexpr(N_COLUMNS)


@triton.jit
def _to_pixel(total):
    return tl.minimum(tl.maximum(total >> _SHIFT, 0), 255)


@triton.jit
def fused(
    jobs,
    first_x,
    weights_x,
    first_y,
    weights_y,
    values,
    output,
    canvas_h,
    canvas_w,
    longest_x,
    longest_y,
    most_x,
    most_y,
    stride_n,
    stride_c,
    stride_y,
    stride_x,
    IN: tl.constexpr,
    OUT: tl.constexpr,
    SWAP: tl.constexpr,
    TILE_Y: tl.constexpr,
    TILE_X: tl.constexpr,
):
    """Computes one tile. ``values`` is the table of ``fused.value_table``."""
    image = tl.program_id(2)
    job = jobs + image * _COLUMNS
    pixels = tl.load(job).to(tl.pointer_type(tl.uint8))
    pitch = tl.load(job + 1).to(tl.int32)
    in_w = tl.load(job + 2).to(tl.int32)
    in_h = tl.load(job + 3).to(tl.int32)
    out_w = tl.load(job + 4).to(tl.int32)
    out_h = tl.load(job + 5).to(tl.int32)
    left = tl.load(job + 6).to(tl.int32)
    top = tl.load(job + 7).to(tl.int32)
    flip = tl.load(job + 8).to(tl.int32)
    slot = tl.load(job + 9)
    taps_x = tl.load(job + 10).to(tl.int32)
    taps_y = tl.load(job + 11).to(tl.int32)

    canvas_y = tl.program_id(1) * TILE_Y + tl.arange(0, TILE_Y)
    canvas_x = tl.program_id(0) * TILE_X + tl.arange(0, TILE_X)
    y = canvas_y - top
    x = canvas_x - left
    has_y = (y >= 0) & (y < out_h)
    has_x = (x >= 0) & (x < out_w)
    inside = has_y[:, None] & has_x[None, :]
    x = tl.where(flip != 0, out_w - 1 - x, x)
    start_y = tl.load(first_y + image * longest_y + y, mask=has_y, other=0)
    start_x = tl.load(first_x + image * longest_x + x, mask=has_x, other=0)

    down0 = tl.zeros((TILE_Y, TILE_X), tl.int32) + _ROUND
    down1 = tl.zeros((TILE_Y, TILE_X), tl.int32) + _ROUND
    down2 = tl.zeros((TILE_Y, TILE_X), tl.int32) + _ROUND
    for j in range(taps_y):
        row = tl.minimum(start_y + j, in_h - 1) * pitch
        weight_y = tl.load(weights_y + (image * most_y + j) * longest_y + y, mask=has_y, other=0)
        across0 = tl.zeros((TILE_Y, TILE_X), tl.int32) + _ROUND
        across1 = tl.zeros((TILE_Y, TILE_X), tl.int32) + _ROUND
        across2 = tl.zeros((TILE_Y, TILE_X), tl.int32) + _ROUND
        for i in range(taps_x):
            column = tl.minimum(start_x + i, in_w - 1) * IN
            weight_x = tl.load(
                weights_x + (image * most_x + i) * longest_x + x, mask=has_x, other=0
            )[None, :]
            at = pixels + (row[:, None] + column[None, :])
            across0 += tl.load(at, mask=inside, other=0).to(tl.int32) * weight_x
            if IN == 3:
                across1 += tl.load(at + 1, mask=inside, other=0).to(tl.int32) * weight_x
                across2 += tl.load(at + 2, mask=inside, other=0).to(tl.int32) * weight_x
        down0 += _to_pixel(across0) * weight_y[:, None]
        if IN == 3:
            down1 += _to_pixel(across1) * weight_y[:, None]
            down2 += _to_pixel(across2) * weight_y[:, None]

    # Index 256 is the fill color. Offsets in the output have 64 bits: a batch can exceed 2 GiB.
    on_canvas = (canvas_y < canvas_h)[:, None] & (canvas_x < canvas_w)[None, :]
    to = (
        output
        + slot * stride_n
        + canvas_y.to(tl.int64)[:, None] * stride_y
        + canvas_x.to(tl.int64)[None, :] * stride_x
    )
    pixel0 = tl.where(inside, _to_pixel(down0), 256)
    if OUT == 1:
        tl.store(to, tl.load(values + pixel0), mask=on_canvas)
    else:
        pixel1 = pixel0
        pixel2 = pixel0
        if IN == 3:
            pixel1 = tl.where(inside, _to_pixel(down1), 256)
            pixel2 = tl.where(inside, _to_pixel(down2), 256)
        tl.store(to, tl.load(values + (pixel2 if SWAP else pixel0)), mask=on_canvas)
        tl.store(to + stride_c, tl.load(values + 257 + pixel1), mask=on_canvas)
        tl.store(
            to + 2 * stride_c, tl.load(values + 514 + (pixel0 if SWAP else pixel2)), mask=on_canvas
        )


def launch(
    jobs: torch.Tensor,
    across: Taps,
    down: Taps,
    values: torch.Tensor,
    output: torch.Tensor,
    *,
    channels: int,
    swap: bool,
) -> None:
    """Queues the kernel on the current stream.

    ``jobs`` is (n, N_COLUMNS) int64. ``output`` is (N, C, H, W) with any strides.
    """
    _, out_channels, height, width = output.shape
    grid = (triton.cdiv(width, TILE_X), triton.cdiv(height, TILE_Y), len(jobs))
    fused[grid](
        jobs,
        across.first,
        across.weights,
        down.first,
        down.weights,
        values,
        output,
        height,
        width,
        across.first.shape[1],
        down.first.shape[1],
        across.weights.shape[1],
        down.weights.shape[1],
        *output.stride(),
        IN=channels,
        OUT=out_channels,
        SWAP=swap,
        TILE_Y=TILE_Y,
        TILE_X=TILE_X,
        **LAUNCH,
    )


@triton.jit
def probe(spots, unwritten, WRITE: tl.constexpr, GROUPS: tl.constexpr, GROUP: tl.constexpr):
    """Writes the pattern of ``nvimgcodec`` to one buffer per program, or tests for it."""
    n = tl.program_id(0)
    memory = tl.load(spots + 2 * n).to(tl.pointer_type(tl.uint8))
    size = tl.load(spots + 2 * n + 1)
    k = tl.arange(0, GROUPS)[:, None] * GROUP + tl.arange(0, GROUP)[None, :]
    places = k.to(tl.int64) * (size - 1) // (GROUPS * GROUP - 1)
    pattern = ((places * 2654435761 >> 13) & 255).to(tl.uint8)
    if WRITE:
        tl.store(memory + places, pattern)
    else:
        same = (tl.load(memory + places) == pattern).to(tl.int32)
        tl.store(unwritten + n, tl.max(tl.min(same, axis=1), axis=0).to(tl.int32))


def launch_probe(
    spots: torch.Tensor, unwritten: torch.Tensor, *, write: bool, groups: int, group: int
) -> None:
    """Queues the probe on the current stream.

    ``spots`` is (n, 2) int64, address and size in bytes. With ``write=False`` the kernel writes the
    results to ``unwritten``, (n,) int32.
    """
    probe[(len(spots),)](spots, unwritten, WRITE=write, GROUPS=groups, GROUP=group, **LAUNCH)
