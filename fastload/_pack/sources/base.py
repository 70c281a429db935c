"""What a source of samples is, and what it hands to the packer."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, TypeAlias, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from fastload._common.public import public
from fastload._pack.files import printable_or_repr, read_bounded
from fastload._store.fields import Field
from fastload.errors import BadImage

if TYPE_CHECKING:
    from PIL.Image import Image
    from typing_extensions import TypeIs

Json: TypeAlias = "str | int | float | bool | list[Json] | dict[str, Json] | None"
Info: TypeAlias = "dict[str, Json]"

# One line in the pack's listing: small, JSON-able, and enough to load the sample again in another process.
Ref: TypeAlias = "str | int | list[Json] | dict[str, Json]"


@public("fastload.sources")
@dataclass(frozen=True, slots=True)
class Encoded:
    """An image as it lies in a file: JPEG, PNG, ... The packer inspects the bytes; ``name`` is for messages."""

    data: bytes
    name: str


Pixels: TypeAlias = "Encoded | NDArray[np.generic] | Image"
Value: TypeAlias = "Pixels | Sequence[Pixels] | Json | bytes"


@public("fastload.sources")
@dataclass(frozen=True, slots=True)
class Sample:
    """One sample. A field that is missing in ``values``, or None there, is one this sample does not have.

    By kind: image: Encoded, uint8/uint16 array (H, W) or (H, W, C), or a PIL image; mask: Encoded or integer array
    (H, W); boxes: float32 (N, 4), x1 y1 x2 y2; points: float32 (N, 2 or 3); matrix: float64 (r, c); array: any numeric
    array; int, float, str, bytes: the Python type; json: what ``json.loads`` returns. A list field: a list of these.
    """

    values: dict[str, Value]
    # Original path relative to the root ("file.tar!member" inside an archive), printable.
    source: str


@public("fastload.sources")
@runtime_checkable
class Source(Protocol):
    """Samples that can be listed first and loaded in any order."""

    @property
    def name(self) -> str:
        """The format: ``"folder"``, ``"lists"`` ..."""

    @property
    def fields(self) -> tuple[Field, ...]:
        """What a sample consists of; fixed from the start."""

    @property
    def info(self) -> Info:
        """What belongs to the dataset as a whole (category and camera names ...): small, kept in the manifest."""

    @property
    def thread_safe(self) -> bool:
        """``load`` may be called from several threads at once."""

    def refs(self) -> Iterator[Ref]:
        """All samples, in the source's own order: the same each time as long as the source does not change."""

    def load(self, ref: Ref) -> Sample:
        """One sample; raises BadImage, naming file and reason, where it cannot be used."""


@public("fastload.sources")
@runtime_checkable
class StreamSource(Protocol):
    """Samples that come in one order only, or that are cheap in this order alone. The packer spools them."""

    @property
    def name(self) -> str:
        """The format."""

    @property
    def fields(self) -> tuple[Field, ...]:
        """What a sample consists of; fixed from the start."""

    @property
    def info(self) -> Info:
        """What belongs to the dataset as a whole; small, kept in the manifest."""

    @property
    def n_samples(self) -> int | None:
        """How many will come, where that is known."""

    def __iter__(self) -> Iterator[Sample | BadImage]:
        """All samples. An error that is *yielded* is one bad sample; an error that is raised ends the pack."""


AnySource: TypeAlias = "Source | StreamSource"


def is_stream(source: AnySource) -> TypeIs[StreamSource]:
    """It must be iterated: it has no ``refs``."""
    return not isinstance(source, Source)


def read_image(root: str | Path, path: str, named_in: str) -> Encoded:
    """An image file below ``root``; what is wrong with it is reported together with ``named_in``."""
    try:
        return Encoded(read_bounded(root, path), printable_or_repr(path))
    except BadImage as error:
        raise BadImage(f"{error.why} ({named_in})", source=error.source) from None


def refused(path: str, why: str) -> Ref:
    """The ref of a place that is listed but must not be read: ``raise_if_refused`` makes it a bad sample."""
    return {"path": path, "refused": why}


def raise_if_refused(ref: Ref) -> None:
    """To be called first in ``load`` by sources that list ``refused`` places."""
    if isinstance(ref, dict) and "refused" in ref:
        raise BadImage(str(ref["refused"]), source=str(ref.get("path", "")))
