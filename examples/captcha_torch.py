"""Team D before fastload: one file per image, torch's DataLoader with worker processes.

python -m tools.makedata captcha images --n 2000
python -m examples.captcha_torch images --amp
"""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import nn

from examples.captcha import SIZE, Keypoints
from examples.common import Run, arguments, distributed_sampler, running, to_device


class Captchas(torch.utils.data.Dataset[dict[str, Any]]):
    def __init__(self, folder: str, size: tuple[int, int]) -> None:
        self.folder, self.size = Path(folder), size
        self.rows = list(csv.DictReader((self.folder / "labels.csv").read_text().splitlines()))

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> dict[str, Any]:
        row = self.rows[index]
        image = Image.open(self.folder / row["path"]).convert("RGB")
        points = torch.tensor(
            [(float(row["x1"]), float(row["y1"])), (float(row["x2"]), float(row["y2"]))]
        )
        share = float(torch.empty(()).uniform_(0.8, 1.0)) ** 0.5
        width, height = round(SIZE[1] * share), round(SIZE[0] * share)
        left, top = (
            int(torch.randint(SIZE[1] - width + 1, ())),
            int(torch.randint(SIZE[0] - height + 1, ())),
        )
        image = image.crop((left, top, left + width, top + height)).resize(
            self.size[::-1], Image.Resampling.BILINEAR
        )
        pixels = torch.from_numpy(np.asarray(image, np.float32) / 255).permute(2, 0, 1) * (
            0.8 + 0.4 * torch.rand(())
        )
        points = (points - torch.tensor([left, top])) * torch.tensor(
            [self.size[1] / width, self.size[0] / height]
        )
        return {"image": (pixels.clamp(0, 1) - 0.5) / 0.25, "points": points}


def train(run: Run) -> list[float]:
    options = run.options
    size = (80, 160) if options.smoke else SIZE
    scale = torch.tensor(size[::-1], device=run.device)
    captchas = Captchas(options.data, size)
    sampler = distributed_sampler(captchas, options.seed)
    loader = torch.utils.data.DataLoader(
        captchas,
        batch_size=options.batch_size,
        shuffle=sampler is None,
        sampler=sampler,
        drop_last=True,
        num_workers=2,
        persistent_workers=True,
    )
    model = run.model(Keypoints())
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    losses = []
    for epoch in range(options.epochs):
        if sampler is not None:
            sampler.set_epoch(epoch)
        total = torch.zeros((), device=run.device)
        for loaded in run.batches(loader):
            with run.probe.stage("to_device"):
                batch = to_device(loaded, run.device)
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
    with running(arguments(__doc__, batch_size=32, epochs=8).parse_args()) as run:
        train(run)
