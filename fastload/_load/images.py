"""The pixels of a batch: memory for them, the request to the decode threads, and what is done to them afterwards."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from fastload._common.threads import Helpers
from fastload._decode.backend import DecodeBatch, DecodeResult, PixelFormat
from fastload._finish.batch import Finish
from fastload._finish.kernels import warp_masks
from fastload._load.batch import PendingField
from fastload._load.buffers import BufferPool
from fastload._load.decode_requests import DecodeRequests, SlotFault, make_requests
from fastload._load.decoder import Decoder
from fastload._load.records import BatchRecords, shown_sizes
from fastload._load.spec import LoadedField, LoadSpec
from fastload._load.transfer import Transfer
from fastload._plan.field_plan import FieldPlan
from fastload._plan.rows import PlanRows
from fastload.errors import BadImage

_DTYPES = {
    "uint8": torch.uint8,
    "float32": torch.float32,
    "float16": torch.float16,
    "bfloat16": torch.bfloat16,
}
_UNSIGNED = {8: torch.uint8, 16: torch.uint16, 32: torch.uint32}


class ImageDecoder:
    """Asks for the images and masks of batches, and finishes them. All calls come from inside ``transfer.stream()``."""

    def __init__(
        self, spec: LoadSpec, backend: Decoder, buffers: BufferPool, transfer: Transfer
    ) -> None:
        self._spec, self._backend, self._buffers, self._transfer = spec, backend, buffers, transfer
        self._unpackers = Helpers(backend.budget, "fastload-unpack")
        self._formats: dict[str, tuple[PixelFormat, torch.dtype]] = {}
        self._finishes = {name: Finish(plan) for name, plan in spec.plans.items()}

    def requests(self, chosen: LoadedField, parts: BatchRecords, rows: PlanRows) -> DecodeRequests:
        """What to ask the decode threads for a field's images."""
        return make_requests(
            parts,
            chosen.number,
            rows,
            exact=self._spec.exact,
            mask_bits=_mask_bits(chosen),
            unpackers=self._unpackers,
        )

    def submit(self, chosen: LoadedField, parts: BatchRecords, rows: PlanRows) -> PendingField:
        """Hands a field's images to the decode threads; returns at once."""
        requests = self.requests(chosen, parts, rows)
        faults: dict[int, SlotFault] = {
            **requests.faults,
            **{slot: BadImage(why) for slot, why in rows.bad.items()},
        }
        if chosen.field.kind.is_mask:
            faults |= _misfits(parts.part_rows(chosen.number), rows)
            output, pixels = self._mask_output(chosen, rows)
        else:
            output, pixels = self._image_output(chosen, rows)
        ticket = self._backend.submit(
            DecodeBatch(requests.sources, requests.requests, output, pixels)
        )
        return PendingField(chosen, output, ticket, faults, requests.n_bytes)

    def _mask_output(self, chosen: LoadedField, rows: PlanRows) -> tuple[torch.Tensor, PixelFormat]:
        """Each byte of a mask's number is a channel to the decode threads: they pick pixels and never mix them."""
        shape = (len(rows), rows.canvas_h, rows.canvas_w, chosen.bits // 8)
        return self._memory(shape, torch.uint8), PixelFormat(
            "nhwc", "stored", _mask_fill(chosen, self._spec)
        )

    def _image_output(
        self, chosen: LoadedField, rows: PlanRows
    ) -> tuple[torch.Tensor, PixelFormat]:
        if chosen.name not in self._formats:
            self._formats[chosen.name] = self._format(chosen)
        (form, dtype), n, height, width = (
            self._formats[chosen.name],
            len(rows),
            rows.canvas_h,
            rows.canvas_w,
        )
        shape = (
            (n, chosen.channels, height, width)
            if form.layout == "nchw"
            else (n, height, width, chosen.channels)
        )
        return self._memory(shape, dtype), form

    def _format(self, chosen: LoadedField) -> tuple[PixelFormat, torch.dtype]:
        """Color steps work on uint8 NHWC afterwards; without them the decode threads finish the job."""
        plan, channels, idle = (
            self._spec.plans[chosen.name],
            chosen.channels,
            self._finishes[chosen.name].decoder_suffices,
        )
        form = plan.output
        dtype = _DTYPES[form.dtype] if idle else torch.uint8
        plain = dtype == torch.uint8
        return PixelFormat(
            "nchw" if form.layout == "NCHW" and idle else "nhwc",
            "gray" if channels == 1 else self._spec.color,  # type: ignore[arg-type]
            _each(plan.fill, channels),
            None if plain else _each(form.mean, channels),
            None if plain else _each(form.std, channels),
            255.0,
        ), dtype

    def _memory(self, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        """For pixels, where the decoder writes them. On a GPU torch's own allocator: memory of the feeder's stream, which writes it."""
        device = self._backend.device
        return (
            self._buffers.tensor(shape, dtype)
            if device.type == "cpu"
            else torch.empty(shape, dtype=dtype, device=device)
        )

    def collect(self, field: PendingField) -> DecodeResult:
        """Waits for the decoder."""
        return self._backend.collect(field.ticket)

    def finish(
        self, field: PendingField, rows: PlanRows, take: NDArray[np.intp] | None
    ) -> torch.Tensor:
        """The pixels as the user gets them, good ones copied over bad ones (``take``); ``rows`` are those of the samples taken."""
        pixels, chosen = field.output, field.chosen
        if chosen.field.list:
            pixels = pixels.view(-1, chosen.items, *pixels.shape[1:])
        if take is not None:
            for place in np.flatnonzero(take != np.arange(len(take))).tolist():
                pixels[place] = pixels[int(take[place])]
        if chosen.field.kind.is_mask:
            return self._moved(pixels, chosen, rows).view(_UNSIGNED[chosen.bits])[..., 0]
        finish = self._finishes[chosen.name]
        if finish.decoder_suffices:  # the decode threads have done all the rest
            if finish.ops:
                finish.flip_finished(
                    pixels.view(-1, *pixels.shape[-3:]), rows.parameters, helpers=self._unpackers
                )
            return pixels.movedim(-1, -3) if finish.output.layout == "channels_last" else pixels
        staged = self._transfer.stage(pixels.view(-1, *pixels.shape[-3:]))
        out = None if staged.is_cuda else self._finish_output(self._spec.plans[chosen.name], staged)
        done = finish(staged, rows.parameters, out=out, helpers=self._unpackers)
        return done.view(*pixels.shape[:-3], *done.shape[1:])

    def _moved(self, masks: torch.Tensor, chosen: LoadedField, rows: PlanRows) -> torch.Tensor:
        """Masks follow what moves the finished canvas of their image."""
        if not rows.warped:
            return masks
        fill = torch.tensor(_mask_fill(chosen, self._spec), dtype=torch.uint8, device=masks.device)
        parameters = torch.from_numpy(rows.parameters).to(masks.device)
        return warp_masks(masks.reshape(-1, *masks.shape[-3:]), rows.ops, parameters, fill).view(
            masks.shape
        )

    def _finish_output(self, plan: FieldPlan, pixels: torch.Tensor) -> torch.Tensor:
        n, height, width, channels = pixels.shape
        dtype = _DTYPES[plan.output.dtype]
        if plan.output.layout == "NCHW":
            return self._buffers.tensor((n, channels, height, width), dtype)
        memory = self._buffers.tensor((n, height, width, channels), dtype)
        return memory if plan.output.layout == "NHWC" else memory.permute(0, 3, 1, 2)


def _mask_fill(chosen: LoadedField, spec: LoadSpec) -> tuple[int, ...]:
    """As the bytes of a pixel."""
    return tuple(spec.plans[chosen.image].mask_fill.to_bytes(chosen.bits // 8, "little"))


def _mask_bits(chosen: LoadedField) -> int:
    return chosen.bits if chosen.field.kind.is_mask else 0


def _misfits(masks: NDArray[np.void], rows: PlanRows) -> dict[int, SlotFault]:
    """Masks that are not over their image."""
    sizes = shown_sizes(masks)
    wrong = np.flatnonzero(
        (sizes != np.stack([rows.source_h, rows.source_w], axis=1)).any(axis=1)
    ).tolist()
    return {
        slot: BadImage(
            f"a mask of {sizes[slot, 1]}x{sizes[slot, 0]} over an image of {rows.source_w[slot]}x{rows.source_h[slot]}; "
            "pack a mask that is not over the image (a bird's-eye view) as 'array'"
        )
        for slot in wrong
    }


def _each(values: tuple[Any, ...], channels: int) -> tuple[Any, ...]:
    """One value a channel; a single one serves all."""
    return values * channels if len(values) == 1 else values[:channels]
