"""For the Hugging Face Trainer: ``Trainer(..., callbacks=[StepProbeCallback("metrics.jsonl")])``."""

# ruff: noqa: ARG002 - hooks have the arguments that their callers give

from __future__ import annotations

import os
from typing import Any

from fastload._tools.monitor.probe import Marks
from fastload.errors import MissingPart

try:
    from transformers import TrainerCallback
except ImportError as missing:
    raise MissingPart(
        "the Hugging Face callback needs transformers: pip install transformers accelerate"
    ) from missing


class StepProbeCallback(TrainerCallback):  # type: ignore[misc] # transformers' types are not looked at
    """Times the Trainer's loop. A step is an optimizer step: all batches of gradient accumulation, which the Trainer reads in one go.

    Callbacks do not see the batch, so ``samples`` is what the arguments promise; a last, smaller batch counts as a whole one.
    """

    def __init__(self, out: str | os.PathLike[str] = "metrics.jsonl", *, every: int = 10) -> None:
        self.marks = Marks(out, every)

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Counting goes on where the checkpoint was."""
        self.marks.start(int(state.global_step))

    def on_epoch_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """From here the epoch's first batch is waited for."""
        self.marks.mark()

    def on_step_begin(
        self, args: Any, state: Any, control: Any, train_dataloader: Any = None, **kwargs: Any
    ) -> None:
        """The step's batches are here."""
        samples = int(args.train_batch_size) * int(args.gradient_accumulation_steps)
        self.marks.arrived(None, samples=samples, loader=train_dataloader)

    def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Gradients are clipped."""
        self.marks.stage("optimizer")

    def on_optimizer_step(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """The optimizer is through."""
        self.marks.stage(None)

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Logging, evaluation and saving follow, in this order."""
        self.marks.mark()

    def on_log(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Other loggers may run after this one."""
        self.marks.mark()

    def on_prediction_step(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """A batch of an evaluation: the only sign that one has begun, with the last mark."""
        self.marks.event_began("evaluation", with_mark=True)

    def on_evaluate(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """The evaluation is over."""
        self.marks.event_ended("evaluation")

    def on_save(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """A checkpoint is written; it began with the last mark."""
        self.marks.event_began("checkpoint", with_mark=True)
        self.marks.event_ended("checkpoint")

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """The last row."""
        self.marks.finish()
