"""A context behind which model, optimizer, gradients, gradient scalers and random numbers are as they were."""

from __future__ import annotations

import copy
from types import TracebackType
from typing import Any

import torch

from fastload._tools.diagnose.source import RandomState


class Kept:
    """Tensors keep their identity: values are copied back into them, so that views, DDP buckets and graphs stay right.

    What else the step changes (a scheduler, a counter, a log file) is not known here and stays changed.
    """

    def __init__(self, model: torch.nn.Module, optimizer: torch.optim.Optimizer | None) -> None:
        self._model, self._optimizer, self._random = model, optimizer, RandomState()
        self._scalers: dict[Any, dict[str, Any]] = {}

    def __enter__(self) -> Kept:
        self._random.__enter__()
        self._parameters = [
            (
                each,
                each.detach().clone(),
                each.grad,
                None if each.grad is None else each.grad.detach().clone(),
            )
            for each in self._model.parameters()
        ]
        self._buffers = [
            (module, name, value, value.detach().clone())
            for module in self._model.modules()
            for name, value in module._buffers.items()
            if value is not None
        ]
        self._training = [(module, module.training) for module in self._model.modules()]
        self._state = (
            copy.deepcopy(self._optimizer.state_dict()) if self._optimizer is not None else None
        )
        self._scale = scale = torch.amp.grad_scaler.GradScaler.scale
        seen = self._scalers

        def scaled(scaler: Any, outputs: Any) -> Any:
            if scaler not in seen:
                seen[scaler] = scaler.state_dict()
            return scale(scaler, outputs)

        torch.amp.grad_scaler.GradScaler.scale = scaled  # type: ignore[method-assign,assignment]
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        torch.amp.grad_scaler.GradScaler.scale = self._scale  # type: ignore[method-assign]
        with torch.no_grad():
            for parameter, value, grad, grad_value in self._parameters:
                parameter.copy_(value)
                parameter.grad = grad
                if grad is not None and grad_value is not None:
                    grad.copy_(grad_value)
            for module, name, buffer, value in self._buffers:
                module._buffers[name] = buffer
                buffer.copy_(value)
        for module, training in self._training:
            module.training = training
        if self._optimizer is not None and self._state is not None:
            self._optimizer.load_state_dict(self._state)
        for scaler, state in self._scalers.items():
            if state:
                scaler.load_state_dict(state)
        self._random.__exit__(kind, error, trace)
