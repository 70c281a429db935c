"""CPU time of rotating an image with the native core and torch, and of other transforms.

    python benchmarks/warp.py [--rounds N]

Rounds are interleaved. Figures are CPU time with one thread each.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # so that it also runs as a script

import torch

import fastload
from benchmarks.loads import RRC, pack_photos
from benchmarks.machine import describe, spread
from fastload import transforms as T
from fastload._finish.warp import sample_affine, warp_affine
from fastload._plan.warps import affine_op
from fastload.transforms import compile

AFFINE = T.RandomAffine(15, (0.1, 0.1), (0.9, 1.1), 5)
LISTS = {
    "RandomResizedCrop(224), flip": RRC,
    "... VerticalFlip": [*RRC, T.VerticalFlip()],
    "... RandomAffine": [*RRC, AFFINE],
    "... ColorJitter": [*RRC, T.ColorJitter(0.4, 0.4, 0.4, 0.1)],
    "... GaussianBlur(9)": [*RRC, T.GaussianBlur(9)],
}
N = 8  # images per call, as the helper threads of the loader process 224x224


def main() -> int:
    options = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    options.add_argument("--rounds", type=int, default=15)
    options.add_argument(
        "--copies", type=int, default=4, help="copies of each photograph of the corpus"
    )
    args = options.parse_args()
    for key, value in describe("torch").items():
        print(f"{key:>24}: {value}")
    torch.set_num_threads(1)
    rows = compile([AFFINE]).rows(range(N), [(224, 224)] * N, seed=0, epoch=0)
    x = torch.rand(N, 3, 224, 224) * 255
    inverse = torch.from_numpy(rows.parameters)
    fill = torch.zeros(1)
    op = affine_op((0,))
    _print(
        "224x224x3 rotated, us per image",
        _compared(
            {
                "native core": lambda: _repeated(lambda: warp_affine(op, x, inverse)),
                "torch grid_sample": lambda: _repeated(lambda: sample_affine(x, inverse, fill)),
            },
            args.rounds,
        ),
    )
    with tempfile.TemporaryDirectory() as folder:
        packed = pack_photos(Path(folder), args.copies)
        loaders = {
            name: fastload.DataLoader(
                packed, 64, shuffle=True, drop_last=True, transform=each, num_workers=2
            )
            for name, each in LISTS.items()
        }
        epochs = {name: _epoch(each) for name, each in loaders.items()}
        _print("photographs through the loader, us per image", _compared(epochs, args.rounds))
    return 0


def _repeated(run: Callable[[], object]) -> int:
    for _ in range(10):
        run()
    return 10 * N


def _epoch(loader: fastload.DataLoader) -> Callable[[], int]:
    return lambda: sum(len(images) for images, _ in loader)


def _compared(contestants: dict[str, Callable[[], int]], rounds: int) -> dict[str, list[float]]:
    """CPU microseconds per image of each round except the first."""
    found: dict[str, list[float]] = {name: [] for name in contestants}
    for turn in range(rounds + 1):
        for name in list(contestants) if turn % 2 else reversed(list(contestants)):
            began = time.process_time()
            n = contestants[name]()
            if turn:
                found[name].append(1e6 * (time.process_time() - began) / n)
    return found


def _print(what: str, found: dict[str, list[float]]) -> None:
    first = next(iter(found.values()))
    print(what)
    for name, times in found.items():
        ratios = [one / other for one, other in zip(times, first, strict=True)]
        print(f"  {name:32} {spread(times):24}  {spread(ratios)} times the first")


if __name__ == "__main__":
    sys.exit(main())
