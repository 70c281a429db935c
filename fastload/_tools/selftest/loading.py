"""Runs the DataLoader for the self-test."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

import fastload
from fastload import transforms
from fastload._store.record import JPEG

if TYPE_CHECKING:
    from fastload._tools.selftest.stages import Task

MOST_SAMPLES = 2_000  # of the dataset that the user passes
Epoch = dict[int, torch.Tensor]


def make_generated(folder: Path) -> Path:
    """Packs a dataset of generated images."""
    from fastload._tools.selftest.images import photographs

    samples = [
        {"image": image.data, "label": i % 3} for i, image in enumerate(photographs(24, 200, 150))
    ]
    fastload.pack(samples, folder / "packed", fields={"image": "image", "label": "int"}, jobs=1)
    return folder / "packed"


def make_loader(
    task: Task,
    *,
    batch_size: int,
    dataset: Path | None = None,
    shuffle: bool = True,
    **options: Any,
) -> Any:
    """Loads random crops of 96 x 96 pixels and sample ids on the device of the task."""
    plan = [transforms.RandomResizedCrop(96), transforms.HorizontalFlip()]
    packed = fastload.open(dataset or task.dataset)
    image = next(field.name for field in packed.fields if field.kind.is_image)
    return fastload.DataLoader(
        packed,
        batch_size=batch_size,
        shuffle=shuffle,
        seed=11,
        transform=plan,
        fields=(image, "id"),
        num_workers=2,
        backend=task.backend,
        device=None if task.device == "cpu" else task.device,
        **options,
    )


def epoch(loader: Any) -> Epoch:
    """Maps sample ids to pixels in host memory, for at most about ``MOST_SAMPLES`` samples."""
    found: Epoch = {}
    for batch in loader:
        found |= samples(batch)
        if len(found) >= MOST_SAMPLES:
            break
    loader.close()
    return found


def samples(batch: Any) -> Epoch:
    """Maps the sample ids of one batch to pixels."""
    (name,) = (each for each in batch if each != "id")
    pixels = batch[name].cpu()
    return {int(number): pixels[place].clone() for place, number in enumerate(batch["id"].tolist())}


def resumed(task: Task, *, batch_size: int, after: int) -> Epoch:
    """One epoch from two loaders: the second resumes after ``after`` batches of the first."""
    first = make_loader(task, batch_size=batch_size)
    found: Epoch = {}
    for count, batch in enumerate(first, 1):
        found |= samples(batch)
        if count == after:
            state = first.state_dict()
            break
    first.close()
    second = make_loader(task, batch_size=batch_size)
    second.load_state_dict(state)
    return found | epoch(second)


def damaged_copy(task: Task) -> tuple[Path, list[int]]:
    """Copies the generated dataset and changes one byte in the images of three samples.

    They are in the first, a middle and the last batch of four. Returns the copy and the ids.
    """
    copy = task.folder / "damaged"
    shutil.copytree(task.generated, copy)
    packed = fastload.open(copy)
    order = packed.column("_source_index").argsort(kind="stable")
    bad = sorted(int(order[place]) for place in (1, len(packed) // 2 + 1, len(packed) - 2))
    pieces = []
    for number in bad:
        part = next(each for each in packed.parts(number) if each.codec == JPEG)
        middle = len(part.data) // 2
        pieces.append((Path(packed.reader(number).path), bytes(part.data[middle : middle + 64])))
    del packed, part
    for path, piece in pieces:
        data = bytearray(path.read_bytes())
        data[data.index(piece) + 32] ^= 0x55
        path.write_bytes(data)
    return copy, bad
