"""Team A before fastload: one JPEG and one JSON per frame, torch's DataLoader with workers.

python -m tools.makedata openlane images --n 64
torchrun --nproc-per-node 2 -m examples.lanes_torch images
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image

from examples.common import Run, arguments, distributed_sampler, running
from examples.lanes import Lanes, lane_cells, lane_loss


class Frames(torch.utils.data.Dataset[dict[str, Any]]):
    def __init__(self, folder: str, size: tuple[int, int]) -> None:
        self.size = size
        self.images = Path(folder) / "images"
        self.labels = sorted((Path(folder) / "annotations/training").rglob("*.json"))

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> dict[str, Any]:
        frame = json.loads(self.labels[index].read_text())
        image = Image.open(self.images / frame["file_path"]).convert("RGB")
        top = round(0.25 * image.height)
        scale_x, scale_y = self.size[1] / image.width, self.size[0] / (image.height - top)
        image = image.crop((0, top, image.width, image.height)).resize(
            self.size[::-1], Image.Resampling.BILINEAR
        )
        pixels = torch.from_numpy(np.asarray(image, np.float32) / 255).permute(2, 0, 1)
        move = np.array([[scale_x, 0, 0], [0, scale_y, -top * scale_y], [0, 0, 1]])
        lanes = [
            torch.tensor(np.array(lane["uv"]).T * [scale_x, scale_y] - [0, top * scale_y])
            for lane in frame["lane_lines"]
        ]
        return {
            "image": (pixels - 0.45) / 0.25,
            "lanes": lanes,
            "intrinsic": torch.from_numpy(move @ np.array(frame["intrinsic"])),
        }


def collate(samples: list[dict[str, Any]]) -> dict[str, Any]:
    return {
        "image": torch.stack([each["image"] for each in samples]),
        "lanes": [each["lanes"] for each in samples],
        "intrinsic": torch.stack([each["intrinsic"] for each in samples]),
    }


def train(run: Run) -> list[float]:
    options = run.options
    size = (192, 256) if options.smoke else (720, 960)
    frames = Frames(options.data, size)
    sampler = distributed_sampler(frames, options.seed)
    loader = torch.utils.data.DataLoader(
        frames,
        batch_size=options.batch_size,
        shuffle=sampler is None,
        sampler=sampler,
        drop_last=True,
        num_workers=2,
        persistent_workers=True,
        collate_fn=collate,
    )
    model = run.model(Lanes())
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    losses = []
    for epoch in range(options.epochs):
        if sampler is not None:
            sampler.set_epoch(epoch)
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
