"""The native core and NumPy build the same decode requests."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from fastload import transforms as T
from fastload._common.native import core
from fastload._common.threads import WorkerThreads
from fastload._decode.backend import REQUEST
from fastload._load import decode_requests
from fastload._load.records import BatchRecords
from fastload._plan.compiler import compile
from fastload._plan.rows import PlanRows
from fastload._store.record import DATA, DEFLATED, JPEG, PART_ROW, PNG, RAW, RESTART_INDEX

FIELD, ITEMS = 3, 2
module = core()
pytestmark = pytest.mark.skipif(module is None, reason="not run: no native core")


def table(n: int, codecs: tuple[int, ...], *, seed: int, indexed: float) -> NDArray[np.void]:
    """Returns part rows of n samples: a label, two images (some with a restart index), a field."""
    rng, rows = np.random.default_rng(seed), []
    for sample in range(n):
        rows.append((sample, 48, 8, FIELD - 1, 0, 0, 0, 0, 0, DATA, 0, 0, 0, 0))
        for item in range(ITEMS):
            offset, length, width, height, interval = rng.integers(1, 60_000, 5).tolist()
            codec, bits, orientation = (
                int(rng.choice(codecs)),
                int(rng.choice((8, 16))),
                int(rng.integers(0, 9)),
            )
            rows.append(
                (
                    sample,
                    offset,
                    length,
                    FIELD,
                    item,
                    width,
                    height,
                    interval,
                    codec,
                    DATA,
                    3,
                    bits,
                    orientation,
                    0,
                )
            )
            if rng.random() < indexed:
                rows.append(
                    (
                        sample,
                        offset + length,
                        4 * int(rng.integers(1, 99)),
                        FIELD,
                        item,
                        0,
                        0,
                        0,
                        0,
                        RESTART_INDEX,
                        0,
                        0,
                        0,
                        0,
                    )
                )
        rows.append((sample, 9, 9, FIELD + 1, 0, 9, 9, 9, JPEG, DATA, 1, 8, 1, 0))
    return np.array(rows, PART_ROW)


def planned(n: int) -> PlanRows:
    plan = compile([T.RandomResizedCrop(32), T.HorizontalFlip()])
    return plan.rows(np.arange(n), np.full((n, 2), 60), seed=1, epoch=2)


def requests_from_core(
    parts: BatchRecords, plan: PlanRows, **options: Any
) -> tuple[NDArray[np.void], int, list[int]]:
    assert module is not None
    found = np.empty(len(plan), REQUEST)
    found.view(np.uint8)[:] = 0xAA
    n_bytes, packed = module.image_requests(
        parts.table.view(np.uint8),
        plan.numbers,
        found.view(np.uint8),
        field=FIELD,
        first=parts.first,
        filter=2 if options["mask_bits"] else plan.filter,
        **options,
    )
    return found, n_bytes, packed


@pytest.mark.parametrize("indexed", [0.0, 0.4, 1.0])
@pytest.mark.parametrize(
    ("codecs", "mask_bits"),
    [((JPEG,), 0), ((JPEG, RAW, PNG), 0), ((RAW, DEFLATED), 8), ((RAW, DEFLATED), 16)],
)
@pytest.mark.parametrize("exact", [False, True])
def test_core_and_numpy_build_the_same_requests(
    indexed: float, codecs: tuple[int, ...], mask_bits: int, exact: bool
) -> None:
    n = 40
    rows = table(n, codecs, seed=mask_bits + exact, indexed=indexed)
    starts = np.searchsorted(rows["sample"], np.arange(n + 1))
    alike = len(rows) // n if indexed in (0.0, 1.0) else 0
    whole = BatchRecords(np.arange(n), [memoryview(b"")] * n, rows, starts, alike, {})
    for parts in (whole, whole.slice(0, 7), whole.slice(7, n)):
        plan = planned(ITEMS * len(parts.ids))
        expected = np.zeros(len(plan), REQUEST)
        filled = decode_requests._fill_in_python(
            expected, parts, FIELD, plan, exact=exact, mask_bits=mask_bits
        )
        found, n_bytes, packed = requests_from_core(parts, plan, exact=exact, mask_bits=mask_bits)
        assert found.tobytes() == expected.tobytes(), [
            name for name in found.dtype.names or () if (found[name] != expected[name]).any()
        ]
        assert (n_bytes, packed) == filled
        assert len(packed) > 0 if {PNG, DEFLATED} & {*codecs} else not packed


def test_arrays_of_inconsistent_size_are_rejected() -> None:
    rows = table(4, (JPEG,), seed=0, indexed=1.0)
    parts = BatchRecords(np.arange(4), [], rows, np.arange(5), 0, {})
    for n in (0, 7, 9):
        with pytest.raises(ValueError, match=f"plan: expected 8 rows, one per image, found {n}"):
            requests_from_core(parts, planned(n), exact=False, mask_bits=0)
    assert module is not None
    plan = planned(8)
    for wrong, why in (
        ((plan.x,) * 3, "expected 9 arrays, found 3"),
        ((plan.x[:5], *plan.numbers[1:]), "x: expected 8 items, found 20 bytes"),
    ):
        with pytest.raises(ValueError, match=why):
            module.image_requests(
                rows.view(np.uint8),
                wrong,
                bytearray(8 * REQUEST.itemsize),
                field=FIELD,
                first=0,
                mask_bits=0,
                filter=0,
                exact=False,
            )
    assert requests_from_core(parts, plan, exact=False, mask_bits=0)[2] == []


def test_the_loader_builds_the_same_requests_without_the_core(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from fastload._load.loader import DataLoader
    from tests.loading import pack_photos

    pipeline = DataLoader(
        pack_photos(tmp_path / "packed", 20), 4, transform=[T.RandomResizedCrop(32)]
    ).pipeline
    planned = pipeline.planner.plan(np.arange(20), 3)
    image = pipeline.spec.images[0]
    found = pipeline.images.requests(image, planned.records, planned.rows["image"])
    monkeypatch.setattr(decode_requests, "core", lambda: None)
    helpers = WorkerThreads(1, "test")
    other = decode_requests.make_requests(
        planned.records,
        image.number,
        planned.rows["image"],
        exact=pipeline.spec.exact,
        mask_bits=0,
        unpackers=helpers,
    )
    assert found.requests.tobytes() == other.requests.tobytes()
    assert found.n_bytes == other.n_bytes > 0
