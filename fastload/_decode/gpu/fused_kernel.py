"""The fused kernel, in Triton: crop, resize, flip, letterbox, color order, normalize and layout of a whole batch in one launch.

A program makes one tile of one output picture. It walks the tile's taps, rows outside and columns inside: each row's columns are summed up
and rounded to 8 bits, as between Pillow's two passes, then weighted into the sum of the rows. Whole numbers only, so the result does
not depend on the GPU. At a scale s every input row is summed twice (two output rows use it), which costs less than a second pass through
memory would: per output pixel (2 s + 1)^2 bytes of a picture that stays in the first-level cache.

``TRITON_INTERPRET=1`` before the first import runs it on CPU tensors, slowly: that is how it is tested without a GPU.
"""

# mypy: disable-error-code="no-untyped-def, untyped-decorator"
# Triton reads annotations and knows only its own.
# ruff: noqa: N803, PLR0915, PLR0917 - constants of the compiler are in capitals, as everywhere in Triton; one kernel is one function

from __future__ import annotations

import torch
import triton
import triton.language as tl

from fastload._decode.gpu.fused import HALF, PRECISION, Taps

# 8 x 32 pixels on 4 warps, a warp along a row: its loads share cache lines. ptxas for sm_80: 47 registers, none spilled (16 x 32: 72).
# Not tuned: no GPU has run it yet.
TILE_Y, TILE_X = 8, 32
# No float is computed; unsaid, Triton 3.9 warns
LAUNCH = {"num_warps": 4, "enable_fp_fusion": False}
N_COLUMNS = 13  # of a job, see fused.JOB

_SHIFT = tl.constexpr(PRECISION)
_ROUND = tl.constexpr(HALF)
_COLUMNS = tl.constexpr(N_COLUMNS)


@triton.jit
def _level(total):
    return tl.minimum(tl.maximum(total >> _SHIFT, 0), 255)


@triton.jit
def fused(
    jobs,
    first_x,
    weights_x,
    first_y,
    weights_y,
    levels,
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
    """``levels``: (OUT, 257) of the output's dtype, what each level becomes; the last is the fill color."""
    picture = tl.program_id(2)
    job = jobs + picture * _COLUMNS
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
    start_y = tl.load(first_y + picture * longest_y + y, mask=has_y, other=0)
    start_x = tl.load(first_x + picture * longest_x + x, mask=has_x, other=0)

    down0 = tl.zeros((TILE_Y, TILE_X), tl.int32) + _ROUND
    down1 = tl.zeros((TILE_Y, TILE_X), tl.int32) + _ROUND
    down2 = tl.zeros((TILE_Y, TILE_X), tl.int32) + _ROUND
    for j in range(taps_y):
        row = tl.minimum(start_y + j, in_h - 1) * pitch
        weight_y = tl.load(weights_y + (picture * most_y + j) * longest_y + y, mask=has_y, other=0)
        across0 = tl.zeros((TILE_Y, TILE_X), tl.int32) + _ROUND
        across1 = tl.zeros((TILE_Y, TILE_X), tl.int32) + _ROUND
        across2 = tl.zeros((TILE_Y, TILE_X), tl.int32) + _ROUND
        for i in range(taps_x):
            column = tl.minimum(start_x + i, in_w - 1) * IN
            weight_x = tl.load(
                weights_x + (picture * most_x + i) * longest_x + x, mask=has_x, other=0
            )[None, :]
            at = pixels + (row[:, None] + column[None, :])
            across0 += tl.load(at, mask=inside, other=0).to(tl.int32) * weight_x
            if IN == 3:
                across1 += tl.load(at + 1, mask=inside, other=0).to(tl.int32) * weight_x
                across2 += tl.load(at + 2, mask=inside, other=0).to(tl.int32) * weight_x
        down0 += _level(across0) * weight_y[:, None]
        if IN == 3:
            down1 += _level(across1) * weight_y[:, None]
            down2 += _level(across2) * weight_y[:, None]

    # 256 is the place of the fill color. Offsets in the output are 64 bits wide: a batch may be larger than 2 GiB.
    on_canvas = (canvas_y < canvas_h)[:, None] & (canvas_x < canvas_w)[None, :]
    to = (
        output
        + slot * stride_n
        + canvas_y.to(tl.int64)[:, None] * stride_y
        + canvas_x.to(tl.int64)[None, :] * stride_x
    )
    level0 = tl.where(inside, _level(down0), 256)
    if OUT == 1:
        tl.store(to, tl.load(levels + level0), mask=on_canvas)
    else:
        level1 = level0
        level2 = level0
        if IN == 3:
            level1 = tl.where(inside, _level(down1), 256)
            level2 = tl.where(inside, _level(down2), 256)
        tl.store(to, tl.load(levels + (level2 if SWAP else level0)), mask=on_canvas)
        tl.store(to + stride_c, tl.load(levels + 257 + level1), mask=on_canvas)
        tl.store(
            to + 2 * stride_c, tl.load(levels + 514 + (level0 if SWAP else level2)), mask=on_canvas
        )


def launch(
    jobs: torch.Tensor,
    across: Taps,
    down: Taps,
    levels: torch.Tensor,
    output: torch.Tensor,
    *,
    channels: int,
    swap: bool,
) -> None:
    """Queues the kernel on the current stream. ``jobs``: (n, N_COLUMNS) int64; ``output``: (N, C, H, W), any strides."""
    _, out_channels, height, width = output.shape
    grid = (triton.cdiv(width, TILE_X), triton.cdiv(height, TILE_Y), len(jobs))
    fused[grid](
        jobs,
        across.first,
        across.weights,
        down.first,
        down.weights,
        levels,
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
    """The pattern of `nvimgcodec` into one buffer a program, or whether a group of it is still there."""
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
    """Queues it on the current stream. ``spots``: (n, 2) int64, address and size; ``unwritten``: (n,) int32, for ``write=False``."""
    probe[(len(spots),)](spots, unwritten, WRITE=write, GROUPS=groups, GROUP=group, **LAUNCH)
