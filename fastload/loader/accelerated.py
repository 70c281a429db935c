"""Hugging Face Accelerate: ``accelerator.prepare(loader)`` hands a fastload loader back as it is.

Accelerate would rebuild it as a plain torch DataLoader and deal its batches out to the processes once more; but it deals by itself.
So it says that it is prepared, and keeps the two promises of a prepared loader: the batches are on the accelerator's device, and
``accelerator.accumulate`` knows the last batch of an epoch. With ``use_stateful_dataloader`` set, ``save_state`` keeps its place, too.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from fastload.errors import ConfigError

if TYPE_CHECKING:
    from fastload.loader.iterator import LoaderIterator
    from fastload.loader.loader import DataLoader


def check_device(device: torch.device) -> None:
    """Raises ConfigError where the loader's batches would be on another device than the accelerator's."""
    from accelerate.state import PartialState

    wanted = PartialState().device
    if wanted.type != device.type:
        raise ConfigError(f"accelerator.prepare(loader): the accelerator works on {wanted}, the loader's batches come on {device}; "
                          "make it with fastload.DataLoader(..., device=accelerator.device)")


class AcceleratedIterator:
    """Tells Accelerate's gradient state where an iteration begins, which batch is the last, and where it ends."""

    def __init__(self, loader: DataLoader, iterator: LoaderIterator) -> None:
        from accelerate.state import GradientState

        self._loader, self._iterator, self._state = loader, iterator, GradientState()
        loader.end_of_dataloader, loader.remainder = False, -1      # -1: nothing to cut off, whoever gathers gets what was loaded
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
