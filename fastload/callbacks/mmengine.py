"""For MMEngine: a hook that times the training loop, and the loader's parts in MMEngine's registries.

``custom_imports=dict(imports=["fastload.callbacks.mmengine"])`` in a config registers all of them; docs/frameworks/mmengine.md
shows both. ``Runner.build_dataloader`` makes a plain torch DataLoader out of a dataset, a sampler and a batch sampler; these are a
fastload loader's.
"""

# ruff: noqa: ARG002 - hooks have the arguments that their callers give

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch

from fastload import transforms
from fastload._load.loader import DataLoader
from fastload._load.torch_compat.samplers import RankBatches
from fastload._tools.monitor.probe import Marks
from fastload.errors import ConfigError, MissingPart

try:
    from mmengine.hooks import Hook
    from mmengine.registry import DATA_SAMPLERS, DATASETS, FUNCTIONS, HOOKS
except ImportError as missing:
    raise MissingPart(
        "fastload.callbacks.mmengine needs MMEngine: pip install mmengine"
    ) from missing


@HOOKS.register_module(force=True)  # force: a configuration may load this module twice
class StepProbeHook(Hook):  # type: ignore[misc]
    """Times MMEngine's training loops, by epoch and by iteration. Runs after all other hooks, so what they do belongs to the step."""

    priority = "LOWEST"

    def __init__(self, out: str | os.PathLike[str] = "metrics.jsonl", *, every: int = 10) -> None:
        self.marks = Marks(out, every)

    def before_train(self, runner: Any) -> None:
        """Counting goes on where the checkpoint was."""
        self.marks.start(int(runner.iter))

    def before_train_epoch(self, runner: Any) -> None:
        """From here the epoch's first batch is waited for."""
        self.marks.mark()

    def before_train_iter(self, runner: Any, batch_idx: int, data_batch: Any = None) -> None:
        """The batch is here, not yet on the device."""
        self.marks.arrived(data_batch, loader=runner.train_dataloader)

    def after_train_iter(
        self, runner: Any, batch_idx: int, data_batch: Any = None, outputs: Any = None
    ) -> None:
        """All other hooks are through, the one that writes checkpoints too."""
        self.marks.event_ended("checkpoint")

    def after_train_epoch(self, runner: Any) -> None:
        """Checkpoints by epoch are written by now."""
        self.marks.event_ended("checkpoint")

    def before_save_checkpoint(self, runner: Any, checkpoint: Any) -> None:
        """The runner is about to write one."""
        self.marks.event_began("checkpoint")

    def before_val(self, runner: Any) -> None:
        """An evaluation between two steps."""
        self.marks.event_began("evaluation")

    def after_val(self, runner: Any) -> None:
        """The evaluation is over."""
        self.marks.event_ended("evaluation")

    def after_train(self, runner: Any) -> None:
        """The last row."""
        self.marks.finish()


class _Sample(dict[str, Any]):
    """A sample that knows its dataset, which knows how a batch is put together."""

    def __init__(self, values: dict[str, Any], dataset: FastloadDataset) -> None:
        super().__init__(values)
        self.dataset = dataset


@DATASETS.register_module(force=True)
class FastloadDataset(torch.utils.data.Dataset[Any]):
    """A packed dataset with its transforms; ``options`` are fastload.DataLoader's. Samples are dicts."""

    def __init__(
        self,
        path: str,
        transform: Sequence[Mapping[str, Any]]
        | Mapping[str, Sequence[Mapping[str, Any]]]
        | None = None,
        **options: Any,
    ) -> None:
        self._options = {**options, "transform": _transforms(transform)}
        self.loader = DataLoader(path, **self._options)
        self.metainfo = {"classes": next(iter(self.loader.packed.classes.values()), ())}

    def __len__(self) -> int:
        return len(self.loader.packed)

    def __getitem__(self, index: int) -> _Sample:
        return self.__getitems__([index])[0]

    def __getitems__(self, indices: Sequence[int]) -> list[_Sample]:
        samples = self.loader.dataset.__getitems__(indices)  # type: ignore[attr-defined]
        return [_Sample(self._named(sample), self) for sample in samples]

    def _named(self, values: Any) -> dict[str, Any]:
        names = (each.name for each in self.loader.pipeline.spec.fields)
        return values if isinstance(values, dict) else dict(zip(names, values, strict=True))

    def collate(self, samples: list[_Sample]) -> dict[str, Any]:
        """A batch as the loader gives it, but always a dict."""
        as_tuple = self.loader.pipeline.spec.as_tuple
        collate = self.loader.collate_fn
        return self._named(
            collate([tuple(sample.values()) if as_tuple else dict(sample) for sample in samples])
        )

    def ordered(self, **order: Any) -> DataLoader:
        """The loader again, in this order: its batches are begun ahead by the dataset that this one uses."""
        self._options |= order
        # In source order it is for evaluation: MMEngine lines the ranks' results up one by one and cuts off what is too many at the end,
        # where repeated samples of a rank's stretch are not.
        exact = (
            {}
            if self._options.get("drop_last") or self._options["shuffle"]
            else {"last_batch": "partial"}
        )
        self.loader = DataLoader(self.loader.packed, **{**exact, **self._options})
        return self.loader


@DATA_SAMPLERS.register_module(force=True)
class FastloadSampler:
    """This rank's samples of an epoch: ``shuffle`` True (blocks), "full" or False."""

    def __init__(
        self, dataset: FastloadDataset, shuffle: bool | str = True, seed: int | None = None
    ) -> None:
        if not isinstance(dataset, FastloadDataset):
            raise ConfigError(
                f"FastloadSampler needs a FastloadDataset, not a {type(dataset).__name__}"
            )
        self._dataset = dataset
        self.loader = dataset.ordered(shuffle=shuffle, seed=seed or 0)

    def dealt(self, batch_size: int, drop_last: bool) -> DataLoader:
        """The loader whose batches these are: how an epoch ends on several ranks depends on them."""
        self.loader = self._dataset.ordered(batch_size=batch_size, drop_last=drop_last)
        return self.loader

    def __iter__(self) -> Iterator[int]:
        return iter(self.loader.sampler)

    def __len__(self) -> int:
        return len(self.loader.sampler)  # type: ignore[arg-type]

    def set_epoch(self, epoch: int) -> None:
        """Called by MMEngine before each epoch."""
        self.loader.set_epoch(epoch)


@DATA_SAMPLERS.register_module(force=True)
class FastloadBatches(RankBatches):
    """Batches of a FastloadSampler, known in advance to the dataset."""

    def __init__(self, sampler: FastloadSampler, batch_size: int, drop_last: bool = False) -> None:
        if not isinstance(sampler, FastloadSampler):
            raise ConfigError(
                f"FastloadBatches needs a FastloadSampler, not a {type(sampler).__name__}"
            )
        loader = sampler.dealt(batch_size, drop_last)
        super().__init__(loader.sampler, batch_size, drop_last, loader.lookahead)  # type: ignore[arg-type]


def fastload_collate(samples: list[_Sample]) -> dict[str, Any]:
    """A batch of a FastloadDataset."""
    return samples[0].dataset.collate(samples)


FUNCTIONS.register_module(module=fastload_collate, force=True)


def _transforms(given: Any) -> Any:
    """Transforms out of dicts with their ``type``; ready ones stay."""
    if isinstance(given, Mapping) and "type" not in given:
        return {name: _transforms(steps) for name, steps in given.items()}
    return given if given is None else [_transform(step) for step in given]


def _transform(given: Any) -> Any:
    if not isinstance(given, Mapping):
        return given
    options = dict(given)
    name = options.pop("type", None)
    if name not in transforms.__all__:
        raise ConfigError(
            f"transform type {name!r:.40}: expected one of {', '.join(transforms.__all__)}"
        )
    return getattr(transforms, name)(**options)
