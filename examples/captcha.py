"""Team D: two keypoints in 320x160 CAPTCHA images, with mixed precision.

python -m tools.makedata captcha images --n 2000
python -m examples.captcha images --pack packed     # stores the keypoints as points
python -m examples.captcha packed --amp
"""

from __future__ import annotations

import csv
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import nn

import fastload
from examples.common import Run, arguments, conv, running
from fastload import transforms as T

SIZE = (160, 320)


def rows(folder: str) -> Iterator[dict[str, Any]]:
    for row in csv.DictReader((Path(folder) / "labels.csv").read_text().splitlines()):
        yield {
            "image": Path(folder) / row["path"],
            "points": [(float(row["x1"]), float(row["y1"])), (float(row["x2"]), float(row["y2"]))],
        }


class Keypoints(nn.Module):
    """Predicts one heat map per keypoint; its mean is the position with subpixel accuracy."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(
            conv(3, 24), conv(24, 48), conv(48, 64), conv(64, 64, stride=1), nn.Conv2d(64, 2, 1)
        )

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        heat = self.net(images).float()  # bfloat16 is too coarse for a softmax over 800 cells
        n, k, h, w = heat.shape
        share = heat.flatten(2).softmax(-1).view(n, k, h, w)
        x = (share.sum(2) * (torch.arange(w, device=heat.device) + 0.5) / w).sum(-1)
        y = (share.sum(3) * (torch.arange(h, device=heat.device) + 0.5) / h).sum(-1)
        return torch.stack([x, y], -1)  # 0..1


def train(run: Run) -> list[float]:
    options = run.options
    size = (80, 160) if options.smoke else SIZE
    scale = torch.tensor(size[::-1], device=run.device)
    loader = fastload.DataLoader(
        options.data,
        batch_size=options.batch_size,
        shuffle=True,
        drop_last=True,
        seed=options.seed,
        device=run.device,
        fields=("image", "points"),
        transform=[
            T.RandomResizedCrop(size, scale=(0.8, 1.0), ratio=(2.0, 2.0)),
            T.ColorJitter(brightness=0.2),
            T.Normalize(0.5, 0.25),
        ],
    )
    model = run.model(Keypoints())
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    losses = []
    for epoch in range(options.epochs):
        total = torch.zeros((), device=run.device)
        for batch in run.batches(loader):
            with run.probe.stage("forward"), run.autocast():
                found = model(batch["image"])
            with run.probe.stage("loss"):
                loss = nn.functional.smooth_l1_loss(found, batch["points"] / scale, beta=0.05)
            with run.probe.stage("backward"):
                optimizer.zero_grad()
                loss.backward()  # type: ignore[no-untyped-call]
            with run.probe.stage("optimizer"):
                optimizer.step()
            total += loss.detach()
        losses.append(total.item() / len(loader))
        run.log(f"epoch {epoch}: loss {losses[-1]:.4f}")
    return losses


if __name__ == "__main__":
    parser = arguments(__doc__, batch_size=32, epochs=8)
    parser.add_argument("--pack", metavar="DEST", help="pack the images in DATA into DEST and exit")
    options = parser.parse_args()
    if options.pack:
        fastload.pack(
            rows(options.data), options.pack, fields={"image": "image", "points": "points"}
        )
    else:
        with running(options) as run:
            train(run)
