"""Training loops that are interrupted, killed or left with work in flight: called in forked children by the loader's fault tests."""

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

_ENDING: dict[str, Any] = {}


@atexit.register  # before fastload registers its own: runs behind it
def _over() -> None:
    """Says when fastload was done. What Python and torch do behind that takes seconds in a forked child, loader or not."""
    if _ENDING:
        print(f"over {time.monotonic()}", flush=True)
        if not _ENDING["whole"]:
            os._exit(_ENDING["code"])


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
    "colours": {"shuffle": True, "transform": [*CROP, T.ColorJitter(brightness=0.3, hue=0.1)]},
    "single": {"batch_size": None, "shuffle": True, "transform": CROP},
}


def warm() -> None:
    """Imports all that a loader needs, before children are forked."""
    torch.set_num_threads(1)
    import fastload._decode.native
    import fastload._decode.reference  # noqa: F401


def make(packed: str, kind: str, **options: Any) -> DataLoader:
    return fastload.DataLoader(
        packed, **{"batch_size": 4, "num_workers": 2, **LOADERS[kind], **options}
    )


def train(packed: str, kind: str, seconds: float, bug: str) -> None:
    """Epoch after epoch, with a loader made anew now and then."""
    plant(bug)
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        loader = make(packed, kind)
        for _ in range(3):
            for number, batch in enumerate(loader):
                assert len(batch) == 2
                if number == 7:
                    break


def leave(packed: str, kind: str, how: str, bug: str) -> None:
    """Ends while batches are in flight: at the end of the program, by an error of the trainer's, by sys.exit."""
    plant(bug)
    loader = make(packed, kind, prefetch_factor=8)
    kept = [iter(loader), iter(loader), iter(make(packed, kind))]
    for iterator in kept:
        next(iterator)
    if how == "error":
        raise ZeroDivisionError("in the training loop")
    if how == "exit":
        sys.exit(3)
    globals()["kept"] = kept  # still there when the interpreter goes


def to_its_end(whole: bool, function: str, *arguments: Any) -> None:
    """Calls a function as a program of its own would: a session of its own, and all that happens at its end (``whole``: even what
    Python and torch do behind us)."""
    os.setsid()
    signal.signal(signal.SIGINT, signal.default_int_handler)
    faulthandler.dump_traceback_later(15)  # of one that hangs
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
    _ENDING.update(code=code, whole=whole)
    ctypes.pythonapi.Py_Exit(code)


def interrupted(packed: str, kind: str, seconds: float, pause: float, bug: str) -> None:
    """Sends itself SIGINT at random moments; prints how many came through as KeyboardInterrupt."""
    plant(bug)
    loader = make(packed, kind)
    caught: list[int] = []
    lost: list[int] = []
    ignored: Counter[str] = Counter()
    done = threading.Event()
    begun = threading.Event()

    def unraisable(what: Any) -> None:
        if what.exc_type is KeyboardInterrupt:
            ignored[f"KeyboardInterrupt in {what.object!r:.100}"] += 1

    sys.unraisablehook = unraisable

    def send() -> None:
        begun.wait()
        rng, until = random.Random(SEED), time.monotonic() + seconds
        while time.monotonic() < until and not lost:
            time.sleep(rng.uniform(0.0005, pause))
            before, at_most = len(caught), time.monotonic() + 10
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
            begun.set()
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


def counted(packed: str, kind: str, pause: float, bug: str) -> None:
    """Ctrl-C at random moments of an epoch that goes on each time: what was delivered and what the state says, to the batch."""
    plant(bug)
    loader = make(packed, kind, fields=("image", "id"), timeout=60)
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
        delays.put(rng.uniform(0, pause))
        while waiting or iterator is None or len(got) < len(expected):
            try:
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
                if (
                    not len(got) <= done <= len(got) + 1
                ):  # one more: it came between the return and the list
                    wrong.append(f"{len(got)} delivered, {done} in the state")
        if len(got) < len(expected) - 1 or [ids for ids in expected if ids in got] != got:
            wrong.append(f"{len(got)} of {len(expected)} batches")
    print(f"wrong: {wrong}")


def plant(bug: str) -> None:
    """Faults of the kind that the tests look for; '' leaves all as it is."""
    if bug:
        _BUGS[bug]()


def _python_finaliser() -> None:
    """What the loader did once, made easy to hit: Python code runs when an iterator is dropped."""
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
    """Also what it did once: whatever is raised while it waits counts as a batch."""
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


def _thread_that_stays() -> None:
    threading.Thread(target=time.sleep, args=(10,)).start()


def _orphan() -> None:
    if os.fork() == 0:
        time.sleep(20)
        os._exit(0)


def _shared_memory() -> None:
    Path(f"/dev/shm/torch_{os.getpid()}_planted").touch()


def _loud_thread() -> None:
    threading.Thread(target=lambda: 1 / 0, daemon=True).start()


_BUGS: dict[str, Callable[[], None]] = {
    "python finaliser": _python_finaliser,
    "counts too early": _counts_too_early,
    "thread that stays": _thread_that_stays,
    "orphan": _orphan,
    "shared memory": _shared_memory,
    "loud thread": _loud_thread,
}
