"""Team E before fastload: class folders, torch's DataLoader with worker processes.

python -m tools.makedata imagenet images --n 600
python -m examples.classifier_torch images --amp
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import nn

from examples.classifier import accuracy, network, save
from examples.common import Run, arguments, distributed_sampler, running


class ClassFolders(torch.utils.data.Dataset[tuple[torch.Tensor, int]]):
    def __init__(self, folder: str, side: int, *, augment: bool) -> None:
        self.side, self.augment = side, augment
        self.classes = sorted(path.name for path in Path(folder).iterdir() if path.is_dir())
        self.samples = [
            (path, number)
            for number, name in enumerate(self.classes)
            for path in sorted((Path(folder) / name).glob("*.jpg"))
        ]

    def __len__(self) -> int:
        return len(self.samples)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        path, label = self.samples[index]
        image = Image.open(path).convert("RGB")
        size, (left, top, width, height) = (self.side, self.side), self.box(*image.size)
        pixels = (
            np.asarray(
                image.crop((left, top, left + width, top + height)).resize(
                    size, Image.Resampling.BILINEAR
                ),
                np.float32,
            )
            / 255
        )
        if self.augment and torch.rand(()) < 0.5:
            pixels = pixels[:, ::-1]
        normal = (pixels - (0.485, 0.456, 0.406)) / (0.229, 0.224, 0.225)
        return torch.from_numpy(normal.astype(np.float32)).permute(2, 0, 1), label

    def box(self, width: int, height: int) -> tuple[int, int, int, int]:
        if not self.augment:
            side = min(width, height) * 7 // 8
            return (width - side) // 2, (height - side) // 2, side, side
        for _ in range(10):
            area = width * height * float(torch.empty(()).uniform_(0.35, 1.0))
            ratio = float(torch.empty(()).uniform_(-0.2877, 0.2877).exp())
            w, h = round((area * ratio) ** 0.5), round((area / ratio) ** 0.5)
            if 0 < w <= width and 0 < h <= height:
                return (
                    int(torch.randint(width - w + 1, ())),
                    int(torch.randint(height - h + 1, ())),
                    w,
                    h,
                )
        return 0, 0, width, height


def loaders(run: Run) -> tuple[torch.utils.data.DataLoader[Any], torch.utils.data.DataLoader[Any]]:
    options, side = run.options, 64 if run.options.smoke else 224
    images, val = (
        ClassFolders(f"{options.data}/train", side, augment=True),
        ClassFolders(f"{options.data}/val", side, augment=False),
    )
    sampler = distributed_sampler(images, options.seed)
    shared: dict[str, Any] = {
        "batch_size": options.batch_size,
        "num_workers": 2,
        "persistent_workers": True,
    }
    return (
        torch.utils.data.DataLoader(
            images, shuffle=sampler is None, sampler=sampler, drop_last=True, **shared
        ),
        torch.utils.data.DataLoader(val, **shared),
    )


def train(run: Run) -> list[float]:
    options = run.options
    loader, val = loaders(run)
    net = network(len(loader.dataset.classes)).to(memory_format=torch.channels_last)  # type: ignore[attr-defined,call-overload]
    model = run.model(net)
    step_model = torch.compile(model) if options.compile else model
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, fused=run.device.type == "cuda")
    first = 0
    if options.resume:
        state = torch.load(options.resume, map_location=run.device, weights_only=True)
        net.load_state_dict(state["net"])
        optimizer.load_state_dict(state["optimizer"])
        first = state[
            "epoch"
        ]  # from its first batch: torch's DataLoader cannot resume inside an epoch
    losses = []
    for epoch in range(first, options.epochs):
        if isinstance(loader.sampler, torch.utils.data.DistributedSampler):
            loader.sampler.set_epoch(epoch)
        total, steps = torch.zeros((), device=run.device), 0
        for images, labels in run.batches(loader):
            images, labels = images.to(run.device), labels.to(run.device)  # noqa: PLW2901
            with run.autocast():
                loss = nn.functional.cross_entropy(
                    step_model(images.to(memory_format=torch.channels_last)), labels
                )
            optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            total, steps = total + loss.detach(), steps + 1
            if run.main and options.save_every and (run.probe.iter + 1) % options.save_every == 0:
                with run.probe.event("checkpoint"):
                    save(Path("checkpoint.pt"), net=net, optimizer=optimizer, epoch=epoch)
        losses.append(total.item() / max(1, steps))
        with run.probe.event("evaluation"):
            right = accuracy(model, val, run)
        run.log(
            f"epoch {epoch}: loss {losses[-1]:.3f}, {100 * right:.1f} % of {len(val.dataset)} right"  # type: ignore[arg-type]
        )
    return losses


if __name__ == "__main__":
    parser = arguments(__doc__, batch_size=32, epochs=8)
    parser.add_argument("--compile", action="store_true")
    parser.add_argument("--save-every", type=int, default=0, metavar="STEPS")
    parser.add_argument("--resume", metavar="CHECKPOINT")
    with running(parser.parse_args()) as run:
        train(run)
