"""Step timing for Lightning."""

# ruff: noqa: ARG002 - Lightning defines the signatures of the hooks

from __future__ import annotations

import os
from typing import Any

from fastload._tools.monitor.probe import HookTimer
from fastload.errors import MissingPart

try:
    from lightning.pytorch import Callback
except ImportError as missing:
    try:
        from pytorch_lightning import Callback  # the older name of the same package
    except ImportError:
        raise MissingPart(
            "fastload.callbacks.lightning needs Lightning: pip install lightning"
        ) from missing


class StepProbeCallback(Callback):  # type: ignore[misc] # Lightning has no types
    """Writes the step times of Lightning's training loop to a metrics file.

    A step is a batch, also with gradient accumulation. ``data_time`` includes the copy to the
    device, because Lightning copies the batch before it calls the first hook.

    Args:
        out: File to append to. Default: "metrics.jsonl".
        every: Steps per row. Default: 10.

    Examples:
        >>> Trainer(callbacks=[StepProbeCallback("metrics.jsonl")])
    """

    def __init__(self, out: str | os.PathLike[str] = "metrics.jsonl", *, every: int = 10) -> None:
        super().__init__()
        self.timer = HookTimer(out, every)
        self._last = _EndOfCheckpoint(self.timer)

    def setup(self, trainer: Any, pl_module: Any, stage: str) -> None:
        # Checkpoint callbacks run after this callback, so a second one at the end of the list
        # records when they are done.
        if stage == "fit" and self._last not in trainer.callbacks:
            trainer.callbacks.append(self._last)

    def teardown(self, trainer: Any, pl_module: Any, stage: str) -> None:
        if self._last in trainer.callbacks:
            trainer.callbacks.remove(self._last)

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        self.timer.start(int(trainer.fit_loop.total_batch_idx) + 1)

    def on_train_epoch_start(self, trainer: Any, pl_module: Any) -> None:
        self.timer.mark()

    def on_train_batch_start(
        self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int
    ) -> None:
        self.timer.arrived(batch, loader=trainer.train_dataloader)
        self.timer.stage("forward")

    def on_before_backward(self, trainer: Any, pl_module: Any, loss: Any) -> None:
        self.timer.stage("backward")

    def on_after_backward(self, trainer: Any, pl_module: Any) -> None:
        self.timer.stage(None)

    def on_before_optimizer_step(self, trainer: Any, pl_module: Any, optimizer: Any) -> None:
        self.timer.stage("optimizer")

    def on_train_batch_end(
        self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        self.timer.stage(None)

    def on_validation_start(self, trainer: Any, pl_module: Any) -> None:
        # The sanity check runs before on_train_start, where events are ignored.
        self.timer.begin_event("evaluation")

    def on_validation_end(self, trainer: Any, pl_module: Any) -> None:
        self.timer.end_event("evaluation")

    def on_save_checkpoint(self, trainer: Any, pl_module: Any, checkpoint: Any) -> None:
        # Called before the checkpoint is written.
        self.timer.begin_event("checkpoint")

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        self.timer.finish()

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
        self.timer.close()


class _EndOfCheckpoint(Callback):  # type: ignore[misc]
    """Runs after the checkpoint callbacks and ends a checkpoint event."""

    def __init__(self, timer: HookTimer) -> None:
        super().__init__()
        self._timer = timer

    def on_train_batch_end(self, *_: Any, **_options: Any) -> None:
        self._timer.end_event("checkpoint")

    on_validation_end = on_train_epoch_end = on_train_batch_end
