"""What a step does: two torch modes (functions: reads of values; operators: dtypes, copies), and one step under the profiler.

TorchFunctionMode and TorchDispatchMode instead of the profiler's stacks: those need a build with symbols and came out empty in some
versions, while a mode sees the Python frames themselves, on every torch from 2.4 on, also on CPUs.
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import torch
from torch.autograd import DeviceType  # type: ignore[attr-defined]
from torch.overrides import TorchFunctionMode
from torch.profiler import ProfilerActivity, profile
from torch.utils._python_dispatch import TorchDispatchMode

from fastload._tools.doctor.trainer.checks import StepFacts

_TORCH = str(Path(torch.__file__).parent)
_OURS = str(Path(__file__).parent)
# A scalar that an optimizer or a gradient scaler reads is its own business: `step` of Adam lives on the CPU, found_inf is by design.
_THEIR_OWN = tuple(str(Path(_TORCH, part)) for part in ("optim", "amp", "utils/data"))


def user_line() -> str | None:
    """``file.py:41 in train_step``; None where torch does it for reasons of its own."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        name = frame.f_code.co_filename
        if name.startswith(_THEIR_OWN):
            return None
        if not name.startswith((_TORCH, _OURS)) and not name.startswith("<frozen"):
            return f"{_short(name)}:{frame.f_lineno} in {frame.f_code.co_name}"
        frame = frame.f_back
    return None


def _short(name: str) -> str:
    try:
        return str(Path(name).relative_to(Path.cwd()))
    except ValueError:
        return name


def profile_step(facts: StepFacts, step: Callable[[], object]) -> None:
    """Fills in what only the profiler sees. A profiler that is in use already (the user's own) is left alone, and that is told."""
    activities = [ProfilerActivity.CPU] + [ProfilerActivity.CUDA] * (facts.device == "cuda")
    profiler: Any = profile(activities=activities)
    try:
        with _without_chatter():
            profiler.__enter__()
    except RuntimeError as error:
        facts.failed = str(error).splitlines()[0]
        step()
        return
    try:
        step()
    finally:
        with _without_chatter():
            profiler.__exit__(None, None, None)
    for event in profiler.events() or ():
        if event.name.startswith("Torch-Compiled Region"):
            facts.compiled_regions += 1
        if event.device_type == DeviceType.CUDA:
            facts.kernels += 1
            facts.kernel_s += event.time_range.elapsed_us() / 1e6


@contextmanager
def _without_chatter() -> Iterator[None]:
    """Holds stderr back while the profiler starts or stops, and lets all through but the lines torch 2.13 writes there itself ("USDT:")."""
    sys.stderr.flush()
    with tempfile.TemporaryFile() as held:
        kept = os.dup(2)
        os.dup2(held.fileno(), 2)
        try:
            yield
        finally:
            os.dup2(kept, 2)
            os.close(kept)
            held.seek(0)
            lines = [
                line
                for line in held.read().splitlines(keepends=True)
                if not line.startswith(b"USDT:")
            ]
            os.write(2, b"".join(lines))


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

    def __init__(self, facts: StepFacts) -> None:
        super().__init__()
        self._facts = facts
        self.inside = 0  # depth of reads that are recorded already; their parts are not recorded

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

    def __init__(self, facts: StepFacts, functions: FunctionWatch) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._facts = facts
        self._functions = functions

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
        if not waits and torch.cuda.is_available() and source.is_pinned():
            return
        why = "without non_blocking=True" if waits else "from memory that is not pinned"
        if (where := user_line()) is not None:
            self._facts.blocking_copies[why, where] += 1


@contextmanager
def watching(facts: StepFacts) -> Iterator[None]:
    """Fills the facts with what happens inside; autocast and gradient scaling are seen where they are entered."""
    autocast = torch.amp.autocast_mode.autocast
    scaler = torch.amp.grad_scaler.GradScaler
    enter = autocast.__enter__
    scale = scaler.scale

    def entered(self: Any) -> Any:
        facts.autocast[
            bool(self._enabled), str(self.fast_dtype).removeprefix("torch."), user_line() or ""
        ] += 1
        return enter(self)  # type: ignore[no-untyped-call]

    def scaled(self: Any, outputs: Any) -> Any:
        facts.scaler = facts.scaler or self.is_enabled()
        return scale(self, outputs)

    functions = FunctionWatch(facts)
    autocast.__enter__ = entered  # type: ignore[method-assign]
    scaler.scale = scaled  # type: ignore[method-assign]
    try:
        with OperatorWatch(facts, functions), functions:
            yield
    finally:
        autocast.__enter__ = enter  # type: ignore[method-assign]
        scaler.scale = scale  # type: ignore[method-assign]
