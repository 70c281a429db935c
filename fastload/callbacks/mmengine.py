"""For MMEngine: ``Runner(custom_hooks=[StepProbeHook()])``, or ``dict(type="StepProbeHook")`` with ``custom_imports`` of this module."""

# ruff: noqa: ARG002 - hooks have the arguments that their callers give

from __future__ import annotations

import os
from typing import Any

from fastload._tools.monitor.probe import Marks
from fastload.errors import MissingPart

try:
    from mmengine.hooks import Hook
    from mmengine.registry import HOOKS
except ImportError as missing:
    raise MissingPart("the MMEngine hook needs MMEngine: pip install mmengine") from missing


@HOOKS.register_module(force=True)  # force: a configuration may load this module twice
class StepProbeHook(Hook):  # type: ignore[misc]
    """Times MMEngine's training loops, by epoch and by iteration. Runs behind all other hooks, so what they do belongs to the step."""

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
