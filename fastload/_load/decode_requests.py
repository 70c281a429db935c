"""Builds the decode requests of an image or mask field from part tables and plan rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fastload._common.native import core
from fastload._common.threads import WorkerThreads
from fastload._decode.backend import REQUEST, Codec
from fastload._load.records import BatchRecords, restart_index_of
from fastload._plan.rows import NEAREST, PlanRows
from fastload._store.pixels import decode_image, decode_mask
from fastload._store.record import JPEG, RAW
from fastload.errors import BadImage, RecordError

_NATIVE = np.zeros(256, np.bool_)
_NATIVE[[JPEG, RAW]] = True  # the decode threads read these codecs; others are unpacked here

Source = memoryview | NDArray[np.uint8]
SlotFault = BadImage | RecordError


@dataclass(frozen=True, slots=True)
class DecodeRequests:
    """The decode requests of one field. A slot is an index into ``part_rows``."""

    requests: NDArray[np.void]
    sources: Sequence[Source]
    n_bytes: int  # encoded size
    faults: dict[int, SlotFault]  # slot -> why the image cannot be decoded


class _Filled(NamedTuple):
    """Result of filling a request array."""

    n_bytes: int  # encoded size of all images
    packed: list[int]  # slots whose codec the decode threads cannot read


def make_requests(
    records: BatchRecords,
    number: int,
    plan: PlanRows,
    *,
    exact: bool,
    mask_bits: int,
    unpackers: WorkerThreads,
) -> DecodeRequests:
    """Builds a request for each image or mask of a field.

    Args:
        records: The records of the batch.
        number: Number of the field in the dataset.
        plan: Plan rows of the images.
        exact: Never decode at a reduced scale.
        mask_bits: Bits per pixel of a mask; 0 for images.
        unpackers: Threads for codecs that the decode threads cannot read (PNG, deflated masks).
            zlib and Pillow release the GIL.
    """
    module = core()
    if module is None:
        requests = np.zeros(len(plan), REQUEST)
        filled = _fill_in_python(requests, records, number, plan, exact=exact, mask_bits=mask_bits)
    else:
        memory = np.empty(len(plan) * REQUEST.itemsize, np.uint8)
        n_bytes, packed = module.image_requests(
            records.table.view(np.uint8),
            plan.numbers,
            memory,
            field=number,
            first=records.first,
            mask_bits=mask_bits,
            filter=NEAREST if mask_bits else plan.filter,
            exact=exact,
        )
        requests = np.frombuffer(memory, REQUEST)
        filled = _Filled(n_bytes, packed)
    faults: dict[int, SlotFault] = {}
    if not filled.packed:
        return DecodeRequests(requests, records.views, filled.n_bytes, faults)
    rows: list[tuple[int, ...]] = records.part_rows(number)[filled.packed].tolist()
    sources: list[Source] = [*records.views]
    unpacked = unpackers.map(lambda row: _unpack(records, row, mask_bits), rows)
    for slot, pixels in zip(filled.packed, unpacked, strict=True):
        if isinstance(pixels, np.ndarray):
            _point_to(requests[slot], pixels, len(sources))
            sources.append(pixels.reshape(-1).view(np.uint8))
        else:
            faults[slot] = pixels
    return DecodeRequests(requests, sources, filled.n_bytes, faults)


def _fill_in_python(
    requests: NDArray[np.void],
    records: BatchRecords,
    number: int,
    plan: PlanRows,
    *,
    exact: bool,
    mask_bits: int,
) -> _Filled:
    """Does the same as ``image_requests`` of the native core."""
    images = records.part_rows(number)
    plan.fill(requests, mask=mask_bits > 0)
    requests["offset"] = images["offset"]
    requests["size"] = images["length"]
    requests["index_offset"], requests["index_count"] = restart_index_of(records, number, images)
    requests["interval"] = images["interval"]
    requests["source"] = images["sample"]
    requests["raw_w"] = images["width"]
    requests["raw_h"] = images["height"]
    requests["codec"] = np.where(images["codec"] == JPEG, Codec.JPEG, Codec.RAW)
    requests["raw_channels"] = images["channels"]
    requests["raw_bits"] = images["bits"]
    requests["orientation"] = np.maximum(images["orientation"], 1)
    requests["exact"] = exact
    requests["check"] = 1  # the decode thread verifies the checksum
    in_place = _NATIVE[images["codec"]] & ((mask_bits == 0) | (images["bits"] == mask_bits))
    return _Filled(int(images["length"].sum()), np.flatnonzero(~in_place).tolist())


def _unpack(
    records: BatchRecords, row: tuple[int, ...], mask_bits: int
) -> NDArray[np.generic] | SlotFault:
    """Decodes an image for the decode threads, or returns the error."""
    part = records.part(row)
    try:
        records.verify(row[0])  # the decode threads do not verify this record
        if not mask_bits:
            return np.ascontiguousarray(decode_image(part))
        pixels = decode_mask(part)
        bits = 8 * pixels.dtype.itemsize
        if bits > mask_bits:
            return BadImage(
                f"the mask has {bits} bits per pixel: expected at most {mask_bits}. "
                "Pack all masks with the same type"
            )
        return np.ascontiguousarray(pixels, np.dtype(f"<u{mask_bits // 8}"))
    except (BadImage, RecordError) as error:
        return error


def _point_to(request: np.void, pixels: NDArray[np.generic], source: int) -> None:
    """Changes a request so that the decode thread reads unpacked pixels."""
    request["source"] = source
    request["offset"] = 0
    request["size"] = pixels.nbytes
    request["index_count"] = 0
    request["raw_h"], request["raw_w"] = pixels.shape[:2]
    request["raw_channels"] = pixels.shape[2] if pixels.ndim == 3 else 1
    request["raw_bits"] = 8 * pixels.dtype.itemsize
    request["codec"] = Codec.RAW
    request["orientation"] = 1
    request["check"] = 0
