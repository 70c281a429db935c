"""Reads GPU figures from NVML, the library of the NVIDIA driver. No other module opens NVML.

NVML numbers all GPUs of the machine. torch numbers only the GPUs in CUDA_VISIBLE_DEVICES, in
another order. A GPU in use is therefore opened by its UUID (``open_gpu``). A quantity that cannot
be read is None, and a note says why; nothing raises except ``driver_versions``.

A driver may be missing, too old for some functions, hidden by a container, partitioned (MIG), or
disappear at runtime. Each quantity has one or more queries, newest first. A query that the driver
or the GPU does not support is not tried again.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

REASONS = {
    0x4: "power cap",
    0x8: "hardware slowdown",
    0x10: "sync boost",
    0x20: "software thermal",
    0x40: "hardware thermal",
    0x80: "power brake",
    0x200: "board limit",
    0x400: "reliability",
}  # idle, application and display clocks do not count as throttling
Value = float | list[str] | None
Way = Callable[[Any, Any], Value]  # (pynvml, handle) -> value; Any: pynvml has no types


def _reasons(bits: int) -> list[str]:
    return [name for bit, name in REASONS.items() if bits & bit]


# Name of the quantity in window.json → its queries, in the order of preference.
WAYS: dict[str, tuple[Way, ...]] = {
    "util": (lambda nv, h: float(nv.nvmlDeviceGetUtilizationRates(h).gpu),),
    "mem_mb": (
        lambda nv, h: nv.nvmlDeviceGetMemoryInfo(h, version=nv.nvmlMemory_v2).used / 2**20,
        lambda nv, h: nv.nvmlDeviceGetMemoryInfo(h).used / 2**20,
    ),
    "power_w": (lambda nv, h: nv.nvmlDeviceGetPowerUsage(h) / 1e3,),
    "power_limit_w": (lambda nv, h: nv.nvmlDeviceGetEnforcedPowerLimit(h) / 1e3,),
    "sm_mhz": (lambda nv, h: float(nv.nvmlDeviceGetClockInfo(h, nv.NVML_CLOCK_SM)),),
    "mem_mhz": (lambda nv, h: float(nv.nvmlDeviceGetClockInfo(h, nv.NVML_CLOCK_MEM)),),
    "temp_c": (
        lambda nv, h: float(nv.nvmlDeviceGetTemperatureV(h, nv.NVML_TEMPERATURE_GPU)),
        lambda nv, h: float(nv.nvmlDeviceGetTemperature(h, nv.NVML_TEMPERATURE_GPU)),
    ),
    "throttle": (
        lambda nv, h: _reasons(nv.nvmlDeviceGetCurrentClocksEventReasons(h)),
        lambda nv, h: _reasons(nv.nvmlDeviceGetCurrentClocksThrottleReasons(h)),
    ),
    "jpeg": (lambda nv, h: float(nv.nvmlDeviceGetJpgUtilization(h)[0]),),
    "energy_j": (lambda nv, h: nv.nvmlDeviceGetTotalEnergyConsumption(h) / 1e3,),
    "mem_free_mb": (lambda nv, h: nv.nvmlDeviceGetMemoryInfo(h).free / 2**20,),
    "pcie_rx_mb_s": (
        lambda nv, h: nv.nvmlDeviceGetPcieThroughput(h, nv.NVML_PCIE_UTIL_RX_BYTES) * 1024 / 1e6,
    ),  # KiB/s
    "pcie_tx_mb_s": (
        lambda nv, h: nv.nvmlDeviceGetPcieThroughput(h, nv.NVML_PCIE_UTIL_TX_BYTES) * 1024 / 1e6,
    ),
}
LABELS = {
    "util": "utilization",
    "mem_mb": "memory",
    "power_w": "power",
    "power_limit_w": "power limit",
    "sm_mhz": "SM clock",
    "mem_mhz": "memory clock",
    "temp_c": "temperature",
    "throttle": "throttle reasons",
    "jpeg": "JPEG engine",
    "energy_j": "energy counter",
    "mem_free_mb": "free memory",
    "pcie_rx_mb_s": "PCIe in",
    "pcie_tx_mb_s": "PCIe out",
}
SLOW = ("pcie_rx_mb_s", "pcie_tx_mb_s")  # the driver measures for 20 ms per query
FAST = tuple(name for name in WAYS if name not in (*SLOW, "energy_j", "mem_free_mb"))
_NEVER = {
    "AttributeError",  # nvidia-ml-py is older than the function
    "NVMLError_NotSupported",
    "NVMLError_FunctionNotFound",
    "NVMLError_NoPermission",
    "NVMLError_InvalidArgument",
    "NVMLError_ArgumentVersionMismatch",
    "NVMLError_Deprecated",
}
_GONE = {
    "NVMLError_GpuIsLost",
    "NVMLError_Uninitialized",
    "NVMLError_DriverNotLoaded",
    "NVMLError_LibRmVersionMismatch",
    "NVMLError_ResetRequired",
    "NVMLError_GpuNotFound",
}


@dataclass
class Gpu:
    """One GPU. Several threads may call ``read``. ``gone`` says why it can no longer be read."""

    index: int
    name: str
    uuid: str
    mem_total_mb: float | None
    mig: bool
    notes: list[str]
    gone: str = ""
    _nvml: Any = None
    _handle: Any = None
    _ways: dict[str, list[Way]] = field(
        default_factory=lambda: {name: list(ways) for name, ways in WAYS.items()}
    )

    def read(self, name: str) -> Value:
        """Returns the current value of a quantity, or None."""
        ways = self._ways[name]
        while ways and not self.gone:
            try:
                return ways[0](self._nvml, self._handle)
            except (self._nvml.NVMLError, AttributeError) as error:
                kind = type(error).__name__
                if kind in _GONE:
                    self.gone = str(error)
                    self.notes.append(f"gpu {self.index}: can no longer be read: {error}")
                elif kind not in _NEVER:
                    return None  # a temporary failure
                else:
                    ways.pop(0)
                    if not ways:
                        self.notes.append(self._missing(name, str(error)))
        return None

    def number(self, name: str) -> float | None:
        """Like ``read``, for quantities that are one number."""
        value = self.read(name)
        return value if isinstance(value, float) else None

    def strings(self, name: str) -> list[str] | None:
        """Like ``read``, for quantities that are a list of names."""
        value = self.read(name)
        return value if isinstance(value, list) else None

    def _missing(self, name: str, why: str) -> str:
        if name == "jpeg":
            return (
                f"gpu {self.index}: JPEG engine utilization is not available ({why}); decoding on "
                "CUDA cores counts as GPU utilization"
            )
        if self.mig and name == "util":
            return f"gpu {self.index}: utilization is not available with MIG ({why})"
        return f"gpu {self.index}: {LABELS[name]} is not available ({why})"


def open_gpus(wanted: Sequence[str] | None = None) -> tuple[list[Gpu], list[str]]:
    """Returns (GPUs, notes).

    ``wanted`` lists indices or UUIDs, or prefixes of UUIDs; None = all.
    """
    import pynvml

    notes: list[str] = []
    try:
        pynvml.nvmlInit()
        count = pynvml.nvmlDeviceGetCount()
    except pynvml.NVMLError as error:
        return [], [_no_driver(type(error).__name__, str(error))]
    gpus = []
    for index in range(count):
        try:
            gpus.append(_open(pynvml, index))
        except pynvml.NVMLError as error:
            notes.append(f"gpu {index}: cannot be opened: {error}")
    if not count:
        notes.append(
            "the NVIDIA driver is installed but lists no GPU. In a container, start it with --gpus."
        )
    if wanted is not None:
        indices = ", ".join(str(gpu.index) for gpu in gpus) or "none"
        notes += [
            f"--gpus {each}: no such GPU; available: {indices}"
            for each in wanted
            if not any(_matches(gpu, each) for gpu in gpus)
        ]
        gpus = [gpu for gpu in gpus if any(_matches(gpu, each) for each in wanted)]
    return gpus, notes


def open_gpu(uuid: str) -> tuple[Gpu | None, str]:
    """Returns (the GPU with this UUID, why there is none).

    ``fastload._common.cuda.uuid_of`` returns the UUID of a torch device.
    """
    gpus, notes = open_gpus()
    found = next((gpu for gpu in gpus if _matches(gpu, uuid)), None)
    return found, "" if found is not None else "; ".join(notes) or f"no GPU has the UUID {uuid}"


def close_gpus() -> None:
    import pynvml

    with contextlib.suppress(pynvml.NVMLError):
        pynvml.nvmlShutdown()


def _open(nv: Any, index: int) -> Gpu:
    handle = nv.nvmlDeviceGetHandleByIndex(index)
    gpu = Gpu(
        index,
        name=_query(nv, lambda: nv.nvmlDeviceGetName(handle)) or "NVIDIA GPU",
        uuid=_query(nv, lambda: nv.nvmlDeviceGetUUID(handle)) or "",
        mem_total_mb=_query(nv, lambda: nv.nvmlDeviceGetMemoryInfo(handle).total / 2**20),
        mig=_query(nv, lambda: nv.nvmlDeviceGetMigMode(handle)[0]) == 1,
        notes=[],
        _nvml=nv,
        _handle=handle,
    )
    if gpu.mig:
        parts = _mig_parts(nv, handle)
        gpu.notes.append(
            f"gpu {index}: MIG is on"
            + (f", {len(parts)} instances: {', '.join(parts)}" if parts else "")
            + ". Figures are for the whole GPU, if available."
        )
    return gpu


def _mig_parts(nv: Any, handle: Any) -> list[str]:
    """Describes the visible MIG instances and the memory that each uses."""
    found = []
    for number in range(_query(nv, lambda: nv.nvmlDeviceGetMaxMigDeviceCount(handle)) or 0):
        part = _query(
            nv,
            lambda number=number: nv.nvmlDeviceGetMigDeviceHandleByIndex(handle, number),  # type: ignore[misc]
        )
        if part is not None:
            memory = _query(nv, lambda part=part: nv.nvmlDeviceGetMemoryInfo(part))  # type: ignore[misc]
            name = (
                _query(nv, lambda part=part: nv.nvmlDeviceGetName(part))  # type: ignore[misc]
                or f"instance {number}"
            )
            found.append(
                name
                + (
                    f" {memory.used / 2**20:.0f} of {memory.total / 2**20:.0f} MiB"
                    if memory is not None
                    else ""
                )
            )
    return found


def _query(nv: Any, query: Callable[[], Any]) -> Any:
    try:
        return query()
    except nv.NVMLError:
        return None


def _matches(gpu: Gpu, wanted: str) -> bool:
    return wanted == str(gpu.index) or (
        len(wanted) > 3 and gpu.uuid.removeprefix("GPU-").startswith(wanted.removeprefix("GPU-"))
    )


def _no_driver(kind: str, why: str) -> str:
    if kind == "NVMLError_LibraryNotFound":
        return (
            "no NVIDIA driver: libnvidia-ml.so.1 not found. In a container, start it with --gpus "
            "and the 'utility' capability."
        )
    if kind == "NVMLError_DriverNotLoaded":
        return (
            f"no NVIDIA driver: {why}. The library is installed, but the kernel module is not "
            "loaded."
        )
    return f"no GPU figures: NVML error {why!r}"


def driver_version() -> str | None:
    """Returns the version of the driver that ``open_gpus`` found, or None."""
    import pynvml

    version: str | None = _query(pynvml, pynvml.nvmlSystemGetDriverVersion)
    return version


def driver_versions() -> tuple[str, tuple[int, int]]:
    """Returns (driver version, newest supported CUDA version); raises OSError without a driver."""
    import pynvml

    try:
        pynvml.nvmlInit()
        try:
            cuda = int(pynvml.nvmlSystemGetCudaDriverVersion())
            return pynvml.nvmlSystemGetDriverVersion(), (cuda // 1000, cuda % 1000 // 10)
        finally:
            pynvml.nvmlShutdown()
    except pynvml.NVMLError as error:
        raise OSError(str(error)) from None
