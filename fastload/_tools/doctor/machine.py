"""Checks the machine: cores, memory, swap, GPU, decoders. Never raises; what cannot be checked is reported as such."""

from __future__ import annotations

import importlib
import importlib.util
import os
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from fastload._common.cpus import available_cpus
from fastload._common.native import native_status
from fastload._common.nvml import Gpu, close_gpus, driver_version, open_gpus
from fastload._tools.doctor.disk import disk_checks
from fastload._tools.doctor.finding import BAD, LOOK, OK, Check

GIB = 2**30
SHM = "/dev/shm"  # noqa: S108 - looked at, not written to
LITTLE_RAM = 2 * GIB  # torch with CUDA takes about 2 GiB before the first batch
TIGHT_RAM = (
    8 * GIB
)  # buffers of 16 batches of 256 x 224 x 224 x 3 floats have 2.5 GiB; and the page cache wants some
SWAP_USED = 0.1  # of the RAM: what is out there will be missed
SMALL_SHM = GIB  # 64 MiB is Docker's default; torch's workers die of it with a bus error


def memory_limit(*, root: Path = Path("/")) -> int | None:
    """The container's limit in bytes, the innermost that can be read; None: unlimited."""
    for name in ("sys/fs/cgroup/memory.max", "sys/fs/cgroup/memory/memory.limit_in_bytes"):
        try:
            text = (root / name).read_text().strip()
        except (OSError, UnicodeDecodeError):
            continue
        if text.isdigit() and int(text) < 1 << 50:  # v1 says 2**63 for "none"
            return int(text)
    return None


def ram_check(*, root: Path = Path("/")) -> Check:
    """Free memory, as seen from here."""
    import psutil

    memory = psutil.virtual_memory()
    total = int(memory.total)
    free = int(memory.available)
    limit = memory_limit(root=root)
    found = f"{free / GIB:.1f} of {total / GIB:.1f} GiB free"
    if limit is not None and limit < total:
        found += f"; the container may use {limit / GIB:.1f} GiB"
        free = min(free, limit)
    if free < LITTLE_RAM:
        return Check(
            "RAM",
            BAD,
            found,
            "a training job will swap or be killed here: free some, or ask for more (--mem)",
        )
    if free < TIGHT_RAM:
        return Check(
            "RAM",
            LOOK,
            found,
            "enough for small batches; the loader's buffers are in loader.stats().buffer_bytes",
        )
    return Check("RAM", OK, found)


def swap_check() -> Check:
    """Is something swapped out already?"""
    import psutil

    swap = psutil.swap_memory()
    ram = psutil.virtual_memory().total
    if not swap.total:
        return Check("swap", OK, "none: a job that is too large is killed, not slowed down")
    found = f"{swap.used / GIB:.1f} of {swap.total / GIB:.1f} GiB used"
    if swap.used > SWAP_USED * ram:
        return Check(
            "swap",
            LOOK,
            found,
            "somebody needed more memory than there is; fastload monitor shows whether it goes on",
        )
    return Check("swap", OK, found)


def shm_check(*, path: Path = Path(SHM)) -> Check:
    """Shared memory: torch's worker processes need it, fastload does not."""
    if not path.is_dir():
        return Check(SHM, OK, "none; fastload needs none (torch's worker processes do)")
    space = os.statvfs(path)
    total = space.f_blocks * space.f_frsize
    free = space.f_bavail * space.f_frsize
    found = f"{free / GIB:.1f} of {total / GIB:.1f} GiB free"
    if free < SMALL_SHM:
        return Check(
            SHM,
            LOOK,
            found,
            "torch's DataLoader workers die of this with a bus error (docker --shm-size=8g, --ipc=host); "
            "fastload.DataLoader uses none",
        )
    return Check(SHM, OK, found)


FEW_CORES = 2  # one for the trainer, one for its loader; below that they take turns
CORES_PER_GPU = 4  # a ResNet-50 on an A100 eats 2,500 photos/s; a core decodes some 1,000 crops/s (ARCHITECTURE: cut)

FAILURES = (
    OSError,
    ValueError,
    RuntimeError,
    ImportError,
    AttributeError,
    KeyError,
    TypeError,
)  # of strange machines, not ours


@dataclass(frozen=True, slots=True)
class Machine:
    """All checks; ``bad`` if one of them is."""

    checks: tuple[Check, ...]

    @property
    def bad(self) -> bool:
        """Something must be repaired."""
        return any(check.state == BAD for check in self.checks)

    def as_json(self) -> dict[str, object]:
        """For machines (``--json``)."""
        return {"verdict": self.verdict, "checks": [asdict(check) for check in self.checks]}

    @property
    def verdict(self) -> str:
        """One line."""
        bad, look = (
            [check.name for check in self.checks if check.state == state] for state in (BAD, LOOK)
        )
        if bad:
            return f"This machine needs repair: {', '.join(bad)}." + (
                f" Also look at: {', '.join(look)}." if look else ""
            )
        return (
            f"This machine works; look at: {', '.join(look)}." if look else "This machine is ready."
        )

    def __str__(self) -> str:
        width = max((len(check.name) for check in self.checks), default=0)
        lines = [self.verdict, ""]
        for check in self.checks:
            lines.append(f"{check.state:4}  {check.name:{width}}  {check.found}")
            lines += [f"      {'':{width}}  -> {check.do}"] if check.do else []
        return "\n".join(lines)


def check_machine(data: str | os.PathLike[str] | None = None) -> Machine:
    """Looks at cores, memory, disk (where ``data`` names a folder to read from), GPU and decoders."""
    gpus: list[Gpu] = []
    checkers: list[tuple[str, Callable[[], Sequence[Check]]]] = [
        ("cores", lambda: [cores_check(n_gpus=max(len(gpus), 1))]),
        ("RAM", lambda: [ram_check()]),
        ("swap", lambda: [swap_check()]),
        (SHM, lambda: [shm_check()]),
        ("disk", lambda: disk_checks(None if data is None else Path(data))),
        ("torch", lambda: [torch_check(bool(gpus))]),
        ("native core", lambda: [native_check()]),
        ("backends", lambda: backend_checks(has_gpu=bool(gpus))),
    ]
    first = _safely("GPU", lambda: gpu_checks(gpus))
    checks = [check for name, look in checkers for check in _safely(name, look)]
    return Machine((*checks[:5], *first, *checks[5:]))


def _safely(name: str, look: Callable[[], Sequence[Check]]) -> Sequence[Check]:
    try:
        return look()
    except FAILURES as error:
        return [
            Check(name, LOOK, f"could not be looked at: {type(error).__name__}: {str(error)[:100]}")
        ]


def cores_check(*, n_gpus: int = 1) -> Check:
    """Cores by affinity and control group, not what the machine has."""
    here = available_cpus()
    all_of_them = os.cpu_count() or 1
    found = f"{here} for this job" + (
        f" of {all_of_them} in the machine (affinity or a container's quota)"
        if here < all_of_them
        else ""
    )
    try:
        load = os.getloadavg()[0]
        found += f", load {load:.1f}"
    except (OSError, AttributeError):
        load = 0.0
    if here < FEW_CORES:
        return Check(
            "cores",
            BAD,
            found,
            "ask for more: trainer and loader take turns on one core (--cpus-per-task, docker --cpus)",
        )
    if here < CORES_PER_GPU * n_gpus:
        return Check(
            "cores",
            LOOK,
            found,
            f"decoding wants about {CORES_PER_GPU} cores a GPU; backend='dali' or 'nvjpeg' needs fewer",
        )
    if load > 1.5 * here:
        return Check("cores", LOOK, found, "others compute here too: top, or fastload monitor")
    return Check("cores", OK, found)


def gpu_checks(gpus: list[Gpu]) -> list[Check]:
    """NVIDIA's driver and its GPUs; fills ``gpus``."""
    found, notes = open_gpus()
    driver = driver_version()
    gpus += found
    checks = [Check(f"GPU {gpu.index}", OK, _described(gpu)) for gpu in found]
    close_gpus()
    if driver is None:
        do = "without an NVIDIA driver everything runs on the CPU"
        return [Check("GPU", LOOK, "; ".join(notes), do)]
    if not found:
        do = "is one given to this job? (CUDA_VISIBLE_DEVICES, --gres=gpu, --gpus)"
        return [Check("GPU", LOOK, f"driver {driver}: {'; '.join(notes)}", do)]
    checks += [Check("GPU", LOOK, note, "nvidia-smi says the same?") for note in notes]
    return [Check("driver", OK, driver), *checks]


def _described(gpu: Gpu) -> str:
    free = gpu.number("mem_free_mb")
    if free is None or gpu.mem_total_mb is None:
        return gpu.name
    return f"{gpu.name}, {free / 1024:.1f} of {gpu.mem_total_mb / 1024:.1f} GiB free"


def torch_check(has_gpu: bool) -> Check:
    """Torch, and whether it can use the GPU that is here."""
    import torch

    built = torch.version.cuda
    if has_gpu and not built:
        return Check(
            "torch",
            BAD,
            f"{torch.__version__}, built without CUDA",
            "install a CUDA build: pip install torch --force-reinstall",
        )
    if has_gpu and not torch.cuda.is_available():
        return Check(
            "torch",
            BAD,
            f"{torch.__version__} (CUDA {built}) cannot use the GPU",
            "the driver is too old for it, or CUDA_VISIBLE_DEVICES hides the GPU",
        )
    return Check(
        "torch", OK, f"{torch.__version__}" + (f", CUDA {built}" if built else ", CPU only")
    )


def native_check() -> Check:
    """fastload's own C++ core."""
    status = native_status()
    if status:
        return Check("native core", OK, f"libjpeg-turbo {status.libjpeg}, {status.simd}")
    return Check(
        "native core",
        BAD,
        f"not built ({status.missing}): decoding is several times slower",
        status.command,
    )


def backend_checks(*, has_gpu: bool) -> list[Check]:
    """One check for each GPU backend."""
    from fastload._decode.gpu.requirements import all_requirements

    return [
        backend_check(name, needs.module, has_gpu=has_gpu)
        for name, needs in all_requirements().items()
    ]


def backend_check(name: str, module: str, *, has_gpu: bool) -> Check:
    """An optional decoder: installed, and can it be imported?"""
    title = f"backend {name}"
    try:
        installed = importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:  # of the package it is in
        installed = False
    if not installed:
        missing = f"not installed; pip install 'fastload-vision[{name}]'"
        if has_gpu:
            return Check(title, LOOK, missing, "decoding on the GPU frees the cores")
        return Check(title, OK, f"{missing} (of use with a GPU)")
    try:
        version = getattr(importlib.import_module(module), "__version__", "?")
    except FAILURES as error:
        return Check(
            title,
            BAD,
            f"installed, but: {str(error)[:120]}",
            f"pip install --force-reinstall '.[{name}]' (in a clone)",
        )
    return Check(title, OK, f"{version}" + ("" if has_gpu else ", but there is no GPU for it"))
