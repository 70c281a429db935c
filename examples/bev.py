"""Team B: bird's-eye-view segmentation from six cameras, 1600x900 resized to 704x256.

The camera matrices follow the crop and the resize.

python -m tools.makedata nuscenes images --n 32
fastload pack images packed
python -m examples.bev packed --accumulate 4
"""

from __future__ import annotations

import torch
from torch import nn

import fastload
from examples.common import Run, arguments, conv, running, to_device
from fastload import transforms as T

# The view covers 100 m x 100 m around the car in cells of 2 m.
REACH_M = 50.0
CELLS = 50


class BirdsEye(nn.Module):
    """Projects each cell of the ground into every camera that sees it, samples the features there,
    averages them over the cameras, and classifies the cell with a small head."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(conv(3, 16), conv(16, 32), conv(32, 48))
        self.head = nn.Sequential(
            conv(48, 48, stride=1), conv(48, 48, stride=1), nn.Conv2d(48, 1, 1)
        )
        place = torch.linspace(REACH_M, -REACH_M, CELLS)
        ahead, left = torch.meshgrid(place, place, indexing="ij")
        self.register_buffer(
            "ground",
            torch.stack([ahead, left, torch.zeros_like(left), torch.ones_like(left)], -1).view(
                -1, 4
            ),
        )

    def forward(
        self, images: torch.Tensor, intrinsics: torch.Tensor, sensor2ego: torch.Tensor
    ) -> torch.Tensor:
        n, cameras, _, height, width = images.shape
        seen = self.net(images.flatten(0, 1)).float()
        # bfloat16 is too coarse for pixel coordinates.
        with torch.autocast(images.device.type, enabled=False):
            points = torch.linalg.inv(sensor2ego.flatten(0, 1)) @ self.ground.T
            points = intrinsics.flatten(0, 1) @ points[:, :3]
            depth = points[:, 2].clamp(min=0.1)
            at = (
                torch.stack([points[:, 0] / depth / width, points[:, 1] / depth / height], -1) * 2
                - 1
            )
            visible = (points[:, 2] > 0.1) & (at.abs() < 1).all(-1)
            found = (
                nn.functional.grid_sample(seen, at[:, None], align_corners=False)[:, :, 0]
                * visible[:, None]
            )
        count = visible.view(n, cameras, 1, -1).sum(1).clamp(min=1)
        view = (found.view(n, cameras, found.shape[1], -1).sum(1) / count).view(n, -1, CELLS, CELLS)
        logits: torch.Tensor = self.head(view)
        return logits[:, 0]


def train(run: Run) -> list[float]:
    options = run.options
    size = (128, 352) if options.smoke else (256, 704)
    loader = fastload.DataLoader(
        options.data,
        batch_size=options.batch_size,
        shuffle=True,
        drop_last=True,
        seed=options.seed,
        fields=("images", "intrinsics", "sensor2ego", "bev_mask"),
        transform=[T.Crop(top=140), T.Resize(*size), T.Normalize(0.45, 0.25)],
    )
    model = run.model(BirdsEye())
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    losses = []
    for epoch in range(options.epochs):
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
