"""Sources of samples for ``fastload pack``: one small module each. See docs/sources.md."""

from __future__ import annotations

from fastload.pack.sources.base import AnySource, Encoded, Ref, Sample, Source, StreamSource, Value, is_stream

__all__ = ["AnySource", "Encoded", "Ref", "Sample", "Source", "StreamSource", "Value", "is_stream"]
