"""The decode backends that run here. The one place that makes them: a backend that the loader gets new appears by itself."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from fastload._decode.registry import BACKENDS
from fastload._load.decoder import Decoder
from fastload.errors import ConfigError, FastloadError

NAMES = tuple(BACKENDS)


def make(name: str, *, threads: int) -> Decoder:
    """A backend with exactly ``threads`` threads; raises FastloadError where it cannot run here."""
    gpu = BACKENDS[name].on_gpu and torch.cuda.is_available()
    device = torch.device("cuda" if gpu else "cpu")
    backend = Decoder(name, threads=threads, budget=threads, device=device)
    if backend.choice.name != name:
        backend.close()
        raise ConfigError(f"backend {name}: {backend.choice}")
    return backend


def usable(names: Sequence[str] | None = None) -> tuple[list[str], dict[str, str]]:
    """Those that run here, and why the others do not."""
    here, reasons = list[str](), dict[str, str]()
    for name in NAMES if names is None else names:
        if names is None and BACKENDS[name].on_gpu and not torch.cuda.is_available():
            reasons[name] = (
                f"it decodes on a GPU and torch sees none; '--backend {name}' runs it on the processor"
            )
            continue
        if name not in NAMES:
            raise ConfigError(f"backend {name!r:.40}: expected some of {', '.join(NAMES)}")
        try:
            make(name, threads=1).close()
        except (FastloadError, ImportError, OSError, RuntimeError) as error:
            reasons[name] = " ".join(str(error).split())
        else:
            here.append(name)
    return here, reasons
