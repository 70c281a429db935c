"""The loader as an object: repr, attributes and copies."""

from __future__ import annotations

import copy
from dataclasses import FrozenInstanceError
from pathlib import Path
from typing import Any, cast

import pytest
import torch

from fastload import transforms as T
from fastload._load.loader import DataLoader

N = 20
RESIZED = [T.Resize(16, 20)]


def test_repr_shows_dataset_and_options(packed: Path) -> None:
    loader = DataLoader(
        packed, 6, shuffle=True, transform=RESIZED, backend="reference", rank=1, world_size=2
    )
    assert repr(loader) == (
        f"DataLoader({str(packed)!r}, 20 samples, batch_size=6, shuffle=True, last_batch='pad', "
        f"transform={RESIZED!r}, backend='reference', rank 1 of 2)"
    )


def test_repr_names_a_sampler_and_truncates_long_transforms(packed: Path) -> None:
    many = [T.Resize(8, 8), *[T.Brightness(0.01 * k) for k in range(1, 60)]]
    sampled = repr(DataLoader(packed, 6, sampler=range(3), transform=many))
    assert "batch_size=6, sampler=range, transform=[Resize(" in sampled
    assert "last_batch" not in sampled
    assert "shuffle" not in sampled
    assert len(sampled) < 400 + len(str(packed))
    batched = repr(DataLoader(packed, batch_sampler=[[1, 2]]))
    assert "batch_size=None, batch_sampler=list, transform=None" in batched


def test_repr_of_a_subclass_has_its_name(packed: Path) -> None:
    class Mine(DataLoader):
        pass

    assert repr(Mine(packed)).startswith(f"Mine({str(packed)!r}, 20 samples, batch_size=1")


@pytest.mark.parametrize(
    "options",
    [{}, {"sampler": range(3)}, {"batch_sampler": [[1, 2]]}, {"batch_size": None}],
    ids=str,
)
def test_a_copy_of_a_subclass_keeps_exactly_its_own_attributes(
    packed: Path, options: dict[str, Any]
) -> None:
    class Mine(DataLoader):
        def __init__(self) -> None:
            self.before = "before"
            super().__init__(packed, **{"transform": RESIZED, **options})
            self.after = "after"

    loader = Mine()
    next(iter(loader))
    loader.stats()
    added = cast(tuple[Any, ...], loader.__reduce__()[1])[-1]
    assert added == {"before": "before", "after": "after"}
    copied = copy.copy(loader)
    assert (copied.before, copied.after) == ("before", "after")
    assert copied.pipeline is not loader.pipeline


def test_attributes_named_as_the_arguments_rebuild_the_loader(packed: Path) -> None:
    """Lightning reads ``vars(loader)``."""
    given: dict[str, Any] = {
        "transform": RESIZED,
        "fields": ("image", "id"),
        "last_batch": "pad",
        "color": "bgr",
    }
    loader = DataLoader(packed, 6, rank=1, world_size=2, **given)
    found = {name: vars(loader)[name] for name in (*given, "rank", "world_size", "device", "exact")}
    assert found == {**given, "rank": 1, "world_size": 2, "device": None, "exact": False}
    rebuilt = DataLoader(packed, batch_size=vars(loader)["batch_size"], **found)
    for one, other in zip(loader, rebuilt, strict=True):
        assert torch.equal(one["image"], other["image"])


def test_options_cannot_be_changed(packed: Path) -> None:
    loader = DataLoader(packed)
    with pytest.raises(FrozenInstanceError):
        loader._options.batch_size = 3  # type: ignore[misc]
