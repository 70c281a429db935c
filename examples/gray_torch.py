"""Team C before fastload: one file per image, torch's DataLoader with worker processes.

python -m tools.makedata gray images --n 2000
python -m examples.gray_torch images
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import nn

from examples.common import Run, arguments, distributed_sampler, running
from examples.gray import network


class GrayImages(torch.utils.data.Dataset[tuple[torch.Tensor, int]]):
    def __init__(self, folder: str) -> None:
        classes = sorted(path for path in Path(folder).iterdir() if path.is_dir())
        self.samples = [
            (path, number)
            for number, name in enumerate(classes)
            for path in sorted(name.glob("*.jpg"))
        ]

    def __len__(self) -> int:
        return len(self.samples)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        path, label = self.samples[index]
        pixels = np.asarray(Image.open(path).convert("L"), np.float32) / 255
        top, left = (int(torch.randint(128 - 112 + 1, ())) for _ in range(2))
        pixels = pixels[top : top + 112, left : left + 112]
        if torch.rand(()) < 0.5:
            pixels = pixels[:, ::-1]
        return torch.from_numpy((pixels - 0.45) / 0.25)[None], label


def train(run: Run) -> list[float]:
    options = run.options
    images = GrayImages(f"{options.data}/train")
    sampler = distributed_sampler(images, options.seed)
    loader = torch.utils.data.DataLoader(
        images,
        batch_size=options.batch_size,
        shuffle=sampler is None,
        sampler=sampler,
        drop_last=True,
        num_workers=2,
        persistent_workers=True,
    )
    model = run.model(network(10))
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    losses = []
    for epoch in range(options.epochs):
        if sampler is not None:
            sampler.set_epoch(epoch)
        total = torch.zeros((), device=run.device)
        for images, labels in run.batches(loader):
            images, labels = images.to(run.device), labels.to(run.device)  # noqa: PLW2901
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
