"""Submits the images and masks of a batch to the decode threads and finishes their pixels."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from fastload._common.threads import WorkerThreads
from fastload._decode.backend import DecodeBatch, PixelFormat
from fastload._finish.batch import DTYPES, Finish
from fastload._finish.kernels import warp_masks
from fastload._load.batch import PendingField
from fastload._load.buffers import BufferPool
from fastload._load.decode_requests import DecodeRequests, SlotFault, make_requests
from fastload._load.decoder import Decoder
from fastload._load.records import BatchRecords, shown_sizes
from fastload._load.spec import LoadedField, LoadSpec
from fastload._load.transfer import Transfer
from fastload._plan.rows import PlanRows
from fastload.errors import BadImage

_UNSIGNED = {8: torch.uint8, 16: torch.uint16, 32: torch.uint32}


class ImageDecoder:
    """Submits the images and masks of batches and finishes them.

    The caller makes all calls inside ``transfer.stream()``.
    """

    def __init__(
        self, spec: LoadSpec, backend: Decoder, buffers: BufferPool, transfer: Transfer
    ) -> None:
        self._spec = spec
        self._backend = backend
        self._buffers = buffers
        self._transfer = transfer
        self._unpackers = WorkerThreads(backend.budget, "fastload-unpack")
        self._finishes = {name: Finish(plan) for name, plan in spec.plans.items()}
        self._formats = {each.name: self._format(each) for each in spec.images}

    def requests(
        self, chosen: LoadedField, records: BatchRecords, rows: PlanRows
    ) -> DecodeRequests:
        return make_requests(
            records,
            chosen.number,
            rows,
            exact=self._spec.exact,
            mask_bits=chosen.bits if chosen.field.kind.is_mask else 0,
            unpackers=self._unpackers,
        )

    def submit(self, chosen: LoadedField, records: BatchRecords, rows: PlanRows) -> PendingField:
        """Submits the images of a field to the decode threads without waiting."""
        found = self.requests(chosen, records, rows)
        faults: dict[int, SlotFault] = {
            **found.faults,
            **{slot: BadImage(why) for slot, why in rows.bad.items()},
        }
        if chosen.field.kind.is_mask:
            faults |= _misfits(records.part_rows(chosen.number), rows)
            output, pixels = self._mask_output(chosen, rows)
        else:
            output, pixels = self.image_output(chosen, rows)
        ticket = self._backend.submit(DecodeBatch(found.sources, found.requests, output, pixels))
        return PendingField(chosen, output, ticket, faults, found.n_bytes)

    def finish(
        self, field: PendingField, rows: PlanRows, take: NDArray[np.intp] | None
    ) -> torch.Tensor:
        """Returns the pixels as the user receives them.

        Args:
            field: A field whose ticket was collected.
            rows: Plan rows of the samples in ``take``.
            take: Which sample fills each place; None if no sample was substituted.
        """
        chosen = field.chosen
        pixels = field.output
        if chosen.field.list:
            pixels = pixels.view(-1, chosen.items, *pixels.shape[1:])
        if take is not None:
            for place in np.flatnonzero(take != np.arange(len(take))).tolist():
                pixels[place] = pixels[int(take[place])]
        if chosen.field.kind.is_mask:
            return self._warp(pixels, chosen, rows).view(_UNSIGNED[chosen.bits])[..., 0]
        finish = self._finishes[chosen.name]
        if finish.decoder_suffices:
            if finish.ops:
                images = pixels.view(-1, *pixels.shape[-3:])
                finish.flip_finished(images, rows.parameters, helpers=self._unpackers)
            return pixels.movedim(-1, -3) if finish.output.layout == "channels_last" else pixels
        staged = self._transfer.stage(pixels.view(-1, *pixels.shape[-3:]))
        out = None if staged.is_cuda else finish.empty(staged.shape, self._buffers.tensor)
        done = finish(staged, rows.parameters, out=out, helpers=self._unpackers)
        return done.view(*pixels.shape[:-3], *done.shape[1:])

    def _mask_output(self, chosen: LoadedField, rows: PlanRows) -> tuple[torch.Tensor, PixelFormat]:
        # Each byte of a mask's integer is a channel. The decode threads select the nearest pixel
        # and never interpolate masks.
        shape = (len(rows), rows.canvas_h, rows.canvas_w, chosen.bits // 8)
        form = PixelFormat("nhwc", "stored", _mask_fill(chosen, self._spec))
        return self._memory(shape, torch.uint8), form

    def image_output(self, chosen: LoadedField, rows: PlanRows) -> tuple[torch.Tensor, PixelFormat]:
        """Returns memory for the images of a field, and the pixel format to write."""
        form, dtype = self._formats[chosen.name]
        shape = (len(rows), rows.canvas_h, rows.canvas_w, chosen.channels)
        if form.layout == "nchw":
            shape = (len(rows), chosen.channels, rows.canvas_h, rows.canvas_w)
        return self._memory(shape, dtype), form

    def _format(self, chosen: LoadedField) -> tuple[PixelFormat, torch.dtype]:
        # Pixel operations need integers in NHWC. Without them, the decode threads write the final
        # format.
        plan = self._spec.plans[chosen.name]
        channels = chosen.channels
        color = "gray" if channels == 1 else self._spec.color
        fill = _per_channel(plan.fill, channels)
        finish = self._finishes[chosen.name]
        final = finish.decoder_suffices
        dtype = DTYPES[plan.output.dtype] if final else finish.decoded_dtype
        layout = "nchw" if final and plan.output.layout == "NCHW" else "nhwc"
        mean = std = None
        if dtype.is_floating_point:
            mean = _per_channel(plan.output.mean, channels)
            std = _per_channel(plan.output.std, channels)
        bits = plan.output.bits
        form = PixelFormat(layout, color, fill, mean, std, plan.output.white, bits)  # type: ignore[arg-type]
        return form, dtype

    def _memory(self, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        device = self._backend.device
        if device.type == "cpu":
            return self._buffers.tensor(shape, dtype)
        # torch allocates it for the current stream, which is the stream that writes it.
        return torch.empty(shape, dtype=dtype, device=device)

    def _warp(self, masks: torch.Tensor, chosen: LoadedField, rows: PlanRows) -> torch.Tensor:
        """Applies the warps and vertical flips of the image to its masks."""
        if not rows.warped:
            return masks
        fill = torch.tensor(_mask_fill(chosen, self._spec), dtype=torch.uint8, device=masks.device)
        parameters = torch.from_numpy(rows.parameters).to(masks.device)
        flat = masks.reshape(-1, *masks.shape[-3:])
        return warp_masks(flat, rows.ops, parameters, fill).view(masks.shape)


def _mask_fill(chosen: LoadedField, spec: LoadSpec) -> tuple[int, ...]:
    """Returns the bytes of a mask pixel outside the image."""
    return tuple(spec.plans[chosen.image].mask_fill.to_bytes(chosen.bits // 8, "little"))


def _misfits(masks: NDArray[np.void], rows: PlanRows) -> dict[int, SlotFault]:
    """Returns an error for each mask whose size differs from that of its image."""
    sizes = shown_sizes(masks)
    expected = np.stack([rows.source_h, rows.source_w], axis=1)
    return {
        slot: BadImage(
            f"the mask is {sizes[slot, 1]}x{sizes[slot, 0]}: expected the size of its image, "
            f"{expected[slot, 1]}x{expected[slot, 0]}. Pack a mask that does not cover the image "
            "(such as a bird's-eye view) as 'array'"
        )
        for slot in np.flatnonzero((sizes != expected).any(axis=1)).tolist()
    }


def _per_channel(values: tuple[Any, ...], channels: int) -> tuple[Any, ...]:
    """Repeats a single value for all channels."""
    return values * channels if len(values) == 1 else values[:channels]
