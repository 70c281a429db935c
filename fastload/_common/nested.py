"""Maps a function over the tensors in nested dicts, lists and tuples."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch


def map_tensors(batch: Any, function: Callable[[torch.Tensor], Any]) -> Any:
    """Returns the same structure with ``function`` applied to every tensor."""
    if isinstance(batch, torch.Tensor):
        return function(batch)
    if isinstance(batch, dict):
        return {name: map_tensors(value, function) for name, value in batch.items()}
    if isinstance(batch, tuple) and hasattr(batch, "_fields"):  # a named tuple
        return type(batch)(*(map_tensors(value, function) for value in batch))
    if isinstance(batch, list | tuple):
        return type(batch)(map_tensors(value, function) for value in batch)
    return batch
