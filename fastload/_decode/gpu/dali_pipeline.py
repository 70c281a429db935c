"""The DALI graph, and the queue of batches in flight in a pipeline. Importing it requires DALI.

CPU and GPU share one definition in which only ``device`` differs; a test compares the two graphs.
All random decisions are made earlier. Box, size, flip and position of a sample are inputs of the
graph, so one graph decodes all batches.
"""

from __future__ import annotations

import importlib
import threading
import weakref
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fastload._decode.backend import Filter
from fastload._decode.gpu.base import abandoned_after_fork, leak

# Any, because DALI's stubs lack its constants, the signature of Pipeline, and buffers.
fn: Any = importlib.import_module("nvidia.dali.fn")
types: Any = importlib.import_module("nvidia.dali.types")
Pipeline: Any = importlib.import_module("nvidia.dali").Pipeline
TensorCPU: Any = importlib.import_module("nvidia.dali.tensors").TensorCPU

# input → (dtype, number of dimensions of one sample)
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
    """Properties that a graph fixes for all its samples."""

    gray: bool
    filter: int  # antialias or bilinear
    fill: tuple[int, ...] | None  # color of padding; None without padding
    hardware: bool = False  # the JPEG engine decodes all images, or none


def make_pipeline(
    kind: GraphKind, *, max_batch: int, threads: int, device_id: int | None, gpu: bool
) -> Any:
    """Defines a pipeline without building it.

    With ``gpu`` and ``device_id=None`` it can be defined and serialized on a machine without a GPU.

    * With ``exec_dynamic`` outputs own their memory, and later batches still arrive after a bad
      sample.
    * The queue depth is 1, because the loader decides how many batches are in flight. With a larger
      depth the first run would wait for more batches, and a dataset of one batch would hang.
    * The stream policy is the default. With one stream for everything, DALI's memory pool could
      give memory to the JPEG engine that a kernel still reads.
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
    # Decode complete streams: ROI decoding is reported broken in nvImageCodec 0.9 on GPUs, and the
    # streams are already cut. Use fancy upsampling as on the CPU: DALI's GPU default repeats
    # chroma, which changes pixel values by up to 57. With a hardware load between 0 and 1, pixels
    # would depend on the other images of the batch. The plan already includes the orientation.
    image = fn.decoders.image(
        given["jpeg"],
        device="mixed" if gpu else "cpu",
        output_type=types.GRAY if kind.gray else types.RGB,
        adjust_orientation=False,
        jpeg_fancy_upsampling=True,
        use_fast_idct=False,
        hw_decoder_load=1.0 if kind.hardware else 0.0,
    )
    # Slice before resizing: resize with an ROI would read pixels outside of it.
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
        fill_values=[float(value) for value in kind.fill],
    )


def arguments(
    requests: NDArray[np.void], boxes: NDArray[np.int32], size: Sequence[int], kind: GraphKind
) -> dict[str, NDArray[np.generic]]:
    """Returns the inputs of the graph for a batch. ``size`` is (height, width) of the output."""
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
    """One batch in a pipeline. It has ``outputs`` or ``error`` after it has landed."""

    __slots__ = ("__weakref__", "error", "landed", "outputs")

    def __init__(self) -> None:
        self.landed = False
        self.outputs: Any = None
        self.error: RuntimeError | None = None


@dataclass(frozen=True, slots=True)
class _Pending:
    run: weakref.ref[Run]  # dead if the ticket was dropped
    held: object  # memory that DALI still reads


class RunQueue:
    """Pushes batches into a pipeline and returns them in any order, while DALI itself is a FIFO.

    It is thread-safe. A dropped run still passes through the pipeline, and its sources are held
    until then, because DALI reads them.
    """

    def __init__(self, pipeline: Any, *, max_batch: int, take: Callable[[Any], Any]) -> None:
        self.max_batch = max_batch
        self._pipeline = pipeline
        self._take = take
        self._pending: deque[_Pending] = deque()
        self._lock = threading.Lock()
        pipeline.build()
        abandoned_after_fork.add(self)

    def push(
        self,
        streams: Sequence[memoryview],
        numbers: Mapping[str, NDArray[np.generic]],
        held: object,
    ) -> Run:
        """Starts a batch. DALI reads the streams in place."""
        run = Run()
        with self._lock:
            self._pipeline.feed_input("jpeg", [TensorCPU(stream) for stream in streams])
            for name, values in numbers.items():
                self._pipeline.feed_input(name, values)
            self._pipeline.schedule_run()
            self._pending.append(_Pending(weakref.ref(run), (held, streams)))
        return run

    def wait(self, run: Run) -> None:
        """Waits until this run and all earlier runs have landed."""
        with self._lock:
            while not run.landed:
                self._land()

    def _land(self) -> None:
        """Takes the oldest run out. A bad sample fails its run only (exec_dynamic)."""
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
        """Waits for all runs. Afterwards DALI reads no source."""
        with self._lock:
            while self._pending:
                self._land()

    def abandon(self) -> None:
        """Leaks the pipeline. Its batches in flight never land."""
        leak(self._pipeline._pipe)
        self._pipeline._pipe = None
        self._pending.clear()
