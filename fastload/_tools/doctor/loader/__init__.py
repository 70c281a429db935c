"""Measures a loader (``fastload.diagnose``)."""
