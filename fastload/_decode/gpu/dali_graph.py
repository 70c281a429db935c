"""The DALI graph: one definition for CPU and GPU; only the word ``device`` differs, and a test holds the two against each other.

Everything random is decided before: a sample brings its box, size, mirror and place as numbers, so one graph serves all batches.
"""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fastload._decode.backend import Filter

# DALI's stubs know neither its constants nor Pipeline's signature: a border, hence Any.
fn: Any = importlib.import_module("nvidia.dali.fn")
types: Any = importlib.import_module("nvidia.dali.types")
Pipeline: Any = importlib.import_module("nvidia.dali").Pipeline

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
class Kind:
    """What is not a number of each sample: a graph serves one kind."""

    gray: bool
    filter: int  # antialiased or bilinear
    fill: tuple[int, ...] | None  # letterbox levels; None: the pixels fill the output
    hardware: bool = False  # the JPEG engine, for all images or for none


def make_pipeline(
    kind: Kind, *, max_batch: int, threads: int, device_id: int | None, gpu: bool
) -> Any:
    """Defined, not built. ``gpu`` with ``device_id=None`` can be defined and serialised anywhere, for tests.

    ``exec_dynamic``: outputs own their memory, and after a bad sample the next batches still come. Depth 1: ours is the window of batches
    under way; with more, the first run would wait for as many batches, and a dataset of one batch would hang. The stream policy is
    left as it is: with one stream for all, DALI's pool could hand memory to the JPEG engine that a kernel still reads.
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


def _graph(kind: Kind, gpu: bool) -> Any:
    device = "gpu" if gpu else "cpu"
    given = {
        name: fn.external_source(name=name, dtype=dtype, ndim=ndim, no_copy=name == "jpeg")
        for name, (dtype, ndim) in {**INPUTS, **(PLACE if kind.fill is not None else {})}.items()
    }
    # Whole streams, no ROI decoding: it is reported broken in nvImageCodec 0.9 on GPUs, and streams are cut before. Fancy upsampling
    # as on the CPU (DALI's GPU default repeats chroma: up to 57 levels off). A load between 0 and 1 would make pixels depend on the
    # batch they come in. Orientation is in the plan already.
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
    requests: NDArray[np.void], boxes: NDArray[np.int32], size: Sequence[int], kind: Kind
) -> dict[str, NDArray[np.generic]]:
    """The numbers of a batch's samples, by input; ``size`` is (height, width) of the output."""
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
