"""The DALI graph, and the batches in flight in a built pipeline. Importing this needs DALI.

One definition serves CPU and GPU: only the word ``device`` differs, and a test compares the two. Every
random decision is made before: a sample brings its box, size, flip and place as numbers, so one graph
serves all batches.
"""

from __future__ import annotations

import ctypes
import importlib
import os
import threading
import weakref
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fastload._decode.backend import Filter

# DALI's stubs know neither its constants, nor Pipeline's signature, nor buffers: hence Any.
fn: Any = importlib.import_module("nvidia.dali.fn")
types: Any = importlib.import_module("nvidia.dali.types")
Pipeline: Any = importlib.import_module("nvidia.dali").Pipeline
TensorCPU: Any = importlib.import_module("nvidia.dali.tensors").TensorCPU

# input → (dtype, axes of one sample)
INPUTS = {
    "jpeg": (types.UINT8, 1),
    "start": (types.INT32, 1),
    "shape": (types.INT32, 1),
    "size": (types.FLOAT, 1),
    "mirror": (types.INT32, 0),
}
PLACE = {"place": (types.INT32, 1), "canvas": (types.INT32, 1)}


@dataclass(frozen=True, slots=True)
class GraphKind:
    """What a graph fixes for all its samples."""

    gray: bool
    filter: int  # antialiased or bilinear
    fill: tuple[int, ...] | None  # letterbox color; None: the pixels fill the output
    hardware: bool = False  # the JPEG engine, for all images or for none


def make_pipeline(
    kind: GraphKind, *, max_batch: int, threads: int, device_id: int | None, gpu: bool
) -> Any:
    """Defined, not built. ``gpu`` with ``device_id=None`` can be defined and serialized anywhere.

    ``exec_dynamic``: outputs own their memory, and after a bad sample the next batches still arrive.
    Depth 1: the loader decides how many batches are in flight; with more, the first run would wait
    for as many batches, and a dataset of one batch would hang. The stream policy is the default:
    with one stream for all, DALI's pool could hand memory to the JPEG engine that a kernel still
    reads.
    """
    pipeline = Pipeline(
        batch_size=max_batch,
        num_threads=threads,
        device_id=device_id,
        prefetch_queue_depth=1,
        exec_dynamic=True,
        seed=0,
    )
    with pipeline:
        pipeline.set_outputs(_graph(kind, gpu))
    return pipeline


def _graph(kind: GraphKind, gpu: bool) -> Any:
    device = "gpu" if gpu else "cpu"
    given = {
        name: fn.external_source(name=name, dtype=dtype, ndim=ndim, no_copy=name == "jpeg")
        for name, (dtype, ndim) in {**INPUTS, **(PLACE if kind.fill is not None else {})}.items()
    }
    # Whole streams, no ROI decoding: it is reported broken in nvImageCodec 0.9 on GPUs, and streams
    # are cut before. Fancy upsampling as on the CPU (DALI's GPU default repeats chroma: pixel values
    # up to 57 off). A load between 0 and 1 would make pixels depend on the batch they are in.
    # Orientation is in the plan already.
    image = fn.decoders.image(
        given["jpeg"],
        device="mixed" if gpu else "cpu",
        output_type=types.GRAY if kind.gray else types.RGB,
        adjust_orientation=False,
        jpeg_fancy_upsampling=True,
        use_fast_idct=False,
        hw_decoder_load=1.0 if kind.hardware else 0.0,
    )
    # Slice first: resize with an ROI of its own would read pixels outside it.
    image = fn.slice(image, device=device, start=given["start"], shape=given["shape"], axes=[0, 1])
    image = fn.resize(
        image,
        device=device,
        size=given["size"],
        antialias=kind.filter == Filter.ANTIALIAS,
        interp_type=types.INTERP_LINEAR,
    )
    image = fn.flip(image, device=device, horizontal=given["mirror"])
    if kind.fill is None:
        return image
    return fn.slice(
        image,
        device=device,
        start=given["place"],
        shape=given["canvas"],
        axes=[0, 1],
        out_of_bounds_policy="pad",
        fill_values=[float(level) for level in kind.fill],
    )


def arguments(
    requests: NDArray[np.void], boxes: NDArray[np.int32], size: Sequence[int], kind: GraphKind
) -> dict[str, NDArray[np.generic]]:
    """The graph's inputs for a batch; ``size`` is (height, width) of the output."""
    given: dict[str, NDArray[np.generic]] = {
        "start": np.ascontiguousarray(boxes[:, 1::-1]),
        "shape": np.ascontiguousarray(boxes[:, :1:-1]),
        "size": np.stack([requests["out_h"], requests["out_w"]], axis=1).astype(np.float32),
        "mirror": requests["flip"].astype(np.int32),
    }
    if kind.fill is not None:
        given["place"] = -np.stack([requests["pad_top"], requests["pad_left"]], axis=1).astype(
            np.int32
        )
        given["canvas"] = np.tile(np.array(size, np.int32), (len(requests), 1))
    return given


class Run:
    """One batch in a pipeline; has ``outputs`` or ``error`` once it has landed."""

    __slots__ = ("__weakref__", "error", "landed", "outputs")

    def __init__(self) -> None:
        self.landed = False
        self.outputs: Any = None
        self.error: RuntimeError | None = None


@dataclass(frozen=True, slots=True)
class _Pending:
    run: weakref.ref[Run]  # dead if the ticket was dropped
    held: object  # what DALI still reads


class RunQueue:
    """Pushes batches into a pipeline and takes them out in any order; DALI itself is a FIFO.

    Several threads may use it. A run that was dropped still passes through the pipeline. DALI reads
    its sources until then, so they are held.
    """

    def __init__(self, pipeline: Any, *, max_batch: int, take: Callable[[Any], Any]) -> None:
        self.max_batch = max_batch
        self._pipeline = pipeline
        self._take = take
        self._pending: deque[_Pending] = deque()
        self._lock = threading.Lock()
        pipeline.build()
        _all.add(self)

    def push(
        self,
        streams: Sequence[memoryview],
        numbers: Mapping[str, NDArray[np.generic]],
        held: object,
    ) -> Run:
        """Starts a batch; the streams are read in place."""
        run = Run()
        with self._lock:
            self._pipeline.feed_input("jpeg", [TensorCPU(stream) for stream in streams])
            for name, values in numbers.items():
                self._pipeline.feed_input(name, values)
            self._pipeline.schedule_run()
            self._pending.append(_Pending(weakref.ref(run), (held, streams)))
        return run

    def wait(self, run: Run) -> None:
        """Waits until this run has landed; earlier runs land, too."""
        with self._lock:
            while not run.landed:
                self._land()

    def _land(self) -> None:
        """Takes the oldest run out. A bad sample fails its whole run and no other (exec_dynamic)."""
        run = self._pending[0].run()
        outputs = None
        error = None
        try:
            outputs = self._take(self._pipeline)
        except RuntimeError as failed:
            error = failed
        finally:
            self._pipeline.release_outputs()
        self._pending.popleft()
        if run is not None:
            run.outputs = outputs
            run.error = error
            run.landed = True

    def drain(self) -> None:
        """Lets every run land: nothing reads any source afterwards."""
        with self._lock:
            while self._pending:
                self._land()

    def abandon(self) -> None:
        """Leaks the pipeline; batches in flight in it never land."""
        # One reference too many: the C++ object is never destroyed, not even at exit.
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(self._pipeline._pipe))
        self._pipeline._pipe = None
        self._pending.clear()


_all: weakref.WeakSet[RunQueue] = weakref.WeakSet()


def _abandon_all() -> None:
    """In a forked child: DALI's threads are not here, and destroying a pipeline would wait for them."""
    for queue in list(_all):
        queue.abandon()
    _all.clear()


os.register_at_fork(after_in_child=_abandon_all)
