"""Checks the machine: cores, memory, swap, disk, GPU, decoders.

No check raises. A check that cannot run is reported as such.
"""

from __future__ import annotations

import importlib
import importlib.util
import mmap
import os
import random
import stat
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import islice
from pathlib import Path
from typing import NamedTuple

import psutil

from fastload._common.cpus import available_cpus
from fastload._common.native import native_status
from fastload._common.nvml import Gpu, close_gpus, driver_version, open_gpus
from fastload._tools.doctor.finding import BAD, OK, WARN

GIB = 2**30
SHM = "/dev/shm"  # noqa: S108 - inspected, not written to
LOW_RAM = 2 * GIB  # torch with CUDA takes about 2 GiB before the first batch
# 16 batches of 256 x 224 x 224 x 3 floats take 2.5 GiB, and the page cache needs room as well.
TIGHT_RAM = 8 * GIB
SWAP_USED = 0.1  # share of the RAM; a job will need the swapped pages again
SMALL_SHM = GIB  # Docker's default is 64 MiB, which kills torch's workers with a bus error
MIN_CORES = 2  # one for the trainer and one for its loader; with less they take turns
# A ResNet-50 on an A100 consumes 2,500 photos/s, and a core decodes about 1,000 crops/s.
CORES_PER_GPU = 4

MAX_READ_SECONDS = 3.0  # for each of the two access patterns
MAX_READ_BYTES = 512 << 20  # more than the cache of any drive of this speed class
MIN_READ_BYTES = 16 << 20  # with less, opening files dominates the measurement
MAX_FILES = 2000
BLOCK = 8 << 20  # a block of a packed dataset
PHOTO = 128 << 10
SLOW_MB_S = 100.0  # a hard disk or a network share; 1,000 photos/s of 110 kB need 110 MB/s
FAIR_MB_S = 500.0  # a SATA SSD; an NVMe drive reads 2,000 and more
NETWORK = ("nfs", "cifs", "smb", "fuse", "9p", "ceph", "lustre", "gluster", "beegfs", "afs")

# What unusual machines raise; anything else is a bug of the check.
FAILURES = (
    OSError,
    ValueError,
    RuntimeError,
    ImportError,
    AttributeError,
    KeyError,
    TypeError,
)


@dataclass(frozen=True, slots=True)
class Check:
    """One part of the machine: its state, what was found, and what to do unless it is ok."""

    name: str
    state: str
    found: str
    do: str = ""


@dataclass(frozen=True, slots=True)
class Machine:
    """All checks of a machine."""

    checks: tuple[Check, ...]

    @property
    def bad(self) -> bool:
        return any(check.state == BAD for check in self.checks)

    @property
    def verdict(self) -> str:
        bad, warn = (
            ", ".join(check.name for check in self.checks if check.state == state)
            for state in (BAD, WARN)
        )
        if bad:
            return f"This machine needs a fix: {bad}." + (f" Also check: {warn}." if warn else "")
        return f"This machine works. Check: {warn}." if warn else "This machine is ready."

    def as_json(self) -> dict[str, object]:
        return {"verdict": self.verdict, "checks": [asdict(check) for check in self.checks]}

    def __str__(self) -> str:
        width = max((len(check.name) for check in self.checks), default=0)
        lines = [self.verdict, ""]
        for check in self.checks:
            lines.append(f"{check.state:4}  {check.name:{width}}  {check.found}")
            lines += [f"      {'':{width}}  -> {check.do}"] if check.do else []
        return "\n".join(lines)


def check_machine(data: str | os.PathLike[str] | None = None) -> Machine:
    """Checks cores, memory, disk (of the folder ``data``), GPU and decoders."""
    gpus: list[Gpu] = []
    gpu = _safely("GPU", lambda: gpu_checks(gpus))  # first: the other checks use the GPU count
    return Machine(
        (
            *_safely("cores", lambda: [cores_check(n_gpus=max(len(gpus), 1))]),
            *_safely("RAM", lambda: [ram_check()]),
            *_safely("swap", lambda: [swap_check()]),
            *_safely(SHM, lambda: [shm_check()]),
            *_safely("disk", lambda: [disk_check(None if data is None else Path(data))]),
            *gpu,
            *_safely("torch", lambda: [torch_check(bool(gpus))]),
            *_safely("native core", lambda: [native_check()]),
            *_safely("backends", lambda: backend_checks(has_gpu=bool(gpus))),
        )
    )


def _safely(name: str, check: Callable[[], Sequence[Check]]) -> Sequence[Check]:
    try:
        return check()
    except FAILURES as error:
        return [Check(name, WARN, f"this check failed: {type(error).__name__}: {error!s:.100}")]


def _judge(name: str, found: str, *cases: tuple[bool, str, str]) -> Check:
    """The check of the first case (condition, state, what to do) that applies; else it is ok."""
    for applies, state, do in cases:
        if applies:
            return Check(name, state, found, do)
    return Check(name, OK, found)


def cores_check(*, n_gpus: int = 1) -> Check:
    """Checks the cores that affinity and control group allow."""
    cores = available_cpus()
    machine_cores = os.cpu_count() or 1
    found = f"{cores} for this job"
    if cores < machine_cores:
        found += f" of {machine_cores} in the machine (affinity or container quota)"
    load = os.getloadavg()[0]
    found += f", load {load:.1f}"
    return _judge(
        "cores",
        found,
        (
            cores < MIN_CORES,
            BAD,
            f"Request at least {MIN_CORES} cores (--cpus-per-task, docker --cpus), because trainer "
            "and loader take turns on one core.",
        ),
        (
            cores < CORES_PER_GPU * n_gpus,
            WARN,
            f"Request about {CORES_PER_GPU} cores per GPU for decoding, or decode on the GPU "
            "(backend='dali' or 'nvjpeg').",
        ),
        (load > 1.5 * cores, WARN, "Find the other jobs with top or fastload monitor."),
    )


def memory_limit(*, root: Path = Path("/")) -> int | None:
    """The container's memory limit in bytes, the innermost that is readable; None if unlimited."""
    for name in ("sys/fs/cgroup/memory.max", "sys/fs/cgroup/memory/memory.limit_in_bytes"):
        try:
            text = (root / name).read_text().strip()
        except (OSError, UnicodeDecodeError):
            continue
        if text.isdigit() and int(text) < 1 << 50:  # cgroup v1 writes 2**63 for "unlimited"
            return int(text)
    return None


def ram_check(*, root: Path = Path("/")) -> Check:
    memory = psutil.virtual_memory()
    free = int(memory.available)
    limit = memory_limit(root=root)
    found = f"{free / GIB:.1f} of {memory.total / GIB:.1f} GiB free"
    if limit is not None and limit < memory.total:
        found += f"; the container may use {limit / GIB:.1f} GiB"
        free = min(free, limit)
    return _judge(
        "RAM",
        found,
        (
            free < LOW_RAM,
            BAD,
            f"Free memory or request more (--mem): with less than {LOW_RAM // GIB} GiB a training "
            "job swaps or is killed.",
        ),
        (
            free < TIGHT_RAM,
            WARN,
            f"Use small batches: less than {TIGHT_RAM // GIB} GiB are free, and "
            "loader.stats().buffer_bytes shows what the loader needs.",
        ),
    )


def swap_check() -> Check:
    swap = psutil.swap_memory()
    ram = psutil.virtual_memory().total
    found = f"{swap.used / GIB:.1f} of {swap.total / GIB:.1f} GiB used"
    if not swap.total:
        found = "none: a job that needs too much memory is killed, not slowed down"
    return _judge(
        "swap",
        found,
        (
            swap.used > SWAP_USED * ram,
            WARN,
            f"Check with fastload monitor whether the machine still swaps: more than "
            f"{100 * SWAP_USED:.0f} % of the RAM is swapped out.",
        ),
    )


def shm_check(*, path: Path = Path(SHM)) -> Check:
    """Checks shared memory, which torch's worker processes need and fastload does not."""
    if not path.is_dir():
        return Check(SHM, OK, "none; fastload needs none (torch's worker processes do)")
    space = os.statvfs(path)
    free = space.f_bavail * space.f_frsize
    return _judge(
        SHM,
        f"{free / GIB:.1f} of {space.f_blocks * space.f_frsize / GIB:.1f} GiB free",
        (
            free < SMALL_SHM,
            WARN,
            "Start the container with --shm-size=8g or --ipc=host, because torch's DataLoader "
            "workers fail with a bus error; fastload.DataLoader uses no shared memory.",
        ),
    )


def gpu_checks(gpus: list[Gpu]) -> list[Check]:
    """Checks the NVIDIA driver and its GPUs, and adds the GPUs to ``gpus``."""
    found, notes = open_gpus()
    driver = driver_version()
    gpus += found
    checks = [Check(f"GPU {gpu.index}", OK, _described(gpu)) for gpu in found]
    close_gpus()
    if driver is None:
        do = "Install the NVIDIA driver, or expect everything to run on the CPU."
        return [Check("GPU", WARN, "; ".join(notes), do)]
    if not found:
        do = "Assign a GPU to this job (CUDA_VISIBLE_DEVICES, --gres=gpu, --gpus)."
        return [Check("GPU", WARN, f"driver {driver}: {'; '.join(notes)}", do)]
    checks += [Check("GPU", WARN, note, "Compare with nvidia-smi.") for note in notes]
    return [Check("driver", OK, driver), *checks]


def _described(gpu: Gpu) -> str:
    free = gpu.number("mem_free_mb")
    if free is None or gpu.mem_total_mb is None:
        return gpu.name
    return f"{gpu.name}, {free / 1024:.1f} of {gpu.mem_total_mb / 1024:.1f} GiB free"


def torch_check(has_gpu: bool) -> Check:
    """Checks whether torch can use the GPU of this machine."""
    import torch

    built = torch.version.cuda
    return _judge(
        "torch",
        f"{torch.__version__}, {f'CUDA {built}' if built else 'CPU only'}",
        (
            has_gpu and not built,
            BAD,
            "Install a CUDA build: pip install torch --force-reinstall.",
        ),
        (
            has_gpu and not torch.cuda.is_available(),
            BAD,
            "torch cannot use the GPU: update the driver, or check CUDA_VISIBLE_DEVICES.",
        ),
    )


def native_check() -> Check:
    status = native_status()
    if status:
        return Check("native core", OK, f"libjpeg-turbo {status.libjpeg}, {status.simd}")
    found = f"not built ({status.missing}); decoding is several times slower"
    return Check("native core", BAD, found, status.command)


def backend_checks(*, has_gpu: bool) -> list[Check]:
    """One check per GPU decode backend."""
    from fastload._decode.gpu.base import all_requirements

    return [
        backend_check(name, needs.module, has_gpu=has_gpu)
        for name, needs in all_requirements().items()
    ]


def backend_check(name: str, module: str, *, has_gpu: bool) -> Check:
    title = f"backend {name}"
    try:
        installed = importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:  # the parent package is missing
        installed = False
    if not installed:
        do = f"To decode on the GPU, pip install 'fastload-vision[{name}]'."
        return _judge(title, "not installed", (has_gpu, WARN, do))
    try:
        version = getattr(importlib.import_module(module), "__version__", "?")
    except FAILURES as error:
        do = f"Reinstall it: pip install --force-reinstall 'fastload-vision[{name}]'."
        return Check(title, BAD, f"installed, but the import fails: {str(error)[:120]}", do)
    return Check(title, OK, f"{version}{'' if has_gpu else ', unused without a GPU'}")


class Reading(NamedTuple):
    """A measurement of read speed.

    ``direct`` reads bypass the page cache. Otherwise the kernel was advised to drop the file from
    its cache, which it may ignore.
    """

    n_bytes: int
    seconds: float
    direct: bool

    @property
    def mb_s(self) -> float:
        return self.n_bytes / max(self.seconds, 1e-9) / 1e6


def disk_check(folder: Path | None) -> Check:
    """Measures how fast the files in a folder can be read. Nothing is written."""
    do = "Pass --data with the folder of your images or of the packed dataset."
    if folder is None:
        return Check("disk", OK, "not measured; --data DIR measures the disk of that folder")
    files = list(some_files(folder))
    if not files:
        why = "contains no readable file" if folder.exists() else "does not exist"
        return Check("disk", WARN, f"{folder} {why}", do)
    # Large files first, because only they allow sequential reads.
    files.sort(key=lambda path: -path.stat().st_size)
    sequential = read(files, piece=BLOCK, shuffled=False)
    at_random = read(files, piece=PHOTO, shuffled=True)
    if sequential.n_bytes < MIN_READ_BYTES and sequential.seconds < MAX_READ_SECONDS:
        found = f"{folder} contains {sequential.n_bytes / 1e6:.0f} MB, too little to measure a disk"
        return Check("disk", OK, found)
    return _judge_disk(sequential, at_random, file_system(folder))


def _judge_disk(sequential: Reading, at_random: Reading, kind: str) -> Check:
    speed = sequential.mb_s
    details = [f"{sequential.n_bytes / 1e6:.0f} MB read"]
    details += [kind] if kind else []
    details += [] if sequential.direct else ["partly from the page cache, perhaps"]
    return _judge(
        "disk",
        f"{speed:,.0f} MB/s sequential, {at_random.mb_s:,.0f} MB/s in random reads of 128 KiB "
        f"({', '.join(details)})",
        (
            speed < SLOW_MB_S,
            BAD,
            f"Copy the data to a local NVMe drive or into RAM: less than {SLOW_MB_S:.0f} MB/s "
            "cannot feed a GPU.",
        ),
        (
            speed < FAIR_MB_S,
            WARN,
            f"Read sequentially with fastload pack: less than {FAIR_MB_S:.0f} MB/s are enough for "
            "one GPU at most.",
        ),
        (
            kind.startswith(NETWORK),
            WARN,
            "Keep a local copy, because a network share slows down when others use it.",
        ),
        (
            at_random.mb_s < speed / 10,
            WARN,
            "Use fastload pack to read sequentially: random reads reach less than a tenth of the "
            "speed.",
        ),
    )


def some_files(folder: Path) -> Iterator[Path]:
    """The first regular files below a folder without following links; a file yields itself."""
    if folder.is_file():
        return iter([folder])
    return islice(_regular_files(folder), MAX_FILES)


def _regular_files(folder: Path) -> Iterator[Path]:
    for top, folders, names in os.walk(folder, followlinks=False):
        folders.sort()
        for path in (Path(top, name) for name in sorted(names)):
            try:
                status = path.lstat()
            except OSError:
                continue
            if stat.S_ISREG(status.st_mode) and status.st_size:
                yield path


def read(files: list[Path], *, piece: int, shuffled: bool) -> Reading:
    """Reads pieces until the time or the bytes are used up."""
    sizes = {path: path.stat().st_size for path in files}
    pieces = [
        (path, offset)
        for path in files
        for offset in range(0, min(sizes[path], MAX_READ_BYTES), piece)
    ]
    if shuffled:
        random.Random(0).shuffle(pieces)
    done = 0
    direct = True
    spent = 0.0
    with mmap.mmap(-1, piece) as buffer:  # page-aligned, as O_DIRECT requires
        for path, offset in pieces:
            if spent > MAX_READ_SECONDS or done >= MAX_READ_BYTES:
                break
            started = time.perf_counter()
            # Not more than the file has: O_DIRECT pins every page of the buffer, used or not.
            wanted = min(piece, -(-(sizes[path] - offset) // mmap.PAGESIZE) * mmap.PAGESIZE)
            n, was_direct = _read_piece(path, offset, buffer, wanted)
            spent += time.perf_counter() - started
            done += n
            direct = direct and was_direct
    return Reading(done, spent, direct)


def _read_piece(path: Path, offset: int, buffer: mmap.mmap, wanted: int) -> tuple[int, bool]:
    for flag in (os.O_DIRECT, 0):
        try:
            file = os.open(path, os.O_RDONLY | flag)
        except OSError:  # tmpfs and some network file systems do not support O_DIRECT
            continue
        try:
            if not flag:
                os.posix_fadvise(file, offset, wanted, os.POSIX_FADV_DONTNEED)
            with memoryview(buffer) as view, view[:wanted] as part:
                return os.preadv(file, [part], offset), bool(flag)
        except OSError:
            continue
        finally:
            os.close(file)
    return 0, False


def file_system(folder: Path) -> str:
    """Type of the file system that holds a folder: that of the longest matching mount point."""
    here = str(folder.resolve())
    mounts = [
        (len(part.mountpoint), part.fstype)
        for part in psutil.disk_partitions(all=True)
        if here == part.mountpoint or here.startswith(part.mountpoint.rstrip("/") + "/")
    ]
    return max(mounts)[1] if mounts else ""
