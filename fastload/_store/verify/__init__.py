"""Verifies datasets: every byte, every record and, with ``deep``, every image."""

from __future__ import annotations

from fastload._store.verify.report import Fault, VerifyReport
from fastload._store.verify.run import VerifyProgress, verify

__all__ = ["Fault", "VerifyProgress", "VerifyReport", "verify"]
