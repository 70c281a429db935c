"""Step timing for the Hugging Face Trainer."""

# ruff: noqa: ARG002 - the Trainer defines the signatures of the hooks

from __future__ import annotations

import os
from typing import Any

from fastload._tools.monitor.probe import HookTimer
from fastload.errors import MissingPart

try:
    from transformers import TrainerCallback
except ImportError as missing:
    raise MissingPart(
        "fastload.callbacks.huggingface needs transformers: pip install transformers accelerate"
    ) from missing


class StepProbeCallback(TrainerCallback):  # type: ignore[misc] # transformers has no types
    """Writes the step times of the Trainer to a metrics file.

    A step is an optimizer step with all its gradient accumulation batches. Callbacks do not see
    the batch, so ``samples`` is the batch size from the arguments. A smaller last batch counts as
    a full one.

    Args:
        out: File to append to. Default: "metrics.jsonl".
        every: Steps per row. Default: 10.

    Examples:
        >>> Trainer(model, args, callbacks=[StepProbeCallback("metrics.jsonl")])
    """

    def __init__(self, out: str | os.PathLike[str] = "metrics.jsonl", *, every: int = 10) -> None:
        self.timer = HookTimer(out, every)

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.timer.start(int(state.global_step))

    def on_epoch_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.timer.mark()

    def on_step_begin(
        self, args: Any, state: Any, control: Any, train_dataloader: Any = None, **kwargs: Any
    ) -> None:
        samples = int(args.train_batch_size) * int(args.gradient_accumulation_steps)
        self.timer.arrived(None, samples=samples, loader=train_dataloader)

    def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.timer.stage("optimizer")

    def on_optimizer_step(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.timer.stage(None)

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        # The Trainer logs, evaluates and saves after this hook, in this order.
        self.timer.mark()

    def on_log(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.timer.mark()

    def on_prediction_step(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        # The Trainer has no hook for the start of an evaluation, so it starts at the last mark.
        self.timer.begin_event("evaluation", at_mark=True)

    def on_evaluate(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.timer.end_event("evaluation")

    def on_save(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        # Called after the checkpoint is written. The writing started at the last mark.
        self.timer.begin_event("checkpoint", at_mark=True)
        self.timer.end_event("checkpoint")

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.timer.finish()
