"""Packs the parts of one dataset with an engine: Ray, or any ``concurrent.futures.Executor``.

The engine runs ``pack_part`` for each missing part at least once (parts.py). The driver, this
process, lists the source, submits the parts, and publishes the dataset when all are packed. If the
driver or a worker dies, the same command continues with the missing parts.
"""

from __future__ import annotations

import contextlib
import logging
import queue
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Executor, Future
from dataclasses import replace
from pathlib import Path
from typing import Any

from fastload._pack.interrupt import interrupt_says_what_is_kept
from fastload._pack.layout import Layout
from fastload._pack.options import PackProgress, PackResult
from fastload._pack.parts import PackTask, pack_part, prepare, publish_parts, stored_layout
from fastload.errors import BadImage, ConfigError, FastloadError, MissingPart, WorkerDied

RAY = "ray"
_ATTEMPTS = 4  # per part; a worker that runs out of memory would otherwise be restarted forever
_log = logging.getLogger("fastload")

OnProgress = Callable[[PackProgress], None]


def pack_with(
    engine: str | Executor, task: PackTask, on_progress: OnProgress | None = None
) -> PackResult:
    """Packs all missing parts with the engine and publishes the dataset.

    Raises:
        ConfigError: The engine is unknown, or the source cannot be divided.
        WorkerDied: A part failed on the engine several times.
        BadImage: A sample is bad and ``on_error`` is ``"stop"``, or more than ``max_bad`` are bad.
    """
    # A cluster runs several tasks per machine, so each has one thread unless the user says more.
    task = replace(task, options=replace(task.options, jobs=task.options.jobs or 1))
    started = time.monotonic()
    # No task runs yet, so the driver uses all cores of its machine.
    missing = prepare(task, on_progress, jobs=0)
    layout = stored_layout(task)
    if layout is None:  # the dataset is complete
        return publish_parts(task)
    driver = _Driver(task, layout, missing, on_progress)
    with (
        interrupt_says_what_is_kept(Path(task.dest)),
        _opened(engine, task.options.jobs) as executor,
    ):
        while True:
            driver.pack(executor, missing)
            driver.say("publishing")
            result = publish_parts(task)
            if not result.missing:
                break
            missing = result.missing  # parts whose files were damaged in the meantime
    return replace(
        result, seconds=time.monotonic() - started, resumed_at=driver.progress.resumed_at
    )


class _Driver:
    """Submits parts, counts their results, and submits those again whose worker died."""

    def __init__(
        self,
        task: PackTask,
        layout: Layout,
        missing: Iterable[int],
        on_progress: OnProgress | None,
    ) -> None:
        self._task = task
        self._layout = layout
        self._on_progress = on_progress
        self._attempts: dict[int, int] = {}
        self._running: dict[Future[PackResult], int] = {}
        self._ended: queue.SimpleQueue[Future[PackResult]] = queue.SimpleQueue()
        n_missing = sum(len(layout.positions(part)) for part in missing)
        n_kept = layout.n - n_missing
        self.progress = PackProgress(done=n_kept, total=layout.n, resumed_at=n_kept)

    def say(self, stage: str) -> None:
        self.progress.stage = stage
        if self._on_progress is not None:
            self._on_progress(self.progress)

    def pack(self, executor: Executor, parts: Iterable[int]) -> None:
        """Returns when all parts are packed. After an error, parts that have not started do not."""
        errors: dict[int, FastloadError] = {}
        try:
            for part in parts:
                self._submit(executor, part)
            while self._running:
                # ``wait`` of concurrent.futures visits every future in every call.
                future = self._ended.get()
                part = self._running.pop(future, -1)
                if part < 0:
                    continue  # cancelled
                error = _cause(future.exception())
                if error is None:
                    self._count(part, future.result())
                    error = self._too_many_bad()
                if isinstance(error, FastloadError):
                    errors[part] = error
                    self._cancel()
                elif error is not None and not errors:
                    self._submit(executor, part, error)
        except BaseException:
            self._cancel()
            raise
        if errors:
            raise errors[min(errors)]

    def _cancel(self) -> None:
        """Cancels the parts that have not started."""
        for future in list(self._running):
            if future.cancel():
                del self._running[future]

    def _submit(self, executor: Executor, part: int, error: BaseException | None = None) -> None:
        attempts = self._attempts[part] = self._attempts.get(part, 0) + 1
        try:
            if attempts > _ATTEMPTS:
                raise RuntimeError(f"{attempts - 1} attempts")
            future = executor.submit(pack_part, self._task, part)
        except RuntimeError as refused:  # also a broken or closed executor
            raise WorkerDied(
                f"part {part} of {self._task.dest} cannot be packed ({error or refused!r:.300}). "
                "Finished parts are kept: run the same command again to continue"
            ) from error
        if error is not None:
            self.progress.retries += 1
            _log.warning("part %d failed and is packed again: %r", part, error)
        self._running[future] = part
        future.add_done_callback(self._ended.put)

    def _count(self, part: int, result: PackResult) -> None:
        self.progress.done += len(self._layout.positions(part))
        self.progress.skipped += result.skipped
        converted = (why for why, n in result.converted.items() for _ in range(n))
        self.progress.count(converted, result.bytes_in, result.bytes_out)
        self.say("packing")

    def _too_many_bad(self) -> BadImage | None:
        limit = self._task.options.max_bad
        if limit is None or self.progress.skipped <= limit:
            return None
        return BadImage(
            f"{self.progress.skipped} samples are bad, expected at most {limit} (--max-bad)",
            source=self._task.source,
        )


def _cause(error: BaseException | None) -> BaseException | None:
    """Returns the error of fastload inside an error of Ray, which prints a traceback."""
    cause = getattr(error, "cause", None)
    return cause if isinstance(cause, FastloadError) else error


@contextlib.contextmanager
def _opened(engine: str | Executor, jobs: int) -> Iterator[Executor]:
    if isinstance(engine, Executor):
        yield engine
    elif engine == RAY:
        with RayExecutor(jobs) as executor:
            yield executor
    else:
        raise ConfigError(
            f"engine={engine!r:.60}: expected {RAY!r} or a concurrent.futures.Executor"
        )


class RayExecutor(Executor):
    """Runs functions as Ray tasks of ``cpus`` CPUs each.

    Connects to the cluster of ``RAY_ADDRESS``, or of this machine, or starts a local one. Ray runs
    a task again on another machine if its machine dies.
    """

    def __init__(self, cpus: int) -> None:
        try:
            import ray
        except ImportError as error:
            raise MissingPart(
                f"engine 'ray' needs Ray ({error}): pip install 'fastload-vision[ray]'"
            ) from None
        self._ray = ray
        self._cpus = cpus
        self._tasks: dict[Callable[..., Any], Any] = {}
        self._refs: dict[Future[Any], Any] = {}
        self._owns_connection = not ray.is_initialized()
        if self._owns_connection:
            try:
                ray.init(address="auto", log_to_driver=False, logging_level=logging.ERROR)
            except ConnectionError:
                _log.warning(
                    "no Ray cluster found: starting one on this machine. Set RAY_ADDRESS to use "
                    "another one"
                )
                ray.init(
                    address="local",
                    include_dashboard=False,
                    log_to_driver=False,
                    logging_level=logging.ERROR,
                )

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        if fn not in self._tasks:  # Ray sends a function to the cluster once per remote function
            # With Ray's default strategy, busy nodes pass waiting tasks to each other all the time.
            # benchmarks/engines.py measures the CPU time of 3 nodes.
            self._tasks[fn] = self._ray.remote(
                num_cpus=self._cpus, max_retries=-1, scheduling_strategy="SPREAD"
            )(fn)
        ref = self._tasks[fn].remote(*args, **kwargs)
        future: Future[Any] = ref.future()
        self._refs[future] = ref
        return future

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Cancels tasks that have not ended and disconnects from Ray."""
        del wait, cancel_futures
        for future, ref in self._refs.items():
            if not future.done() or future.cancelled():
                self._ray.cancel(ref)
        if self._owns_connection:
            self._ray.shutdown()
