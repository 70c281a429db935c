"""Exit handlers finish their work when Ctrl-C arrives during interpreter exit."""

from __future__ import annotations

import subprocess
import sys

import pytest

# Handlers run in reverse order. The C function raise() sets the signal without running Python
# code, so Python handles it at the first instruction of the next handler.
PROGRAM = """
import atexit, ctypes, signal
from fastload._common.threads import at_exit

interrupts = [{interrupts}]

def stop():
    if interrupts[0]:
        interrupts[0] -= 1
        signal.raise_signal(signal.SIGINT)
    print("stopped")

{register}(stop)
atexit.register(ctypes.CDLL(None)["raise"], signal.SIGINT)
"""


def run(register: str, interrupts: int) -> subprocess.CompletedProcess[str]:
    program = PROGRAM.format(register=register, interrupts=interrupts)
    command = [sys.executable, "-c", program]
    return subprocess.run(command, capture_output=True, text=True, check=False)


@pytest.mark.parametrize("interrupts", [0, 1, 3])
def test_a_handler_finishes_in_spite_of_ctrl_c(interrupts: int) -> None:
    result = run("at_exit", interrupts)
    assert (result.stdout, result.stderr) == ("stopped\n", "")
    assert result.returncode == 0


def test_a_plain_handler_is_skipped_by_ctrl_c() -> None:
    result = run("atexit.register", 0)
    assert "stopped" not in result.stdout
    assert "KeyboardInterrupt" in result.stderr
