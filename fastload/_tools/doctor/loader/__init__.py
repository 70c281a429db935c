"""Live diagnosis of a loader (``fastload.diagnose``)."""
