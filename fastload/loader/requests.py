"""From part tables and plan rows to decode requests, for one image or mask field of a batch; all in numpy."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fastload.decode.backend import REQUEST, Codec
from fastload.errors import BadImage
from fastload.loader.parts import BatchParts, restart_index_of
from fastload.plan.rows import PlanRows
from fastload.store.pixels import decode_image, decode_mask
from fastload.store.record import JPEG, RAW, Part, RecordError

_NATIVE = np.zeros(256, np.bool_)
_NATIVE[[JPEG, RAW]] = True         # codecs that decode threads read in place; the others are unpacked here


Source = memoryview | NDArray[np.uint8]


@dataclass(frozen=True, slots=True)
class FieldRequests:
    """What to decode for one field. ``faults``: slot → why the image cannot even be asked for."""

    requests: NDArray[np.void]
    sources: list[Source]
    faults: dict[int, str]


def image_requests(parts: BatchParts, field: int, images: NDArray[np.void], plan: PlanRows, *, exact: bool, mask: bool) -> FieldRequests:
    """A request for each row of ``images`` (part rows of this field), as the plan has it; slot = place in ``images``."""
    requests = np.zeros(len(images), REQUEST)
    plan.fill(requests, mask=mask)
    requests["offset"], requests["size"] = images["offset"], images["length"]
    requests["index_offset"], requests["index_count"] = restart_index_of(parts, field, images)
    requests["interval"] = images["interval"]
    requests["source"] = images["sample"]
    requests["raw_w"], requests["raw_h"] = images["width"], images["height"]
    requests["codec"] = np.where(images["codec"] == JPEG, Codec.JPEG, Codec.RAW)
    requests["raw_channels"], requests["raw_bits"] = images["channels"], images["bits"]
    requests["orientation"] = np.maximum(images["orientation"], 1)
    requests["exact"] = exact
    requests["check"] = 1                       # the checksum is the decode thread's business
    sources: list[Source] = list(parts.records)
    faults: dict[int, str] = {}
    for slot in np.flatnonzero(~_NATIVE[images["codec"]]).tolist():
        try:
            parts.check(int(images[slot]["sample"]))        # no decode thread will see this record
            unpacked = _unpacked(parts, images[slot], mask=mask)
        except (BadImage, RecordError) as error:
            faults[slot] = str(error)
            continue
        _point_to(requests, slot, unpacked, len(sources))
        sources.append(unpacked.reshape(-1).view(np.uint8))
    return FieldRequests(requests, sources, faults)


def _unpacked(parts: BatchParts, row: np.void, *, mask: bool) -> NDArray[np.generic]:
    """Pixels of an image that no decode thread reads: PNG, deflated masks. Upright."""
    record = parts.records[int(row["sample"])]
    data = record[int(row["offset"]):int(row["offset"]) + int(row["length"])]
    part = Part(int(row["field"]), data, int(row["item"]), int(row["codec"]), 0, int(row["channels"]), int(row["bits"]), int(row["width"]),
                int(row["height"]), 0, int(row["orientation"]))
    pixels: NDArray[np.generic] = np.ascontiguousarray(decode_mask(part) if mask else decode_image(part))
    return pixels


def _point_to(requests: NDArray[np.void], slot: int, pixels: NDArray[np.generic], source: int) -> None:
    request = requests[slot]
    request["source"], request["offset"], request["size"], request["index_count"] = source, 0, pixels.nbytes, 0
    request["raw_h"], request["raw_w"] = pixels.shape[:2]
    request["raw_channels"] = pixels.shape[2] if pixels.ndim == 3 else 1
    request["raw_bits"] = 8 * pixels.dtype.itemsize
    request["codec"], request["orientation"], request["check"] = Codec.RAW, 1, 0
    requests[slot] = request
