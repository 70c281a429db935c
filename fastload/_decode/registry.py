"""The decode backends by name. A new backend is one module and one line in ``BACKENDS``.

This module imports neither torch nor NumPy, because the command line reads the names from it.
"""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

from fastload.errors import ConfigError

if TYPE_CHECKING:
    import torch

    from fastload._decode.backend import DecodeBackend

AUTO = "auto"  # fastload chooses a backend


@dataclass(frozen=True, slots=True)
class BackendEntry:
    """One registered backend; its module is imported on first use."""

    name: str
    target: str  # "module:class"
    on_gpu: bool = False  # decodes on a CUDA device; on the CPU only in tests

    def load(self) -> type[DecodeBackend]:
        """Imports the class. The import does not require the libraries of the backend."""
        module, _, attribute = self.target.partition(":")
        return cast("type[DecodeBackend]", getattr(importlib.import_module(module), attribute))

    def make(
        self, *, threads: int, device: torch.device | str = "cpu", hardware: bool = False
    ) -> DecodeBackend:
        """Creates the backend. Only GPU backends use ``device`` and ``hardware`` (the JPEG engine).

        Raises MissingPart if a package or driver that the backend requires is not installed.
        """
        backend_class: Any = self.load()
        options = {"device": device, "hardware": hardware} if self.on_gpu else {}
        return cast("DecodeBackend", backend_class(threads=threads, **options))


# In order of preference: "auto" uses the first CPU backend that is available.
BACKENDS = {
    entry.name: entry
    for entry in (
        BackendEntry("native", "fastload._decode.native:NativeBackend"),
        BackendEntry("dali", "fastload._decode.gpu.dali:DaliBackend", on_gpu=True),
        BackendEntry("nvjpeg", "fastload._decode.gpu.nvjpeg:NvjpegBackend", on_gpu=True),
        BackendEntry("reference", "fastload._decode.reference:ReferenceBackend"),
    )
}
GPU_BACKENDS = {name: entry for name, entry in BACKENDS.items() if entry.on_gpu}


def find_backend(name: str) -> BackendEntry:
    if name not in BACKENDS:
        known = ", ".join((AUTO, *BACKENDS))
        raise ConfigError(f"backend={name!r:.40}: expected one of {known}")
    return BACKENDS[name]


def default_cpu_backend() -> BackendEntry:
    """Returns the first CPU backend that is available. The reference backend always is."""
    import torch

    cpu = torch.device("cpu")
    return next(
        entry for entry in BACKENDS.values() if not entry.on_gpu and not entry.load().missing(cpu)
    )
