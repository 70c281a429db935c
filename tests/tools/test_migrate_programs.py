"""Every printed program of fastload.migrate runs and yields what the original loader yields."""

from __future__ import annotations

import contextlib
import shlex
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils.data import (
    BatchSampler,
    ConcatDataset,
    DataLoader,
    DistributedSampler,
    RandomSampler,
    Subset,
    TensorDataset,
    WeightedRandomSampler,
)

import fastload
from fastload._cli import main
from tests.lookalikes.torchvision import transforms as V
from tests.lookalikes.torchvision.datasets import ImageFolder
from tests.packed_datasets import photo

N = 18
TRAIN = V.Compose(
    [V.Resize(40), V.CenterCrop(32), V.ToTensor(), V.Normalize((0.5, 0.5, 0.5), (0.25, 0.25, 0.25))]
)


class Case(NamedTuple):
    """A loader, the names that its program needs, and the order of its samples."""

    loader: Any
    names: Mapping[str, Any] = {}
    order: str = "same"  # or "shuffled": the same samples, "drawn": some samples, "refused"
    text: str = ""  # expected in the printed text


class PathList(torch.utils.data.Dataset[Any]):
    """A custom dataset with a list of files, which it decodes with Pillow."""

    def __init__(self, folder: Path, transform: Any = TRAIN, *, keep_list: bool = True) -> None:
        files = sorted(str(path) for path in folder.rglob("*.jpg"))
        if keep_list:
            self.paths = files
        else:
            self._found = dict(enumerate(files))
        self.transform = transform

    def __len__(self) -> int:
        return N

    def image(self, index: int) -> Image.Image:
        files = getattr(self, "paths", None) or self._found
        with Image.open(files[index]) as image:
            return image.convert("RGB")

    def __getitem__(self, index: int) -> Any:
        return self.transform(self.image(index)), index


class Dicts(PathList):
    def __getitem__(self, index: int) -> Any:
        return {"image": self.transform(self.image(index)), "label": index, "name": f"n{index}"}


class Resized(PathList):
    """Has a list of files, but its images are not those in the files."""

    def image(self, index: int) -> Image.Image:
        return super().image(index).resize((50, 50))


class Detection(PathList):
    def __getitem__(self, index: int) -> Any:
        return self.transform(self.image(index)), {"boxes": torch.ones(2, 4), "id": index}


class Arrays(torch.utils.data.Dataset[Any]):
    """Dicts of arrays that need no transform."""

    def __init__(self, make: Callable[[int], dict[str, Any]]) -> None:
        self._make = make

    def __len__(self) -> int:
        return N

    def __getitem__(self, index: int) -> Any:
        return {**self._make(index), "label": index}


class TwoHalves(torch.utils.data.Sampler[list[int]]):
    def __iter__(self) -> Any:
        return iter([[0, 5, 3], [17, 9]])

    def __len__(self) -> int:
        return 2


def pixels(index: int, *shape: int) -> torch.Tensor:
    return torch.from_numpy(np.random.default_rng(index).integers(0, 256, shape, np.uint8))


def stacked(samples: Any) -> Any:
    return torch.stack([image for image, _ in samples]), torch.tensor([n for _, n in samples])


def listed(samples: Any) -> Any:
    return [sample["label"] for sample in samples], [sample["boxes"] for sample in samples]


def hugging_face(folder: Path) -> Any:
    datasets = pytest.importorskip("datasets", reason="not run: no datasets")
    features = datasets.Features(
        {"image": datasets.Image(), "label": datasets.ClassLabel(names=[f"c{n}" for n in range(N)])}
    )
    paths = sorted(str(path) for path in folder.rglob("*.jpg"))
    made = {"image": paths, "label": list(range(N))}
    return datasets.Dataset.from_dict(made, features=features)


def cases(folder: Path, same_size: Path) -> dict[str, Callable[[], Case]]:
    def images(transform: Any = TRAIN, **options: Any) -> ImageFolder:
        return ImageFolder(str(folder), transform, **options)

    def load(dataset: Any, **options: Any) -> DataLoader[Any]:
        return DataLoader(dataset, **{"batch_size": 4, **options})

    def with_sampler(name: str, sampler: Any, order: str = "same") -> Case:
        dataset = PathList(folder)
        options = {"batch_size": 1} if name == "batch_sampler" else {}
        return Case(load(dataset, **options, **{name: sampler}), {f"my_{name}": sampler}, order)

    def generator() -> torch.Generator:
        return torch.Generator().manual_seed(7)

    numbered = range(N)
    gray = V.Compose([V.Resize((24, 24)), V.Grayscale(), V.ToTensor()])
    padded = V.Compose([V.Pad(8), V.RandomCrop(40), V.ToTensor()])
    return {
        "image folder": lambda: Case(load(images()), text="fastload pack "),
        "image folder, shuffled": lambda: Case(load(images(), shuffle=True), order="shuffled"),
        "drop_last": lambda: Case(load(images(), drop_last=True)),
        "generator": lambda: Case(
            load(PathList(folder), shuffle=True, generator=generator()), order="shuffled"
        ),
        "target_transform": lambda: Case(
            load(images(target_transform=lambda label: label + 5)), text="target_transform changes"
        ),
        "subset": lambda: Case(load(Subset(images(), [3, 1, 7, 12, 16]))),
        "concatenated": lambda: Case(load(ConcatDataset([PathList(folder), images()]))),
        "list of files": lambda: Case(
            load(PathList(folder)), text="packs the files in dataset.paths"
        ),
        "PIL images": lambda: Case(
            load(PathList(folder, keep_list=False)), text="packs decoded images"
        ),
        "other pixels than the files": lambda: Case(
            load(Resized(folder)), text="the images differ from the files in dataset.paths"
        ),
        "dicts": lambda: Case(load(Dicts(folder)), text="'image': Path(dataset.paths[i])"),
        "uint8 tensors": lambda: Case(
            load(
                TensorDataset(
                    torch.stack([pixels(n, 3, 20, 24) for n in numbered]), torch.arange(N)
                )
            )
        ),
        "float tensors": lambda: Case(
            load(TensorDataset(torch.rand(N, 3, 20, 24), torch.arange(N))),
            order="refused",
            text="its images are torch.float32",
        ),
        "Hugging Face": lambda: Case(
            load(hugging_face(same_size).with_format("torch")),
            order="dict",
            text="not decoded pixels",
        ),
        "Hugging Face with a function": lambda: Case(
            load(hugging_face(same_size).with_transform(dict)),
            order="refused",
            text="set_transform",
        ),
        "sampler": lambda: with_sampler("sampler", [5, 5, 0, 17, 9]),
        "batch_sampler": lambda: with_sampler("batch_sampler", TwoHalves()),
        "BatchSampler of RandomSampler": lambda: Case(
            load(
                PathList(folder),
                batch_size=1,
                batch_sampler=BatchSampler(RandomSampler(numbered), 4, drop_last=False),
            ),
            order="shuffled",
            text="shuffle=True",
        ),
        "BatchSampler of SequentialSampler": lambda: Case(
            load(
                PathList(folder),
                batch_size=1,
                batch_sampler=BatchSampler(
                    torch.utils.data.SequentialSampler(numbered), 5, drop_last=True
                ),
            )
        ),
        "WeightedRandomSampler": lambda: with_sampler(
            "sampler", WeightedRandomSampler([1.0] * 4 + [0.0] * (N - 4), 12), "drawn"
        ),
        "RandomSampler with replacement": lambda: with_sampler(
            "sampler", RandomSampler(numbered, replacement=True, num_samples=10), "drawn"
        ),
        "DistributedSampler": lambda: Case(
            load(
                PathList(folder),
                sampler=DistributedSampler(PathList(folder), num_replicas=2, rank=1),
            ),
            order="half",
            text="world_size=2",
        ),
        "collate_fn": lambda: Case(
            load(PathList(folder), collate_fn=stacked), {"stacked": stacked}
        ),
        "(image, targets)": lambda: Case(
            load(Detection(folder), collate_fn=list), order="refused", text="(image, dict)"
        ),
        "boxes": lambda: Case(
            load(
                Arrays(
                    lambda n: {
                        "image": pixels(n, 3, 20, 24),
                        "boxes": np.array([[1.0, 2.0, 9.0, 8.0]] * (n % 3 + 1)),
                    }
                ),
                collate_fn=listed,
            ),
            {"listed": listed},
        ),
        "masks": lambda: Case(
            load(
                Arrays(lambda n: {"image": pixels(n, 3, 20, 24), "mask": pixels(n, 20, 24).numpy()})
            )
        ),
        "several cameras": lambda: Case(
            load(Arrays(lambda n: {"images": pixels(n, 6, 3, 20, 24)}))
        ),
        "grayscale": lambda: Case(load(images(gray))),
        "Pad and RandomCrop": lambda: Case(load(PathList(same_size, padded)), order="random"),
        "RandomCrop with padding": lambda: Case(
            load(PathList(same_size, V.Compose([V.RandomCrop(40, 8), V.ToTensor()]))),
            order="random",
        ),
        "preset": lambda: Case(load(images(V.ImageClassification(crop_size=32, resize_size=40)))),
        "RandomPerspective": lambda: Case(
            load(images(V.Compose([V.RandomPerspective(), TRAIN]))),
            order="refused",
            text="RandomPerspective: not supported",
        ),
        "parts with different transforms": lambda: Case(
            load(ConcatDataset([images(), images(gray)])),
            order="refused",
            text="different transforms",
        ),
    }


KINDS = list(cases(Path(), Path()))


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Photos of different sizes and modes, and photos of one size."""
    root = tmp_path_factory.mktemp("photos")
    for number in range(N):
        name = f"{('ant', 'bee', 'cow')[number % 3]}/{number:02}.jpg"
        for folder, width in (("mixed", 60 + number), ("same", 50)):
            (root / folder / name).parent.mkdir(parents=True, exist_ok=True)
            gray = folder == "mixed" and number % 4 == 0
            (root / folder / name).write_bytes(photo(width, 50, seed=number, gray=gray))
    return root / "mixed", root / "same"


def run_printed(page: str, names: Mapping[str, Any]) -> Any:
    """Runs the two programs in the printed text and returns the loader."""
    pack, _, rest = page.removeprefix("1. Pack the dataset once:\n").partition(
        "\n\n2. Change the loader:\n"
    )
    lines = [line[2:] for line in pack.splitlines()]
    scope = dict(names)
    if lines[0].startswith("fastload "):
        assert main(shlex.split(lines[0])[1:]) == 0
    else:
        exec("\n".join(lines), scope)
    exec("\n".join(line[4:] for line in rest.splitlines() if line.startswith("  + ")), scope)
    return scope["loader"]


def assert_same(found: Any, expected: Any) -> None:
    if isinstance(expected, dict):
        assert found.keys() == expected.keys()
        for name, value in expected.items():
            assert_same(found[name], value)
    elif isinstance(expected, list | tuple):
        assert len(found) == len(expected)
        for each, other in zip(found, expected, strict=True):
            assert_same(each, other)
    elif isinstance(expected, torch.Tensor | np.ndarray):
        found, expected = torch.as_tensor(found), torch.as_tensor(expected)
        assert found.shape == expected.shape
        is_image = expected.ndim >= 3
        assert found.dtype == expected.dtype or not is_image
        difference = (found.double() - expected.double()).abs().mean()
        # Normalized images are in units of std; docs/transforms.md explains the half pixel.
        assert difference <= (0.15 if is_image and found.is_floating_point() else 0)
    else:
        assert found == expected


def ids(batches: list[Any]) -> list[list[int]]:
    return [batch[1].tolist() for batch in batches]


def assert_same_statistics(found: list[Any], expected: list[Any]) -> None:
    for measure in (torch.mean, torch.std, lambda images: (images == 0).double().mean()):
        a, b = (measure(torch.cat([batch[0] for batch in each])) for each in (found, expected))
        assert abs(float(a - b)) < 0.05


@pytest.mark.parametrize("kind", KINDS)
def test_printed_program_yields_the_samples_of_the_loader(
    kind: str, folders: tuple[Path, Path], tmp_path: Path
) -> None:
    case = cases(*folders)[kind]()
    migration = fastload.migrate(case.loader, dest=str(tmp_path / "packed"))
    page = str(migration)
    assert case.text in page
    names = {"dataset": case.loader.dataset, **case.names}
    if case.order == "refused":
        assert not migration.complete
        assert "Refused: " in page
        with pytest.raises(NotImplementedError):
            run_printed(page, names)
        return
    assert migration.complete
    n_epochs = 6 if case.order == "random" else 1
    before = [batch for _ in range(n_epochs) for batch in case.loader]
    with contextlib.closing(run_printed(page, names)) as after:
        got = [batch for _ in range(n_epochs) for batch in after]
    stored = b"".join(path.read_bytes() for path in tmp_path.rglob("*") if path.is_file())
    if kind in ("image folder", "list of files", "dicts", "Hugging Face", "subset"):
        assert b"PNG" not in stored  # the files, not decoded pixels
    if case.order == "same":
        assert_same(got, before)
    elif case.order == "dict":  # (image, label) is a tuple in fastload
        assert_same(got, [tuple(batch.values()) for batch in before])
    elif case.order == "random":
        assert ids(got) == ids(before)
        assert_same_statistics(got, before)
    else:
        assert [len(each) for each in ids(got)] == [len(each) for each in ids(before)]
        flat, expected = ([n for batch in ids(each) for n in batch] for each in (got, before))
        assert flat != sorted(flat)
        if case.order == "shuffled":
            assert sorted(flat) == sorted(expected)
            assert_same_statistics(got, before)
        elif case.order == "half":
            assert len(set(flat)) == len(set(expected)) == N // 2
        else:
            allowed = range(4) if "Weighted" in kind else range(N)
            assert set(flat) <= set(allowed)


def test_migrate_keeps_the_random_generators(folders: tuple[Path, Path]) -> None:
    torch.manual_seed(3)
    expected = torch.rand(2).tolist()
    torch.manual_seed(3)
    dataset = PathList(folders[1], V.Compose([V.RandomCrop(40), V.ToTensor()]))
    fastload.migrate(DataLoader(dataset))
    assert torch.rand(2).tolist() == expected
