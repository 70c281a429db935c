"""Is a dataset still what was packed? Every byte, every record and, when asked, every image."""

from __future__ import annotations

from fastload.store.verify.report import Fault, Report
from fastload.store.verify.run import VerifyProgress, verify_dataset

__all__ = ["Fault", "Report", "VerifyProgress", "verify_dataset"]
