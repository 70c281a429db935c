"""A loader to run without being noticed: a private copy where one can be made, random generators put back afterwards."""

from __future__ import annotations

import copy
import random
from collections.abc import Iterable, Iterator
from types import TracebackType
from typing import Any

import numpy as np
import torch

from fastload._load.loader import DataLoader
from fastload._tools.diagnose.device import gpu_in_use
from fastload.errors import ConfigError


class Source:
    """The user's loader, opened for timing. Iterations are ours; workers end with ``close``."""

    def __init__(self, loader: Iterable[Any]) -> None:
        if not hasattr(loader, "__iter__") and not hasattr(loader, "__getitem__"):
            raise ConfigError(
                f"diagnose: expected a loader to iterate over, found {type(loader).__name__}"
            )
        self.kind = (
            "fastload"
            if isinstance(loader, DataLoader)
            else "torch"
            if isinstance(loader, torch.utils.data.DataLoader)
            else "other"
        )
        self.loader: Any = loader
        if self.kind != "other":
            self.loader = copy.copy(
                loader
            )  # a fastload loader copies itself as a new one, with its own threads
            if self.kind == "torch":
                self.loader.__dict__["_iterator"] = (
                    None  # persistent workers of the user's own iteration stay his
                )
        self._iterators: list[Any] = []
        self.once = self.kind == "other" and hasattr(loader, "__next__")

    @classmethod
    def of(cls, loader: Any) -> Source:
        """A loader that is ours already: not copied again."""
        made = cls([])
        made.kind, made.loader, made.once = "torch", loader, False
        return made

    @property
    def workers(self) -> int | None:
        """Worker processes of torch, threads of fastload."""
        if self.kind == "fastload":
            return int(self.loader.stats().threads)
        return int(self.loader.num_workers) if self.kind == "torch" else None

    @property
    def fixed_threads(self) -> int | None:
        """Decode threads of a fastload loader whose user has given a number."""
        given = self.loader._options.num_workers if self.kind == "fastload" else None
        return None if given is None else max(1, int(given))

    @property
    def group(self) -> int:
        """Batches come in groups of as many as there are worker processes."""
        return max(1, (self.workers or 0) if self.kind == "torch" else 0)

    @property
    def length(self) -> int | None:
        """Batches of an epoch, where it is known."""
        try:
            return len(self.loader)
        except (TypeError, NotImplementedError, AttributeError):
            return None

    def batches(self) -> Iterator[Any]:
        """A new pass; what the loader raises comes out as one ConfigError that names the batch."""
        number = 0
        try:
            iterator = iter(self.loader)
            self._iterators.append(iterator)
            for number, batch in enumerate(iterator, 1):  # noqa: B007 - for the message
                yield batch
        except (ConfigError, GeneratorExit):
            raise
        except Exception as error:
            raise ConfigError(
                f"diagnose: the loader raised {short(error)} (after {number} batches); run it alone to see more"
            ) from error

    def end_pass(self) -> None:
        """Ends iterations that were left in the middle."""
        for iterator in self._iterators:
            for name in ("_shutdown_workers", "close"):
                if self.kind != "other" and hasattr(iterator, name):
                    getattr(iterator, name)()
        self._iterators.clear()
        if self.kind == "torch":
            self.loader.__dict__["_iterator"] = None

    def close(self) -> None:
        """Ends workers and threads."""
        self.end_pass()
        if self.kind == "fastload":
            self.loader.close()


def short(error: BaseException) -> str:
    """Class and first line of an error; the last one where torch has put a worker's whole traceback into the message."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    line = (
        lines[
            -1
            if any(each.startswith("Traceback ") or "Original Traceback" in each for each in lines)
            else 0
        ]
        if lines
        else ""
    )
    name = type(error).__name__
    return line if line.startswith(f"{name}:") else f"{name}: {line}" if line else name


class RandomState:
    """A context behind which torch's, numpy's and Python's random numbers go on as if nothing had happened."""

    def __init__(self, loader: object = None) -> None:
        places = [
            loader,
            *(getattr(loader, name, None) for name in ("sampler", "batch_sampler", "dataset")),
        ]
        places.append(getattr(getattr(loader, "batch_sampler", None), "sampler", None))
        found = (getattr(place, "generator", None) for place in places if place is not None)
        self._generators = [each for each in found if isinstance(each, torch.Generator)]

    def __enter__(self) -> RandomState:
        self._python, self._numpy = random.getstate(), np.random.get_state()
        self._torch = torch.get_rng_state()
        self._cuda: list[torch.Tensor] = []
        if gpu_in_use():
            from fastload._common.cuda import random_states

            self._cuda = random_states()
        self._states = [each.get_state() for each in self._generators]
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        random.setstate(self._python)
        np.random.set_state(self._numpy)
        torch.set_rng_state(self._torch)
        if self._cuda:
            from fastload._common.cuda import restore_random

            restore_random(self._cuda)
        for generator, state in zip(self._generators, self._states, strict=True):
            generator.set_state(state)
