"""Random cases for the fused kernel. Also a program that runs them in the Triton interpreter."""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from fastload._decode.backend import Filter, PixelFormat
from fastload._decode.gpu.fused import JOB, Jobs, kernel_problem, place
from fastload._decode.gpu.nvimgcodec import has_pattern, write_pattern

DTYPES = (torch.uint8, torch.float32, torch.float16, torch.bfloat16)


@dataclass(frozen=True, slots=True)
class Case:
    jobs: Jobs
    images: list[torch.Tensor]
    pixels: PixelFormat
    output: torch.Tensor  # 77 everywhere

    def placed(self, *, triton: bool) -> torch.Tensor:
        output = self.output.clone()
        place(self.jobs, self.images, output, self.pixels, triton=triton)
        return output


def random_case(
    seed: int, *, n: int = 4, largest: int = 90, canvas: int = 60, smallest: int = 1
) -> Case:
    """Returns a random case. The slots are shuffled, and one more slot than images exists."""
    rng = np.random.default_rng(seed)
    channels, dtype = (1, 3, 3)[seed % 3], DTYPES[seed % 4]
    width, height = rng.integers(smallest, canvas + 1, 2).tolist()
    jobs = np.zeros(n, JOB)
    images = []
    for job in jobs:
        whole = torch.from_numpy(
            rng.integers(0, 256, (*rng.integers(1, largest, 2).tolist(), channels), np.uint8)
        )
        x, y = int(rng.integers(0, whole.shape[1])), int(rng.integers(0, whole.shape[0]))
        part = whole[y:, x:]  # the pitch is larger than the row
        images.append(part)
        job["in_h"], job["in_w"] = part.shape[:2]
        job["out_w"], job["out_h"] = (
            rng.integers(smallest, width + 1),
            rng.integers(smallest, height + 1),
        )
        job["left"], job["top"] = (
            rng.integers(0, width - job["out_w"] + 1),
            rng.integers(0, height - job["out_h"] + 1),
        )
        job["flip"], job["filter"] = rng.integers(0, 2), rng.choice(list(Filter))
    jobs["slot"] = rng.permutation(n + 1)[:n]
    color: Any = "gray" if channels == 1 else ("rgb", "bgr")[seed % 2]
    layout: Any = ("nchw", "nhwc")[seed // 2 % 2]
    pixels = PixelFormat(
        layout,
        color,
        tuple(range(9, 9 + channels)),
        (0.48, 0.46, 0.41)[:channels],
        (0.22, 0.23, 0.24)[:channels],
    )
    shape = (
        (n + 1, channels, height, width) if layout == "nchw" else (n + 1, height, width, channels)
    )
    return Case(jobs, images, pixels, torch.full(shape, 77, dtype=dtype))


def gray_to_color(seed: int) -> Case:
    """Returns a case with one input channel and three output channels."""
    case = random_case(3 * seed, n=2, canvas=24, largest=30, smallest=12)
    pixels = PixelFormat("nchw", "bgr", (1, 2, 3))
    return Case(
        case.jobs,
        case.images,
        pixels,
        torch.full((len(case.jobs) + 1, 3, 40, 40), 77, dtype=torch.uint8),
    )


def interpreted(seeds: list[int]) -> list[int]:
    """Returns the seeds for which the kernel and the torch path differ.

    Also returns -1 if the pattern probe differs, and -2 if the kernel cannot run.
    """
    cases = [(seed, random_case(seed, n=2, largest=30, canvas=34, smallest=16)) for seed in seeds]
    cases += [(100 + seeds[0], gray_to_color(seeds[0]))]
    wrong = [
        seed
        for seed, case in cases
        if not torch.equal(case.placed(triton=True), case.placed(triton=False))
    ]
    spots = [torch.zeros(size, dtype=torch.uint8) for size in (1, 3, 255, 1000, 70_001)]
    others = [torch.zeros_like(spot) for spot in spots]
    write_pattern(spots, triton=True)
    write_pattern(others, triton=False)
    same = all(torch.equal(one, other) for one, other in zip(spots, others, strict=True))
    spots[3][:] = 0
    spots[4][: len(spots[4]) * 9 // 10] = 0  # the last tenth was not written
    found = has_pattern(spots, triton=True)
    if kernel_problem(torch.device("cpu")):
        wrong.append(-2)
    return wrong + (
        []
        if same and found == has_pattern(spots, triton=False) == [True, True, True, False, True]
        else [-1]
    )


if __name__ == "__main__":
    print(json.dumps(interpreted([int(word) for word in sys.argv[1:]])))
