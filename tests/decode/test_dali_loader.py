"""DataLoader(backend="dali"): the same samples, labels and matrices as with the native core, and pixels that agree."""

from __future__ import annotations

import json
import os
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fastload import transforms as T
from fastload._load.loader import DataLoader
from fastload._store.fields import Field
from fastload.errors import CorruptShard
from tests.gpu_backends import CORNER, INTERIOR, RING, needs_dali, worst
from tests.loading import needs_core, pack_gray, pack_photos, png, same_batch
from tests.packed_datasets import encoded, pack_samples, photo, put_value, value_of

N = 37
BATCH = 8
LONG = os.environ.get("FASTLOAD_LONG") == "1"
CROPPED = [T.RandomResizedCrop(24), T.HorizontalFlip()]


@pytest.fixture(autouse=True)
def _both() -> None:
    needs_dali()
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
            "backend": "dali",
            "exact": True,
            "num_workers": 2,
            **options,
        },
    )


def agree(ours: torch.Tensor, theirs: torch.Tensor) -> None:
    """(..., C, H, W) levels."""
    one, other = (
        each.reshape(-1, *each.shape[-3:]).permute(0, 2, 3, 1).numpy() for each in (ours, theirs)
    )
    for mine, its in zip(one, other, strict=True):
        inside, ring, corners = worst(mine, its)
        assert inside <= INTERIOR
        assert ring <= RING
        assert corners <= CORNER


@pytest.mark.parametrize(
    "transform",
    [
        CROPPED,
        [T.Letterbox(40, 40, fill=90), T.HorizontalFlip()],
        [T.Crop(top=0.3), T.Resize(20, 30)],
    ],
    ids=["crop", "letterbox", "stretch"],
)
def test_same_samples_labels_and_matrices(packed: Path, transform: list[Any]) -> None:
    ours, theirs = (
        list(make(packed, transform=transform, backend=backend)) for backend in ("dali", "native")
    )
    assert len(ours) == 5
    for one, other in zip(ours, theirs, strict=True):
        assert same_batch({**one, "image": 0}, {**other, "image": 0})
        if transform[0] == T.Letterbox(40, 40, fill=90):
            assert (
                one["image"].double() - other["image"].double()
            ).abs().mean() < 1  # rings are inside the canvas there
        else:
            agree(one["image"], other["image"])


def test_what_runs_is_what_was_asked_for(packed: Path) -> None:
    choice = make(packed).backend
    assert (choice.name, choice.reason, bool(choice), str(choice)) == ("dali", "", False, "dali")


def test_normalized_with_color_steps(packed: Path) -> None:
    transform = [*CROPPED, T.ColorJitter(brightness=0.5), T.Normalize(0.5, 0.25)]
    ours, theirs = (
        next(iter(make(packed, transform=transform, backend=backend)))["image"]
        for backend in ("dali", "native")
    )
    assert ours.dtype == torch.float32
    assert (
        (ours - theirs).abs()[..., 1:-1, 1:-1] * 0.25 * 255
    ).max() <= 1.6  # one level, brightened by up to 1.5


def test_turned(packed: Path) -> None:
    transform = [*CROPPED, T.RandomAffine(30, (0.1, 0.1)), T.VerticalFlip()]
    ours, theirs = (
        next(iter(make(packed, transform=transform, backend=backend)))
        for backend in ("dali", "native")
    )
    assert torch.equal(ours["image.matrix"], theirs["image.matrix"])
    assert (
        ours["image"].double() - theirs["image"].double()
    ).abs().mean() < 1  # the crop's edges, which differ, are inside the canvas


def test_gray(tmp_path: Path) -> None:
    packed = pack_gray(tmp_path / "packed", 10)
    ours, theirs = (
        next(
            iter(DataLoader(packed, 10, transform=[T.Resize(50, 60)], backend=backend, exact=True))
        )[0]
        for backend in ("dali", "native")
    )
    assert ours.shape == (10, 1, 50, 60)
    agree(ours, theirs)


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
            for backend in ("dali", "native")
        ),
        strict=True,
    ):
        assert one["images"].shape[1:] == (6, 3, 40, 40)
        agree(one["images"], other["images"])
        assert same_batch({**one, "images": 0}, {**other, "images": 0})


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
    assert [
        f"sample {bad}" in str(error) or f"record {bad}" in str(error) for error in loader.errors
    ] == [True]


def test_resume(packed: Path) -> None:
    loader = make(packed)
    whole = list(make(packed))
    iterator = iter(loader)
    first = [next(iterator) for _ in range(2)]
    state = json.loads(json.dumps(loader.state_dict()))
    other = make(packed)
    other.load_state_dict(state)
    assert all(same_batch(one, two) for one, two in zip([*first, *other], whole, strict=True))


def test_two_loaders_and_two_iterations_at_once(packed: Path) -> None:
    alone = make(packed)
    epochs = [list(alone), list(alone)]
    one, other = make(packed), make(packed)
    for a, b, c, first, second in zip(iter(one), iter(other), iter(other), *epochs, strict=True):
        assert same_batch(a, first)
        assert same_batch(b, first)
        assert same_batch(c, second)


def test_an_early_end_and_the_next_epoch(packed: Path) -> None:
    loader = make(packed, prefetch_factor=4)
    next(iter(loader))
    loader.set_epoch(0)
    assert all(same_batch(one, two) for one, two in zip(loader, make(packed), strict=True))
    loader.close()


def test_the_dataset_and_a_copy_of_it_give_the_same_samples(packed: Path) -> None:
    """What leaves the loader's own thread is decoded by the CPU: DALI does not follow into other processes."""
    view = make(packed).dataset
    copy = pickle.loads(pickle.dumps(view))
    assert same_batch(copy[3]["label"], view[3]["label"])
    agree(copy[3]["image"][None], view[3]["image"][None])


def test_torch_workers_can_use_the_dataset(packed: Path) -> None:
    """torch forks its workers after DALI's threads have begun."""
    loader = make(packed)
    next(iter(loader))
    plain: Any = torch.utils.data.DataLoader(
        loader.dataset, batch_size=5, num_workers=1, collate_fn=loader.collate_fn
    )
    assert [i for batch in plain for i in batch["id"].tolist()] == list(range(N))
    assert len(list(loader)) == 5


def test_python_ends_in_the_middle_of_an_epoch(packed: Path) -> None:
    code = (
        "import sys; from pathlib import Path; from tests.decode.test_dali_loader import make\n"
        "iterator = iter(make(Path(sys.argv[1]), batch_size=2, prefetch_factor=6))\n"
        "next(iterator)\n"
        "print('fine')\n"
    )
    for _ in range(2):
        ended = subprocess.run(
            [sys.executable, "-W", "error", "-c", code, str(packed)],
            cwd=Path(__file__).parents[2],
            capture_output=True,
            text=True,
            check=False,
            timeout=120,
        )
        assert (ended.returncode, ended.stdout, ended.stderr) == (0, "fine\n", "")


def rss_anon_mb() -> float:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) / 1024 for line in lines if line.startswith("RssAnon"))


def watch(packed: str, batches: str) -> None:
    """Runs in a child: loads many batches of 8, prints its memory."""
    loader, seen, done = make(Path(packed), fields=("image", "label"), return_matrix=False), [], 0
    while done < int(batches):
        for _ in loader:
            done += 1
            if done % (int(batches) // 20) == 0:
                seen.append(rss_anon_mb())
    print(json.dumps(seen))


def test_memory_stays_flat(packed: Path) -> None:
    """300 batches of 8; 20,000 with FASTLOAD_LONG=1."""
    if not Path("/proc/self/status").exists():
        pytest.skip("not run: no /proc")
    code = "import sys; from tests.decode.test_dali_loader import watch; watch(*sys.argv[1:])"
    ended = subprocess.run(
        [sys.executable, "-c", code, str(packed), "20000" if LONG else "300"],
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "OPENBLAS_NUM_THREADS": "1"},
    )
    assert ended.returncode == 0, ended.stderr
    seen = json.loads(ended.stdout)
    assert len(seen) >= 15
    assert max(seen[-5:]) - max(seen[3:8]) < 8, seen
