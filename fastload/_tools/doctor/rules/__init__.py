"""The rules that find causes of lost time in a recorded run.

``RULES`` lists them in the order in which they claim time; ``case`` explains the order.
"""

from __future__ import annotations

from fastload._tools.doctor.case import registered_rules
from fastload._tools.doctor.rules import data, gpu, steps  # noqa: F401 - they register their rules

RULES = registered_rules()
