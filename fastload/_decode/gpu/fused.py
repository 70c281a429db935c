"""Builds a batch from decoded images of any size: resize, flip, pad, normalize, dtype, layout.

On a GPU one Triton kernel (``fused_kernel``) does all of it. Without Triton, and on the CPU,
``place_by_torch`` computes the same integers. Both are bit-identical to the native core without DCT
scaling, and thus to Pillow (columns first, 8 bits between the passes).

``make_taps`` computes the input pixels and weights of each output pixel with the same operations as
native/pixels/resize.cpp: weights in double precision, rounded to 22-bit fixed point. torch runs
each operation separately, so no compiler fuses a multiplication with an addition, and CPU and GPU
compute the same integers.
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

PRECISION = 22  # as in Pillow: 32 bits - 8 bits of the pixel - 2 spare bits
HALF = 1 << (PRECISION - 1)

# One crop of a decoded image and its place in the output. The kernel reads the columns in this
# order.
JOB = np.dtype(
    [
        (name, "<i8")
        for name in (
            "address",  # of the first byte of the crop
            "pitch",  # bytes between rows
            "in_w",
            "in_h",  # size of the crop in pixels
            "out_w",
            "out_h",  # size of the resized crop
            "left",
            "top",  # its position in the slot; the rest of the slot is filled
            "flip",
            "slot",
            "taps_x",
            "taps_y",  # set by ``place``
            "filter",
        )
    ]
)

Jobs = NDArray[np.void]


@functools.cache
def kernel_problem(device: torch.device) -> str:
    """Returns why the kernel cannot be used on this device; "" if it can.

    Compiles the kernel (Triton requires a C compiler) and compares its output with the torch path.
    """
    if importlib.util.find_spec("triton") is None:  # importing it would take a second
        return "Triton is not installed"
    from triton.errors import TritonError

    jobs = np.zeros(2, JOB)
    for name, values in {
        "in_w": (31, 22),
        "in_h": (17, 40),
        "out_w": (20, 40),
        "out_h": (24, 9),
        "slot": (0, 1),
        "flip": (0, 1),
        "left": (3, 0),
        "top": (0, 5),
    }.items():
        jobs[name] = values
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
    return "" if torch.equal(*found) else "the Triton kernel computes different pixels than torch"


def use_kernel(device: torch.device, wanted: bool | None) -> bool:
    """Returns ``wanted``; if it is None, whether the kernel works on this CUDA device."""
    if wanted is None:
        return device.type == "cuda" and not kernel_problem(device)
    return wanted


def place(
    jobs: Jobs,
    images: Sequence[Tensor],
    output: Tensor,
    pixels: PixelFormat,
    *,
    triton: bool | None = None,
) -> None:
    """Writes slots ``jobs["slot"]`` of ``output``, queued on the current stream.

    ``images[i]`` is the crop of job i: (in_h, in_w, 1 or 3) uint8, gray or RGB. The kernel uses
    only its address, so the memory must stay valid until the work is done. ``triton`` is that of
    ``use_kernel``.
    """
    if not len(jobs):
        return
    planar = output if pixels.layout == "nchw" else output.permute(0, 3, 1, 2)
    values = value_table(pixels, planar.shape[1], planar.dtype).to(planar.device)
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
            values=values,
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
        values,
        planar,
        channels=images[0].shape[2],
        swap=pixels.color == "bgr",
    )


def value_table(pixels: PixelFormat, channels: int, dtype: torch.dtype) -> Tensor:
    """Returns (channels, 257) output values: of pixel values 0 to 255, then of the fill color.

    The CPU computes it once per batch, like the native core. Normalization is then a table lookup,
    which is bit-identical on all devices.
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
    values: Tensor,
    output: Tensor,
    swap: bool,
) -> None:
    """Does the same as the kernel, one image at a time, with about 40 launches per image on a GPU.

    ``taps`` are horizontal and vertical.
    """
    across, down = taps
    channels = output.shape[1]
    fill = values[:, 256, None, None]
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
        if values.dtype == torch.uint8:
            canvas[:, top : top + out_h, left : left + out_w] = found
        else:
            for c in range(channels):
                canvas[c, top : top + out_h, left : left + out_w] = values[c][found[c]]


def _summed(image: Tensor, taps: Taps, n: int, size: int, *, axis: int) -> Tensor:
    """Resizes (H, W, C) along one axis; returns pixel values as int32."""
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
    """Input pixels and weights of each output pixel along one axis.

    Output i of image n is the sum of ``weights[n, j, i]`` * input ``first[n, i] + j`` for j below
    ``counts[n]``. Inputs after the last have weight 0. Entries after the last output of an image
    are undefined.
    """

    first: Tensor  # (n, longest) int32
    weights: Tensor  # (n, most, longest) int32, fixed point
    counts: NDArray[np.int64]  # (n,) on the CPU


def count_taps(
    in_sizes: NDArray[np.int64], out_sizes: NDArray[np.int64], filters: NDArray[np.int64]
) -> NDArray[np.int64]:
    """Returns the largest number of inputs of an output, per image."""
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
    """Computes the taps for ``in_sizes[n]`` inputs, ``out_sizes[n]`` outputs and ``filters[n]``."""
    counts = count_taps(in_sizes, out_sizes, filters)
    most = int(counts.max())
    longest = int(out_sizes.max())
    sizes = torch.from_numpy(np.stack([in_sizes, out_sizes, filters])).to(device)[:, :, None]
    made = [
        (how, _TABLES[how](sizes[0], sizes[1], most, longest))
        for how in sorted(set(filters.tolist()))
    ]
    (_, (first, weights)), *others = made
    for how, (its_first, its_weights) in others:
        selected = sizes[2] == how
        first = torch.where(selected, its_first, first)
        weights = torch.where(selected[:, None], its_weights, weights)
    return Taps(first.to(torch.int32).contiguous(), weights.contiguous(), counts)


def _antialias(n_in: Tensor, n_out: Tensor, most: int, longest: int) -> tuple[Tensor, Tensor]:
    """BILINEAR of Pillow: a triangle as wide as the scale, renormalized at the borders."""
    scale = n_in.double() / n_out
    support = scale.clamp(min=1.0)
    inverse = 1.0 / support
    center = (torch.arange(longest, device=n_in.device) + 0.5) * scale
    start = (center - support + 0.5).long().clamp(min=0)
    stop = torch.minimum((center + support + 0.5).long(), n_in)
    values = []
    total = torch.zeros_like(center)
    # Add in the same order as Pillow: another order can round differently.
    for j in range(most):
        x = start + j
        value = (1.0 - ((x - center + 0.5) * inverse).abs()).clamp(min=0.0)
        value = torch.where(x < stop, value, 0.0)
        total += value
        values.append(value)
    shares = torch.stack(values, 1) / torch.where(total == 0.0, 1.0, total)[:, None]
    return start, (shares * (1 << PRECISION) + 0.5).to(torch.int32)


def _bilinear(n_in: Tensor, n_out: Tensor, most: int, longest: int) -> tuple[Tensor, Tensor]:
    """INTER_LINEAR of OpenCV: two neighbors, with repeated edges."""
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
    """The source pixel at the center of each output pixel."""
    start = (2 * torch.arange(longest, device=n_in.device) + 1) * n_in // (2 * n_out)
    weights = torch.zeros((len(start), most, longest), dtype=torch.int32, device=n_in.device)
    weights[:, 0] = 1 << PRECISION
    return start, weights


_TABLES = {
    int(Filter.ANTIALIAS): _antialias,
    int(Filter.BILINEAR): _bilinear,
    int(Filter.NEAREST): _nearest,
}
