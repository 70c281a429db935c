"""Hugging Face Accelerate: ``accelerator.prepare(loader)`` returns a fastload loader itself.

Accelerate would rebuild it as a plain torch DataLoader and split its batches among the processes a second time. So the loader
reports that it is prepared, and keeps the two promises of a prepared loader: batches are on the accelerator's device, and
``accelerator.accumulate`` knows the last batch of an epoch. With ``use_stateful_dataloader`` set, ``save_state`` saves its position.

``skip_first_batches`` builds a plain loader from the dataset, batch sampler and collate function of any loader: those of a prepared
loader keep the two promises there.
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
    """Raises ConfigError if the loader's batches would be on another device than the accelerator's."""
    from accelerate.state import PartialState

    wanted = PartialState().device
    if wanted.type != device.type:
        raise ConfigError(
            f"accelerator.prepare(loader): the accelerator works on {wanted}, the loader's batches come on {device}; "
            "make it with fastload.DataLoader(..., device=accelerator.device)"
        )


class PreparedFlag:
    """The value of ``loader._is_accelerate_prepared``, which marks a loader that Accelerate takes as it is.

    ``accelerator.prepare`` sets the attribute, but ``accelerator.prepare_data_loader`` alone only tests it: that test is the one sign
    that the loader is being prepared. So the truth value prepares the loader, and reading the attribute has no effect.
    """

    def __init__(self, prepare: Callable[[], bool]) -> None:
        self._prepare = prepare

    def __bool__(self) -> bool:
        # Without Accelerate there is nothing to prepare for.
        return "accelerate" in sys.modules and self._prepare()


class AcceleratedIterator:
    """Reports to Accelerate's gradient state where an iteration begins, which batch is the last, and where it ends."""

    def __init__(self, loader: DataLoader, iterator: LoaderIterator) -> None:
        from accelerate.state import GradientState

        self._loader = loader
        self._iterator = iterator
        self._state = GradientState()
        loader.end_of_dataloader = False
        loader.remainder = -1  # gather_for_metrics cuts nothing off
        self._state._add_dataloader(loader)

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
        """Ends the pass."""
        if self._state is not None:
            self._state._remove_dataloader(self._loader)
            self._state = None
        self._iterator.close()

    def __del__(self) -> None:
        self.close()


class PreparedBatches(torch.utils.data.BatchSampler):
    """The batch sampler of a prepared loader: reports to the gradient state as AcceleratedIterator does.

    It starts at the first batch of an epoch, also after ``load_state``: scripts load the state *and* skip batches themselves.
    """

    def __init__(self, loader: DataLoader, batches: Any) -> None:
        super().__init__(loader.sampler, loader.batch_size or 1, loader.drop_last)
        self._loader = weakref.ref(loader)  # weak: a loader is freed with its last user
        self._batches = batches

    def __iter__(self) -> Iterator[list[int]]:
        from accelerate.state import GradientState

        loader = self._loader()
        if loader is None:
            yield from self._batches
            return
        state = GradientState()
        loader.order.discard_resume_point()
        loader.end_of_dataloader = False
        loader.remainder = -1
        state._add_dataloader(loader)
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
    """The collate function of a prepared loader: moves batches to the accelerator's device, but not in a worker process."""

    def __init__(self, collate: Callable[[Any], Any], device: torch.device) -> None:
        self._collate = collate
        self._device = device

    def __call__(self, samples: Any) -> Any:
        batch = self._collate(samples)
        if torch.utils.data.get_worker_info() is not None:
            return batch
        return map_tensors(batch, lambda tensor: tensor.to(self._device, non_blocking=True))
