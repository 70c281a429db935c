"""The compared loaders by name, and whether they can run here."""

from __future__ import annotations

import importlib
import importlib.util
import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True, slots=True)
class Entry:
    """A loader: its adapter, the module that it needs, and its works (empty: all)."""

    title: str
    adapter: str
    module: str
    works: tuple[str, ...] = ()
    is_fastload: bool = False
    reduced: bool = False  # decodes at reduced scale where the output is small enough


PEERS = {
    "fastload": Entry("fastload", "fastload_", "fastload", is_fastload=True, reduced=True),
    "fastload-exact": Entry("fastload, exact=True", "fastload_exact", "fastload", is_fastload=True),
    "fastload-raw": Entry(
        "fastload, raw pixels", "fastload_raw", "fastload", ("gray",), is_fastload=True
    ),
    "core": Entry(
        "(bare native core)", "bare_core", "fastload._core", is_fastload=True, reduced=True
    ),
    "torch-pil": Entry("torch + PIL, files", "torch_pil", "torch"),
    "torch-cv2": Entry("torch + OpenCV, files", "torch_cv2", "cv2"),
    "torch-lmdb": Entry("torch + OpenCV, LMDB", "torch_lmdb", "cv2"),
    "ffcv": Entry("FFCV", "ffcv", "ffcv"),
    "dali": Entry("DALI (CPU)", "dali_cpu", "nvidia.dali"),
    "spdl": Entry("SPDL", "spdl", "spdl.io"),
    "webdataset": Entry("WebDataset", "webdataset", "webdataset"),
    "litdata": Entry("LitData", "litdata", "litdata"),
    "streaming": Entry("MosaicML Streaming", "streaming", "streaming"),
    "datasets": Entry("HF datasets", "hf_datasets", "datasets"),
}
REASONS = "peers.json"  # file in the venv: why setup could not install a peer


def adapter(name: str) -> Any:
    """The module of a peer (see job.Peer)."""
    return importlib.import_module(f"benchmarks.peers.adapters.{PEERS[name].adapter}")


def missing(name: str) -> str:
    """Why a peer cannot run in this Python; '' if it can."""
    noted = Path(sys.prefix) / REASONS
    reasons = json.loads(noted.read_text()) if noted.exists() else {}
    if name in reasons:
        return f"installation failed: {reasons[name]}"
    module = PEERS[name].module
    try:
        found = importlib.util.find_spec(module)
    except ModuleNotFoundError:
        found = None
    return "" if found else f"module {module} is not installed; run 'make peers'"
