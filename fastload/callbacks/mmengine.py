"""Step timing for MMEngine, and the parts of a fastload loader in MMEngine's registries.

``custom_imports=dict(imports=["fastload.callbacks.mmengine"])`` in a config registers all of them;
docs/frameworks/mmengine.md shows complete configs. ``Runner.build_dataloader`` builds a torch
DataLoader from a dataset, a sampler and a batch sampler. The classes here are those parts of a
fastload loader.
"""

# ruff: noqa: ARG002 - MMEngine defines the signatures of the hooks

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch

from fastload import transforms
from fastload._load.loader import DataLoader
from fastload._load.torch_compat.samplers import RankBatches
from fastload._tools.monitor.probe import HookTimer
from fastload.errors import ConfigError, MissingPart

try:
    from mmengine.hooks import Hook
    from mmengine.registry import DATA_SAMPLERS, DATASETS, FUNCTIONS, HOOKS
except ImportError as missing:
    raise MissingPart(
        "fastload.callbacks.mmengine needs MMEngine: pip install mmengine"
    ) from missing


@HOOKS.register_module(force=True)  # force: a config may import this module twice
class StepProbeHook(Hook):  # type: ignore[misc]
    """Writes the step times of MMEngine's training loops to a metrics file.

    It works with loops by epoch and by iteration. It runs after all other hooks, so their time
    belongs to the step.

    Args:
        out: File to append to. Default: "metrics.jsonl".
        every: Steps per row. Default: 10.

    Examples:
        >>> Runner(..., custom_hooks=[dict(type="StepProbeHook", out="metrics.jsonl")])
    """

    priority = "LOWEST"

    def __init__(self, out: str | os.PathLike[str] = "metrics.jsonl", *, every: int = 10) -> None:
        self.timer = HookTimer(out, every)

    def before_train(self, runner: Any) -> None:
        self.timer.start(int(runner.iter))

    def before_train_epoch(self, runner: Any) -> None:
        self.timer.mark()

    def before_train_iter(self, runner: Any, batch_idx: int, data_batch: Any = None) -> None:
        self.timer.arrived(data_batch, loader=runner.train_dataloader)

    def after_train_iter(
        self, runner: Any, batch_idx: int, data_batch: Any = None, outputs: Any = None
    ) -> None:
        self.timer.end_event("checkpoint")

    def after_train_epoch(self, runner: Any) -> None:
        self.timer.end_event("checkpoint")

    def before_save_checkpoint(self, runner: Any, checkpoint: Any) -> None:
        self.timer.begin_event("checkpoint")

    def before_val(self, runner: Any) -> None:
        self.timer.begin_event("evaluation")

    def after_val(self, runner: Any) -> None:
        self.timer.end_event("evaluation")

    def after_train(self, runner: Any) -> None:
        self.timer.finish()


class _Sample(dict[str, Any]):
    """A sample with a reference to its dataset, which collates it."""

    def __init__(self, values: dict[str, Any], dataset: FastloadDataset) -> None:
        super().__init__(values)
        self.dataset = dataset


@DATASETS.register_module(force=True)
class FastloadDataset(torch.utils.data.Dataset[Any]):
    """A packed dataset with its transforms. Samples are dicts.

    Args:
        path: Folder of the packed dataset.
        transform: Transforms as dicts with ``type`` and their arguments, or as objects. A list, or
            one list per field.
        **options: Other arguments of ``fastload.DataLoader``.

    Raises:
        ConfigError: A ``type`` is not a fastload transform.

    Examples:
        >>> FastloadDataset("packed", transform=[dict(type="RandomResizedCrop", size=224)])
    """

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
        self.metainfo = {"classes": tuple(getattr(self.loader, "classes", ()))}

    def __len__(self) -> int:
        return len(self.loader.selected)

    def __getitem__(self, index: int) -> _Sample:
        return self.__getitems__([index])[0]

    def __getitems__(self, indices: Sequence[int]) -> list[_Sample]:
        samples = self.loader.dataset.__getitems__(indices)  # type: ignore[attr-defined]
        return [_Sample(self._named(sample), self) for sample in samples]

    def _named(self, values: Any) -> dict[str, Any]:
        names = (each.name for each in self.loader.pipeline.spec.fields)
        return values if isinstance(values, dict) else dict(zip(names, values, strict=True))

    def collate(self, samples: list[_Sample]) -> dict[str, Any]:
        """Returns a batch as the loader does, but always as a dict."""
        as_tuple = self.loader.pipeline.spec.as_tuple
        return self._named(
            self.loader.collate_fn(
                [tuple(sample.values()) if as_tuple else dict(sample) for sample in samples]
            )
        )

    def ordered(self, **order: Any) -> DataLoader:
        """Rebuilds the loader with another order. The new loader prefetches for this dataset.

        Args:
            **order: ``shuffle``, ``seed``, ``batch_size`` and ``drop_last`` of
                ``fastload.DataLoader``.
        """
        self._options |= order
        # A source-order loader is for evaluation. MMEngine interleaves the results of the ranks and
        # drops the surplus at the end, but the repeated samples that fill up a rank's contiguous
        # part are not at the end. With partial last batches there are none.
        exact = (
            {}
            if self._options.get("drop_last") or self._options["shuffle"]
            else {"last_batch": "partial"}
        )
        self.loader = DataLoader(self.loader.selected, **{**exact, **self._options})
        return self.loader


@DATA_SAMPLERS.register_module(force=True)
class FastloadSampler:
    """Yields the indices of the samples of this rank for one epoch.

    Args:
        dataset: The dataset to sample.
        shuffle: True (blocks are shuffled and mixed), "full" or False. Default: True.
        seed: Seed of the shuffle. Default: 0.

    Raises:
        ConfigError: ``dataset`` is not a ``FastloadDataset``.

    Examples:
        >>> FastloadSampler(FastloadDataset("packed"), shuffle=True, seed=1)
    """

    def __init__(
        self, dataset: FastloadDataset, shuffle: bool | str = True, seed: int | None = None
    ) -> None:
        if not isinstance(dataset, FastloadDataset):
            raise ConfigError(
                f"FastloadSampler: expected a FastloadDataset, found {type(dataset).__name__}"
            )
        self._dataset = dataset
        self.loader = dataset.ordered(shuffle=shuffle, seed=seed or 0)

    def with_batches(self, batch_size: int, drop_last: bool) -> DataLoader:
        """Rebuilds the loader for this batch size, which decides how an epoch ends on each rank.

        Args:
            batch_size: Samples per batch and rank.
            drop_last: Whether to drop an incomplete last batch.
        """
        self.loader = self._dataset.ordered(batch_size=batch_size, drop_last=drop_last)
        return self.loader

    def __iter__(self) -> Iterator[int]:
        return iter(self.loader.sampler)

    def __len__(self) -> int:
        return len(self.loader.sampler)  # type: ignore[arg-type]

    def set_epoch(self, epoch: int) -> None:
        """Selects the epoch. MMEngine calls it before each epoch."""
        self.loader.set_epoch(epoch)


@DATA_SAMPLERS.register_module(force=True)
class FastloadBatches(RankBatches):
    """Yields the batches of a ``FastloadSampler``, which the dataset prefetches.

    Args:
        sampler: The sampler of this rank.
        batch_size: Samples per batch and rank.
        drop_last: Whether to drop an incomplete last batch. Default: False.

    Raises:
        ConfigError: ``sampler`` is not a ``FastloadSampler``.

    Examples:
        >>> FastloadBatches(FastloadSampler(FastloadDataset("packed")), batch_size=32)
    """

    def __init__(self, sampler: FastloadSampler, batch_size: int, drop_last: bool = False) -> None:
        if not isinstance(sampler, FastloadSampler):
            raise ConfigError(
                f"FastloadBatches: expected a FastloadSampler, found {type(sampler).__name__}"
            )
        loader = sampler.with_batches(batch_size, drop_last)
        super().__init__(loader.sampler, batch_size, drop_last, loader.lookahead)  # type: ignore[arg-type]


def fastload_collate(samples: list[_Sample]) -> dict[str, Any]:
    """Collates samples of a ``FastloadDataset`` into a batch.

    Args:
        samples: At least one sample.

    Returns:
        A dict of tensors by field name.
    """
    return samples[0].dataset.collate(samples)


FUNCTIONS.register_module(module=fastload_collate, force=True)


def _transforms(given: Any) -> Any:
    if isinstance(given, Mapping) and "type" not in given:
        return {name: _transforms(steps) for name, steps in given.items()}
    return given if given is None else [_transform(step) for step in given]


def _transform(given: Any) -> Any:
    """Builds a transform from a dict with its ``type``. Other objects are returned unchanged."""
    if not isinstance(given, Mapping):
        return given
    options = dict(given)
    name = options.pop("type", None)
    if name not in transforms.__all__:
        raise ConfigError(
            f"transform type={name!r:.40}: expected one of {', '.join(transforms.__all__)}"
        )
    return getattr(transforms, name)(**options)
