"""The torch path, the Triton kernel, the native core and Pillow compute the same pixels."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from fastload._decode.backend import DecodeBatch, Filter, PixelFormat, new_requests
from fastload._decode.gpu.fused import (
    JOB,
    PRECISION,
    kernel_problem,
    make_taps,
    place,
    value_table,
)
from tests.decoding import native, reference
from tests.fused_cases import Case, random_case
from tests.gpu_backends import needs_triton

ROOT = Path(__file__).resolve().parents[2]


def by_backend(backend: object, case: Case) -> torch.Tensor:
    """Computes a case with a decode backend, from raw pixels."""
    jobs, n = case.jobs, len(case.jobs)
    requests = new_requests(n)
    for column, job_column in (
        ("out_w", "out_w"),
        ("out_h", "out_h"),
        ("pad_left", "left"),
        ("pad_top", "top"),
        ("flip", "flip"),
        ("filter", "filter"),
    ):
        requests[column] = jobs[job_column]
    requests["codec"], requests["raw_bits"], requests["raw_channels"] = (
        1,
        8,
        case.images[0].shape[2],
    )
    requests["raw_w"], requests["raw_h"] = jobs["in_w"], jobs["in_h"]
    made = torch.full((n, *case.output.shape[1:]), 77, dtype=case.output.dtype)
    sources = [image.contiguous().numpy().tobytes() for image in case.images]
    backend.collect(backend.submit(DecodeBatch(sources, requests, made, case.pixels))).raise_first()  # type: ignore[attr-defined]
    output = case.output.clone()
    output[torch.from_numpy(jobs["slot"].astype(np.int64))] = made
    return output


@settings(max_examples=120)
@given(st.integers(0, 10**6))
def test_the_torch_path_is_bit_identical_to_the_native_core(seed: int) -> None:
    case = random_case(seed)
    assert torch.equal(case.placed(triton=False), by_backend(native(), case))


@settings(max_examples=60)
@given(st.integers(0, 10**6))
def test_the_torch_path_is_within_1_of_the_reference(seed: int) -> None:
    case = random_case(seed - seed % 4)  # uint8
    assert (case.placed(triton=False).int() - by_backend(reference(), case).int()).abs().max() <= 1


def test_antialias_is_bit_identical_to_pillow() -> None:
    image = np.random.default_rng(1).integers(0, 256, (97, 141, 3), np.uint8)
    for width, height in ((50, 60), (224, 200), (7, 3), (141, 20), (1, 1)):
        jobs = np.zeros(1, JOB)
        jobs["in_w"], jobs["in_h"], jobs["out_w"], jobs["out_h"] = 141, 97, width, height
        output = torch.zeros((1, height, width, 3), dtype=torch.uint8)
        place(jobs, [torch.from_numpy(image)], output, PixelFormat())
        across = Image.fromarray(image).resize((width, 97), Image.Resampling.BILINEAR)
        assert np.array_equal(
            output[0].numpy(), np.asarray(across.resize((width, height), Image.Resampling.BILINEAR))
        )


def test_weights_sum_to_1_and_taps_are_inside_the_image() -> None:
    sizes = np.array([1, 2, 50, 941, 5000]), np.array([7, 1, 50, 10, 33])
    for how in Filter:
        taps = make_taps(*sizes, np.full(5, int(how)), torch.device("cpu"))
        for n, (size, out) in enumerate(zip(*sizes, strict=True)):
            weights, first = taps.weights[n, :, :out], taps.first[n, :out]
            assert (weights.sum(0) - (1 << PRECISION)).abs().max() <= len(weights)
            reach = first + (weights > 0).int().cumsum(0).argmax(0)
            assert first.min() >= 0
            assert reach.max() < size
            assert not weights[int(taps.counts[n]) :].any()


def test_the_value_table_contains_normalized_pixel_values() -> None:
    table = value_table(
        PixelFormat(fill=(5, 6, 7), mean=(0.4, 0.5, 0.6), std=(0.2, 0.3, 0.1)), 3, torch.float32
    )
    assert table.shape == (3, 257)
    assert table[1, 256] == table[1, 6]
    assert abs(table[2, 255] - (1.0 - 0.6) / 0.1) < 1e-5
    assert value_table(PixelFormat(fill=3), 1, torch.uint8)[0].tolist() == [*range(256), 3]


def test_an_empty_batch_leaves_the_output_unmodified() -> None:
    output = torch.full((2, 4, 4, 3), 9, dtype=torch.uint8)
    place(np.zeros(0, JOB), [], output, PixelFormat())
    assert (output == 9).all()


def child(*arguments: str, **environment: str) -> str:
    """Runs a process, because Triton reads its environment when a kernel is defined."""
    result = subprocess.run(
        [sys.executable, "-W", "error::UserWarning", *arguments],
        capture_output=True,
        text=True,
        cwd=ROOT,
        check=False,
        env={**os.environ, "PYTHONPATH": str(ROOT), **environment},
    )
    assert result.returncode == 0, result.stderr[-2000:]
    return result.stdout


def test_the_kernel_in_the_triton_interpreter_is_bit_identical_to_the_torch_path() -> None:
    needs_triton()
    seeds = range(24) if os.environ.get("FASTLOAD_LONG") == "1" else range(4)
    assert (
        json.loads(child("-m", "tests.fused_cases", *map(str, seeds), TRITON_INTERPRET="1")) == []
    )


def test_a_kernel_that_cannot_run_is_reported() -> None:
    """The kernel cannot run on CPU tensors without the interpreter."""
    assert "Triton" in kernel_problem(torch.device("cpu"))


def test_the_kernels_compile_for_gpus(tmp_path: Path) -> None:
    needs_triton()
    found = json.loads(child("-m", "tests.fused_compiled", TRITON_CACHE_DIR=str(tmp_path)))
    assert len(found) == 7
    for name, (size, stack) in found.items():
        assert size > 1000, f"{name}: no code"
        assert stack == 0, f"{name}: {stack} bytes of registers spilled"
