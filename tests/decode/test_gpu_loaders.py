"""DataLoader with a GPU backend: same samples, labels and matrices as the native core.

nvJPEG on the CPU is bit-identical to the native core. DALI's pixels are close to it.
"""

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
from fastload._decode.registry import GPU_BACKENDS
from fastload._load.loader import DataLoader
from fastload._store.fields import Field
from fastload.errors import CorruptShard
from tests.decode.conftest import needs_backend
from tests.gpu_backends import assert_close_to_reference
from tests.loading import needs_core, pack_gray, pack_photos, png, same_batch
from tests.packed_datasets import encoded, pack_samples, photo, put_value, value_of

N = 37
BATCH = 8
LONG = os.environ.get("FASTLOAD_LONG") == "1"
CROPPED = [T.RandomResizedCrop(24), T.HorizontalFlip()]
BIT_IDENTICAL = {"nvjpeg"}  # to the native core, on the CPU


@pytest.fixture(params=sorted(GPU_BACKENDS))
def name(request: pytest.FixtureRequest) -> str:
    found: str = request.param
    needs_backend(found)
    needs_core()
    return found


def make(packed: Path, name: str, **options: Any) -> DataLoader:
    return DataLoader(
        packed,
        **{
            "batch_size": BATCH,
            "shuffle": True,
            "transform": CROPPED,
            "seed": 9,
            "fields": ("image", "label", "id"),
            "return_matrix": True,
            "backend": name,
            "exact": True,
            "num_workers": 2,
            **options,
        },
    )


def assert_same_pixels(name: str, found: torch.Tensor, wanted: torch.Tensor) -> None:
    """Compares uint8 images (..., C, H, W)."""
    if name in BIT_IDENTICAL:
        assert torch.equal(found, wanted)
        return
    assert found.shape == wanted.shape
    images = (
        each.reshape(-1, *each.shape[-3:]).permute(0, 2, 3, 1).numpy() for each in (found, wanted)
    )
    for one, other in zip(*images, strict=True):
        assert_close_to_reference(one, other)


def assert_same_batch(name: str, found: Any, wanted: Any, field: str = "image") -> None:
    """Compares all fields for equality, and the images by the rules of the backend."""
    assert same_batch({**found, field: 0}, {**wanted, field: 0})
    assert_same_pixels(name, found[field], wanted[field])


@pytest.mark.parametrize(
    "transform", [CROPPED, [T.Crop(top=0.3), T.Resize(20, 30)]], ids=["crop", "stretch"]
)
def test_batches_match_the_native_core(packed: Path, name: str, transform: list[Any]) -> None:
    found, wanted = (
        list(make(packed, backend, transform=transform)) for backend in (name, "native")
    )
    assert [len(batch["id"]) for batch in found] == [8, 8, 8, 8, 5]
    for one, other in zip(found, wanted, strict=True):
        assert_same_batch(name, one, other)


@pytest.mark.parametrize(
    ("transform", "scale"),
    [
        ([T.Letterbox(40, 40, fill=90), T.HorizontalFlip()], 1.0),
        ([*CROPPED, T.Normalize(0.5, 0.25)], 0.25 * 255),
        ([*CROPPED, T.ColorJitter(brightness=0.5), T.Normalize(0.5, 0.25)], 0.25 * 255),
        ([*CROPPED, T.RandomAffine(30, (0.1, 0.1)), T.VerticalFlip()], 1.0),
    ],
    ids=["letterbox", "normalized", "colored", "rotated"],
)
def test_padded_warped_and_normalized_batches_match_the_native_core(
    packed: Path, name: str, transform: list[Any], scale: float
) -> None:
    """DALI's edge pixels are inside of the output here, so its mean difference is compared."""
    found, wanted = (
        list(make(packed, backend, transform=transform)) for backend in (name, "native")
    )
    assert [len(batch["id"]) for batch in found] == [8, 8, 8, 8, 5]
    for one, other in zip(found, wanted, strict=True):
        assert same_batch({**one, "image": 0}, {**other, "image": 0})
        assert one["image"].dtype == other["image"].dtype
        if name in BIT_IDENTICAL:
            assert torch.equal(one["image"], other["image"])
        else:
            difference = (one["image"].double() - other["image"].double()).abs() * scale
            assert difference.mean() < 1
            if T.Normalize(0.5, 0.25) in transform:
                # One pixel value, brightened by up to 1.5.
                assert difference[..., 1:-1, 1:-1].max() <= 1.6


def test_exact_false_is_still_exact(packed: Path, name: str) -> None:
    """GPU libraries do not support DCT scaling, so ``exact=False`` changes nothing."""
    for one, other in zip(make(packed, name, exact=False), make(packed, name), strict=True):
        assert same_batch(one, other)


def test_the_requested_backend_runs(packed: Path, name: str) -> None:
    choice = make(packed, name).backend
    assert (choice.name, choice.reason, bool(choice), str(choice)) == (name, "", False, name)


def test_gray_and_bgr(tmp_path: Path, packed: Path, name: str) -> None:
    gray = pack_gray(tmp_path / "packed", 10)
    for dataset, color in ((gray, None), (gray, "rgb"), (packed, "bgr"), (packed, "gray")):
        options: dict[str, Any] = {
            "transform": [T.Resize(50, 60)],
            "exact": True,
            "color": color,
        }
        found, wanted = (
            next(iter(DataLoader(dataset, 10, backend=backend, **options)))[0]
            for backend in (name, "native")
        )
        assert found.shape[2:] == (50, 60)
        assert_same_pixels(name, found, wanted)


def test_cameras_masks_and_pngs(tmp_path: Path, name: str) -> None:
    """Six cameras per sample with 8- and 16-bit masks; the CPU decodes PNGs, every third image."""
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
    loaders = (
        DataLoader(packed, 2, transform=transform, backend=backend, exact=True)
        for backend in (name, "native")
    )
    for one, other in zip(*loaders, strict=True):
        assert one["images"].shape[1:] == (6, 3, 40, 40)
        assert_same_batch(name, one, other, "images")


@pytest.fixture(params=["first", "middle", "last"])
def damaged(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Path, int]:
    """A dataset with one flipped bit in a record of the first, a middle or the last batch."""
    packed = pack_photos(tmp_path / "packed", 20, order="source")
    bad = {"first": 2, "middle": 9, "last": 19}[request.param]
    value = bytearray(value_of(packed, bad))
    value[len(value) // 2] ^= 4
    put_value(packed, bad, bytes(value))
    return packed, bad


def test_a_damaged_record_is_reported_and_other_batches_arrive(
    damaged: tuple[Path, int], name: str
) -> None:
    packed, bad = damaged
    iterator = iter(make(packed, name, batch_size=4, shuffle=False))
    seen: list[int] = []
    errors = []
    while True:
        try:
            seen += next(iterator)["id"].tolist()
        except StopIteration:
            break
        except CorruptShard as error:
            errors.append(error.record)
    assert len(errors) == 1
    assert seen == [i for i in range(20) if i // 4 != bad // 4]


def test_a_damaged_record_is_substituted_on_request(damaged: tuple[Path, int], name: str) -> None:
    packed, bad = damaged
    loader = make(packed, name, batch_size=4, shuffle=False, on_error="substitute", max_bad=1)
    seen = [i for batch in loader for i in batch["id"].tolist()]
    assert len(seen) == 20
    assert set(range(20)) - set(seen) == {bad}
    assert [
        f"sample {bad}" in str(error) or f"record {bad}" in str(error) for error in loader.errors
    ] == [True]


def test_resume(packed: Path, name: str) -> None:
    loader = make(packed, name)
    whole = list(make(packed, name))
    iterator = iter(loader)
    first = [next(iterator) for _ in range(2)]
    state = json.loads(json.dumps(loader.state_dict()))
    other = make(packed, name)
    other.load_state_dict(state)
    assert all(same_batch(one, two) for one, two in zip([*first, *other], whole, strict=True))


def test_two_loaders_and_two_iterations_at_once(packed: Path, name: str) -> None:
    alone = make(packed, name)
    epochs = [list(alone), list(alone)]
    one = make(packed, name)
    other = make(packed, name)
    for a, b, c, first, second in zip(iter(one), iter(other), iter(other), *epochs, strict=True):
        assert same_batch(a, first)
        assert same_batch(b, first)
        assert same_batch(c, second)


def test_an_epoch_after_an_abandoned_iteration(packed: Path, name: str) -> None:
    loader = make(packed, name, prefetch_factor=4)
    next(iter(loader))
    loader.set_epoch(0)
    assert all(same_batch(one, two) for one, two in zip(loader, make(packed, name), strict=True))
    loader.close()


def test_the_dataset_and_its_pickled_copy_return_the_same_samples(packed: Path, name: str) -> None:
    """The copy decodes on the CPU, because GPU libraries do not work in other processes."""
    view = make(packed, name).dataset
    copy = pickle.loads(pickle.dumps(view))
    assert same_batch(copy[3]["label"], view[3]["label"])
    assert_same_pixels(name, copy[3]["image"][None], view[3]["image"][None])


def test_torch_workers_can_use_the_dataset(packed: Path, name: str) -> None:
    """torch forks its workers after the threads of the backend have started."""
    loader = make(packed, name)
    next(iter(loader))
    plain: Any = torch.utils.data.DataLoader(
        loader.dataset, batch_size=5, num_workers=1, collate_fn=loader.collate_fn
    )
    assert [i for batch in plain for i in batch["id"].tolist()] == list(range(N))
    assert len(list(loader)) == 5


def test_python_exits_in_the_middle_of_an_epoch(packed: Path, name: str) -> None:
    code = (
        "import sys; from pathlib import Path; from tests.decode.test_gpu_loaders import make\n"
        "iterator = iter(make(Path(sys.argv[1]), sys.argv[2], batch_size=2, prefetch_factor=6))\n"
        "next(iterator)\n"
        "print('fine')\n"
    )
    for _ in range(2):
        ended = subprocess.run(
            [sys.executable, "-W", "error", "-c", code, str(packed), name],
            cwd=Path(__file__).parents[2],
            capture_output=True,
            text=True,
            check=False,
            timeout=600,
        )
        assert (ended.returncode, ended.stdout, ended.stderr) == (0, "fine\n", "")


def rss_anon_mb() -> float:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) / 1024 for line in lines if line.startswith("RssAnon"))


def print_memory(packed: str, name: str, batches: str) -> None:
    """Runs in a child process: loads many batches and prints its memory."""
    loader = make(Path(packed), name, fields=("image", "label"), return_matrix=False)
    seen: list[float] = []
    done = 0
    while done < int(batches):
        for _ in loader:
            done += 1
            if done % (int(batches) // 20) == 0:
                seen.append(rss_anon_mb())
    print(json.dumps(seen))


def test_memory_stays_flat(packed: Path, name: str) -> None:
    """Loads 300 batches of 8; 20,000 with FASTLOAD_LONG=1."""
    if not Path("/proc/self/status").exists():
        pytest.skip("not run: no /proc")
    code = (
        "import sys; from tests.decode.test_gpu_loaders import print_memory\n"
        "print_memory(*sys.argv[1:])"
    )
    ended = subprocess.run(
        [sys.executable, "-c", code, str(packed), name, "20000" if LONG else "300"],
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
