"""A warm Python process that forks a child per call, for fault tests that kill or crash children.

Starting Python and importing fastload takes half a second, forking a few milliseconds, and fault
tests need thousands of children. The parent keeps the expected state. The server runs as ``python
-m tests.forking``.
"""

from __future__ import annotations

import importlib
import json
import os
import select
import subprocess
import sys
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

ROOT = Path(__file__).parents[1]
HANG_S = 600.0  # only a hang takes this long, also on a slow and busy machine


@dataclass(frozen=True, slots=True)
class Outcome:
    """The exit code of a child, negative for a signal, and its output."""

    code: int
    output: str


class Child:
    """One forked call. It stays a zombie until ``wait``, so that its process id is not reused."""

    def __init__(self, zygote: Zygote, pid: int, log: Path) -> None:
        self._zygote, self.pid, self._log = zygote, pid, log

    def kill(self, signal: int) -> None:
        os.kill(self.pid, signal)

    def wait(self, timeout_s: float = HANG_S) -> Outcome:
        """Waits for its end. A child that takes longer is killed, and the test fails."""
        status = self._zygote.ask(
            {"wait": self.pid}, timeout_s, on_timeout=lambda: os.kill(self.pid, 9)
        )
        return Outcome(os.waitstatus_to_exitcode(status), self._log.read_text(errors="replace"))


class Zygote:
    """Forks children that call functions named "module:function" with JSON arguments."""

    name = ""

    def __init__(self, folder: Path, modules: tuple[str, ...], **environment: str) -> None:
        self._folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        self._count = 0
        self._process = subprocess.Popen(
            [sys.executable, "-W", "error", "-m", "tests.forking", *modules],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, "OPENBLAS_NUM_THREADS": "1", **environment},
        )
        self.ask({}, HANG_S)

    def warm(self, function: Callable[..., object]) -> None:
        """Calls a function, such as a cached one, in the parent of all children."""
        self.ask({"warm": f"{function.__module__}:{function.__name__}"}, HANG_S)

    def start(self, function: Callable[..., object], *arguments: object) -> Child:
        self._count += 1
        log = self._folder / f"{self._count}.log"
        log.touch()  # the child may be killed before it opens the file
        call = f"{function.__module__}:{function.__name__}"
        return Child(
            self, self.ask({"call": call, "arguments": arguments, "log": str(log)}, HANG_S), log
        )

    def run(
        self, function: Callable[..., object], *arguments: object, timeout_s: float = HANG_S
    ) -> Outcome:
        return self.start(function, *arguments).wait(timeout_s)

    def ask(
        self, request: object, timeout_s: float, on_timeout: Callable[[], None] | None = None
    ) -> int:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(request).encode() + b"\n")
        self._process.stdin.flush()
        ready, _, _ = select.select([self._process.stdout], [], [], timeout_s)
        if not ready and on_timeout is not None:
            on_timeout()
            self._process.stdout.readline()
        answer = self._process.stdout.readline() if ready else b""
        if not answer:
            raise TimeoutError(
                f"{request!r:.300}: no answer within {timeout_s} s, or the forking process has died"
            )
        return int(answer)

    def __enter__(self) -> Zygote:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                pipe.close()
        self._process.wait(HANG_S)


def _serve() -> None:
    for module in sys.argv[1:]:
        importlib.import_module(module)
    answers = os.fdopen(os.dup(1), "wb", buffering=0)
    for line in sys.stdin.buffer:
        request = json.loads(line)
        if "call" in request:
            pid = os.fork()
            if pid == 0:
                answers.close()
                _call(request)
            answers.write(b"%d\n" % pid)
        elif "wait" in request:
            answers.write(b"%d\n" % os.waitpid(request["wait"], 0)[1])
        else:
            if "warm" in request:
                _function(request["warm"])()
            answers.write(b"0\n")
    answers.close()


def _function(name: str) -> Callable[..., object]:
    module, _, function = name.partition(":")
    found: Callable[..., object] = getattr(importlib.import_module(module), function)
    return found


def _call(request: dict[str, object]) -> None:
    log = os.open(str(request["log"]), os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(log, 1)
    os.dup2(log, 2)
    code = 1
    try:
        arguments = request["arguments"]
        _function(str(request["call"]))(*(arguments if isinstance(arguments, list) else ()))
        code = 0
    except BaseException:  # noqa: BLE001 - the parent reads the traceback
        traceback.print_exc()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


if __name__ == "__main__":
    _serve()
