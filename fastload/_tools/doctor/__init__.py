"""Says why a GPU waits: from recorded runs (``examine``), and by looking at the machine (``check_machine``)."""

from __future__ import annotations

from fastload._tools.doctor.diagnosis import Ceiling, Diagnosis, Finding, RunFacts
from fastload._tools.doctor.examine import examine

__all__ = ["Ceiling", "Diagnosis", "Finding", "RunFacts", "examine"]
