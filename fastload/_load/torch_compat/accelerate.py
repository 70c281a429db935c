"""Hugging Face Accelerate: ``accelerator.prepare(loader)`` returns the fastload loader unchanged.

Accelerate would otherwise rebuild it as a plain torch DataLoader and split its batches among the
processes a second time. The loader therefore reports that it is prepared, and behaves like a
prepared loader: batches are on the device of the accelerator, and ``accelerator.accumulate`` knows
the last batch of an epoch. With ``use_stateful_dataloader`` set, ``save_state`` saves its position.

``skip_first_batches`` builds a plain loader from the dataset, batch sampler and collate function of
any loader. The batch sampler and collate function of a prepared fastload loader do the same there.
"""

from __future__ import annotations

import sys
import weakref
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import torch

from fastload._common.nested import map_tensors
from fastload.errors import ConfigError

if TYPE_CHECKING:
    from fastload._load.iterator import LoaderIterator
    from fastload._load.loader import DataLoader


def check_device(device: torch.device) -> None:
    """Raises ConfigError if batches would not be on the device of the accelerator."""
    from accelerate.state import PartialState

    wanted = PartialState().device
    if wanted.type != device.type:
        raise ConfigError(
            f"accelerator.prepare(loader): batches are on {device}, expected {wanted}, the device "
            "of the accelerator. Pass device=accelerator.device to fastload.DataLoader"
        )


class PrepareWhenTested:
    """The value of ``loader._is_accelerate_prepared``. Its truth test prepares the loader.

    Accelerate does not rebuild a loader whose attribute is true. ``accelerator.prepare`` sets the
    attribute, but ``accelerator.prepare_data_loader`` only tests it, and no other call reveals that
    the loader is being prepared. Reading the attribute without a truth test has no effect.
    """

    def __init__(self, prepare: Callable[[], bool]) -> None:
        self._prepare = prepare

    def __bool__(self) -> bool:
        return "accelerate" in sys.modules and self._prepare()


def _report_start(loader: DataLoader) -> Any:
    """Reports the start of an iteration to Accelerate; returns its gradient state."""
    from accelerate.state import GradientState

    state = GradientState()
    loader.end_of_dataloader = False
    loader.remainder = -1  # gather_for_metrics keeps all samples
    state._add_dataloader(loader)
    return state


class AcceleratedIterator:
    """Reports the start, the last batch and the end of an iteration to Accelerate."""

    def __init__(self, loader: DataLoader, iterator: LoaderIterator) -> None:
        self._loader = loader
        self._iterator = iterator
        self._state = _report_start(loader)

    def __iter__(self) -> AcceleratedIterator:
        return self

    def __next__(self) -> Any:
        try:
            batch = next(self._iterator)
        except BaseException:
            self.close()
            raise
        self._loader.end_of_dataloader = self._iterator.at_end
        return batch

    def __len__(self) -> int:
        return len(self._iterator)

    def close(self) -> None:

        if self._state is not None:
            self._state._remove_dataloader(self._loader)
            self._state = None
        self._iterator.close()

    def __del__(self) -> None:
        self.close()


class PreparedBatches(torch.utils.data.BatchSampler):
    """The batch sampler of a prepared loader. Reports to Accelerate like AcceleratedIterator.

    It starts at the first batch of an epoch even after ``load_state``, because scripts load the
    state and then skip batches themselves.
    """

    def __init__(self, loader: DataLoader, batches: Any) -> None:
        super().__init__(loader.sampler, loader.batch_size or 1, loader.drop_last)
        self._loader = weakref.ref(loader)  # must not keep the loader alive
        self._batches = batches

    def __iter__(self) -> Iterator[list[int]]:
        loader = self._loader()
        if loader is None:
            yield from self._batches
            return
        loader.order.discard_resume_point()
        state = _report_start(loader)
        try:
            for number, batch in enumerate(self._batches, 1):
                loader.end_of_dataloader = number == len(self)
                yield batch
        finally:
            state._remove_dataloader(loader)

    def __len__(self) -> int:
        return len(self._batches)

    def set_epoch(self, epoch: int) -> None:
        if hasattr(self._batches, "set_epoch"):
            self._batches.set_epoch(epoch)


class CollateOnto:
    """The collate function of a prepared loader. Moves batches to the device of the accelerator.

    Worker processes leave them on the CPU.
    """

    def __init__(self, collate: Callable[[Any], Any], device: torch.device) -> None:
        self._collate = collate
        self._device = device

    def __call__(self, samples: Any) -> Any:
        batch = self._collate(samples)
        if torch.utils.data.get_worker_info() is not None:
            return batch
        return map_tensors(batch, lambda tensor: tensor.to(self._device, non_blocking=True))
