"""Turns decoded images of any sizes into a batch: resize, flip, letterbox, normalize, dtype, layout.

On a GPU one Triton kernel does it (`fused_kernel`); without Triton, and on the CPU, `place_by_torch`
computes the same integers. Both give the bytes of the native core without DCT scaling, which are
Pillow's (columns first, 8 bits between the passes).

`make_taps` computes which input pixels an output pixel is made of, operation for operation as
native/pixels/resize.cpp: weights in double, rounded to 22-bit fixed point. torch runs each operation by
itself, so no compiler fuses a multiplication with an addition, and CPU and GPU get the same integers.
"""

from __future__ import annotations

import functools
import importlib.util
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fastload._decode.backend import Filter, PixelFormat

PRECISION = 22  # Pillow's: 32 bits - 8 of the pixel - 2 spare
HALF = 1 << (PRECISION - 1)

# One image, or a part of it: where its pixels are, and what becomes of them. All of it is read by the kernel, in this order.
JOB = np.dtype(
    [
        (name, "<i8")
        for name in (
            "address",
            "pitch",  # the first byte wanted; bytes from row to row
            "in_w",
            "in_h",
            "out_w",
            "out_h",  # pixels wanted, and what they become
            "left",
            "top",  # where that goes in the output; the rest is filled
            "flip",
            "slot",
            "taps_x",
            "taps_y",  # set by `place`
            "filter",
        )
    ]
)

Jobs = NDArray[np.void]


@functools.cache
def kernel_trouble(device: torch.device) -> str:
    """Why the kernel cannot be used on this device, or nothing: it was built (Triton needs a C compiler) and gave the torch path's bits."""
    if importlib.util.find_spec("triton") is None:  # importing it takes a second
        return "Triton is not installed"
    from triton.errors import TritonError

    jobs = np.zeros(2, JOB)
    jobs["in_w"] = (31, 22)
    jobs["in_h"] = (17, 40)
    jobs["out_w"] = (20, 40)
    jobs["out_h"] = (24, 9)
    jobs["slot"] = (0, 1)
    jobs["flip"] = (0, 1)
    jobs["left"] = (3, 0)
    jobs["top"] = (0, 5)
    images = [
        (torch.arange(w * h * 3, device=device) * 37 % 251).to(torch.uint8).view(h, w, 3)
        for w, h in ((31, 17), (22, 40))
    ]
    found = []
    try:
        for triton in (False, True):
            output = torch.zeros((2, 24, 40, 3), dtype=torch.uint8, device=device)
            place(jobs, images, output, PixelFormat(fill=9), triton=triton)
            found.append(output.cpu())
    except (
        ImportError,
        OSError,
        RuntimeError,
        ValueError,
        subprocess.SubprocessError,
        TritonError,
    ) as error:
        why = (str(error).strip() or "no reason given").splitlines()[0]
        return f"Triton cannot run here ({type(error).__name__}: {why})"
    return "" if torch.equal(*found) else "the kernel gives other pixels than torch"


def use_kernel(device: torch.device, wanted: bool | None) -> bool:
    """``wanted``; None = on CUDA devices where ``kernel_trouble`` finds none."""
    if wanted is None:
        return device.type == "cuda" and not kernel_trouble(device)
    return wanted


def place(
    jobs: Jobs,
    images: Sequence[Tensor],
    output: Tensor,
    pixels: PixelFormat,
    *,
    triton: bool | None = None,
) -> None:
    """Fills slots ``jobs["slot"]`` of ``output``, queued on the current stream; other slots stay as they are.

    ``images[i]``: (in_h, in_w, 1 or 3) uint8, gray or RGB, job i's part of a decoded image. Only its address is used by the
    kernel: it must stay until the work is done. ``triton``: as in ``use_kernel``.
    """
    if not len(jobs):
        return
    planar = output if pixels.layout == "nchw" else output.permute(0, 3, 1, 2)
    levels = value_table(pixels, planar.shape[1], planar.dtype).to(planar.device)
    filters = jobs["filter"].astype(np.int64)
    across, down = (
        make_taps(
            jobs[f"in_{axis}"].astype(np.int64),
            jobs[f"out_{axis}"].astype(np.int64),
            filters,
            planar.device,
        )
        for axis in ("w", "h")
    )
    if not use_kernel(planar.device, triton):
        place_by_torch(
            jobs,
            images,
            (across, down),
            levels=levels,
            output=planar,
            swap=pixels.color == "bgr",
        )
        return
    from fastload._decode.gpu import fused_kernel

    jobs = jobs.copy()
    jobs["address"] = [each.data_ptr() for each in images]
    jobs["pitch"] = [each.stride(0) for each in images]
    jobs["taps_x"] = across.counts
    jobs["taps_y"] = down.counts
    rows = torch.from_numpy(jobs.view(np.int64).reshape(len(jobs), -1)).to(planar.device)
    fused_kernel.launch(
        rows,
        across,
        down,
        levels,
        planar,
        channels=images[0].shape[2],
        swap=pixels.color == "bgr",
    )


def value_table(pixels: PixelFormat, channels: int, dtype: torch.dtype) -> Tensor:
    """(channels, 257): what each level becomes in the output, and last what the fill color becomes.

    Made once a batch on the CPU, as the native core does: normalizing is looking up, and gives the same bits everywhere.
    """
    numbers = torch.arange(256).expand(channels, 256)
    numbers = torch.cat([numbers, torch.tensor(pixels.fill_values(channels))[:, None]], 1)
    if dtype == torch.uint8:
        return numbers.to(torch.uint8)
    mean, std = (
        torch.tensor(each, dtype=torch.float32)[:, None]
        for each in (pixels.mean_values(channels), pixels.std_values(channels))
    )
    return ((numbers.float() - mean) / std).to(dtype)


def place_by_torch(
    jobs: Jobs,
    images: Sequence[Tensor],
    taps: tuple[Taps, Taps],
    *,
    levels: Tensor,
    output: Tensor,
    swap: bool,
) -> None:
    """The same as the kernel, image by image: some 40 launches each on a GPU. ``taps`` across and down."""
    across, down = taps
    channels = output.shape[1]
    fill = levels[:, 256, None, None]
    for n, image in enumerate(images):
        out_w, out_h, left, top, flip, slot = (
            int(jobs[n][name]) for name in ("out_w", "out_h", "left", "top", "flip", "slot")
        )
        found = _summed(image, across, n, out_w, axis=1)
        found = _summed(found, down, n, out_h, axis=0).permute(2, 0, 1)
        found = found.flip(0) if swap else found
        found = (found.flip(2) if flip else found).expand(channels, -1, -1).long()
        canvas = output[slot]
        if (out_h, out_w) != tuple(canvas.shape[1:]):
            canvas.copy_(fill.expand(canvas.shape))
        if levels.dtype == torch.uint8:
            canvas[:, top : top + out_h, left : left + out_w] = found
        else:
            for c in range(channels):
                canvas[c, top : top + out_h, left : left + out_w] = levels[c][found[c]]


def _summed(image: Tensor, taps: Taps, n: int, size: int, *, axis: int) -> Tensor:
    """One pass along an axis of (H, W, C); 0..255 as int32."""
    shape = (1, size, 1) if axis else (size, 1, 1)
    first = taps.first[n, :size].long()
    last = image.shape[axis] - 1
    total = torch.full((1,), HALF, dtype=torch.int32, device=image.device)
    for j in range(int(taps.counts[n])):
        total = total + image.index_select(axis, (first + j).clamp(max=last)).to(
            torch.int32
        ) * taps.weights[n, j, :size].view(shape)
    return (total >> PRECISION).clamp_(0, 255)


@dataclass(frozen=True, slots=True)
class Taps:
    """Output i of image n is the sum of ``weights[n, j, i]`` * input ``first[n, i] + j``, for j below ``counts[n]``.

    Inputs beyond the last have weight 0. What is behind a image's own outputs means nothing.
    """

    first: Tensor  # (n, longest) int32
    weights: Tensor  # (n, most, longest) int32, fixed point
    counts: NDArray[np.int64]  # (n,) on the host


def count_taps(
    in_sizes: NDArray[np.int64], out_sizes: NDArray[np.int64], filters: NDArray[np.int64]
) -> NDArray[np.int64]:
    """How many inputs an output may need."""
    scale = np.maximum(in_sizes / out_sizes, 1.0)
    wide = np.ceil(2 * scale).astype(np.int64) + 1
    counts: NDArray[np.int64] = np.where(
        filters == Filter.ANTIALIAS, wide, np.where(filters == Filter.BILINEAR, 2, 1)
    )
    return np.minimum(counts, in_sizes)


def make_taps(
    in_sizes: NDArray[np.int64],
    out_sizes: NDArray[np.int64],
    filters: NDArray[np.int64],
    device: torch.device,
) -> Taps:
    """For ``in_sizes[n]`` inputs → ``out_sizes[n]`` outputs; ``filters`` are those of ``backend.Filter``."""
    counts = count_taps(in_sizes, out_sizes, filters)
    most = int(counts.max())
    longest = int(out_sizes.max())
    host = np.stack([in_sizes, out_sizes, filters])
    sizes = torch.from_numpy(host).to(device)[:, :, None]
    made = [
        (how, _TABLES[how](sizes[0], sizes[1], most, longest))
        for how in sorted(set(filters.tolist()))
    ]
    (_, (first, weights)), *others = made
    for how, (its_first, its_weights) in others:
        those = sizes[2] == how
        first = torch.where(those, its_first, first)
        weights = torch.where(those[:, None], its_weights, weights)
    return Taps(first.to(torch.int32).contiguous(), weights.contiguous(), counts)


def _antialias(n_in: Tensor, n_out: Tensor, most: int, longest: int) -> tuple[Tensor, Tensor]:
    """Pillow's BILINEAR: a triangle as wide as the scale; taps outside are dropped, the others renormalized."""
    scale = n_in.double() / n_out
    support = scale.clamp(min=1.0)
    inverse = 1.0 / support
    center = (torch.arange(longest, device=n_in.device) + 0.5) * scale
    start = (center - support + 0.5).long().clamp(min=0)
    stop = torch.minimum((center + support + 0.5).long(), n_in)
    values = []
    total = torch.zeros_like(center)
    # One after the other, as Pillow adds: another order may round another way
    for j in range(most):
        x = start + j
        value = (1.0 - ((x - center + 0.5) * inverse).abs()).clamp(min=0.0)
        value = torch.where(x < stop, value, 0.0)
        total += value
        values.append(value)
    shares = torch.stack(values, 1) / torch.where(total == 0.0, 1.0, total)[:, None]
    return start, (shares * (1 << PRECISION) + 0.5).to(torch.int32)


def _bilinear(n_in: Tensor, n_out: Tensor, most: int, longest: int) -> tuple[Tensor, Tensor]:
    """OpenCV's INTER_LINEAR: two neighbors, the edges repeated."""
    scale = 1.0 / (n_out.double() / n_in)
    place = ((torch.arange(longest, device=n_in.device) + 0.5) * scale - 0.5).float()
    start = place.floor().long()
    part = (place - start.float()).double()
    part = torch.where((start < 0) | (start >= n_in - 1), 0.0, part)
    start = torch.minimum(start.clamp(min=0), n_in - 1)
    weights = torch.zeros((*start.shape[:1], most, longest), dtype=torch.int32, device=n_in.device)
    for j, share in enumerate((1.0 - part, part)[:most]):
        weights[:, j] = (share * (1 << PRECISION) + 0.5).to(torch.int32)
    return start, weights


def _nearest(n_in: Tensor, n_out: Tensor, most: int, longest: int) -> tuple[Tensor, Tensor]:
    """The pixel under the middle; for labels: nothing is mixed."""
    start = (2 * torch.arange(longest, device=n_in.device) + 1) * n_in // (2 * n_out)
    weights = torch.zeros((len(start), most, longest), dtype=torch.int32, device=n_in.device)
    weights[:, 0] = 1 << PRECISION
    return start, weights


_TABLES = {
    int(Filter.ANTIALIAS): _antialias,
    int(Filter.BILINEAR): _bilinear,
    int(Filter.NEAREST): _nearest,
}
