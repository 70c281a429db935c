"""Two modes that see what a step does: one at torch's functions (autocast, reads of values), one at its operators (dtypes, copies).

TorchFunctionMode and TorchDispatchMode instead of the profiler's stacks: those need a build with symbols and came out empty in some
versions, while a mode sees the Python frames themselves, on every torch from 2.4 on, also on CPUs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from fastload._tools.trainer.facts import Facts
from fastload._tools.trainer.places import user_line

# Reads of values, as the user writes them. Each waits for the GPU to finish everything before.
_READS = {
    "cpu": ".cpu()",
    "numpy": ".numpy()",
    "tolist": ".tolist()",
    "__repr__": "printing a tensor",
    "__format__": "formatting a tensor",
}
_MATMULS = {
    "mm",
    "addmm",
    "bmm",
    "baddbmm",
    "convolution",
    "convolution_backward",
    "_scaled_dot_product_flash_attention",
    "_scaled_dot_product_efficient_attention",
    "_scaled_dot_product_flash_attention_for_cpu",
    "_scaled_dot_product_cudnn_attention",
    "linear",
    "matmul",
}
_SHAPES = {
    "nonzero": ".nonzero()",
    "_unique2": ".unique()",
    "unique_consecutive": ".unique_consecutive()",
    "masked_select": ".masked_select()",
}


class FunctionWatch(TorchFunctionMode):
    """Notes which values are read, and where."""

    def __init__(self, facts: Facts) -> None:
        super().__init__()
        self._facts, self.inside = (
            facts,
            0,
        )  # inside: a read that is noted already, whose parts are not noted again

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        what = _READS.get(getattr(func, "__name__", ""))
        read = (
            what is not None
            and self.inside == 0
            and args
            and isinstance(args[0], torch.Tensor)
            and self._on_device(args[0])
        )
        if read and (where := user_line()) is not None:
            self._facts.syncs[what or "", where] += 1
        self.inside += what is not None
        try:
            return func(*args, **(kwargs or {}))
        finally:
            self.inside -= what is not None

    def _on_device(self, tensor: torch.Tensor) -> bool:
        return tensor.device.type == self._facts.device and (
            self._facts.device != "cpu" or tensor.numel() > 0
        )


class OperatorWatch(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Notes dtypes of matrix products, layouts of convolutions, scalars read, shapes that depend on values, copies to the device."""

    def __init__(self, facts: Facts, functions: FunctionWatch) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._facts, self._functions = facts, functions

    def __torch_dispatch__(
        self,
        func: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        name = getattr(getattr(func, "overloadpacket", func), "__name__", "")
        given = dict(kwargs or {})
        if name in _MATMULS:
            self._product(name, args)
        elif name == "_local_scalar_dense":
            self._read("reading a value (.item(), float(), bool(), if)", args[0])
        elif name in _SHAPES:
            self._read(_SHAPES[name], args[0])
        elif name in ("index", "index_put", "index_put_") and any(
            getattr(each, "dtype", None) == torch.bool for each in args[1]
        ):
            self._read("indexing with a mask", args[0])
        elif name in ("_to_copy", "copy_"):
            self._copy(name, args, given)
        return func(*args, **given)

    def _product(self, name: str, args: tuple[Any, ...]) -> None:
        tensors = [
            each for each in args if isinstance(each, torch.Tensor) and each.is_floating_point()
        ]
        if tensors:
            self._facts.matmuls[str(tensors[-1].dtype).removeprefix("torch.")] += 1
        if name == "convolution" and args[0].dim() == 4:
            image = args[0]
            self._facts.convolutions += 1
            plain = image.shape[1] > 1 and image.shape[2] * image.shape[3] > 1
            self._facts.convolutions_nchw += plain and not image.is_contiguous(
                memory_format=torch.channels_last
            )

    def _read(self, what: str, tensor: Any) -> None:
        if (
            self._functions.inside == 0
            and tensor.device.type == self._facts.device
            and (where := user_line()) is not None
        ):
            self._facts.syncs[what, where] += 1

    def _copy(self, name: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        source = args[0] if name == "_to_copy" else args[1]
        target = (
            torch.device(kwargs.get("device") or source.device)
            if name == "_to_copy"
            else args[0].device
        )
        if source.device.type != "cpu" or target.type == "cpu" or source.numel() <= 1:
            return
        waits = not (kwargs.get("non_blocking") or (name == "copy_" and len(args) > 2 and args[2]))
        why = (
            "without non_blocking=True"
            if waits
            else ""
            if _pinned(source)
            else "from memory that is not pinned"
        )
        if why and (where := user_line()) is not None:
            self._facts.blocking_copies[why, where] += 1


def _pinned(tensor: torch.Tensor) -> bool:
    return torch.cuda.is_available() and tensor.is_pinned()


@contextmanager
def watching(facts: Facts) -> Iterator[None]:
    """Fills the facts with what happens inside; autocast and gradient scaling are seen where they are entered."""
    autocast, scaler = torch.amp.autocast_mode.autocast, torch.amp.grad_scaler.GradScaler
    enter, scale = autocast.__enter__, scaler.scale

    def entered(self: Any) -> Any:
        facts.autocast[
            bool(self._enabled), str(self.fast_dtype).removeprefix("torch."), user_line() or ""
        ] += 1
        return enter(self)  # type: ignore[no-untyped-call]

    def scaled(self: Any, outputs: Any) -> Any:
        facts.scaler = facts.scaler or self.is_enabled()
        return scale(self, outputs)

    functions = FunctionWatch(facts)
    autocast.__enter__, scaler.scale = entered, scaled  # type: ignore[method-assign]
    try:
        with OperatorWatch(facts, functions), functions:
            yield
    finally:
        autocast.__enter__, scaler.scale = enter, scale  # type: ignore[method-assign]
