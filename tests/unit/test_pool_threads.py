"""The pool of decode threads: many batches, dropped tickets, other numbers of threads, closing; forks, exits and Ctrl-C."""

from __future__ import annotations

import gc
import os
import pickle
import signal
import subprocess
import sys
import textwrap
import threading
import weakref
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fastload.decode.backend import Codec, DecodeBatch, DecodeResult, Status, new_requests
from fastload.decode.cpus import available_cpus
from fastload.errors import ConfigError
from fastload.native import core
from tests.decoding import native, pixels_of
from tests.jpeg_samples import encode, picture

pytestmark = pytest.mark.skipif(core() is None, reason="not run: no native core")
ROOT = Path(__file__).resolve().parents[2]
SMALL = encode(picture(96, 64), "420")
LARGE = encode(picture(1600, 1200), "444", 90)         # some 30 ms


def backend(threads: int = 2) -> Any:
    from fastload.decode.native import NativeBackend

    return NativeBackend(threads=threads)


def batch(n: int, data: bytes = SMALL, fill: int = 0) -> DecodeBatch:
    requests = new_requests(n)
    requests["out_w"], requests["out_h"] = 32, 24
    return DecodeBatch([data] * n, requests, np.full((n, 24, 32, 3), fill, np.uint8))


def right(result: DecodeResult) -> bool:
    expected = pixels_of(native(), SMALL, (32, 24))
    return result.ok and all(np.array_equal(slot, expected) for slot in np.asarray(result.output))


def test_many_batches_in_flight_come_back_each_with_its_own() -> None:
    with backend() as pool:
        tickets = [pool.submit(batch(1 + i % 7)) for i in range(200)]
        assert all(right(pool.collect(ticket)) for ticket in reversed(tickets))


def test_raw_samples_which_threads_take_several_at_a_time_come_each_to_its_slot() -> None:
    n = 333                                             # not a multiple of what is taken at a time
    pixels = np.random.default_rng(0).integers(1, 256, (n, 6, 8, 3), np.uint8)
    requests = new_requests(n)
    requests["codec"], requests["size"], requests["raw_channels"], requests["raw_bits"] = Codec.RAW, 6 * 8 * 3, 3, 8
    requests["raw_w"] = requests["out_w"] = 8
    requests["raw_h"] = requests["out_h"] = 6
    bad = [0, 7, 100, 331, 332]
    requests["size"][bad] -= 1
    with backend(3) as pool:
        for _ in range(20):
            result = pool.collect(pool.submit(DecodeBatch([one.tobytes() for one in pixels], requests, np.zeros_like(pixels))))
            assert sorted(result.reasons) == bad
            assert all("143 bytes, expected 144" in reason for reason in result.reasons.values())
            good = np.setdiff1d(np.arange(n), bad)
            assert np.array_equal(np.asarray(result.output)[good], pixels[good])


def test_a_ticket_may_be_collected_twice() -> None:
    with backend() as pool:
        ticket = pool.submit(batch(3))
        assert right(pool.collect(ticket))
        assert ticket.done
        assert right(pool.collect(ticket))


def test_a_dropped_ticket_takes_its_batch_back_and_leaves_the_memory_alone() -> None:
    with backend(1) as pool:
        first = batch(200, LARGE)
        ticket = pool.submit(first)
        del ticket
        done = np.asarray(first.output).reshape(200, -1).any(axis=1)
        assert done.sum() < 200, "nothing was left to take back"
        before = np.asarray(first.output).copy()
        assert right(pool.collect(pool.submit(batch(5))))
        assert np.array_equal(first.output, before), "a sample was written after its ticket was gone"


def test_sources_and_output_live_as_long_as_their_batch() -> None:
    class Bytes(bytearray):
        pass

    with backend() as pool:
        sources = [Bytes(SMALL) for _ in range(20)]
        watched = weakref.ref(sources[0])
        asked = batch(20)
        ticket = pool.submit(DecodeBatch(sources, asked.requests, asked.output))
        with pytest.raises(BufferError):
            sources[0].extend(b"x")                      # locked while threads read it
        del sources
        gc.collect()
        assert right(pool.collect(ticket))
        assert watched() is not None
        del ticket
        gc.collect()
        assert watched() is None


def test_the_number_of_threads_can_change_under_way() -> None:
    with backend(1) as pool:
        tickets = []
        for i in range(60):
            pool.threads = 1 + i % 5
            assert pool.threads == 1 + i % 5
            tickets.append(pool.submit(batch(9)))
        assert all(right(pool.collect(ticket)) for ticket in tickets)
        for wrong in (0, -1, 1025):
            with pytest.raises(ConfigError):
                pool.threads = wrong
        assert right(pool.collect(pool.submit(batch(2))))


@pytest.mark.skipif(sys.platform != "linux", reason="not run: elsewhere niceness is the whole process's")
def test_decode_threads_have_a_name_and_let_others_go_first() -> None:
    own = os.getpriority(os.PRIO_PROCESS, 0)
    with backend(3) as pool:
        assert right(pool.collect(pool.submit(batch(20))))
        names = {int(task.name): (task / "comm").read_text().strip() for task in Path("/proc/self/task").iterdir()}
        threads = [task for task, name in names.items() if name == "fastload-decode"]
        assert threads          # not all three: one may not have begun yet
        assert {os.getpriority(os.PRIO_PROCESS, thread) for thread in threads} == {min(own + 5, 19)}
    assert os.getpriority(os.PRIO_PROCESS, 0) == own, "the caller stepped back, too"


@pytest.mark.parametrize("threads", [0, -3, 2000])
def test_impossible_numbers_of_threads_raise(threads: int) -> None:
    with pytest.raises(ConfigError, match="threads"):
        backend(threads)


def test_without_a_number_there_are_as_many_threads_as_processors() -> None:
    from fastload.decode.native import NativeBackend

    assert NativeBackend().threads == available_cpus()


def test_closing_cancels_what_is_not_begun() -> None:
    pool = backend(1)
    tickets = [pool.submit(batch(50, LARGE)) for _ in range(3)]
    pool.close()
    results = [pool.collect(ticket) for ticket in tickets]
    assert {int(status) for result in results for status in result.status} <= {Status.OK, Status.CANCELLED}
    assert (results[2].status == Status.CANCELLED).all()
    with pytest.raises(RuntimeError, match="closed"):
        pool.submit(batch(1))
    pool.close()


def test_waiting_can_time_out_and_go_on() -> None:
    with backend(1) as pool:
        ticket = pool.submit(batch(20, LARGE))
        with pytest.raises(TimeoutError, match="20"):
            pool.collect(ticket, timeout_s=0.001)
        assert pool.collect(ticket, timeout_s=300).ok


def test_other_python_threads_run_while_one_waits() -> None:
    with backend(1) as pool:
        ticket = pool.submit(batch(20, LARGE))
        ran = threading.Event()
        threading.Thread(target=ran.set).start()
        assert pool.collect(ticket).ok
        assert ran.is_set()


def test_several_python_threads_share_a_pool() -> None:
    good: list[bool] = []
    with backend() as pool:
        def work() -> None:
            good.extend(right(pool.collect(pool.submit(batch(5)))) for _ in range(20))

        threads = [threading.Thread(target=work) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert good == [True] * 80


def test_a_backend_survives_pickling() -> None:
    with backend(3) as pool:
        again = pickle.loads(pickle.dumps(pool))
        assert again.threads == 3
        assert right(again.collect(again.submit(batch(2))))


# A child imports little: it is to start in a moment.
PRELUDE = """
    import os, sys
    import numpy as np
    from pathlib import Path
    from fastload.decode.backend import DecodeBatch, new_requests
    from fastload.decode.native import NativeBackend

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
    return subprocess.Popen([sys.executable, "-X", "faulthandler", "-c", textwrap.dedent(PRELUDE + program)], cwd=ROOT, text=True,
                            env={**os.environ, "IMAGES": str(images)}, stdout=subprocess.PIPE, stderr=subprocess.PIPE)


def child(program: str, images: Path) -> tuple[int, str, str]:
    """Exit code, stdout, stderr; a child that hangs is ended and fails the test."""
    with start(program, images) as process:
        try:
            out, err = process.communicate(timeout=120)
        finally:
            process.kill()
    return process.returncode, out, err


def test_a_fork_gets_threads_of_its_own(images: Path) -> None:
    _, out, err = child("""
    pool = NativeBackend(threads=2)
    assert right(pool.collect(pool.submit(batch(3))))
    under_way = pool.submit(batch(40, LARGE))
    children = []
    for turn in range(8):
        pid = os.fork()
        if pid == 0:
            code = 1
            try:
                if not under_way.done:
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
    """, images)
    assert out == "done\n", err


def test_a_fork_while_threads_do_something_for_the_first_time(images: Path) -> None:
    """What is made at its first use, the checksum's tables say, was half made in a child for ever."""
    _, out, err = child("""
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
    """, images)
    assert out == "done\n", err


def test_a_fork_that_never_uses_the_pool_ends_by_itself(images: Path) -> None:
    _, out, err = child("""
    pool = NativeBackend(threads=2)
    under_way = pool.submit(batch(40, LARGE))
    pid = os.fork()
    if pid == 0:
        sys.exit(0)              # with all of Python's clearing up
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    assert pool.collect(under_way).ok
    print("done")
    """, images)
    assert out == "done\n", err


@pytest.mark.parametrize("how", ["sys.exit(0)", "raise SystemExit(0)", "pass", "os._exit(0)", "del pool; sys.exit(0)", "pool.close()"])
def test_python_can_exit_with_work_under_way(how: str, images: Path) -> None:
    code, _, err = child(f"""
    pool = NativeBackend(threads=2)
    tickets = [pool.submit(batch(100, LARGE)) for _ in range(3)]
    {how}
    """, images)
    assert (code, err) == (0, "")


@pytest.mark.parametrize("call", ["core.crc32c(data)", "core.rewrite(LARGE)"])
def test_python_can_exit_with_a_thread_inside_the_core(call: str, images: Path) -> None:
    """A user's thread, or the one that reads ahead: nobody waits for it, and it comes back from C++ to a Python that is going."""
    code, _, err = child(f"""
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
    """, images)
    assert (code, err) == (0, "")


def test_threads_that_the_system_refuses_are_an_error_that_says_so(images: Path) -> None:
    """Before, it was the end of the process. Whatever it gave goes on."""
    code, out, err = child("""
    import resource
    from fastload.errors import ConfigError

    pool = NativeBackend(threads=1024)
    limit = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize() + (100 << 20)     # stacks of a few threads
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))

    def refused(action):
        try:
            action()
        except ConfigError as error:
            return "of 1024" in str(error) and "refuses" in str(error)

    assert refused(lambda: pool.submit(batch(3)))
    pool.threads = 2
    assert right(pool.collect(pool.submit(batch(3))))
    assert refused(lambda: setattr(pool, "threads", 1024))
    assert 2 <= pool.threads < 1024
    assert right(pool.collect(pool.submit(batch(3))))
    print("done")
    """, images)
    assert (code, out) == (0, "done\n"), err


def test_an_error_ends_python_as_ever(images: Path) -> None:
    code, _, err = child("""
    pool = NativeBackend(threads=2)
    ticket = pool.submit(batch(100, LARGE))
    raise KeyError("on purpose")
    """, images)
    assert code == 1
    assert "on purpose" in err
    assert "Fatal" not in err


def test_ctrl_c_while_waiting(images: Path) -> None:
    """SIGINT comes once the child says that it is about to wait; unanswered, the batch would take minutes."""
    process = start("""
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
    """, images)
    with process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "waiting\n"
            process.send_signal(signal.SIGINT)
            out, err = process.communicate(timeout=120)
        finally:
            process.kill()
    assert (out, process.returncode) == ("interrupted\n", 130), err
