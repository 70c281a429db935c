"""Team C: classification of 128x128 grayscale images, with one channel from file to model.

python -m tools.makedata gray images --n 2000
fastload pack images packed --encode raw
python -m examples.gray packed
"""

from __future__ import annotations

import torch
from torch import nn

import fastload
from examples.common import Run, arguments, conv, running
from fastload import transforms as T


def network(classes: int) -> nn.Module:
    return nn.Sequential(
        conv(1, 16),
        conv(16, 32),
        conv(32, 64),
        conv(64, 64),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(64, classes),
    )


def train(run: Run) -> list[float]:
    options = run.options
    loader = fastload.DataLoader(
        options.data,
        split="train",
        batch_size=options.batch_size,
        shuffle=True,
        drop_last=True,
        seed=options.seed,
        device=run.device,
        fields=("image", "label"),
        transform=[T.RandomCrop(112), T.HorizontalFlip(), T.Normalize(0.45, 0.25)],
    )
    model = run.model(network(10))
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    losses = []
    for epoch in range(options.epochs):
        total = torch.zeros((), device=run.device)
        for images, labels in run.batches(loader):
            with run.autocast():
                loss = nn.functional.cross_entropy(model(images), labels)
            optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            # .item() here would make the CPU wait for the GPU at every step.
            total += loss.detach()
        losses.append(total.item() / len(loader))
        run.log(f"epoch {epoch}: loss {losses[-1]:.3f}")
    return losses


if __name__ == "__main__":
    with running(arguments(__doc__, batch_size=64, epochs=8).parse_args()) as run:
        train(run)
