"""The DALI graph for GPUs equals the CPU graph except for ``device``, and has GPU kernels."""

from __future__ import annotations

import importlib
from typing import Any

import pytest

from tests.gpu_backends import needs_dali
from tests.protobuf import fields, text

OPERATOR, NAME, ARGUMENT = 5, 1, 4  # field numbers in DALI's PipelineDef and OpDef
KINDS = [
    (gray, filter_, fill, hardware)
    for gray in (False, True)
    for filter_ in (0, 1)
    for fill in (None, (1,) if gray else (1, 2, 3))
    for hardware in (False, True)
]


def serialized(kind: Any, *, gpu: bool) -> bytes:
    needs_dali()
    from fastload._decode.gpu.dali_pipeline import GraphKind, make_pipeline

    return bytes(
        make_pipeline(GraphKind(*kind), max_batch=8, threads=1, device_id=None, gpu=gpu).serialize()
    )


def operators(graph: bytes) -> list[tuple[str, list[bytes]]]:
    """Returns name and serialized messages of each operator, in the order of the graph."""
    return [
        (
            text(fields(body)[NAME][0]),
            [
                each
                for number, values in sorted(fields(body).items())
                for each in values
                if isinstance(each, bytes)
            ],
        )
        for body in fields(graph)[OPERATOR]
    ]


@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_both_graphs_are_equal_except_for_the_device(kind: Any) -> None:
    cpu, gpu = serialized(kind, gpu=False), serialized(kind, gpu=True)
    assert cpu != gpu
    gpu_operators = operators(gpu)
    cpu_operators = operators(cpu)
    assert [name for name, _ in gpu_operators] == [name for name, _ in cpu_operators]
    for (name, one), (_, other) in zip(gpu_operators, cpu_operators, strict=True):
        assert len(one) == len(other), name
        for mine, its in zip(one, other, strict=True):
            assert comparable(mine) == comparable(its), name


def comparable(message: bytes) -> Any:
    """Returns a message as nested lists in which all devices are equal."""
    if message in (b"mixed", b"gpu", b"cpu"):
        return "device"
    try:
        found = fields(message)
    except ValueError:
        return message
    return [
        (number, [comparable(each) if isinstance(each, bytes) else each for each in values])
        for number, values in sorted(found.items())
    ] or message


@pytest.mark.parametrize("kind", KINDS[::3], ids=str)
def test_every_operator_has_a_gpu_kernel(kind: Any) -> None:
    graph = operators(serialized(kind, gpu=True))
    backend: Any = importlib.import_module("nvidia.dali.backend")

    on_gpu, mixed, on_cpu = (
        set(backend.RegisteredGPUOps()),
        set(backend.RegisteredMixedOps()),
        set(backend.RegisteredCPUOps()),
    )
    names = [name for name, _ in graph if "xternalSource" not in name]
    assert [name.rpartition("__")[2] for name in names] == [
        "Image",
        "Slice",
        "Resize",
        "Flip",
        *(["Slice"] if kind[2] else []),
    ]
    assert names[0] in mixed
    assert set(names[1:]) <= on_gpu
    assert set(names) <= on_cpu


def test_the_comparison_detects_other_arguments() -> None:
    """The graph includes hardware load, filter and fill."""
    base = operators(serialized((False, 0, (1, 2, 3), False), gpu=True))
    for other in (
        (False, 0, (1, 2, 3), True),
        (False, 1, (1, 2, 3), False),
        (False, 0, (1, 2, 4), False),
        (True, 0, (1,), False),
    ):
        found = operators(serialized(other, gpu=True))
        assert [[comparable(each) for each in body] for _, body in found] != [
            [comparable(each) for each in body] for _, body in base
        ]


def test_the_decoder_gets_safe_options() -> None:
    graph = serialized((False, 0, None, False), gpu=True)
    decoder = next(
        body
        for body in fields(graph)[OPERATOR]
        if text(fields(body)[NAME][0]).rpartition("__")[2] == "Image"
    )
    arguments = {text(fields(each)[1][0]): fields(each) for each in fields(decoder)[ARGUMENT]}
    number, flag = 3, 6  # fields of a float and of a bool argument
    assert arguments["jpeg_fancy_upsampling"][flag] == [1]
    assert arguments["adjust_orientation"][flag] == [0]
    assert arguments["use_fast_idct"][flag] == [0]
    assert arguments["hw_decoder_load"][number] == [0.0]
