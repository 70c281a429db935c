"""Is a dataset still what was packed? Every byte, every record and, when asked, every image."""

from __future__ import annotations

from fastload._store.verify.report import Fault, Report
from fastload._store.verify.run import VerifyProgress, verify_dataset

__all__ = ["Fault", "Report", "VerifyProgress", "verify_dataset"]
