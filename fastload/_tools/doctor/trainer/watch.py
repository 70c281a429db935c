"""Records what a training step does.

A TorchFunctionMode sees the values that are read, a TorchDispatchMode sees dtypes and copies, and
one step runs under the profiler. The modes are used instead of the profiler's stacks, because those
need a build with symbols and were empty in some versions. A mode sees the Python frames on every
torch from 2.4 on, also on CPUs.
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any

import torch
from torch.autograd import DeviceType  # type: ignore[attr-defined]
from torch.overrides import TorchFunctionMode
from torch.profiler import ProfilerActivity, profile
from torch.utils._python_dispatch import TorchDispatchMode

_TORCH = str(Path(torch.__file__).parent)
_THIS_PACKAGE = str(Path(__file__).parent)
# Scalars that optimizers and gradient scalers read are by design: Adam's `step` lives on the CPU.
_INTERNAL_READS = tuple(str(Path(_TORCH, part)) for part in ("optim", "amp", "utils/data"))


@dataclass(slots=True, kw_only=True)
class StepFacts:
    """What one step does."""

    device: str = "cpu"  # type of the model's device
    batch_size: int = 0
    step_s: float = 0.0
    # dtype -> matrix products and convolutions, forward and backward
    matmuls: Counter[str] = field(default_factory=Counter)
    # (enabled, dtype, where) -> number of times entered
    autocast: Counter[tuple[bool, str, str]] = field(default_factory=Counter)
    scaler: bool = False  # a gradient scaler was used
    fp32_precision: str = "highest"  # torch.get_float32_matmul_precision()
    cudnn_tf32: bool = True
    convolutions: int = 0
    convolutions_nchw: int = 0  # the part of them whose images are not in channels_last
    compiled_regions: int = 0
    compiled_model: bool = False  # the model passed by the caller is a compiled one
    optimizer: str = ""
    optimizer_tensors: int = 0  # parameters that it updates
    fused: bool | None = None  # None: the optimizer has no such option
    foreach: bool | None = None
    syncs: Counter[tuple[str, str]] = field(default_factory=Counter)  # (what, where) -> times
    # (why, where) -> times
    blocking_copies: Counter[tuple[str, str]] = field(default_factory=Counter)
    kernels: int = 0  # launched on the GPU
    kernel_s: float = 0.0  # their total time
    anomaly: bool = False  # autograd's anomaly detection is on
    failed: str = ""  # why the profiler did not run


def user_line() -> str | None:
    """Returns ``file.py:41 in train_step``; None for code that torch runs for itself."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        name = frame.f_code.co_filename
        if name.startswith(_INTERNAL_READS):
            return None
        if not name.startswith((_TORCH, _THIS_PACKAGE, "<frozen")):
            with suppress(ValueError):
                name = str(Path(name).relative_to(Path.cwd()))
            return f"{name}:{frame.f_lineno} in {frame.f_code.co_name}"
        frame = frame.f_back
    return None


def profile_step(facts: StepFacts, step: Callable[[], object]) -> None:
    """Adds the facts that only the profiler sees, unless the user's own profiler is running."""
    activities = [ProfilerActivity.CPU] + [ProfilerActivity.CUDA] * (facts.device == "cuda")
    profiler: Any = profile(activities=activities)
    try:
        with _without_profiler_messages():
            profiler.__enter__()
    except RuntimeError as error:
        facts.failed = str(error).splitlines()[0]
        step()
        return
    try:
        step()
    finally:
        with _without_profiler_messages():
            profiler.__exit__(None, None, None)
    for event in profiler.events() or ():
        if event.name.startswith("Torch-Compiled Region"):
            facts.compiled_regions += 1
        if event.device_type == DeviceType.CUDA:
            facts.kernels += 1
            facts.kernel_s += event.time_range.elapsed_us() / 1e6


@contextmanager
def _without_profiler_messages() -> Iterator[None]:
    """Holds stderr back and then drops only the lines ("USDT:") that torch 2.13 writes there."""
    sys.stderr.flush()
    with tempfile.TemporaryFile() as held:
        stderr = os.dup(2)
        os.dup2(held.fileno(), 2)
        try:
            yield
        finally:
            os.dup2(stderr, 2)
            os.close(stderr)
            held.seek(0)
            lines = held.read().splitlines(keepends=True)
            os.write(2, b"".join(line for line in lines if not line.startswith(b"USDT:")))


# Reads of values in the user's code. Each waits until the GPU has finished all earlier work.
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
    """Records which values are read, and where."""

    def __init__(self, facts: StepFacts) -> None:
        super().__init__()
        self._facts = facts
        self.inside = 0  # depth of recorded reads, whose parts are not recorded again

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        what = _READS.get(getattr(func, "__name__", ""))
        if what is None:
            return func(*args, **(kwargs or {}))
        if args and isinstance(args[0], torch.Tensor) and args[0].numel() > 0:
            self.record_read(what, args[0])
        self.inside += 1
        try:
            return func(*args, **(kwargs or {}))
        finally:
            self.inside -= 1

    def record_read(self, what: str, tensor: torch.Tensor) -> None:
        if (
            self.inside == 0
            and tensor.device.type == self._facts.device
            and (where := user_line()) is not None
        ):
            self._facts.syncs[what, where] += 1


class OperatorWatch(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Records dtypes of matrix products, layouts of convolutions, reads and copies."""

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
        options = dict(kwargs or {})
        if name in _MATMULS:
            self._product(name, args)
        elif name == "_local_scalar_dense":
            self._functions.record_read("reading a value (.item(), float(), bool(), if)", args[0])
        elif name in _SHAPES:
            self._functions.record_read(_SHAPES[name], args[0])
        elif name in ("index", "index_put", "index_put_") and any(
            getattr(each, "dtype", None) == torch.bool for each in args[1]
        ):
            self._functions.record_read("indexing with a mask", args[0])
        elif name in ("_to_copy", "copy_"):
            self._copy(name, args, options)
        return func(*args, **options)

    def _product(self, name: str, args: tuple[Any, ...]) -> None:
        dtypes = [
            each.dtype
            for each in args
            if isinstance(each, torch.Tensor) and each.is_floating_point()
        ]
        if dtypes:
            self._facts.matmuls[str(dtypes[-1]).removeprefix("torch.")] += 1
        if name == "convolution" and args[0].dim() == 4:
            image = args[0]
            self._facts.convolutions += 1
            has_layout = image.shape[1] > 1 and image.shape[2] * image.shape[3] > 1
            self._facts.convolutions_nchw += has_layout and not image.is_contiguous(
                memory_format=torch.channels_last
            )

    def _copy(self, name: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        if name == "_to_copy":
            source = args[0]
            target = torch.device(kwargs.get("device") or source.device)
        else:
            source = args[1]
            target = args[0].device
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
    """Records the step inside the context, including autocast."""
    autocast = torch.amp.autocast_mode.autocast
    enter = autocast.__enter__

    def entered(self: Any) -> Any:
        facts.autocast[
            bool(self._enabled), str(self.fast_dtype).removeprefix("torch."), user_line() or ""
        ] += 1
        return enter(self)  # type: ignore[no-untyped-call]

    functions = FunctionWatch(facts)
    autocast.__enter__ = entered  # type: ignore[method-assign]
    try:
        with OperatorWatch(facts, functions), functions:
            yield
    finally:
        autocast.__enter__ = enter  # type: ignore[method-assign]
