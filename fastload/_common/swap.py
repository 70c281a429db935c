"""How many bytes this host has swapped, in and out, since it was started."""

from __future__ import annotations

import os
import re

_PAGES = re.compile(rb"^pswp(in|out) (\d+)$", re.M)
_PAGE = os.sysconf("SC_PAGE_SIZE")


def swapped_bytes() -> tuple[int, int] | None:
    """(in, out), or None where the system does not tell. 40 us: /proc/vmstat is long."""
    try:
        descriptor = os.open("/proc/vmstat", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:  # not Linux
        return None
    try:
        found = {
            name: int(count) * _PAGE for name, count in _PAGES.findall(os.read(descriptor, 1 << 16))
        }
    finally:
        os.close(descriptor)
    return (found[b"in"], found[b"out"]) if len(found) == 2 else None
