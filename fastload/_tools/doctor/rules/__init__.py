"""The rules that find causes in a recorded run; ``registry`` has their list and their order."""

from __future__ import annotations

from fastload._tools.doctor.rules import data, gpu, ranks, stalls  # noqa: F401 - they register their rules
from fastload._tools.doctor.rules.registry import Named, Unclaimed, rules

__all__ = ["Named", "Unclaimed", "rules"]
