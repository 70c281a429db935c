"""The pool of decode threads in a process of its own: forks, exits, Ctrl-C, threads and memory that the system refuses."""

from __future__ import annotations

import io
import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
from PIL import Image

from fastload._common.native import core
from tests.decoding import native, pixels_of
from tests.jpeg_samples import encode, picture

pytestmark = pytest.mark.skipif(core() is None, reason="not run: no native core")
ROOT = Path(__file__).resolve().parents[2]
SMALL = encode(picture(96, 64), "420")
LARGE = encode(picture(1600, 1200), "444", 90)  # some 30 ms

# A child imports little: it is to start in a moment.
PRELUDE = """
    import os, sys
    import numpy as np
    from pathlib import Path
    from fastload._decode.backend import DecodeBatch, new_requests
    from fastload._decode.native import NativeBackend

    SMALL, LARGE = (Path(os.environ["IMAGES"], name).read_bytes() for name in ("small", "large"))

    def batch(n, data=SMALL):
        requests = new_requests(n)
        requests["out_w"], requests["out_h"] = 32, 24
        return DecodeBatch([data] * n, requests, np.zeros((n, 24, 32, 3), np.uint8))

    def right(result):
        return result.ok and all(slot.tobytes() == Path(os.environ["IMAGES"], "pixels").read_bytes() for slot in result.output)
"""


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("images")
    (folder / "small").write_bytes(SMALL)
    (folder / "large").write_bytes(LARGE)
    (folder / "pixels").write_bytes(pixels_of(native(), SMALL, (32, 24)).tobytes())
    return folder


def start(program: str, images: Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-X", "faulthandler", "-c", textwrap.dedent(PRELUDE + program)],
        cwd=ROOT,
        text=True,
        env={**os.environ, "IMAGES": str(images)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )


def child(program: str, images: Path) -> tuple[int, str, str]:
    """Exit code, stdout, stderr; a child that hangs is ended and fails the test."""
    with start(program, images) as process:
        try:
            out, err = process.communicate(timeout=120)
        finally:
            process.kill()
    return process.returncode, out, err


def test_a_fork_gets_threads_of_its_own(images: Path) -> None:
    _, out, err = child(
        """
    pool = NativeBackend(threads=2)
    assert right(pool.collect(pool.submit(batch(3))))
    under_way = pool.submit(batch(40, LARGE))
    children = []
    for turn in range(8):
        pid = os.fork()
        if pid == 0:
            code = 1
            try:
                if not under_way.ticket.done:
                    try:
                        pool.collect(under_way)
                    except RuntimeError as error:
                        assert "fork" in str(error)
                del under_way
                pool.threads = 1 + turn % 3
                code = 0 if all(right(pool.collect(pool.submit(batch(5)))) for _ in range(3)) else 2
            finally:
                os._exit(code)
        children.append(pid)
    codes = [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in children]
    assert codes == [0] * 8, codes
    assert pool.collect(under_way).ok
    print("done")
    """,
        images,
    )
    assert out == "done\n", err


def test_a_fork_while_threads_do_something_for_the_first_time(images: Path) -> None:
    """What is made at its first use, the checksum's tables say, was half made in a child for ever."""
    _, out, err = child(
        """
    import signal, struct, time
    import google_crc32c

    parts = b"\\1\\0" + struct.pack("<HIQ", 0, 24 + len(LARGE), 0) + LARGE
    record = b"FLR1" + struct.pack("<I", google_crc32c.value(parts)) + parts
    asked = batch(2, record)
    asked.requests["check"], asked.requests["offset"] = 1, 24
    pool = NativeBackend(threads=2)
    under_way = pool.submit(asked)
    children = []
    for turn in range(8):
        pid = os.fork()
        if pid == 0:
            signal.alarm(60)
            os._exit(0 if pool.collect(pool.submit(asked)).ok else 1)
        children.append(pid)
        time.sleep(0.001)
    codes = [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in children]
    assert codes == [0] * 8, codes
    assert pool.collect(under_way).ok
    print("done")
    """,
        images,
    )
    assert out == "done\n", err


def test_a_fork_that_never_uses_the_pool_ends_by_itself(images: Path) -> None:
    _, out, err = child(
        """
    pool = NativeBackend(threads=2)
    under_way = pool.submit(batch(40, LARGE))
    pid = os.fork()
    if pid == 0:
        sys.exit(0)              # with all of Python's clearing up
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    assert pool.collect(under_way).ok
    print("done")
    """,
        images,
    )
    assert out == "done\n", err


@pytest.mark.parametrize(
    "how",
    [
        "sys.exit(0)",
        "raise SystemExit(0)",
        "pass",
        "os._exit(0)",
        "del pool; sys.exit(0)",
        "pool.close()",
    ],
)
def test_python_can_exit_with_work_under_way(how: str, images: Path) -> None:
    code, _, err = child(
        f"""
    pool = NativeBackend(threads=2)
    tickets = [pool.submit(batch(100, LARGE)) for _ in range(3)]
    {how}
    """,
        images,
    )
    assert (code, err) == (0, "")


def test_threads_that_the_system_refuses_are_an_error_that_says_so(images: Path) -> None:
    """Before, it was the end of the process. Whatever it gave goes on."""
    code, out, err = child(
        """
    import resource
    from fastload.errors import ConfigError

    pool = NativeBackend(threads=1024)
    limits = resource.getrlimit(resource.RLIMIT_AS)

    def refused(action):
        size = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (size + (100 << 20), limits[1]))        # room for the stacks of a few threads
        try:
            action()
        except ConfigError as error:
            return "of 1024" in str(error) and "refuses" in str(error)
        finally:
            resource.setrlimit(resource.RLIMIT_AS, limits)

    assert refused(lambda: pool.submit(batch(3)))
    pool.threads = 2
    assert right(pool.collect(pool.submit(batch(3))))
    assert refused(lambda: setattr(pool, "threads", 1024))
    assert 2 <= pool.threads < 1024
    assert right(pool.collect(pool.submit(batch(3))))
    print("done")
    """,
        images,
    )
    assert (code, out) == (0, "done\n"), err


@pytest.mark.parametrize("call", ["core.crc32c(data)", "core.rewrite(LARGE)"])
def test_python_can_exit_with_a_thread_inside_the_core(call: str, images: Path) -> None:
    """A user's thread, or the one that reads ahead: nobody waits for it, and it comes back from C++ to a Python that is going."""
    code, _, err = child(
        f"""
    import threading, time
    from fastload import _core as core

    class Last:
        def __del__(self, sleep=time.sleep):        # in the middle of the exit
            sleep(0.3)

    data, begun, last = bytes(1 << 20), threading.Event(), Last()

    def again_and_again():
        while True:
            {call}
            begun.set()

    threading.Thread(target=again_and_again, daemon=True).start()
    begun.wait()
    """,
        images,
    )
    assert (code, err) == (0, "")


def test_memory_that_runs_out_is_not_the_images_fault(images: Path) -> None:
    with io.BytesIO() as file:  # progressive: libjpeg keeps all of its coefficients
        Image.new("RGB", (5000, 5000), (90, 160, 30)).save(file, "JPEG", progressive=True)
        (images / "huge").write_bytes(file.getvalue())
    code, out, err = child(
        """
    import resource
    from fastload._decode.backend import Status
    from fastload._common.native import core

    pool = NativeBackend(threads=1)
    huge = batch(1, Path(os.environ["IMAGES"], "huge").read_bytes())
    assert pool.collect(pool.submit(huge)).ok
    limits = resource.getrlimit(resource.RLIMIT_AS)
    size = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (size + (40 << 20), limits[1]))
    result = pool.collect(pool.submit(huge))
    assert result.status.tolist() == [Status.NO_MEMORY] and "memory" in result.reasons[0], result
    try:
        core().rewrite(huge.sources[0])
    except MemoryError:
        print("no rewrite")         # and no BadJpeg: a pack with on_error="skip" would go on without it
    assert right(pool.collect(pool.submit(batch(3))))
    resource.setrlimit(resource.RLIMIT_AS, limits)
    assert pool.collect(pool.submit(huge)).ok
    rewritten = core().rewrite(huge.sources[0])
    assert (rewritten.width, rewritten.height) == (5000, 5000)
    print("done")
    """,
        images,
    )
    assert (code, out) == (0, "no rewrite\ndone\n"), err


def test_an_error_ends_python_as_ever(images: Path) -> None:
    code, _, err = child(
        """
    pool = NativeBackend(threads=2)
    ticket = pool.submit(batch(100, LARGE))
    raise KeyError("on purpose")
    """,
        images,
    )
    assert code == 1
    assert "on purpose" in err
    assert "Fatal" not in err


def test_ctrl_c_while_waiting(images: Path) -> None:
    """SIGINT comes once the child says that it is about to wait; unanswered, the batch would take minutes."""
    process = start(
        """
    pool = NativeBackend(threads=1)
    ticket = pool.submit(batch(20000, LARGE))
    try:
        print("waiting", flush=True)
        pool.collect(ticket)
    except KeyboardInterrupt:
        print("interrupted", flush=True)
    del ticket                      # takes the batch back, now that no traceback holds it any more
    assert right(pool.collect(pool.submit(batch(3))))
    tickets = [pool.submit(batch(20000, LARGE))]
    sys.exit(130)
    """,
        images,
    )
    with process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "waiting\n"
            process.send_signal(signal.SIGINT)
            out, err = process.communicate(timeout=120)
        finally:
            process.kill()
    assert (out, process.returncode) == ("interrupted\n", 130), err
