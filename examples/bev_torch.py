"""Team B before fastload: JPEGs and a JSON index, torch's DataLoader with worker processes.

python -m tools.makedata nuscenes images --n 32
python -m examples.bev_torch images --accumulate 4
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import nn

from examples.bev import CELLS, BirdsEye
from examples.common import Run, arguments, distributed_sampler, running, to_device


class Rigs(torch.utils.data.Dataset[dict[str, torch.Tensor]]):
    def __init__(self, folder: str, size: tuple[int, int]) -> None:
        self.folder, self.size = Path(folder), size
        self.samples = json.loads((self.folder / "samples.json").read_text())["samples"]

    def __len__(self) -> int:
        return len(self.samples)

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        sample = self.samples[index]
        cameras = [self.camera(each) for _, each in sorted(sample["cams"].items())]
        images, intrinsics, sensor2ego = (
            torch.stack(values) for values in zip(*cameras, strict=True)
        )
        mask = torch.from_numpy(
            np.asarray(Image.open(self.folder / sample["bev_mask"])).astype(np.int64)
        )
        return {
            "images": images,
            "intrinsics": intrinsics,
            "sensor2ego": sensor2ego,
            "bev_mask": mask,
        }

    def camera(self, camera: dict[str, object]) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        image = Image.open(self.folder / str(camera["filename"])).convert("RGB")
        scale_x, scale_y = self.size[1] / image.width, self.size[0] / (image.height - 140)
        image = image.crop((0, 140, image.width, image.height)).resize(
            self.size[::-1], Image.Resampling.BILINEAR
        )
        pixels = torch.from_numpy(np.asarray(image, np.float32) / 255).permute(2, 0, 1)
        move = torch.tensor([[scale_x, 0, 0], [0, scale_y, -140 * scale_y], [0, 0, 1]])
        return (
            (pixels - 0.45) / 0.25,
            move @ torch.tensor(camera["camera_intrinsic"]),
            torch.tensor(camera["sensor2ego"]),
        )


def train(run: Run) -> list[float]:
    options = run.options
    size = (128, 352) if options.smoke else (256, 704)
    rigs = Rigs(options.data, size)
    sampler = distributed_sampler(rigs, options.seed)
    loader = torch.utils.data.DataLoader(
        rigs,
        batch_size=options.batch_size,
        shuffle=sampler is None,
        sampler=sampler,
        drop_last=True,
        num_workers=2,
        persistent_workers=True,
    )
    model = run.model(BirdsEye())
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    losses = []
    for epoch in range(options.epochs):
        if sampler is not None:
            sampler.set_epoch(epoch)
        total = torch.zeros((), device=run.device)
        for step, loaded in enumerate(run.batches(loader), 1):
            with run.probe.stage("to_device"):
                batch = to_device(loaded, run.device)
            last = step % options.accumulate == 0 or step == len(loader)
            with run.accumulating(model, last=last):
                with run.probe.stage("forward"), run.autocast():
                    logits = model(
                        batch["images"], batch["intrinsics"].float(), batch["sensor2ego"].float()
                    )
                with run.probe.stage("loss"):
                    target = nn.functional.adaptive_max_pool2d(
                        (batch["bev_mask"] > 0).float(), CELLS
                    )
                    loss = nn.functional.binary_cross_entropy_with_logits(logits.float(), target)
                with run.probe.stage("backward"):
                    (loss / options.accumulate).backward()
            if last:
                with run.probe.stage("optimizer"):
                    optimizer.step()
                    optimizer.zero_grad()
            total += loss.detach()
        losses.append(total.item() / len(loader))
        run.log(f"epoch {epoch}: loss {losses[-1]:.3f}")
    return losses


if __name__ == "__main__":
    parser = arguments(__doc__, batch_size=1, epochs=6)
    parser.add_argument("--accumulate", type=int, default=4, help="batches per optimizer step")
    with running(parser.parse_args()) as run:
        train(run)
