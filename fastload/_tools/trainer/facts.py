"""What can be seen of a trainer while it runs; the checks judge these facts and look at nothing else."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field


@dataclass(slots=True, kw_only=True)
class Facts:
    """Of one step, unless said otherwise."""

    device: str = "cpu"  # type of the model's device
    batch_size: int = 0
    step_s: float = 0.0
    matmuls: Counter[str] = field(
        default_factory=Counter
    )  # dtype → matrix products and convolutions, forward and backward
    autocast: Counter[tuple[bool, str, str]] = field(
        default_factory=Counter
    )  # (enabled, dtype, where) → entered
    scaler: bool = False  # a gradient scaler was used
    fp32_precision: str = "highest"  # torch.get_float32_matmul_precision()
    cudnn_tf32: bool = True
    convolutions: int = 0
    convolutions_nchw: int = 0  # of them with images not in channels_last
    compiled_regions: int = 0
    compiled_model: bool = False  # the model given is a compiled one
    optimizer: str = ""
    optimizer_tensors: int = 0  # parameters it updates
    fused: bool | None = None  # None = it has no such option
    foreach: bool | None = None
    syncs: Counter[tuple[str, str]] = field(default_factory=Counter)  # (what, where) → times
    blocking_copies: Counter[tuple[str, str]] = field(
        default_factory=Counter
    )  # (why, where) → times
    kernels: int = 0  # launched on the GPU
    kernel_s: float = 0.0  # all of them together
    anomaly: bool = False  # torch.autograd's anomaly detection is on
    failed: str = ""  # what the profiler could not do
