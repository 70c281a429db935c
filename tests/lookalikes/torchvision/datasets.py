"""The part of torchvision.datasets.ImageFolder that migrate() and its tests use."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from PIL import Image


class ImageFolder(torch.utils.data.Dataset[Any]):
    def __init__(self, root: str, transform: Any = None, target_transform: Any = None) -> None:
        self.root, self.transform, self.target_transform = root, transform, target_transform
        self.classes = sorted(entry.name for entry in Path(root).iterdir() if entry.is_dir())
        self.class_to_idx = {name: number for number, name in enumerate(self.classes)}
        self.samples = [
            (str(path), self.class_to_idx[name])
            for name in self.classes
            for path in sorted(Path(root, name).rglob("*.jpg"))
        ]
        self.imgs, self.targets = self.samples, [label for _, label in self.samples]

    def __len__(self) -> int:
        return len(self.samples)

    def __getitem__(self, index: int) -> Any:
        path, label = self.samples[index]
        with open(path, "rb") as file:
            image = Image.open(file).convert("RGB")
        if self.target_transform:
            label = self.target_transform(label)
        return (self.transform(image) if self.transform else image), label
