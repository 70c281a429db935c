"""Decode requests for one image or mask field of a batch, from part tables and plan rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

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
_NATIVE[[JPEG, RAW]] = True  # codecs that the decode threads read; others are unpacked here

Source = memoryview | NDArray[np.uint8]
SlotFault = BadImage | RecordError


@dataclass(frozen=True, slots=True)
class DecodeRequests:
    """What to decode for one field. A slot is a place in ``part_rows``."""

    requests: NDArray[np.void]
    sources: Sequence[Source]
    n_bytes: int  # encoded
    faults: dict[int, SlotFault]  # slot -> why the image cannot be requested


def make_requests(
    records: BatchRecords,
    number: int,
    plan: PlanRows,
    *,
    exact: bool,
    mask_bits: int,
    unpackers: WorkerThreads,
) -> DecodeRequests:
    """A request for each image or mask of a field. ``mask_bits``: bits of a mask's pixel, 0 for images.

    ``unpackers`` decode what the decode threads do not read (PNG, deflated masks): zlib and Pillow
    run without the GIL.
    """
    module = core()
    if module is None:
        requests, n_bytes, packed = _in_python(
            records, number, plan, exact=exact, mask_bits=mask_bits
        )
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
    faults: dict[int, SlotFault] = {}
    if not packed:
        return DecodeRequests(requests, records.views, n_bytes, faults)
    rows: list[tuple[int, ...]] = records.part_rows(number)[packed].tolist()
    sources: list[Source] = [*records.views]
    unpacked = unpackers.map(lambda row: _unpack(records, row, mask_bits), rows)
    for slot, pixels in zip(packed, unpacked, strict=True):
        if isinstance(pixels, np.ndarray):
            _point_to(requests[slot], pixels, len(sources))
            sources.append(pixels.reshape(-1).view(np.uint8))
        else:
            faults[slot] = pixels
    return DecodeRequests(requests, sources, n_bytes, faults)


def _in_python(
    records: BatchRecords, number: int, plan: PlanRows, *, exact: bool, mask_bits: int
) -> tuple[NDArray[np.void], int, list[int]]:
    """What the native core's ``image_requests`` does: requests, encoded bytes, slots to unpack."""
    images = records.part_rows(number)
    requests = np.zeros(len(images), REQUEST)
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
    return requests, int(images["length"].sum()), np.flatnonzero(~in_place).tolist()


def _unpack(
    records: BatchRecords, row: tuple[int, ...], mask_bits: int
) -> NDArray[np.generic] | SlotFault:
    """The upright pixels of an image that the decode threads do not read, or what is wrong with it."""
    part = records.part(row)
    try:
        records.verify(row[0])  # no decode thread sees this record
        if not mask_bits:
            return np.ascontiguousarray(decode_image(part))
        pixels = decode_mask(part)
        bits = 8 * pixels.dtype.itemsize
        if bits > mask_bits:
            return BadImage(
                f"a mask of {bits} bits, the others have {mask_bits}: pack them with one type"
            )
        return np.ascontiguousarray(pixels, np.dtype(f"<u{mask_bits // 8}"))
    except (BadImage, RecordError) as error:
        return error


def _point_to(request: np.void, pixels: NDArray[np.generic], source: int) -> None:
    """Has a decode thread read unpacked pixels from another source."""
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
