"""DataLoader(backend="nvjpeg"): everything as with the native core, exact pixels included."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fastload import transforms as T
from fastload._load.loader import DataLoader
from fastload._store.fields import Field
from fastload.errors import CorruptShard
from tests.loading import needs_core, pack_gray, pack_photos, png, same_batch
from tests.nvjpeg_backend import needs_nvimgcodec
from tests.packed_datasets import encoded, pack_samples, photo, put_value, value_of

N = 37
BATCH = 8
CROPPED = [T.RandomResizedCrop(24), T.HorizontalFlip()]


@pytest.fixture(autouse=True)
def _both() -> None:
    needs_nvimgcodec()
    needs_core()


def make(packed: Path, **options: Any) -> DataLoader:
    return DataLoader(
        packed,
        **{
            "batch_size": BATCH,
            "shuffle": True,
            "transform": CROPPED,
            "seed": 9,
            "fields": ("image", "label", "id"),
            "return_matrix": True,
            "backend": "nvjpeg",
            "exact": True,
            "num_workers": 2,
            **options,
        },
    )


@pytest.mark.parametrize(
    "transform",
    [
        CROPPED,
        [T.Letterbox(40, 40, fill=90), T.HorizontalFlip()],
        [T.Crop(top=0.3), T.Resize(20, 30)],
        [*CROPPED, T.Normalize(0.5, 0.25)],
        [*CROPPED, T.ColorJitter(brightness=0.5), T.Normalize(0.5, 0.25)],
        [*CROPPED, T.RandomAffine(30, (0.1, 0.1)), T.VerticalFlip()],
    ],
    ids=["crop", "letterbox", "stretch", "normalized", "colored", "turned"],
)
def test_the_same_batches_as_with_the_core(packed: Path, transform: list[Any]) -> None:
    ours, theirs = (
        list(make(packed, transform=transform, backend=backend)) for backend in ("nvjpeg", "native")
    )
    assert [len(batch["id"]) for batch in ours] == [8, 8, 8, 8, 5]
    assert all(same_batch(one, other) for one, other in zip(ours, theirs, strict=True))


def test_without_exact_it_is_exact_all_the_same(packed: Path) -> None:
    """nvImageCodec has no scaled decoding: ``exact=False`` is a permission, not an order."""
    for one, other in zip(make(packed, exact=False), make(packed), strict=True):
        assert same_batch(one, other)


def test_what_runs_is_what_was_asked_for(packed: Path) -> None:
    choice = make(packed).backend
    assert (choice.name, bool(choice), str(choice)) == ("nvjpeg", False, "nvjpeg")


def test_gray_and_bgr(tmp_path: Path, packed: Path) -> None:
    gray = pack_gray(tmp_path / "packed", 10)
    for dataset, color in ((gray, None), (gray, "rgb"), (packed, "bgr"), (packed, "gray")):
        ours, theirs = (
            next(
                iter(
                    DataLoader(
                        dataset,
                        10,
                        transform=[T.Resize(50, 60)],
                        backend=backend,
                        exact=True,
                        color=color,
                    )
                )
            )[0]
            for backend in ("nvjpeg", "native")
        )
        assert torch.equal(ours, theirs)


def test_cameras_masks_and_pngs(tmp_path: Path) -> None:
    """Six cameras a sample in one batch; every third image a PNG, which the CPU serves; masks of one and of two bytes."""
    fields = (
        Field("images", "image", list=True),
        Field("fine", "mask", list=True, image="images"),
        Field("masks", "mask", list=True, image="images"),
    )
    rng, samples = np.random.default_rng(0), []
    for i in range(5):
        images = [
            encoded(photo(90, 70, seed=6 * i + k))
            if k % 3
            else encoded(png(rng.integers(0, 256, (70, 90, 3), dtype=np.uint8)))
            for k in range(6)
        ]
        samples.append(
            {
                "images": images,
                "fine": [rng.integers(0, 60000, (70, 90)).astype(np.uint16) for _ in range(6)],
                "masks": [rng.integers(0, 200, (70, 90)).astype(np.uint8) for _ in range(6)],
            }
        )
    packed = pack_samples(tmp_path / "packed", fields, samples)
    transform = {"images": [T.RandomResizedCrop(40), T.HorizontalFlip()]}
    for one, other in zip(
        *(
            DataLoader(packed, 2, transform=transform, backend=backend, exact=True)
            for backend in ("nvjpeg", "native")
        ),
        strict=True,
    ):
        assert one["images"].shape[1:] == (6, 3, 40, 40)
        assert same_batch(one, other)


@pytest.fixture(params=["first", "middle", "last"])
def damaged(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Path, int]:
    """One flipped bit in a record of the first, a middle or the last batch."""
    packed = pack_photos(tmp_path / "packed", 20, order="source")
    bad = {"first": 2, "middle": 9, "last": 19}[request.param]
    value = bytearray(value_of(packed, bad))
    value[len(value) // 2] ^= 4
    put_value(packed, bad, bytes(value))
    return packed, bad


def test_a_damaged_record_is_named_and_the_other_batches_come(damaged: tuple[Path, int]) -> None:
    packed, bad = damaged
    iterator, seen, wrong = iter(make(packed, batch_size=4, shuffle=False)), [], []
    while True:
        try:
            seen += next(iterator)["id"].tolist()
        except StopIteration:
            break
        except CorruptShard as error:
            wrong.append(error.record)
    assert len(wrong) == 1
    assert seen == [i for i in range(20) if i // 4 != bad // 4]


def test_a_damaged_record_is_replaced_where_asked_for(damaged: tuple[Path, int]) -> None:
    packed, bad = damaged
    loader = make(packed, batch_size=4, shuffle=False, on_error="substitute", max_bad=1)
    seen = [i for batch in loader for i in batch["id"].tolist()]
    assert len(seen) == 20
    assert set(range(20)) - set(seen) == {bad}


def test_resume(packed: Path) -> None:
    loader, whole = make(packed), list(make(packed))
    iterator = iter(loader)
    first = [next(iterator) for _ in range(2)]
    state = json.loads(json.dumps(loader.state_dict()))
    other = make(packed)
    other.load_state_dict(state)
    assert all(same_batch(one, two) for one, two in zip([*first, *other], whole, strict=True))


def test_torch_workers_can_use_the_dataset(packed: Path) -> None:
    """torch forks its workers after our threads have begun; there the CPU decodes."""
    loader = make(packed)
    next(iter(loader))
    plain: Any = torch.utils.data.DataLoader(
        loader.dataset, batch_size=5, num_workers=1, collate_fn=loader.collate_fn
    )
    assert [i for batch in plain for i in batch["id"].tolist()] == list(range(N))
    assert len(list(loader)) == 5


def test_two_loaders_at_once_and_an_early_end(packed: Path) -> None:
    whole = list(make(packed))
    one, other = make(packed), make(packed, prefetch_factor=4)
    next(iter(other))
    other.set_epoch(0)
    for a, b, expected in zip(one, other, whole, strict=True):
        assert same_batch(a, expected)
        assert same_batch(b, expected)
    one.close()
    other.close()
