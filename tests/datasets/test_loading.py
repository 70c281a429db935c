"""Joined, appended and filtered datasets load like packed ones."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import fastload
from fastload import transforms as T
from tests.source_contract import put_image


@pytest.mark.parametrize("shuffle", [False, True])
def test_the_loader_yields_every_sample_of_a_split_once(tmp_path: Path, shuffle: bool) -> None:
    for root, classes in (("one", ("cat", "dog")), ("two", ("bee", "cat"))):
        for split in ("train", "val"):
            for name in classes:
                for n in range(3):
                    put_image(
                        tmp_path / root / split / name / f"{n}.jpg", 10 * n + len(root + name)
                    )
        fastload.pack(tmp_path / root, tmp_path / f"packed-{root}")
    fastload.merge([tmp_path / "packed-one", tmp_path / "packed-two"], tmp_path / "both")
    fastload.append(tmp_path / "both", tmp_path / "two")
    fastload.filter_dataset(tmp_path / "both", tmp_path / "some", where="label != 'dog'")
    for path, expected in ((tmp_path / "both", [3 * 3, 3, 3 * 2]), (tmp_path / "some", [9, 0, 6])):
        dataset = fastload.open(path, split="val")
        assert dataset.classes == ["cat", "dog", "bee"]
        loader = fastload.DataLoader(
            path, split="val", batch_size=4, shuffle=shuffle, transform=T.Resize(8, 8)
        )
        batches = list(loader)
        labels = np.concatenate([batch[1].numpy() for batch in batches])
        assert np.bincount(labels, minlength=3).tolist() == expected
        if not shuffle:
            in_source_order = np.argsort(dataset.column("_source_index"))
            assert labels.tolist() == dataset.column("label")[in_source_order].tolist()
