"""From part tables and plan rows to decode requests, for one image or mask field of a batch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from fastload._common.native import core
from fastload._common.threads import Helpers
from fastload._decode.backend import REQUEST, Codec
from fastload._load.records import BatchRecords, restart_index_of
from fastload._plan.rows import NEAREST, PlanRows
from fastload._store.pixels import decode_image, decode_mask
from fastload._store.record import JPEG, RAW, Part
from fastload.errors import BadImage, RecordError

_NATIVE = np.zeros(256, np.bool_)
_NATIVE[[JPEG, RAW]] = (
    True  # codecs that decode threads read in place; the others are unpacked here
)

Source = memoryview | NDArray[np.uint8]
SlotFault = BadImage | RecordError


@dataclass(slots=True)
class DecodeRequests:
    """What to decode for one field; ``faults``: slot -> why an image cannot be requested. A slot is a place in ``part_rows``."""

    requests: NDArray[np.void]
    sources: Sequence[Source]
    n_bytes: int  # encoded
    faults: dict[int, SlotFault] = field(default_factory=dict)


def make_requests(
    parts: BatchRecords,
    number: int,
    plan: PlanRows,
    *,
    exact: bool,
    mask_bits: int,
    unpackers: Helpers,
) -> DecodeRequests:
    """A request for each image or mask of a field, as the plan has it. ``mask_bits``: bits of a mask's pixel, 0 for images.

    ``unpackers`` do what decode threads do not read (PNG, deflated masks): zlib and Pillow work without the GIL.
    """
    module = core()
    if module is None:
        requests, n_bytes, elsewhere = _in_python(
            parts, number, plan, exact=exact, mask_bits=mask_bits
        )
    else:
        memory = np.empty(len(plan) * REQUEST.itemsize, np.uint8)
        n_bytes, elsewhere = module.image_requests(
            parts.table.view(np.uint8),
            plan.numbers,
            memory,
            field=number,
            first=parts.first,
            mask_bits=mask_bits,
            filter=NEAREST if mask_bits else plan.filter,
            exact=exact,
        )
        requests = np.frombuffer(memory, REQUEST)
    asked = DecodeRequests(requests, parts.records, n_bytes)
    if elsewhere:
        images = parts.part_rows(number)
        pixels = unpackers.map(lambda slot: _unpacked(parts, images[slot], mask_bits), elsewhere)
        _point_to_pixels(asked, dict(zip(elsewhere, pixels, strict=True)))
    return asked


def _in_python(
    parts: BatchRecords, number: int, plan: PlanRows, *, exact: bool, mask_bits: int
) -> tuple[NDArray[np.void], int, list[int]]:
    """What the native core's ``image_requests`` does."""
    images = parts.part_rows(number)
    requests = np.zeros(len(images), REQUEST)
    plan.fill(requests, mask=mask_bits > 0)
    requests["offset"], requests["size"] = images["offset"], images["length"]
    requests["index_offset"], requests["index_count"] = restart_index_of(parts, number, images)
    requests["interval"] = images["interval"]
    requests["source"] = images["sample"]
    requests["raw_w"], requests["raw_h"] = images["width"], images["height"]
    requests["codec"] = np.where(images["codec"] == JPEG, Codec.JPEG, Codec.RAW)
    requests["raw_channels"], requests["raw_bits"] = images["channels"], images["bits"]
    requests["orientation"] = np.maximum(images["orientation"], 1)
    requests["exact"] = exact
    requests["check"] = 1  # the checksum is the decode thread's business
    in_place = _NATIVE[images["codec"]] & ((mask_bits == 0) | (images["bits"] == mask_bits))
    return requests, int(images["length"].sum()), np.flatnonzero(~in_place).tolist()


def _point_to_pixels(
    asked: DecodeRequests, pixels: Mapping[int, NDArray[np.generic] | SlotFault]
) -> None:
    """Has the decode threads read images out of further sources. ``pixels``: slot → what was unpacked, or what is wrong with it."""
    sources = [*asked.sources]
    for slot, unpacked in pixels.items():
        if isinstance(unpacked, np.ndarray):
            _point_to(asked.requests, slot, unpacked, len(sources))
            sources.append(unpacked.reshape(-1).view(np.uint8))
        else:
            asked.faults[slot] = unpacked
    asked.sources = sources


def _unpacked(parts: BatchRecords, row: np.void, mask_bits: int) -> NDArray[np.generic] | SlotFault:
    """Pixels of an image that no decode thread reads: PNG, deflated masks. Upright. Or what is wrong with it."""
    record = parts.records[int(row["sample"])]
    data = record[int(row["offset"]) : int(row["offset"]) + int(row["length"])]
    part = Part(
        int(row["field"]),
        data,
        int(row["item"]),
        int(row["codec"]),
        0,
        int(row["channels"]),
        int(row["bits"]),
        int(row["width"]),
        int(row["height"]),
        0,
        int(row["orientation"]),
    )
    try:
        parts.check(int(row["sample"]))  # no decode thread will see this record
        if not mask_bits:
            return np.ascontiguousarray(decode_image(part))
        pixels = decode_mask(part)
        if 8 * pixels.dtype.itemsize > mask_bits:
            return BadImage(
                f"a mask of {8 * pixels.dtype.itemsize} bits, the others have {mask_bits}: pack them with one type"
            )
        return np.ascontiguousarray(pixels, np.dtype(f"<u{mask_bits // 8}"))
    except (BadImage, RecordError) as error:
        return error


def _point_to(
    requests: NDArray[np.void], slot: int, pixels: NDArray[np.generic], source: int
) -> None:
    request = requests[slot]
    request["source"], request["offset"], request["size"], request["index_count"] = (
        source,
        0,
        pixels.nbytes,
        0,
    )
    request["raw_h"], request["raw_w"] = pixels.shape[:2]
    request["raw_channels"] = pixels.shape[2] if pixels.ndim == 3 else 1
    request["raw_bits"] = 8 * pixels.dtype.itemsize
    request["codec"], request["orientation"], request["check"] = Codec.RAW, 1, 0
    requests[slot] = request
