"""Training loops that fault tests of the loader interrupt or kill. They run in forked children."""

from __future__ import annotations

import atexit
import ctypes
import faulthandler
import os
import queue
import random
import signal
import sys
import threading
import time
import traceback
import weakref
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

_EXIT: dict[str, Any] = {}


@atexit.register  # registered before the handlers of fastload, so it runs after them
def _report_end() -> None:
    """Prints when fastload is done. The exit of Python and torch takes seconds more."""
    if _EXIT:
        print(f"over {time.monotonic()}", flush=True)
        if not _EXIT["whole"]:
            os._exit(_EXIT["code"])


import fastload  # noqa: E402
from fastload import transforms as T  # noqa: E402
from fastload._load.loader import DataLoader  # noqa: E402
from fastload._load.prefetch import Prefetcher  # noqa: E402

SEED = int(os.environ.get("FASTLOAD_SEED", "1"))
CROP = [T.RandomResizedCrop(24), T.HorizontalFlip()]
LOADERS: dict[str, dict[str, Any]] = {
    "native": {"shuffle": True, "transform": CROP},
    "reference": {"shuffle": True, "transform": CROP, "backend": "reference"},
    "sampler": {"sampler": range(40), "transform": CROP},
    "color": {"shuffle": True, "transform": [*CROP, T.ColorJitter(brightness=0.3, hue=0.1)]},
    "single": {"batch_size": None, "shuffle": True, "transform": CROP},
}


def warm() -> None:
    """Imports everything that a loader needs, before children are forked."""
    torch.set_num_threads(1)
    import fastload._decode.native
    import fastload._decode.reference  # noqa: F401


def make(packed: str, kind: str, **options: Any) -> DataLoader:
    return fastload.DataLoader(
        packed, **{"batch_size": 4, "num_workers": 2, **LOADERS[kind], **options}
    )


def train_epochs(packed: str, kind: str, seconds: float, bug: str) -> None:
    """Trains for several epochs and creates a new loader now and then."""
    plant(bug)
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        loader = make(packed, kind)
        for _ in range(3):
            for number, batch in enumerate(loader):
                assert len(batch) == 2
                if number == 7:
                    break


def exit_with_batches_in_flight(packed: str, kind: str, how: str, bug: str) -> None:
    """Exits with batches in flight: at the end of the program, with an error, or with sys.exit."""
    plant(bug)
    loader = make(packed, kind, prefetch_factor=8)
    iterators = [iter(loader), iter(loader), iter(make(packed, kind))]
    for iterator in iterators:
        next(iterator)
    if how == "error":
        raise ZeroDivisionError("in the training loop")
    if how == "exit":
        sys.exit(3)
    globals()["iterators"] = iterators  # still referenced at interpreter exit


def run_as_program(whole: bool, function: str, *arguments: Any) -> None:
    """Calls a function like a separate program: in its own session, with the exit handlers.

    With ``whole``, this includes the exit of Python and torch after fastload is done.
    """
    os.setsid()
    signal.signal(signal.SIGINT, signal.default_int_handler)
    faulthandler.dump_traceback_later(100)  # for a child that hangs
    code = 0
    try:
        globals()[function](*arguments)
    except SystemExit as end:
        code = int(str(end.code))
    except KeyboardInterrupt:
        print("KeyboardInterrupt", flush=True)
        code = 130
    except BaseException:  # noqa: BLE001 - as the interpreter does
        traceback.print_exc()
        code = 1
    _EXIT.update(code=code, whole=whole)
    ctypes.pythonapi.Py_Exit(code)


def count_interrupts(packed: str, kind: str, seconds: float, pause: float, bug: str) -> None:
    """Sends SIGINT to itself at random moments and prints how many became KeyboardInterrupt."""
    plant(bug)
    loader = make(packed, kind)
    caught: list[int] = []
    lost: list[int] = []
    ignored: Counter[str] = Counter()
    done = threading.Event()
    ready = threading.Event()  # the next KeyboardInterrupt will be caught

    def unraisable(what: Any) -> None:
        if what.exc_type is KeyboardInterrupt:
            ignored[f"KeyboardInterrupt in {what.object!r:.100}"] += 1

    sys.unraisablehook = unraisable

    def send() -> None:
        ready.wait()
        rng, until = random.Random(SEED), time.monotonic() + seconds
        while time.monotonic() < until and not lost:
            ready.wait()
            ready.clear()
            time.sleep(rng.uniform(0.0005, pause))
            before, at_most = len(caught), time.monotonic() + (10 if bug else 100)
            os.kill(os.getpid(), signal.SIGINT)
            while len(caught) == before and not lost:
                if time.monotonic() > at_most:
                    lost.append(before)
                time.sleep(0.0003)
        done.set()

    rounds = 0
    sender = threading.Thread(target=send)
    sender.start()
    while not done.is_set():
        try:
            ready.set()
            while not done.is_set():
                if pause > 0.01:
                    loader = make(packed, kind)
                iterator = iter(loader)
                next(iterator)
                del iterator
                rounds += 1
        except KeyboardInterrupt:
            caught.append(rounds)
    sender.join()
    print(f"{rounds} rounds, {len(caught)} caught, {len(lost)} lost, {dict(ignored)}")


def check_delivered_batches(packed: str, kind: str, pause: float, bug: str) -> None:
    """Compares the batches delivered with the state, with Ctrl-C at random moments of an epoch."""
    plant(bug)
    loader = make(packed, kind, fields=("image", "id"), timeout=300)
    expected = [batch["id"].tolist() for batch in make(packed, kind, fields=("image", "id"))]
    rng, wrong = random.Random(SEED), []
    delays: queue.SimpleQueue[float] = queue.SimpleQueue()

    def send() -> None:
        while (delay := delays.get()) >= 0:
            time.sleep(delay)
            os.kill(os.getpid(), signal.SIGINT)

    threading.Thread(target=send, daemon=True).start()
    for _ in range(40):
        got: list[list[int]] = []
        waiting = True
        iterator: Any = None
        delay = [rng.uniform(0, pause)]
        while waiting or iterator is None or len(got) < len(expected):
            try:
                if delay:
                    delays.put(delay.pop())
                if iterator is None:
                    loader.set_epoch(0)
                    iterator = iter(loader)
                while (batch := next(iterator, None)) is not None:
                    got.append(batch["id"].tolist())
                if not waiting:
                    break
                time.sleep(0.001)
            except KeyboardInterrupt:
                waiting = False
                state: Any = loader.state_dict()
                done = (
                    sum(run[3] for run in state["runs"]) if state["epoch"] == 0 else len(expected)
                )
                # One more if Ctrl-C hit between the return of a batch and the append.
                if not len(got) <= done <= len(got) + 1:
                    wrong.append(f"{len(got)} delivered, {done} in the state")
        if len(got) < len(expected) - 1 or [ids for ids in expected if ids in got] != got:
            wrong.append(f"{len(got)} of {len(expected)} batches")
    print(f"wrong: {wrong}")


def plant(bug: str) -> None:
    """Plants a fault that the tests must detect; "" plants nothing."""
    if bug:
        _BUGS[bug]()


def _python_finalizer() -> None:
    """Runs Python code when an iterator is dropped: an old bug, made easier to hit."""
    made = Prefetcher.__init__

    def init(self: Any, *arguments: Any, **options: Any) -> None:
        made(self, *arguments, **options)
        weakref.finalize(self, _busy, 0.05)

    Prefetcher.__init__ = init  # type: ignore[method-assign]


def _busy(seconds: float) -> None:
    until = time.perf_counter() + seconds
    while time.perf_counter() < until:
        pass


def _counts_too_early() -> None:
    """Counts a batch for every exception while waiting, another old bug of the loader."""
    from fastload._load.iterator import LoaderIterator

    following = LoaderIterator.__next__

    def wrong(self: Any) -> Any:
        try:
            return following(self)
        except KeyboardInterrupt:
            self._done += 2
            self._order.delivered(self._pass, self._done)
            raise

    LoaderIterator.__next__ = wrong  # type: ignore[method-assign]


def _thread_that_never_ends() -> None:
    threading.Thread(target=time.sleep, args=(600,)).start()


def _orphan() -> None:
    if os.fork() == 0:
        time.sleep(600)
        os._exit(0)


def _shared_memory() -> None:
    Path(f"/dev/shm/torch_{os.getpid()}_planted").touch()


def _thread_that_raises() -> None:
    threading.Thread(target=lambda: 1 / 0, daemon=True).start()


_BUGS: dict[str, Callable[[], None]] = {
    "python finalizer": _python_finalizer,
    "counts too early": _counts_too_early,
    "thread that never ends": _thread_that_never_ends,
    "orphan": _orphan,
    "shared memory": _shared_memory,
    "thread that raises": _thread_that_raises,
}
