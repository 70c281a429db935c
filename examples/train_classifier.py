"""Trains a small classifier on a packed dataset of class folders; runs on CPU in seconds, on a GPU unchanged.

    python -m fastload.makedata imagenet pictures --n 600
    fastload pack pictures packed
    python examples/train_classifier.py packed --epochs 8
"""

from __future__ import annotations

import argparse
import itertools
import time

import torch
from torch import nn

import fastload
from fastload import transforms as T


def small_net(n_classes: int) -> nn.Module:
    """Four strided convolutions and a mean: enough to learn shapes and colours."""
    widths = (3, 16, 32, 64, 64)
    blocks = [nn.Sequential(nn.Conv2d(a, b, 3, 2, 1, bias=False), nn.BatchNorm2d(b), nn.ReLU()) for a, b in itertools.pairwise(widths)]
    return nn.Sequential(*blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(widths[-1], n_classes))


def train(path: str, *, epochs: int, batch_size: int, seed: int = 0) -> list[float]:
    """Mean loss of each epoch."""
    torch.manual_seed(seed)
    device = "cuda" if torch.cuda.is_available() else None
    loader = fastload.DataLoader(
        path, batch_size=batch_size, shuffle=True, drop_last=True, seed=seed, device=device, fields=("image", "label"),
        transform=[T.RandomResizedCrop(64, scale=(0.5, 1.0)), T.HorizontalFlip(), T.Normalize(0.45, 0.25)])
    model = small_net(len(loader.packed.classes["label"])).to(device or "cpu")
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    losses = []
    for epoch in range(epochs):
        started, total = time.perf_counter(), 0.0
        for images, labels in loader:
            loss = nn.functional.cross_entropy(model(images), labels)
            optimizer.zero_grad()
            loss.backward()             # type: ignore[no-untyped-call]
            optimizer.step()
            total += loss.item()
        losses.append(total / len(loader))
        print(f"epoch {epoch}: loss {losses[-1]:.3f}, {len(loader) * batch_size / (time.perf_counter() - started):.0f} images/s")
    return losses


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("packed")
    parser.add_argument("--epochs", type=int, default=8)
    parser.add_argument("--batch-size", type=int, default=32)
    options = parser.parse_args()
    train(options.packed, epochs=options.epochs, batch_size=options.batch_size)


if __name__ == "__main__":
    main()
