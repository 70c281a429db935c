"""The decode pool in child processes: forks, exits, Ctrl-C, limits of threads and memory."""

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
from tests.jpeg_samples import encode, sample_image

pytestmark = pytest.mark.skipif(core() is None, reason="not run: no native core")
ROOT = Path(__file__).resolve().parents[2]
SMALL = encode(sample_image(96, 64), "420")
LARGE = encode(sample_image(1600, 1200), "444", 90)  # takes about 30 ms

# Imports little, so that a child starts fast.
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

    def is_correct(result):
        return result.ok and all(slot.tobytes() == Path(os.environ["IMAGES"], "pixels").read_bytes() for slot in result.output)
"""


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("images")
    (folder / "small").write_bytes(SMALL)
    (folder / "large").write_bytes(LARGE)
    (folder / "pixels").write_bytes(pixels_of(native(), SMALL, (32, 24)).tobytes())
    return folder


def start(program: str, images: Path, **variables: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-X", "faulthandler", "-c", textwrap.dedent(PRELUDE + program)],
        cwd=ROOT,
        text=True,
        env={**os.environ, "IMAGES": str(images), **variables},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )


def child(program: str, images: Path, **variables: str) -> tuple[int, str, str]:
    """Returns exit code, stdout and stderr. A child that hangs is killed and fails the test."""
    with start(program, images, **variables) as process:
        try:
            out, err = process.communicate(timeout=600)
        finally:
            process.kill()
    return process.returncode, out, err


def test_a_forked_child_starts_its_own_threads(images: Path) -> None:
    _, out, err = child(
        """
    pool = NativeBackend(threads=2)
    assert is_correct(pool.collect(pool.submit(batch(3))))
    in_flight = pool.submit(batch(40, LARGE))
    children = []
    for turn in range(8):
        pid = os.fork()
        if pid == 0:
            code = 1
            try:
                if not pool.done(in_flight):
                    try:
                        pool.collect(in_flight)
                    except RuntimeError as error:
                        assert "fork" in str(error)
                del in_flight
                pool.threads = 1 + turn % 3
                code = 0 if all(is_correct(pool.collect(pool.submit(batch(5)))) for _ in range(3)) else 2
            finally:
                os._exit(code)
        children.append(pid)
    codes = [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in children]
    assert codes == [0] * 8, codes
    assert pool.collect(in_flight).ok
    print("done")
    """,
        images,
    )
    assert out == "done\n", err


def test_a_fork_during_lazy_initialization_does_not_hang_the_child(images: Path) -> None:
    """A table initialized at first use, such as the CRC table, stayed incomplete."""
    _, out, err = child(
        """
    import signal, struct, time
    import google_crc32c

    parts = b"\\1\\0" + struct.pack("<HIQ", 0, 24 + len(LARGE), 0) + LARGE
    record = b"FLR1" + struct.pack("<I", google_crc32c.value(parts)) + parts
    request = batch(2, record)
    request.requests["check"], request.requests["offset"] = 1, 24
    pool = NativeBackend(threads=2)
    in_flight = pool.submit(request)
    children = []
    for turn in range(8):
        pid = os.fork()
        if pid == 0:
            signal.alarm(300)
            os._exit(0 if pool.collect(pool.submit(request)).ok else 1)
        children.append(pid)
        time.sleep(0.001)
    codes = [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in children]
    assert codes == [0] * 8, codes
    assert pool.collect(in_flight).ok
    print("done")
    """,
        images,
    )
    assert out == "done\n", err


def test_a_forked_child_that_never_uses_the_pool_exits(images: Path) -> None:
    _, out, err = child(
        """
    pool = NativeBackend(threads=2)
    in_flight = pool.submit(batch(40, LARGE))
    pid = os.fork()
    if pid == 0:
        sys.exit(0)              # with the complete shutdown of Python
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    assert pool.collect(in_flight).ok
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
def test_python_can_exit_with_batches_in_flight(how: str, images: Path) -> None:
    code, _, err = child(
        f"""
    pool = NativeBackend(threads=2)
    tickets = [pool.submit(batch(100, LARGE)) for _ in range(3)]
    {how}
    """,
        images,
    )
    assert (code, err) == (0, "")


def test_a_thread_limit_of_the_system_raises_and_the_pool_still_works(images: Path) -> None:
    """This used to end the process. The threads that did start keep working."""
    code, out, err = child(
        """
    import resource
    from fastload.errors import ConfigError

    pool = NativeBackend(threads=1024)
    limits = resource.getrlimit(resource.RLIMIT_AS)

    def hits_the_limit(action):
        size = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (size + (20 << 20), limits[1]))        # enough for the stacks of a few threads
        try:
            action()
        except ConfigError as error:
            return "cannot start decode thread" in str(error) and "of 1024" in str(error)
        finally:
            resource.setrlimit(resource.RLIMIT_AS, limits)

    assert hits_the_limit(lambda: pool.submit(batch(3)))
    pool.threads = 2
    assert is_correct(pool.collect(pool.submit(batch(3))))
    assert hits_the_limit(lambda: setattr(pool, "threads", 1024))
    assert 2 <= pool.threads < 1024
    assert is_correct(pool.collect(pool.submit(batch(3))))
    print("done")
    """,
        images,
    )
    assert (code, out) == (0, "done\n"), err


@pytest.mark.parametrize("call", ["core.crc32c(data)", "core.rewrite(LARGE)"])
def test_python_can_exit_with_a_thread_inside_the_core(call: str, images: Path) -> None:
    """A daemon thread returns from C++ to Python during the interpreter shutdown."""
    code, _, err = child(
        f"""
    import threading, time
    from fastload import _core as core

    class Last:
        def __del__(self, sleep=time.sleep):        # runs during interpreter shutdown
            sleep(0.3)

    data, started, last = bytes(1 << 20), threading.Event(), Last()

    def call_forever():
        while True:
            {call}
            started.set()

    threading.Thread(target=call_forever, daemon=True).start()
    started.wait()
    """,
        images,
    )
    assert (code, err) == (0, "")


def test_out_of_memory_is_not_reported_as_a_bad_image(images: Path) -> None:
    """The image needs 75 MB for its coefficients where 20 MiB are left.

    The C library of the child neither reserves 64 MiB per thread nor keeps freed memory: an
    image that fits into such a reserve would be decoded.
    """
    with io.BytesIO() as file:  # progressive: libjpeg stores all coefficients
        Image.new("RGB", (5000, 5000), (90, 160, 30)).save(file, "JPEG", progressive=True)
        (images / "huge").write_bytes(file.getvalue())
    code, out, err = child(
        """
    import resource
    from fastload._decode.backend import Status
    from fastload._common.native import core

    pool = NativeBackend(threads=1)
    huge = batch(1, Path(os.environ["IMAGES"], "huge").read_bytes())
    assert is_correct(pool.collect(pool.submit(batch(3))))
    size = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    limits = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (size + (20 << 20), limits[1]))
    result = pool.collect(pool.submit(huge))
    assert result.status.tolist() == [Status.NO_MEMORY] and "memory" in result.reasons[0], result
    try:
        core().rewrite(huge.sources[0])
    except MemoryError:
        print("no rewrite")         # a BadJpeg would let on_error="skip" drop the image
    assert is_correct(pool.collect(pool.submit(batch(3))))
    resource.setrlimit(resource.RLIMIT_AS, limits)
    assert pool.collect(pool.submit(huge)).ok
    rewritten = core().rewrite(huge.sources[0])
    assert (rewritten.width, rewritten.height) == (5000, 5000)
    print("done")
    """,
        images,
        MALLOC_ARENA_MAX="1",
        MALLOC_MMAP_THRESHOLD_="131072",
    )
    assert (code, out) == (0, "no rewrite\ndone\n"), err


def test_an_exception_ends_python_normally(images: Path) -> None:
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


def test_ctrl_c_interrupts_waiting(images: Path) -> None:
    """SIGINT arrives while the child waits for a batch that takes minutes."""
    process = start(
        """
    pool = NativeBackend(threads=1)
    ticket = pool.submit(batch(20000, LARGE))
    try:
        print("waiting", flush=True)
        pool.collect(ticket)
    except KeyboardInterrupt:
        print("interrupted", flush=True)
    del ticket                      # cancels the batch, which no traceback references now
    assert is_correct(pool.collect(pool.submit(batch(3))))
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
            out, err = process.communicate(timeout=600)
        finally:
            process.kill()
    assert (out, process.returncode) == ("interrupted\n", 130), err
