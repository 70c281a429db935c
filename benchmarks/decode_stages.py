"""Time per stage for each kind of vector code of this CPU (part of benchmarks/decode.py)."""

from __future__ import annotations

import numpy as np

from benchmarks.decode_rows import Row, row_of
from benchmarks.machine import quartiles, spread
from benchmarks.works import Work
from fastload._common.native import core
from fastload._decode.backend import STAGES
from fastload._decode.native import NativeBackend

SIMD = ("portable", "avx2", "avx512")
SHARE_BAR = (
    0.15  # resize / decode, with vector code and bytes as output; floats are four times as large
)


def stages(works: list[Work], *, most: str, rounds: int) -> list[Row]:
    """Microseconds per stage on one thread, and the time of the resize relative to the decode."""
    module = core()
    if module is None:
        raise SystemExit("the native core is not built, so there is nothing to measure")
    simd_kinds = [simd for simd in SIMD[: SIMD.index(most) + 1] if module.set_simd(simd) == simd]
    print(
        f"\n{'work':24} {'simd':8} n x rounds "
        + " ".join(f"{name:>8}" for name in STAGES)
        + "  resize / decode"
    )
    rows: list[Row] = []
    for work in works:
        backend = NativeBackend(threads=1)
        batch = work.batch()
        found: dict[str, list[np.ndarray]] = {simd: [] for simd in simd_kinds}
        for turn in range(rounds + 1):
            for simd in simd_kinds:
                module.set_simd(simd)
                times = backend.collect(backend.submit(batch)).times_ns.mean(axis=0) / 1e3
                if turn:  # the first round fills caches and starts the thread
                    found[simd].append(times)
        rows += [_row(work, simd, np.array(times)) for simd, times in found.items()]
    module.set_simd(most)
    return rows


def _row(work: Work, simd: str, times: np.ndarray) -> Row:
    """Prints one row. Raw pixels have no decode stage, so they have no ratio."""
    by_stage = {name: times[:, i].tolist() for i, name in enumerate(STAGES)}
    shares = [
        resize / decode
        for resize, decode in zip(by_stage["resize"], by_stage["decode"], strict=True)
        if decode
    ]
    medians = " ".join(f"{quartiles(values)[1]:8.1f}" for values in by_stage.values())
    print(
        f"{work.name:24} {simd:8} {len(work.requests):4} x {len(times):2}  {medians}  "
        f"{spread(shares) if any(shares) else '-'}",
        flush=True,
    )
    if not any(shares):
        return row_of(work.name, by_stage, simd=simd)
    bar = {"bar": SHARE_BAR} if simd != SIMD[0] and work.dtype is np.uint8 else {}
    return row_of(work.name, {**by_stage, "share": shares}, simd=simd, **bar)
