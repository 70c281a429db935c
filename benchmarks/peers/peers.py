"""The peers by name, and whether they can run here."""

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
    """A peer: its adapter, what must be importable, and the works it takes part in (() = all)."""

    title: str
    adapter: str
    module: str
    works: tuple[str, ...] = ()
    ours: bool = False


PEERS = {
    "fastload": Entry("fastload", "fastload_", "fastload", ours=True),
    "fastload-raw": Entry("fastload, raw pixels", "fastload_raw", "fastload", ("gray",), ours=True),
    "core": Entry("(bare native core)", "bare_core", "fastload._core", ours=True),
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
REASONS = "peers.json"  # in the venv: what setup could not install, and why


def adapter(name: str) -> Any:
    """The peer's module (see job.Peer)."""
    return importlib.import_module(f"benchmarks.peers.adapters.{PEERS[name].adapter}")


def missing(name: str) -> str:
    """Why a peer cannot run in this Python; '' if it can."""
    noted = Path(sys.prefix) / REASONS
    reasons = json.loads(noted.read_text()) if noted.exists() else {}
    if name in reasons:
        return f"cannot be installed here: {reasons[name]}"
    module = PEERS[name].module
    try:
        found = importlib.util.find_spec(module)
    except ModuleNotFoundError:
        found = None
    return "" if found else f"not installed (no module {module}); 'make peers' installs it"
