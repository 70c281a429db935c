"""`reindex`: the same samples with restart indexes, in a new dataset."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import fastload
from fastload._common.native import core
from fastload._pack.sources.base import Encoded, Sample
from fastload._store.dataset import Dataset, open_dataset
from fastload._store.fields import Field
from fastload._store.record import JPEG, RESTART_INDEX
from fastload.errors import ConfigError
from tests.packing import IMAGE, LABEL, Listed, file_of, pack, pixels

pytestmark = pytest.mark.skipif(core() is None, reason="not run: no native core")
FIELDS = (IMAGE, LABEL, Field("views", "image", list=True), Field("boxes", "boxes"))


def jpeg(seed: int, orientation: int = 1) -> bytes:
    exif = Image.Exif()
    exif[0x0112] = orientation
    return file_of(pixels(96, 80, seed=seed, grain=3), quality=88, exif=exif)


def made(folder: Path, images: list[bytes], **options: Any) -> Dataset:
    samples = [
        Sample(
            {
                "image": Encoded(data, f"{i}.jpg"),
                "label": i % 3,
                "views": [Encoded(jpeg(50 + i), "v.jpg"), pixels(12, 9, seed=i)],
                "boxes": np.array([[1, 2, 10 + i, 20]], np.float32),
            },
            source=f"{i}.jpg",
        )
        for i, data in enumerate(images)
    ]
    pack(Listed(samples, FIELDS), folder, **options)
    return open_dataset(folder)


@pytest.mark.parametrize("options", [{"encode": "copy"}, {"restart": 0}], ids=["copy", "off"])
def test_samples_are_the_same_and_jpegs_have_an_index(
    tmp_path: Path, options: dict[str, Any]
) -> None:
    old = made(tmp_path / "old", [jpeg(i, orientation=1 + i % 8) for i in range(16)], **options)
    result = fastload.reindex(tmp_path / "old", tmp_path / "new", jobs=2)
    new = open_dataset(tmp_path / "new", verify="full")
    assert (result.n_samples, result.indexed, result.damaged) == (16, 32, 0)
    assert len(new) == len(old)
    for name in ("label", "_source_index", "image.width", "image.height"):
        np.testing.assert_array_equal(new.column(name), old.column(name))
    for i in range(len(old)):
        assert new.source(i) == old.source(i)
        for name in ("image", "label", "boxes"):
            np.testing.assert_array_equal(new[i][name], old[i][name])
        for one, other in zip(new[i]["views"], old[i]["views"], strict=True):
            np.testing.assert_array_equal(one, other)
        parts = new.record(i).parts
        n_jpegs = sum(part.codec == JPEG and part.interval > 0 for part in parts)
        assert n_jpegs == sum(part.role == RESTART_INDEX for part in parts) == 2
    assert fastload.verify(tmp_path / "new", deep=True).ok


def test_a_dataset_with_indexes_keeps_its_records(tmp_path: Path) -> None:
    old = made(tmp_path / "old", [jpeg(i) for i in range(4)])
    assert fastload.reindex(tmp_path / "old", tmp_path / "new").indexed == 0
    new = open_dataset(tmp_path / "new")
    for i in range(4):
        assert new.record(i).parts == old.record(i).parts


def test_damaged_images_are_kept_and_counted(tmp_path: Path) -> None:
    good, other = jpeg(1), jpeg(2)
    middle = len(good) // 2
    damaged = good[:middle] + bytes(60) + good[middle + 60 :]
    made(tmp_path / "old", [damaged, other], encode="copy", order="source")
    result = fastload.reindex(tmp_path / "old", tmp_path / "new")
    assert (result.indexed, result.damaged) == (3, 1)
    assert "1 damaged image stored unmodified" in str(result)
    new = open_dataset(tmp_path / "new")
    assert bytes(new.raw(0, "image")) == damaged
    assert bytes(new.raw(1, "image")) != other
    assert not fastload.verify(tmp_path / "new", deep=True).ok


def test_dest_must_be_new(tmp_path: Path) -> None:
    made(tmp_path / "old", [jpeg(1)], encode="copy")
    with pytest.raises(ConfigError, match="not empty"):
        fastload.reindex(tmp_path / "old", tmp_path / "old")
    assert fastload.reindex(tmp_path / "old", tmp_path / "new").indexed == 2
