"""Properties of fields: what the manifest says about all values of a field."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fastload
from fastload._store.dataset import open_dataset
from fastload._store.fields import Field
from fastload._store.properties import Properties, PropertyCounter
from tests.packed_datasets import encoded, pack_samples
from tests.packing import file_of, pixels
from tests.small_dataset import parts_of

FIELDS = (
    Field("image", "image"),
    Field("cameras", "image", list=True),
    Field("mask", "mask"),
    Field("points", "points"),
    Field("poses", "array", list=True),
    Field("label", "int"),
)


def sample(i: int, *, gray: bool = False, **changes: Any) -> dict[str, Any]:
    image = pixels(8, 6, seed=i)
    values = {
        "image": image[..., :1] if gray else image,
        "cameras": [image] * 3,
        "mask": np.zeros((6, 8), np.uint8),
        "points": np.zeros((5, 2), np.float32),
        "poses": [np.zeros(4, np.float32)] * 3,
        "label": i,
    }
    return {**values, **changes}


def found(samples: list[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    counter = PropertyCounter(FIELDS)
    for each in samples:
        counter.add(parts_of(FIELDS, each, "a.jpg"))
    pairs = zip(FIELDS, counter.found, strict=True)
    return {field.name: each.as_json() for field, each in pairs}


def test_properties_of_equal_samples() -> None:
    everything = found([sample(0), sample(1)])
    assert everything["image"] == {
        "lengths": {"1": 2},
        "channels": [3],
        "bits": [8],
        "shape": None,
    }
    assert everything["cameras"]["lengths"] == {"3": 2}
    assert everything["mask"]["shape"] == ["|u1", [6, 8]]
    assert everything["points"] == {
        "lengths": {"1": 2},
        "channels": [],
        "bits": [],
        "shape": ["<f4", [5, 2]],
    }
    assert everything["poses"] == {
        **everything["points"],
        "lengths": {"3": 2},
        "shape": ["<f4", [4]],
    }
    assert everything["label"]["shape"] is None


def test_one_different_sample_is_enough() -> None:
    other = sample(
        1,
        gray=True,
        cameras=[],
        mask=np.zeros((6, 8), np.uint16),
        points=np.zeros((5, 3), np.float32),
        poses=[np.zeros(4, np.float32)] * 2 + [np.zeros(5, np.float32)],
        label=None,
    )
    for samples in ([sample(0), other, sample(2)], [other, sample(0), sample(2)]):
        everything = found(samples)
        assert everything["image"]["channels"] == [1, 3]
        assert everything["cameras"]["lengths"] == {"3": 2}
        assert (everything["mask"]["bits"], everything["mask"]["shape"]) == ([8, 16], None)
        assert everything["points"]["shape"] is None
        assert everything["poses"]["shape"] is None
        assert everything["label"]["lengths"] == {"1": 2}


def test_merging_equals_counting_together() -> None:
    groups = [
        [sample(0), sample(1)],
        [sample(2, mask=None, points=None)],
        [sample(3, points=np.zeros((9, 2), np.float32), poses=[])],
        [],
    ]
    for order in ((0, 1, 2, 3), (3, 2, 1, 0), (1, 3, 0, 2), (0, 3, 1)):
        together = found([each for place in order for each in groups[place]])
        merged = {field.name: Properties() for field in FIELDS}
        for place in order:
            for name, value in found(groups[place]).items():
                merged[name].merge(Properties.from_json(name, value, 10))
        assert {name: each.as_json() for name, each in merged.items()} == together


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("lengths", {"0": 1}),
        ("lengths", {"01": 1}),
        ("lengths", {"1": 11}),
        ("lengths", {"1": 6, "2": 5}),
        ("lengths", {"1": True}),
        ("lengths", {"2000": 1}),
        ("lengths", []),
        ("channels", [5]),
        ("channels", ["3"]),
        ("bits", [64]),
        ("bits", None),
        ("shape", ["<f4"]),
        ("shape", ["<f4", [1, -1]]),
        ("shape", ["object", [1]]),
        ("shape", [1, [1]]),
        ("shape", ["<f4", [1] * 9]),
        ("shape", {}),
        ("more", 1),
    ],
)
def test_wrong_properties_are_rejected(key: str, value: Any) -> None:
    good = Properties().as_json()
    Properties.from_json("properties", good, 10)
    with pytest.raises(ValueError, match="properties"):
        Properties.from_json("properties", {**good, key: value}, 10)


def test_a_loader_uses_the_properties_of_all_samples(tmp_path: Path) -> None:
    """One of 300 arrays has another shape. A scan of a few samples would not see it."""
    fields = (Field("image", "image"), Field("points", "array"))
    image = encoded(file_of(pixels(8, 8)[..., 0]))
    values = [{"image": image, "points": np.zeros((4, 2), np.float32)} for _ in range(300)]
    same = pack_samples(tmp_path / "same", fields, values)
    values[77] = {"image": image, "points": np.zeros((5, 2), np.float32)}
    different = pack_samples(tmp_path / "different", fields, values)
    batch = next(iter(fastload.DataLoader(same, batch_size=4)))
    assert (batch["image"].shape[1], batch["points"].shape) == (1, (4, 4, 2))
    batch = next(iter(fastload.DataLoader(different, batch_size=4)))
    assert isinstance(batch["points"], list)
    assert open_dataset(different).manifest.properties[0].channels == {1}
