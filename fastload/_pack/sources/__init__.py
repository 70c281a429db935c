"""Sources of samples for ``fastload pack``: one small module each. See docs/sources.md."""

from __future__ import annotations

from fastload._pack.sources.base import (
    AnySource,
    Encoded,
    Ref,
    Sample,
    Source,
    StreamSource,
    Value,
    is_stream,
)
from fastload._pack.sources.detect import FORMATS, detect, open_source

__all__ = [
    "FORMATS",
    "AnySource",
    "Encoded",
    "Ref",
    "Sample",
    "Source",
    "StreamSource",
    "Value",
    "detect",
    "is_stream",
    "open_source",
]
