"""Team A: lane detection in 1920x1280 street images, cropped to the road and resized to 960x720.

Polylines and camera matrix follow the crop and the resize.

python -m tools.makedata openlane images --n 64
fastload pack images packed
torchrun --nproc-per-node 2 -m examples.lanes packed
"""

from __future__ import annotations

import torch
from torch import nn

import fastload
from examples.common import Run, arguments, conv, running
from fastload import transforms as T

STRIDE = 16


class Lanes(nn.Module):
    """Predicts for each 16x16 cell whether it contains a lane.

    The direction of the cell's ray, computed from the camera matrix, is an input.
    """

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(conv(3, 16), conv(16, 32), conv(32, 48), conv(48, 64))
        self.head = nn.Sequential(conv(64 + 2, 64, stride=1), nn.Conv2d(64, 1, 1))

    def forward(self, images: torch.Tensor, cameras: torch.Tensor) -> torch.Tensor:
        seen = self.net(images)
        rows, columns = (
            STRIDE * (torch.arange(n, device=images.device) + 0.5) for n in seen.shape[-2:]
        )
        x = (columns - cameras[:, 0, 2, None]) / cameras[:, 0, 0, None]
        y = (rows - cameras[:, 1, 2, None]) / cameras[:, 1, 1, None]
        shape = (len(images), seen.shape[-2], seen.shape[-1])
        rays = torch.stack([x[:, None, :].expand(shape), y[:, :, None].expand(shape)], 1)
        logits: torch.Tensor = self.head(torch.cat([seen, rays.to(seen.dtype)], 1))
        return logits[:, 0]


def lane_cells(lanes: list[list[torch.Tensor]], shape: torch.Size) -> torch.Tensor:
    """1 for cells that a polyline crosses; its points are less than one cell apart."""
    cells = torch.zeros(shape)
    for target, polylines in zip(cells, lanes, strict=True):
        for points in polylines:
            x, y = (points / STRIDE).long().unbind(-1)
            inside = (x >= 0) & (y >= 0) & (x < shape[-1]) & (y < shape[-2])
            target[y[inside], x[inside]] = 1
    return cells


def lane_loss(logits: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    return nn.functional.binary_cross_entropy_with_logits(
        logits.float(), target, pos_weight=torch.tensor(4.0, device=logits.device)
    )


def train(run: Run) -> list[float]:
    options = run.options
    size = (192, 256) if options.smoke else (720, 960)
    loader = fastload.DataLoader(
        options.data,
        split="training",
        batch_size=options.batch_size,
        shuffle=True,
        drop_last=True,
        seed=options.seed,
        fields=("image", "lanes", "intrinsic"),
        transform=[T.Crop(top=0.25), T.Resize(*size), T.Normalize(0.45, 0.25)],
    )
    model = run.model(Lanes())
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    losses = []
    for epoch in range(options.epochs):
        total = torch.zeros((), device=run.device)
        for batch in run.batches(loader):
            with run.probe.stage("to_device"):
                images, cameras = (
                    batch["image"].to(run.device),
                    batch["intrinsic"].to(run.device, torch.float32),
                )
            with run.probe.stage("forward"), run.autocast():
                logits = model(images, cameras)
            with run.probe.stage("loss"):
                target = lane_cells(batch["lanes"], logits.shape).to(run.device)
                loss = lane_loss(logits, target)
            with run.probe.stage("backward"):
                optimizer.zero_grad()
                loss.backward()  # type: ignore[no-untyped-call]
            with run.probe.stage("optimizer"):
                optimizer.step()
            total += loss.detach()
        losses.append(total.item() / len(loader))
        run.log(f"epoch {epoch}: loss {losses[-1]:.3f}")
    return losses


if __name__ == "__main__":
    with running(arguments(__doc__, batch_size=4, epochs=6).parse_args()) as run:
        train(run)
