"""torch's DataLoader arguments: each is honoured, or answered with one sentence why it has no meaning here."""

from __future__ import annotations

import difflib
import os
import warnings
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from fastload._common.cpus import available_cpus
from fastload.errors import ConfigError

if TYPE_CHECKING:
    import torch

# Argument → why it does nothing. Values that torch has as defaults are silent.
NO_MEANING = {
    "worker_init_fn": "there are no worker processes: images are decoded by threads of this process",
    "multiprocessing_context": "there are no worker processes: images are decoded by threads of this process",
    "persistent_workers": "the decode threads live as long as the loader anyway",
    "pin_memory_device": "name the device itself with device=",
    "in_order": "batches always come in order",
}
_SILENT = {
    "worker_init_fn": (None,),
    "multiprocessing_context": (None,),
    "persistent_workers": (False, True),
    "pin_memory_device": ("",),
    "in_order": (True,),
}

MAX_THREADS = 1024


@dataclass(frozen=True, slots=True)
class Ranks:
    """Which of how many processes this one is, and how many of them share this machine."""

    rank: int
    world: int
    local_world: int

    @staticmethod
    def here(rank: int | None = None, world: int | None = None) -> Ranks:
        """From torch.distributed where it is initialised, else from torchrun's environment, else one process."""
        import torch.distributed as dist

        found_rank, found_world = 0, 1
        if dist.is_available() and dist.is_initialized():
            found_rank, found_world = dist.get_rank(), dist.get_world_size()
        elif "TORCHELASTIC_RUN_ID" in os.environ:
            found_rank, found_world = (
                int(os.environ.get("RANK", "0")),
                int(os.environ.get("WORLD_SIZE", "1")),
            )
        rank, world = found_rank if rank is None else rank, found_world if world is None else world
        if type(rank) is not int or type(world) is not int or not 0 <= rank < world:
            raise ConfigError(
                f"rank={rank!r:.40}, world_size={world!r:.40}: expected a rank from 0 to world_size - 1"
            )
        return Ranks(rank, world, max(1, min(_local_world() or world, world)))


def _local_world() -> int:
    """How many ranks share this machine, as torchrun, Open MPI or Slurm say; 0 = nobody says."""
    for name in ("LOCAL_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE", "SLURM_NTASKS_PER_NODE"):
        value = os.environ.get(name, "")
        if value.isdigit():
            return int(value)
    return 0


def warn_without_meaning(given: dict[str, object], known: Iterable[str] = ()) -> None:
    """Says in one sentence, for each argument that does nothing here, why; ``known``: those that do something."""
    for name, value in given.items():
        if name not in NO_MEANING:
            near = difflib.get_close_matches(name, known, n=1)
            hint = (
                f"did you mean {near[0]!r}?"
                if near
                else f"it has {', '.join(known)}, and torch's that do nothing here: "
                f"{', '.join(sorted(NO_MEANING))}"
            )
            raise TypeError(f"fastload.DataLoader got an unexpected argument {name!r}; {hint}")
        if not any(
            value is silent or (type(value) is str and value == silent) for silent in _SILENT[name]
        ):
            warnings.warn(
                f"fastload.DataLoader: {name} has no effect: {NO_MEANING[name]}",
                UserWarning,
                stacklevel=3,
            )


def thread_budget(num_workers: int | None, local_world: int) -> int:
    """How many decode threads this rank may use: what was asked, else its part of the processors this job has."""
    if num_workers is None:
        return max(1, available_cpus() // local_world)
    if type(num_workers) is not int or not 0 <= num_workers <= MAX_THREADS:
        raise ConfigError(
            f"num_workers={num_workers!r:.40}: expected None (decided for you) or 0..{MAX_THREADS} decode threads"
        )
    return max(1, num_workers)


def seed_from(seed: int | None, generator: torch.Generator | None) -> int:
    """The seed itself, else one that follows from torch's generator as a shuffling torch DataLoader's order does, else 0."""
    if seed is not None:
        if type(seed) is not int or not 0 <= seed < 2**63:
            raise ConfigError(f"seed={seed!r:.40}: expected a whole number 0..2**63 - 1")
        return seed
    if generator is not None and not hasattr(generator, "initial_seed"):
        raise ConfigError(f"generator={generator!r:.40}: expected a torch.Generator, or None")
    return int(generator.initial_seed()) % 2**63 if generator is not None else 0


def batches_ahead(prefetch_factor: int | None) -> int:
    """Batches begun or ready before they are asked for; torch's prefetch_factor, but for all threads together."""
    if prefetch_factor is None:
        return 3  # one being handed over, one being finished, one so that no thread idles at a batch's end
    if type(prefetch_factor) is not int or not 1 <= prefetch_factor <= 1024:
        raise ConfigError(
            f"prefetch_factor={prefetch_factor!r:.40}: expected 1..1024 batches, or None"
        )
    return prefetch_factor


def checked_timeout(timeout: float) -> float | None:
    """Seconds to wait for a batch; None = for ever, torch's 0."""
    if (
        isinstance(timeout, bool)
        or not isinstance(timeout, int | float)
        or not 0 <= timeout < float("inf")
    ):
        raise ConfigError(f"timeout={timeout!r:.40}: expected seconds, 0 = wait for ever")
    return timeout or None


def checked_order(
    batch_size: int | None,
    shuffle: bool | str | None,
    sampler: object,
    batch_sampler: object,
    drop_last: bool,
) -> None:
    """What torch refuses, too: arguments that contradict each other. Raises ConfigError."""
    if shuffle not in (None, True, False, "full"):
        raise ConfigError(f"shuffle={shuffle!r:.40}: expected True (blocks), 'full' or False")
    if batch_size is not None and (type(batch_size) is not int or batch_size < 1):
        raise ConfigError(
            f"batch_size={batch_size!r:.40}: expected a number of samples, 1 or more, or None for single samples"
        )
    if sampler is not None and shuffle:
        raise ConfigError(
            "shuffle and a sampler of your own: the sampler decides the order, leave shuffle out"
        )
    if batch_sampler is not None and (
        batch_size not in (None, 1) or shuffle or sampler is not None or drop_last
    ):
        raise ConfigError(
            "batch_sampler decides batches and order: leave batch_size, shuffle, sampler and drop_last out"
        )
    if batch_size is None and batch_sampler is None and drop_last:
        raise ConfigError("batch_size=None hands out single samples: drop_last has nothing to drop")


def last_batch_mode(last_batch: str | None, drop_last: bool, world: int) -> str:
    """How an epoch ends: as the user says, else as torch does on one rank and on several. Raises ConfigError."""
    if last_batch is not None and drop_last and last_batch != "drop":
        raise ConfigError(f"drop_last=True and last_batch={last_batch!r:.40}: give one of the two")
    return last_batch or ("drop" if drop_last else "pad" if world > 1 else "partial")
