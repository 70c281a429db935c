"""Which pixels an output pixel is made of, and their weights: for one axis of all pictures of a batch at once, on their device.

Operation for operation as native/pixels/resize.cpp, which is Pillow's arithmetic: weights in double, rounded to 22-bit fixed point. torch
runs each operation by itself, so no compiler joins a multiplication and an addition, and CPU and GPU get the same whole numbers.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fastload._decode.backend import Filter

PRECISION = 22  # Pillow's: 32 bits - 8 of the pixel - 2 spare
HALF = 1 << (PRECISION - 1)


@dataclass(frozen=True, slots=True)
class Taps:
    """Output i of picture n is the sum of ``weights[n, j, i]`` * input ``first[n, i] + j``, for j below ``counts[n]``.

    Inputs beyond the last have weight 0. What is behind a picture's own outputs means nothing.
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
    most, longest = int(counts.max()), int(out_sizes.max())
    host = np.stack([in_sizes, out_sizes, filters])
    sizes = torch.from_numpy(host).to(device)[:, :, None]
    made = [
        (how, _TABLES[how](sizes[0], sizes[1], most, longest))
        for how in sorted(set(filters.tolist()))
    ]
    (_, (first, weights)), *others = made
    for how, (its_first, its_weights) in others:
        those = sizes[2] == how
        first, weights = (
            torch.where(those, its_first, first),
            torch.where(those[:, None], its_weights, weights),
        )
    return Taps(first.to(torch.int32).contiguous(), weights.contiguous(), counts)


def _antialias(n_in: Tensor, n_out: Tensor, most: int, longest: int) -> tuple[Tensor, Tensor]:
    """Pillow's BILINEAR: a triangle as wide as the scale; taps outside are dropped, the others renormalised."""
    scale = n_in.double() / n_out
    support = scale.clamp(min=1.0)
    inverse = 1.0 / support
    centre = (torch.arange(longest, device=n_in.device) + 0.5) * scale
    start = (centre - support + 0.5).long().clamp(min=0)
    stop = torch.minimum((centre + support + 0.5).long(), n_in)
    values, total = [], torch.zeros_like(centre)
    for j in range(
        most
    ):  # one after the other, as Pillow adds: another order may round another way
        x = start + j
        value = (1.0 - ((x - centre + 0.5) * inverse).abs()).clamp(min=0.0)
        value = torch.where(x < stop, value, 0.0)
        total += value
        values.append(value)
    shares = torch.stack(values, 1) / torch.where(total == 0.0, 1.0, total)[:, None]
    return start, (shares * (1 << PRECISION) + 0.5).to(torch.int32)


def _bilinear(n_in: Tensor, n_out: Tensor, most: int, longest: int) -> tuple[Tensor, Tensor]:
    """OpenCV's INTER_LINEAR: two neighbours, the edges repeated."""
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
