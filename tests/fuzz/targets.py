"""All fuzz targets of the Python parsers of untrusted bytes.

A target may raise errors of fastload. Anything else is a finding. ``make fuzz`` runs the targets
under atheris (tools/fuzz.py), ``make test`` runs the seeds and the saved inputs (test_targets.py).
"""

from __future__ import annotations

from tests.fuzz import source_targets, store_targets, tool_targets

TARGETS = {**store_targets.TARGETS, **source_targets.TARGETS, **tool_targets.TARGETS}
