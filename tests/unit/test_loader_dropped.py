"""A loader that is dropped in the middle of its work: threads may still read records whose dataset nobody holds any more."""

from __future__ import annotations

import gc
import weakref
from pathlib import Path

import numpy as np
import pytest

from fastload.loader.parts import read_parts
from fastload.store.dataset import open_dataset
from tests.small_dataset import simple_samples, write_dataset


def test_records_under_way_keep_their_dataset_mapped(tmp_path: Path) -> None:
    write_dataset(tmp_path, simple_samples(6))
    dataset = open_dataset(tmp_path)
    parts = read_parts(dataset, np.arange(6), check_crc=True)
    gone = weakref.ref(dataset)
    before = [bytes(record) for record in parts.records]
    held, records = memoryview(parts.held), parts.records
    del dataset, parts
    gc.collect()
    assert gone() is not None                       # the view alone holds it, as a decode thread's buffer would
    assert [bytes(record) for record in records] == before
    del held, records
    gc.collect()
    assert gone() is None


@pytest.mark.parametrize("backend", ["native", "reference"])
def test_loaders_dropped_in_mid_batch_leave_no_reader_behind(tmp_path: Path, backend: str) -> None:
    from fastload import transforms
    from fastload.errors import MissingPart
    from fastload.loader.loader import DataLoader

    write_dataset(tmp_path, simple_samples(24))
    for _ in range(30):
        try:
            loader = DataLoader(tmp_path, 4, backend=backend, fields=("image",), transform=[transforms.Resize(64, 64)])
        except MissingPart:
            pytest.skip("not run: no native core")
        iterator = iter(loader)
        next(iterator)
        del iterator, loader
        gc.collect()
