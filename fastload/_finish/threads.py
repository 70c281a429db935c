"""Colours on the CPU: chunks of a batch shared out among threads, each of which computes alone.

torch would share out every single operation among OpenMP threads instead, and wait, spinning, for the slowest after each: beside busy
decode threads small operations take ten times as long. ``torch.set_num_threads`` does not help: called in a thread it also changes what
all threads begun later get, the trainer's too (torch 2.13). OpenMP's own call changes the calling thread and nothing else.
"""

from __future__ import annotations

import ctypes
import threading

import torch

_local = threading.local()
_set_num_threads = getattr(
    ctypes.CDLL(None), "omp_set_num_threads", None
)  # torch has loaded OpenMP for all to see, where it uses it


def compute_alone() -> None:
    """From now on torch's operations on this thread use this thread only; costs nothing when called again."""
    if not getattr(_local, "alone", False):
        torch.get_num_threads()  # torch sets a thread's number when it first looks, and would undo ours
        if _set_num_threads is not None:
            _set_num_threads(1)
        _local.alone = True
