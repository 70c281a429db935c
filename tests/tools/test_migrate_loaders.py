"""fastload.migrate: its code runs and yields the labels and image sizes of the torch loader."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

import fastload
from fastload._tools.migrate.migration import Migration
from tests.lookalikes.torchvision import transforms as V
from tests.lookalikes.torchvision.datasets import ImageFolder
from tests.packed_datasets import photo

TRAIN = V.Compose(
    [V.Resize(40), V.CenterCrop(32), V.ToTensor(), V.Normalize((0.5, 0.5, 0.5), (0.25, 0.25, 0.25))]
)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for number in range(18):
        path = tmp_path / "images" / ("ant", "bee", "cow")[number % 3] / f"{number:02}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(photo(60 + number, 50, seed=number, gray=number % 4 == 0))
    return tmp_path / "images"


def run(migration: Migration, **names: Any) -> Any:
    """Runs the code of a migration and returns the loader."""
    scope: dict[str, Any] = dict(names)
    exec(migration.pack_code, scope)
    exec(migration.loader_code, scope)
    return scope["loader"]


def labels(loader: Any) -> list[int]:
    return [int(label) for _, batch in loader for label in batch]


def torch_loader(folder: Path, **options: Any) -> Any:
    return torch.utils.data.DataLoader(
        ImageFolder(str(folder), TRAIN), **{"batch_size": 4, **options}
    )


def test_packing_an_image_folder_by_command_keeps_labels_and_sizes(
    folder: Path, tmp_path: Path
) -> None:
    before = torch_loader(folder, num_workers=2, pin_memory=False)
    migration = fastload.migrate(before, dest=str(tmp_path / "packed"))
    assert migration.command == f"fastload pack {folder} {tmp_path / 'packed'}"
    assert migration.complete
    done = subprocess.run(
        [sys.executable, "-m", *migration.command.split()],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    scope: dict[str, Any] = {}
    exec(migration.loader_code, scope)
    after = scope["loader"]
    for (images, found), (expected_images, expected) in zip(after, before, strict=True):
        assert torch.equal(found, expected)
        assert images.shape == expected_images.shape
        assert images.dtype == expected_images.dtype
        # Images are in units of std, which is 64 of 256. docs/transforms.md explains the
        # half-pixel difference.
        assert (images - expected_images).abs().mean() < 0.15
    after.close()


def test_packing_from_python_keeps_labels(folder: Path, tmp_path: Path) -> None:
    before = torch_loader(folder)
    after = run(fastload.migrate(before, dest=str(tmp_path / "packed")))
    assert labels(after) == labels(before)
    after.close()


def test_subset_is_packed_from_its_file_list(folder: Path, tmp_path: Path) -> None:
    subset = torch.utils.data.Subset(ImageFolder(str(folder), TRAIN), [3, 1, 7, 12, 16])
    before = torch.utils.data.DataLoader(subset, batch_size=2)
    migration = fastload.migrate(before, dest=str(tmp_path / "packed"))
    assert not migration.command
    after = run(migration, dataset=subset)
    assert labels(after) == labels(before)
    after.close()


def test_custom_sampler_selects_the_same_samples(folder: Path, tmp_path: Path) -> None:
    picked = [5, 5, 0, 17, 9]
    before = torch_loader(folder, sampler=picked)
    migration = fastload.migrate(before, dest=str(tmp_path / "packed"))
    assert "order='source'" in migration.pack_code
    after = run(migration, dataset=before.dataset, my_sampler=picked)
    assert labels(after) == labels(before)
    after.close()


@pytest.mark.parametrize("change", ["classes", "file", "moved"])
def test_dataset_that_differs_from_its_folder_is_packed_from_the_file_list(
    folder: Path, tmp_path: Path, change: str
) -> None:
    before = torch_loader(folder)
    dataset = before.dataset
    if change == "classes":
        dataset.classes = ["cow", "bee", "ant"]
        dataset.samples = [(path, 2 - label) for path, label in dataset.samples]
    elif change == "file":
        del dataset.samples[3]
        before = torch.utils.data.DataLoader(dataset, batch_size=4)
    else:
        dataset.samples[0] = (dataset.samples[0][0], 2)
    migration = fastload.migrate(before, dest=str(tmp_path / "packed"))
    assert not migration.command
    after = run(migration, dataset=dataset)
    assert labels(after) == labels(before)
    assert fastload.open(tmp_path / "packed").manifest.fields[1].classes == tuple(dataset.classes)
    after.close()


class Pairs(torch.utils.data.Dataset[Any]):
    """A custom map-style dataset."""

    def __init__(self, folder: ImageFolder) -> None:
        self._folder = folder
        self.transform = TRAIN

    def __len__(self) -> int:
        return len(self._folder)

    def __getitem__(self, index: int) -> Any:
        image, label = self._folder[index]
        return (self.transform(image) if self.transform else image), label


def test_custom_dataset_is_packed_without_its_transform(folder: Path, tmp_path: Path) -> None:
    dataset = Pairs(ImageFolder(str(folder)))
    before = torch.utils.data.DataLoader(dataset, batch_size=4)
    expected = labels(before)
    migration = fastload.migrate(before, dest=str(tmp_path / "packed"))
    after = run(migration, dataset=dataset)
    assert labels(after) == expected
    assert next(iter(after))[0].shape == (4, 3, 32, 32)
    after.close()


class AlwaysTransformed(Pairs):
    """Calls its transform unconditionally and stores it under another name."""

    def __init__(self, folder: ImageFolder) -> None:
        super().__init__(folder)
        self.transform = None  # type: ignore[assignment]
        self.augment = TRAIN

    def __getitem__(self, index: int) -> Any:
        image, label = self._folder[index]
        return self.augment(image), label


class Depth(torch.utils.data.Dataset[Any]):
    """Images of 16 bits, as arrays or as PIL images of mode I;16."""

    def __init__(self, kind: str) -> None:
        self.kind = kind

    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> Any:
        array = np.full((20, 30), 9000 * index + 77, np.uint16)
        return (array if self.kind == "array" else Image.fromarray(array)), index


@pytest.mark.parametrize("kind", ["array", "PIL"])
def test_images_of_16_bits_are_noted_and_kept(tmp_path: Path, kind: str) -> None:
    loader = torch.utils.data.DataLoader(Depth(kind), batch_size=2)
    migration = fastload.migrate(loader, dest=str(tmp_path / "packed"))
    assert "the images have 16 bits: fastload delivers uint16" in str(migration)
    images = next(iter(run(migration, dataset=Depth(kind))))[0]
    assert images.dtype == torch.uint16
    assert images.flatten(1).int().amax(1).tolist() == [77, 9077]


@pytest.mark.parametrize(
    "kind",
    ["subset of a subset", "subset of a custom dataset", "concatenated", "other attribute name"],
)
def test_nested_dataset_is_packed_without_its_transform(
    folder: Path, tmp_path: Path, kind: str
) -> None:
    photos = ImageFolder(str(folder), TRAIN)
    pairs = Pairs(ImageFolder(str(folder)))
    always = AlwaysTransformed(ImageFolder(str(folder)))
    made: dict[str, Any] = {
        "subset of a subset": torch.utils.data.Subset(
            torch.utils.data.Subset(photos, range(2, 18, 2)), [4, 0, 3]
        ),
        "subset of a custom dataset": torch.utils.data.Subset(pairs, [7, 1, 12]),
        "concatenated": torch.utils.data.ConcatDataset(
            [photos, torch.utils.data.Subset(pairs, [3, 0])]
        ),
        "other attribute name": always,
    }
    before = torch.utils.data.DataLoader(made[kind], batch_size=3)
    expected = list(before)
    migration = fastload.migrate(before, dest=str(tmp_path / "packed"))
    assert migration.complete
    assert ("samples[" in migration.pack_code) == (kind == "subset of a subset")
    after = run(migration, dataset=made[kind])
    for (images, found), (expected_images, expected_labels) in zip(after, expected, strict=True):
        assert torch.equal(found, expected_labels)
        assert (images - expected_images).abs().mean() < 0.15
    after.close()


def test_albumentations_transform_with_keyword_arguments(folder: Path, tmp_path: Path) -> None:

    class Compose:
        __module__ = "albumentations.core.composition"

        def __call__(self, image: Any) -> Any:
            return {"image": TRAIN(image)}

    class Named(Pairs):
        def __getitem__(self, index: int) -> Any:
            image, label = self._folder[index]
            return self.transform(image=image)["image"], label  # type: ignore[call-arg]

    dataset = Named(ImageFolder(str(folder)))
    dataset.transform = Compose()  # type: ignore[assignment]
    before = torch.utils.data.DataLoader(dataset, batch_size=3)
    expected = labels(before)
    migration = fastload.migrate(before, dest=str(tmp_path / "packed"))
    assert not migration.complete  # its transforms cannot be translated
    exec(migration.pack_code, {"dataset": dataset})
    assert (
        fastload.open(tmp_path / "packed")
        .column("label")[np.argsort(fastload.open(tmp_path / "packed").column("_source_index"))]
        .tolist()
        == expected
    )


def test_different_transforms_of_the_parts_are_reported(folder: Path) -> None:
    concatenated: Any = torch.utils.data.ConcatDataset(
        [ImageFolder(str(folder), TRAIN), ImageFolder(str(folder), V.ToTensor())]
    )
    assert "have different transforms" in str(
        fastload.migrate(torch.utils.data.DataLoader(concatenated))
    )
    assert "have different transforms" not in str(fastload.migrate(torch_loader(folder)))


def test_arguments_are_carried_over_or_explained(folder: Path) -> None:
    loader = torch_loader(
        folder,
        batch_size=8,
        shuffle=True,
        drop_last=True,
        num_workers=2,
        timeout=9,
        persistent_workers=True,
        prefetch_factor=5,
        generator=torch.Generator().manual_seed(12),
    )
    migration = fastload.migrate(loader)
    for text in (
        "batch_size=8",
        "shuffle=True",
        "drop_last=True",
        "timeout=9",
        "seed=12",
        "color='rgb'",
    ):
        assert text in migration.loader_code
    assert "num_workers" not in migration.loader_code
    page = str(migration)
    assert "num_workers=2 is omitted" in page
    assert (
        "persistent_workers, prefetch_factor: omitted, because there are no worker processes"
        in page
    )
    assert (
        "- loader = torch.utils.data.DataLoader(dataset, batch_size=8, drop_last=True, shuffle=True, num_workers=2"
        in page
    )
    assert json.loads(json.dumps(migration.as_json()))["complete"] is True


def test_distributed_sampler_is_replaced_by_arguments(folder: Path) -> None:
    dataset = ImageFolder(str(folder), TRAIN)
    sampler: Any = torch.utils.data.DistributedSampler(dataset, num_replicas=2, rank=0, seed=4)
    migration = fastload.migrate(
        torch.utils.data.DataLoader(dataset, batch_size=4, sampler=sampler)
    )
    assert "sampler" not in migration.loader_code
    assert "    shuffle=True,\n    seed=4,\n" in migration.loader_code
    assert migration.command


def test_batch_sampler_and_collate_function_are_kept(folder: Path, tmp_path: Path) -> None:
    def pairs(samples: Any) -> Any:
        return torch.stack([image for image, _ in samples]), torch.tensor(
            [label for _, label in samples]
        )

    batches = [[0, 5], [7, 3, 1]]
    before = torch.utils.data.DataLoader(
        ImageFolder(str(folder), TRAIN), batch_sampler=batches, collate_fn=pairs
    )
    after = run(
        fastload.migrate(before, dest=str(tmp_path / "packed")),
        dataset=before.dataset,
        my_batch_sampler=batches,
        pairs=pairs,
    )
    assert labels(after) == labels(before)
    after.close()


def test_grayscale_output_has_one_channel(folder: Path, tmp_path: Path) -> None:
    dataset = ImageFolder(str(folder), V.Compose([V.Resize((24, 24)), V.Grayscale(), V.ToTensor()]))
    before = torch.utils.data.DataLoader(dataset, batch_size=4)
    after = run(fastload.migrate(before, dest=str(tmp_path / "packed")))
    assert next(iter(after))[0].shape == next(iter(before))[0].shape == (4, 1, 24, 24)
    after.close()


def test_missing_equivalents_are_reported(folder: Path) -> None:
    dataset = ImageFolder(
        str(folder),
        V.Compose([V.RandomPerspective(), V.ToTensor(), V.Lambda()]),
        target_transform=int,
    )
    migration = fastload.migrate(torch.utils.data.DataLoader(dataset, batch_size=4))
    assert not migration.complete
    page = str(migration)
    for text in (
        "RandomPerspective  no equivalent",
        "no transform sets the image size",
        "target_transform changes the labels",
        "Refused: ",
        "unknown transform",
    ):
        assert text in page.replace("<", "")
    misordered = ImageFolder(
        str(folder), V.Compose([V.ToTensor(), V.Normalize((0.5,), (0.5,)), V.Resize((8, 8))])
    )
    assert "the translated transforms are invalid: transform: Resize follows Normalize" in str(
        fastload.migrate(torch.utils.data.DataLoader(misordered))
    )


def test_other_objects_and_fastload_loaders_are_rejected(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(fastload.ConfigError, match="expected a torch DataLoader, found list"):
        fastload.migrate([1, 2])  # type: ignore[arg-type]
    loader = run(fastload.migrate(torch_loader(folder), dest=str(tmp_path / "packed")))
    with pytest.raises(fastload.ConfigError, match="found a fastload loader"):
        fastload.migrate(loader)
    loader.close()


def test_migrate_changes_nothing(folder: Path, tmp_path: Path) -> None:
    loader = torch_loader(folder)
    before = dict(vars(loader.dataset))
    fastload.migrate(loader, dest=str(tmp_path / "packed"))
    assert vars(loader.dataset) == before
    assert not (tmp_path / "packed").exists()
