"""For Lightning: ``Trainer(callbacks=[StepProbeCallback("metrics.jsonl")])``."""

# ruff: noqa: ARG002 - hooks have the arguments that their callers give

from __future__ import annotations

import os
from typing import Any

from fastload._tools.monitor.probe import Marks
from fastload.errors import MissingPart

try:
    from lightning.pytorch import Callback
except ImportError as missing:
    try:
        from pytorch_lightning import Callback  # the same under its older name
    except ImportError:
        raise MissingPart(
            "the Lightning callback needs Lightning: pip install lightning"
        ) from missing


class StepProbeCallback(Callback):  # type: ignore[misc] # Lightning's types are not looked at
    """Times Lightning's training loop. A step is a batch, also with gradient accumulation.

    ``data_time`` holds the copy to the device: Lightning makes it before anybody is told of the batch.
    """

    def __init__(self, out: str | os.PathLike[str] = "metrics.jsonl", *, every: int = 10) -> None:
        super().__init__()
        self.marks = Marks(out, every)
        self._last = _Last(self.marks)

    def setup(self, trainer: Any, pl_module: Any, stage: str) -> None:
        """Adds a second callback after all others: checkpoints are written by callbacks that come after this one."""
        if stage == "fit" and self._last not in trainer.callbacks:
            trainer.callbacks.append(self._last)

    def teardown(self, trainer: Any, pl_module: Any, stage: str) -> None:
        """Takes it out again."""
        if self._last in trainer.callbacks:
            trainer.callbacks.remove(self._last)

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        """Counting goes on where the checkpoint was."""
        self.marks.start(int(trainer.fit_loop.total_batch_idx) + 1)

    def on_train_epoch_start(self, trainer: Any, pl_module: Any) -> None:
        """From here the epoch's first batch is waited for."""
        self.marks.mark()

    def on_train_batch_start(
        self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int
    ) -> None:
        """The batch is on its device."""
        self.marks.arrived(batch, loader=trainer.train_dataloader)
        self.marks.stage("forward")

    def on_before_backward(self, trainer: Any, pl_module: Any, loss: Any) -> None:
        """Forward, the loss included, is over."""
        self.marks.stage("backward")

    def on_after_backward(self, trainer: Any, pl_module: Any) -> None:
        """Backward is over."""
        self.marks.stage(None)

    def on_before_optimizer_step(self, trainer: Any, pl_module: Any, optimizer: Any) -> None:
        """Ends with the batch."""
        self.marks.stage("optimizer")

    def on_train_batch_end(
        self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Other callbacks follow; _Last marks the end."""
        self.marks.stage(None)

    def on_validation_start(self, trainer: Any, pl_module: Any) -> None:
        """An evaluation between two batches; the sanity check before the first one does not count."""
        self.marks.event_began("evaluation")

    def on_validation_end(self, trainer: Any, pl_module: Any) -> None:
        """The evaluation is over; what checkpoints do now is theirs."""
        self.marks.event_ended("evaluation")

    def on_save_checkpoint(self, trainer: Any, pl_module: Any, checkpoint: Any) -> None:
        """Lightning is about to write one."""
        self.marks.event_began("checkpoint")

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        """The last row."""
        self.marks.finish()

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
        """The steps before it."""
        self.marks.close()


class _Last(Callback):  # type: ignore[misc]
    """Runs after the checkpoint callbacks: a checkpoint that was begun is written by then."""

    def __init__(self, marks: Marks) -> None:
        super().__init__()
        self._marks = marks

    def on_train_batch_end(
        self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        self._marks.event_ended("checkpoint")

    def on_validation_end(self, trainer: Any, pl_module: Any) -> None:
        self._marks.event_ended("checkpoint")

    def on_train_epoch_end(self, trainer: Any, pl_module: Any) -> None:
        self._marks.event_ended("checkpoint")
