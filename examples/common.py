"""Shared by the five trainers: command line, torchrun, device, mixed precision, StepProbe."""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

import fastload


@dataclass(frozen=True)
class Run:
    """One training process. ``torchrun --nproc-per-node 4 -m examples.lanes ...`` starts four."""

    options: argparse.Namespace
    device: torch.device
    probe: fastload.StepProbe
    main: bool  # the process that prints and saves

    def model(self, net: nn.Module) -> nn.Module:
        """Moves a model to the device and wraps it in DistributedDataParallel under torchrun."""
        net = net.to(self.device)
        return (
            nn.parallel.DistributedDataParallel(net) if torch.distributed.is_initialized() else net
        )

    def autocast(self) -> torch.autocast:
        """Mixed precision with --amp. bfloat16 needs no loss scaling."""
        return torch.autocast(self.device.type, torch.bfloat16, enabled=self.options.amp)

    def accumulating(self, model: nn.Module, *, last: bool) -> AbstractContextManager[None]:
        """Context for forward and backward that skips the gradient all-reduce before the last batch
        of an accumulation."""
        return (
            nullcontext()
            if last or not isinstance(model, nn.parallel.DistributedDataParallel)
            else model.no_sync()
        )

    def batches(self, loader: Any) -> Iterable[Any]:
        """The batches of an epoch, timed by the probe. Exits with a message if there are none."""
        if not len(loader):
            raise SystemExit(
                f"{self.options.data}: {len(loader.dataset)} samples are too few for one batch of "
                f"{self.options.batch_size} per process. Use a smaller --batch-size or more data."
            )
        return self.probe.watch(loader)

    def log(self, text: str) -> None:
        if self.main:
            print(text, flush=True)


def arguments(about: str | None, *, batch_size: int, epochs: int) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        description=about, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("data", help="packed dataset (for *_torch.py: the source folder)")
    parser.add_argument("--epochs", type=int, default=epochs)
    parser.add_argument(
        "--batch-size", type=int, default=batch_size, help="samples per process and step"
    )
    parser.add_argument("--amp", action="store_true", help="train with bfloat16 autocast")
    parser.add_argument(
        "--metrics",
        default="metrics.jsonl",
        help="file for step times, read by fastload doctor and fastload report",
    )
    parser.add_argument(
        "--every",
        type=int,
        default=10,
        help="steps per row of the metrics file (default: %(default)s)",
    )
    parser.add_argument("--smoke", action="store_true", help="small images, to check that it runs")
    parser.add_argument("--seed", type=int, default=0)
    return parser


@contextmanager
def running(options: argparse.Namespace) -> Iterator[Run]:
    """Sets up device, process group and probe, and closes them at the end."""
    # The ranks may differ: DDP copies the weights of rank 0 to all of them.
    torch.manual_seed(options.seed + int(os.environ.get("RANK", "0")))
    cuda = torch.cuda.is_available()
    local = int(os.environ.get("LOCAL_RANK", "0"))
    if cuda:
        torch.cuda.set_device(local)
    if "WORLD_SIZE" in os.environ:
        torch.distributed.init_process_group("nccl" if cuda else "gloo")
    device = torch.device("cuda", local) if cuda else torch.device("cpu")
    try:
        with fastload.StepProbe(options.metrics, every=options.every) as probe:
            yield Run(options, device, probe, os.environ.get("RANK", "0") == "0")
    finally:
        if torch.distributed.is_initialized():
            torch.distributed.destroy_process_group()


def conv(inside: int, outside: int, *, stride: int = 2) -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(inside, outside, 3, stride, 1, bias=False), nn.BatchNorm2d(outside), nn.ReLU()
    )


def to_device(batch: dict[str, Any], device: torch.device) -> dict[str, Any]:
    """Moves the tensors of a batch, also inside lists, to a device."""

    def move(value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            return value.to(device, non_blocking=True)
        return [move(each) for each in value] if isinstance(value, list) else value

    return {name: move(value) for name, value in batch.items()}


def distributed_sampler(
    dataset: torch.utils.data.Dataset[Any], seed: int
) -> torch.utils.data.DistributedSampler[Any] | None:
    """A DistributedSampler for torch's DataLoader under torchrun, else None."""
    return (
        torch.utils.data.DistributedSampler(dataset, seed=seed)
        if torch.distributed.is_initialized()
        else None
    )
