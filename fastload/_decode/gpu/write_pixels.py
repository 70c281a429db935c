"""Decoded uint8 pixels into a batch's output, on whatever device both are: colour order, (level - mean) / std, dtype, layout."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from fastload._decode.backend import DecodeBatch

if TYPE_CHECKING:
    from fastload._decode.gpu.staging import Rows


def write_levels(levels: torch.Tensor, batch: DecodeBatch, rows: Rows) -> None:
    """Writes uint8 (k, H, W, C), RGB or gray, into slots ``rows`` of the output; queued on the current stream, no wait.

    The same bits as the native core gives: float32 arithmetic, then rounded to the output's dtype.
    """
    output, pixels = torch.as_tensor(batch.output), batch.pixels
    values = levels.flip(-1) if pixels.colour == "bgr" else levels
    if output.dtype != torch.uint8:
        channels = levels.shape[-1]
        values = values.to(torch.float32)
        for numbers, neutral, apply in (
            (pixels.mean_levels(channels), 0.0, values.sub_),
            (pixels.std_levels(channels), 1.0, values.div_),
        ):
            if any(number != neutral for number in numbers):
                apply(torch.tensor(numbers, dtype=torch.float32, device=values.device))
    if pixels.layout == "nchw":
        values = values.permute(0, 3, 1, 2)
    if len(rows) == len(batch.requests):
        output[: len(rows)].copy_(values)
    else:
        output.index_copy_(0, torch.from_numpy(rows).to(output.device), values.to(output.dtype))
