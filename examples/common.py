"""What the five trainers share: the command line, torchrun's processes, the right device, mixed precision, and the probe."""

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
    """One process of a training; ``torchrun --nproc-per-node 4 -m examples.lanes ...`` starts four."""

    options: argparse.Namespace
    device: torch.device
    probe: fastload.StepProbe
    main: bool  # the process that prints and saves

    def model(self, net: nn.Module) -> nn.Module:
        """On its device, its gradients averaged over the processes where there are several."""
        net = net.to(self.device)
        return (
            nn.parallel.DistributedDataParallel(net) if torch.distributed.is_initialized() else net
        )

    def autocast(self) -> torch.autocast:
        """bfloat16 needs no loss scaling. The type is a torch.dtype, never a word that something might compare with 'bf16'."""
        return torch.autocast(self.device.type, torch.bfloat16, enabled=self.options.amp)

    def gathering(self, model: nn.Module, *, last: bool) -> AbstractContextManager[None]:
        """For forward and backward: only the last batch of an accumulation has the processes exchange their gradients."""
        return (
            nullcontext()
            if last or not isinstance(model, nn.parallel.DistributedDataParallel)
            else model.no_sync()
        )

    def batches(self, loader: Any) -> Iterable[Any]:
        """An epoch's batches, watched by the probe. None at all is said as what it is: a loss has no mean then."""
        if not len(loader):
            raise SystemExit(
                f"{self.options.data}: its {len(loader.dataset)} samples give no full batch of {self.options.batch_size} on "
                "every process: take a smaller --batch-size, or more data"
            )
        return self.probe.watch(loader)

    def say(self, text: str) -> None:
        if self.main:
            print(text, flush=True)


def arguments(about: str | None, *, batch_size: int, epochs: int) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        description=about, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "data", help="packed dataset (the *_torch.py versions: the folder it was packed from)"
    )
    parser.add_argument("--epochs", type=int, default=epochs)
    parser.add_argument(
        "--batch-size", type=int, default=batch_size, help="samples per process and step"
    )
    parser.add_argument("--amp", action="store_true", help="compute in bfloat16 where that is safe")
    parser.add_argument(
        "--metrics",
        default="metrics.jsonl",
        help="step times, for fastload doctor and fastload report",
    )
    parser.add_argument(
        "--every", type=int, default=10, help="steps a row of it (default: %(default)s)"
    )
    parser.add_argument(
        "--smoke", action="store_true", help="small pictures, few steps: does it run here?"
    )
    parser.add_argument("--seed", type=int, default=0)
    return parser


@contextmanager
def running(options: argparse.Namespace) -> Iterator[Run]:
    """Sets up what torchrun asks for, and takes it down again whatever happens."""
    torch.manual_seed(
        options.seed + int(os.environ.get("RANK", "0"))
    )  # DDP starts all processes with the first one's weights
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


def moved(batch: dict[str, Any], device: torch.device) -> dict[str, Any]:
    """The tensors of a batch on a device; lists of tensors, too."""

    def move(value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            return value.to(device, non_blocking=True)
        return [move(each) for each in value] if isinstance(value, list) else value

    return {name: move(value) for name, value in batch.items()}


def dealt(
    dataset: torch.utils.data.Dataset[Any], seed: int
) -> torch.utils.data.DistributedSampler[Any] | None:
    """For torch's own DataLoader: each process its part of the samples."""
    return (
        torch.utils.data.DistributedSampler(dataset, seed=seed)
        if torch.distributed.is_initialized()
        else None
    )
