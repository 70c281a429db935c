"""Team E: an ImageNet-style classifier with validation, mixed precision and checkpoints.

It resumes in the middle of an epoch, and supports channels_last and torch.compile.

python -m tools.makedata imagenet images --n 600
fastload pack images packed
python -m examples.classifier packed --amp --save-every 10
python -m examples.classifier packed --resume checkpoint.pt
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import nn

import fastload
from examples.common import Run, arguments, conv, running
from fastload import transforms as T


def network(classes: int) -> nn.Module:
    return nn.Sequential(
        conv(3, 16),
        conv(16, 32),
        conv(32, 64),
        conv(64, 64),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(64, classes),
    )


def loaders(run: Run) -> tuple[fastload.DataLoader, fastload.DataLoader]:
    options, side = run.options, 64 if run.options.smoke else 224
    norm = T.Normalize((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
    train = fastload.DataLoader(
        options.data,
        split="train",
        batch_size=options.batch_size,
        shuffle=True,
        drop_last=True,
        seed=options.seed,
        device=run.device,
        fields=("image", "label"),
        transform=[T.RandomResizedCrop(side, scale=(0.35, 1.0)), T.HorizontalFlip(), norm],
    )
    val = fastload.DataLoader(
        options.data,
        split="val",
        batch_size=options.batch_size,
        last_batch="partial",
        device=run.device,
        fields=("image", "label"),
        transform=[T.Resize(shorter=side * 8 // 7), T.CenterCrop(side), norm],
    )
    return train, val


def accuracy(model: nn.Module, loader: Any, run: Run) -> float:
    """Accuracy over all images: each process counts its part, then the counts are summed."""
    model.eval()
    right_and_seen = torch.zeros(2, dtype=torch.int64, device=run.device)
    with torch.no_grad(), run.autocast():
        for images, labels in loader:
            found = model(images.to(run.device, memory_format=torch.channels_last)).argmax(1)
            right_and_seen[0] += (found == labels.to(run.device)).sum()
            right_and_seen[1] += len(labels)
    model.train()
    if torch.distributed.is_initialized():
        torch.distributed.all_reduce(right_and_seen)
    right, seen = right_and_seen.tolist()
    return float(right / seen)


def save(path: Path, **parts: Any) -> None:
    """Writes atomically: if the process is killed, the previous checkpoint remains."""
    torch.save(
        {
            name: part.state_dict() if hasattr(part, "state_dict") else part
            for name, part in parts.items()
        },
        path.with_suffix(".new"),
    )
    path.with_suffix(".new").replace(path)


def train(run: Run) -> list[float]:
    options = run.options
    loader, val = loaders(run)
    net = network(len(loader.classes)).to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    model = run.model(net)
    step_model = torch.compile(model) if options.compile else model
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, fused=run.device.type == "cuda")
    first = 0
    if options.resume:
        state = torch.load(options.resume, map_location=run.device, weights_only=True)
        net.load_state_dict(state["net"])
        optimizer.load_state_dict(state["optimizer"])
        # The next iteration continues after the last batch that was trained.
        loader.load_state_dict(state["loader"])
        first = loader.sampler.epoch  # type: ignore[attr-defined]
    losses = []
    for epoch in range(first, options.epochs):
        total, steps = torch.zeros((), device=run.device), 0
        for images, labels in run.batches(loader):
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
                    save(Path("checkpoint.pt"), net=net, optimizer=optimizer, loader=loader)
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
