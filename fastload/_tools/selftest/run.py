"""Runs the stages, each in its own process with a time limit, so that crashes are results.

Run as a program, this module is that process. It writes FOLDER/result.json when the stage has
finished. The parent reports everything else: an exception, a crash or a hang.

    python -m fastload._tools.selftest.run STAGE BACKEND DEVICE FOLDER DATASET GENERATED
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path

from fastload._decode import selftest_record as record
from fastload._decode.gpu.base import checked_device, packages
from fastload._decode.registry import GPU_BACKENDS
from fastload._store.dataset import open_dataset
from fastload._tools.selftest.catalog import CATALOG, Entry
from fastload.errors import ConfigError, MissingPart

RESULT = "result.json"
_MAX_LOG_LINES = 60
_STACK_S = 5.0  # time for faulthandler to write the stacks


@dataclass(frozen=True, slots=True)
class Result:
    """The result of one stage for one backend.

    ``verdict`` is pass, fail, crashed, hung, or report (the stage only measures).
    """

    stage: str
    backend: str
    verdict: str
    summary: str
    seconds: float = 0.0
    facts: dict[str, object] = field(default_factory=dict)

    @property
    def ok(self) -> bool:
        return self.verdict in ("pass", "report")


@dataclass(frozen=True, slots=True)
class Options:
    """The options of the command."""

    device: str = "cuda"
    backends: tuple[str, ...] = ()  # empty: every backend whose packages are installed
    stages: tuple[str, ...] = ()  # empty: all stages that apply
    dataset: Path | None = None
    timeout: float = 1.0  # multiplies the time limit of every stage


def selftest(options: Options, *, on_result: Callable[[Result], object]) -> list[Result]:
    """Runs the stages, records which of them passed, and returns all results.

    Raises MissingPart if no backend can run, and ConfigError for invalid options.
    """
    from fastload._tools.selftest.decoding import make_generated

    stages = chosen_stages(options)
    backends = usable_backends(options)
    if options.dataset is not None:
        open_dataset(options.dataset)  # raises here, instead of failing in every stage
    results = [_environment(options)]
    on_result(results[0])
    with tempfile.TemporaryDirectory(prefix="fastload-selftest-") as folder:
        generated = make_generated(Path(folder))
        pairs = [(entry, backend) for entry in stages for backend in entry.backends or backends]
        # On a GPU, stages run one at a time because they would disturb each other. On the CPU,
        # most of the time is spent importing torch.
        with ThreadPoolExecutor(2 if options.device == "cpu" else 1) as pool:
            for result in pool.map(
                lambda pair: _stage(pair[0], pair[1], options, Path(folder), generated), pairs
            ):
                results.append(result)
                on_result(result)
    record.save(
        options.device,
        {
            backend: {
                each.stage: each.verdict == "pass" for each in results if each.backend == backend
            }
            for backend in backends
        },
    )
    return results


def chosen_stages(options: Options) -> list[Entry]:
    """The stages to run, without ``environment``, which always runs."""
    on_cpu = options.device == "cpu"
    if not options.stages:
        return [e for e in CATALOG[1:] if not e.optional and (e.on_cpu or not on_cpu)]
    chosen = [entry for entry in CATALOG[1:] if entry.name in options.stages]
    for entry in chosen:
        if on_cpu and not entry.on_cpu and entry.name != "roi":
            raise ConfigError(f"--stage {entry.name} needs a GPU; remove --device cpu")
    return chosen


def usable_backends(options: Options) -> tuple[str, ...]:
    """The requested backends, or all that can run here.

    Raises MissingPart, with the install commands, if a requested backend or all of them cannot.
    """
    device = checked_device(options.device)
    lacking = {
        name: GPU_BACKENDS[name].load().missing(device) for name in options.backends or GPU_BACKENDS
    }
    usable = tuple(name for name, why in lacking.items() if not why)
    if not usable or (options.backends and len(usable) < len(options.backends)):
        reasons = "; ".join(f"{name}: {why}" for name, why in lacking.items() if why)
        raise MissingPart(f"cannot run the self-test on {options.device}: {reasons}")
    return usable


def _environment(options: Options) -> Result:
    """Stage 0: reports the GPU, the driver and the versions."""
    from fastload._common.native import native_status

    facts: dict[str, object] = {
        **record.key(options.device),
        "native core": str(native_status()),
        "python": sys.version.split()[0],
    }
    parts = [
        str(facts["gpu"]),
        *([f"driver {facts['driver']}"] if facts["driver"] else []),
        f"torch {facts['torch']}",
        *(f"{name.removeprefix('nvidia-')} {facts[name]}" for name in packages() if name in facts),
    ]
    return Result("environment", "-", "report", ", ".join(parts), facts=facts)


def _stage(entry: Entry, backend: str, options: Options, folder: Path, generated: Path) -> Result:
    folder = folder / f"{entry.name}-{backend}"
    folder.mkdir()
    command = [
        sys.executable,
        "-m",
        "fastload._tools.selftest.run",
        entry.name,
        backend,
        options.device,
        str(folder),
        str(options.dataset or generated),
        str(generated),
    ]
    timeout_s = entry.timeout_s * options.timeout
    started = time.monotonic()
    code = run_child(command, timeout_s, log=folder / "log")
    seconds = round(time.monotonic() - started, 2)
    lines, last_line = _read_log(folder / "log")

    def failed(verdict: str, why: str) -> Result:
        return Result(entry.name, backend, verdict, why, seconds, {"log": lines})

    last_output = f"last output: {last_line or 'none'}"
    if code is None:
        return failed("hung", f"still running after {timeout_s:g} s (see --timeout); {last_output}")
    if code < 0:
        return failed("crashed", f"{_signal(-code)}; {last_output}")
    try:
        found = json.loads((folder / RESULT).read_text())
    except (OSError, ValueError):
        return failed("fail", last_line or f"exit code {code} without a result")
    passed = "report" if entry.name == "speed" else "pass"
    verdict = passed if found["ok"] else "fail"
    return Result(entry.name, backend, verdict, found["summary"], seconds, found["facts"])


def run_child(command: Sequence[str], deadline_s: float, *, log: Path) -> int | None:
    """Runs a command and returns its exit code, or None if it was killed at the deadline.

    Kills everything that the command started. ``log`` receives its output, and the stacks of all
    threads after a crash or a hang.
    """
    with log.open("wb") as file:
        child = subprocess.Popen(  # noqa: S603
            list(command),
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=file,
            start_new_session=True,
            env={**os.environ, "PYTHONFAULTHANDLER": "1"},
        )
        try:
            return child.wait(deadline_s)
        except subprocess.TimeoutExpired:
            child.send_signal(signal.SIGABRT)  # faulthandler writes the stack of every thread
            with suppress(subprocess.TimeoutExpired):
                child.wait(_STACK_S)
            return None
        finally:  # also on Ctrl-C: leave no process running
            with suppress(ProcessLookupError):
                os.killpg(child.pid, signal.SIGKILL)
            child.wait()


def _read_log(log: Path) -> tuple[list[str], str]:
    """The last lines of a log, and the last line before faulthandler's output."""
    lines = [line.strip() for line in log.read_text(errors="replace").splitlines() if line.strip()]
    fatal = next(
        (place for place, line in enumerate(lines) if line.startswith("Fatal Python error")),
        len(lines),
    )
    return lines[-_MAX_LOG_LINES:], lines[fatal - 1] if fatal else ""


def _signal(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def main(stage: str, backend: str, device: str, *paths: str) -> None:
    """Runs one stage in this process. ``paths`` are FOLDER, DATASET and GENERATED."""
    import torch

    from fastload._tools.selftest import gpu_stages, stages
    from fastload._tools.selftest.decoding import Task

    # The tensors are small: on a busy machine, several threads would mostly wait for each other.
    torch.set_num_threads(1)
    folder, dataset, generated = map(Path, paths)
    run = getattr(stages, stage, None) or getattr(gpu_stages, stage)
    outcome = run(Task(backend, device, dataset, generated, folder))
    (folder / RESULT).write_text(json.dumps(asdict(outcome)))


if __name__ == "__main__":
    main(*sys.argv[1:])
