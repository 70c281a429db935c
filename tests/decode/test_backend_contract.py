"""What every registered decode backend promises (`fastload._decode.backend.DecodeBackend`), on the CPU."""

from __future__ import annotations

import gc
import subprocess
import sys
import threading
import weakref
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fastload._decode.backend import (
    REQUEST,
    STAGES,
    Codec,
    DecodeBackend,
    DecodeBatch,
    DecodeResult,
    Filter,
    PixelFormat,
    Status,
    new_requests,
)
from fastload._decode.registry import BACKENDS
from fastload.errors import BadImage, ConfigError
from tests.decode.conftest import NewBackend
from tests.decoding import pixels_of, record, reference, run
from tests.gpu_backends import worst
from tests.jpeg_samples import encode, encode_by_pillow, picture
from tests.loading import wait_until

ROOT = Path(__file__).resolve().parents[2]
FILL = (1, 2, 3)
SIZE = (60, 45)  # of outputs: width, height
JPEGS = [
    encode(picture(120 + 8 * i, 90 + 4 * i, i), ("420", "444", "gray")[i % 3]) for i in range(6)
]


def batch_of(sources: list[Any], **columns: Any) -> DecodeBatch:
    requests = new_requests(len(sources))
    requests["out_w"], requests["out_h"] = SIZE
    requests["exact"] = 1
    for name, value in columns.items():
        requests[name] = value
    output = np.full((len(sources), SIZE[1], SIZE[0], 3), 77, np.uint8)
    return DecodeBatch(sources, requests, output, PixelFormat(fill=FILL))


def decode(backend: DecodeBackend, batch: DecodeBatch) -> DecodeResult:
    return backend.collect(backend.submit(batch))


def expected(sources: list[bytes], **columns: Any) -> Any:
    """What the reference decodes; a source that is bad there is filled."""
    return decode(reference(), batch_of(sources, **columns)).output


def assert_close(backend: DecodeBackend, found: Any, wanted: Any, slots: Any = None) -> None:
    """Equal to 1 pixel value; at the edges as far as the backend says."""
    for slot in range(len(found)) if slots is None else slots:
        inside, edge, corner = worst(found[slot], wanted[slot])
        assert inside <= 1, f"slot {slot}: {inside}"
        assert edge <= backend.edge_error, f"slot {slot}, edge: {edge}"
        assert corner <= 2 * backend.edge_error, f"slot {slot}, corner: {corner}"


def assert_works(backend: DecodeBackend) -> None:
    """The backend still decodes good samples."""
    result = decode(backend, batch_of(JPEGS))
    assert result.ok, result.reasons
    assert_close(backend, result.output, expected(JPEGS))


def bad_huffman_table() -> bytes:
    """All markers are in order, but a table has 255 codes of one bit: only a decoder notices."""
    jpeg = bytearray(JPEGS[1])
    jpeg[jpeg.find(b"\xff\xc4") + 5] = 255
    return bytes(jpeg)


def bomb() -> bytes:
    """A small file that claims 16000 x 16000 pixels."""
    jpeg = bytearray(JPEGS[0])
    frame = jpeg.find(b"\xff\xc0")
    jpeg[frame + 5 : frame + 9] = (16000).to_bytes(2, "big") * 2
    return bytes(jpeg)


BAD_FILES = {
    "empty": b"",
    "one byte": b"\xff",
    "start marker only": b"\xff\xd8",
    "GIF": b"GIF89a" * 9,
    "header only": JPEGS[0][:300],
    "scan cut off": JPEGS[0][:-900],
    "no end marker": JPEGS[0][:-2],
    "zeros": bytes(1000),
    "Huffman table": bad_huffman_table(),
    "bomb": bomb(),
}


# ---- verdicts per sample


@pytest.mark.parametrize("name", BAD_FILES)
def test_a_bad_file_fails_alone(backend: DecodeBackend, name: str) -> None:
    for place in range(3):
        sources = JPEGS[:3]
        sources[place] = BAD_FILES[name]
        result = decode(backend, batch_of(sources))
        wanted = [Status.OK] * 3
        wanted[place] = Status.BAD_IMAGE
        assert result.status.tolist() == wanted
        assert result.reasons.keys() == {place}
        assert result.reasons[place].strip()
        assert (np.asarray(result.output)[place] == FILL).all()
        assert_close(backend, result.output, expected(JPEGS[:3]), {0, 1, 2} - {place})
    assert_works(backend)


def test_only_bad_files(backend: DecodeBackend) -> None:
    result = decode(backend, batch_of(list(BAD_FILES.values())))
    assert (result.status == Status.BAD_IMAGE).all()
    assert (np.asarray(result.output) == FILL).all()
    with pytest.raises(BadImage, match="slot 0"):
        result.raise_first()
    assert_works(backend)


@pytest.mark.parametrize("place", range(3))
def test_a_damaged_record_is_reported_as_corrupt(backend: DecodeBackend, place: int) -> None:
    source, offset = record(JPEGS[0])
    columns = {"offset": offset, "size": len(JPEGS[0]), "check": 1}
    flipped = bytearray(source)
    flipped[-100] ^= 1
    for damaged in (bytes(flipped), source[:20], b""):
        sources = [source] * 3
        sources[place] = damaged
        result = decode(backend, batch_of(sources, **columns))
        assert np.flatnonzero(result.status == Status.CORRUPT).tolist() == [place]
        assert result.reasons.keys() == {place}
        assert (np.asarray(result.output)[place] == FILL).all()
        assert_close(backend, result.output, expected(JPEGS[:1] * 3), {0, 1, 2} - {place})
    assert decode(backend, batch_of([source] * 3, **columns)).ok


def test_images_of_one_record_share_it(backend: DecodeBackend) -> None:
    source, offset = record(JPEGS[0] + JPEGS[2])
    sizes = [len(JPEGS[0]), len(JPEGS[2])]
    batch = batch_of([source] * 2, check=1, size=sizes, offset=[offset, offset + sizes[0]])
    batch.requests["source"] = 0
    result = decode(backend, DecodeBatch([source], batch.requests, batch.output))
    result.raise_first()
    assert_close(backend, batch.output, expected([JPEGS[0], JPEGS[2]]))


BAD_REQUESTS: list[dict[str, Any]] = [
    {"x": -1, "y": 0, "w": 5, "h": 5},
    {"x": 0, "y": 0, "w": 121, "h": 5},
    {"x": 116, "y": 0, "w": 5, "h": 5},
    {"y": 86, "w": 5, "h": 5},
    {"w": 5, "h": 0},
    {"w": -5, "h": -5},
    {"x": 2**31 - 1, "y": 2**31 - 1, "w": 2**31 - 1, "h": 2**31 - 1},
    {"out_w": 0},
    {"out_h": -3},
    {"out_w": 61},
    {"pad_left": -1},
    {"pad_left": 2**31 - 1},
    {"pad_top": 1},
    {"orientation": 0},
    {"orientation": 9},
    {"filter": 7},
    {"source": 5},
    {"size": 10**6},
    {"offset": 10**6, "size": 1},
]


@pytest.mark.parametrize("row", BAD_REQUESTS, ids=str)
def test_a_request_that_does_not_fit_fails_alone(
    backend: DecodeBackend, row: dict[str, Any]
) -> None:
    batch = batch_of(JPEGS[:1] * 3, source=0)
    for name, value in row.items():
        batch.requests[name][1] = value
    result = decode(backend, batch)
    assert result.status[0] == result.status[2] == Status.OK
    assert result.status[1] in (Status.BAD_REQUEST, Status.BAD_IMAGE)
    assert result.reasons.keys() == {1}
    assert result.reasons[1].strip()
    assert (np.asarray(result.output)[1] == FILL).all()
    assert_close(backend, result.output, expected(JPEGS[:1] * 3), (0, 2))


RAW: dict[str, Any] = {
    "codec": Codec.RAW,
    "raw_w": 60,
    "raw_h": 45,
    "raw_channels": 3,
    "raw_bits": 8,
}


@pytest.mark.parametrize(
    "row",
    [
        {"raw_w": 61},
        {"raw_h": 0},
        {"raw_w": -60, "raw_h": -45},
        {"raw_channels": 2},
        {"raw_bits": 16},
        {"raw_bits": 7},
        {"raw_w": 2**31 - 1, "raw_h": 2**31 - 1},
        {"raw_channels": 255},
    ],
    ids=str,
)
def test_raw_pixels_of_another_size_fail_alone(backend: DecodeBackend, row: dict[str, Any]) -> None:
    raw = np.random.default_rng(0).integers(0, 256, (45, 60, 3), np.uint8).tobytes()
    batch = batch_of([raw] * 2, **RAW)
    for name, value in row.items():
        batch.requests[name][1] = value
    result = decode(backend, batch)
    assert result.status[0] == Status.OK
    assert result.status[1] in (Status.BAD_IMAGE, Status.BAD_REQUEST)
    assert np.asarray(result.output)[0].tobytes() == raw


# ---- pixels


PLANS: dict[str, dict[str, Any]] = {
    "whole": {},
    "crop and flip": {"x": 33, "y": 21, "w": 61, "h": 57, "flip": 1},
    "letterbox": {"out_h": 30, "pad_top": 8},
    "bilinear": {"filter": Filter.BILINEAR, "w": 120, "h": 90},
    "nearest": {"filter": Filter.NEAREST, "flip": 1},
    "rotated": {"orientation": 6},
}


@pytest.mark.parametrize("plan", PLANS)
def test_pixels_are_those_of_the_reference(backend: DecodeBackend, plan: str) -> None:
    columns = PLANS[plan]
    result = decode(backend, batch_of(JPEGS, **columns))
    assert result.ok, result.reasons
    wanted = expected(JPEGS, **columns)
    top = columns.get("pad_top", 0)
    rows = slice(top, top + columns.get("out_h", SIZE[1]))
    assert_close(backend, np.asarray(result.output)[:, rows], wanted[:, rows])
    assert np.array_equal(np.asarray(result.output)[:, :top], wanted[:, :top])


@pytest.mark.parametrize("kind", ["progressive", "one pixel wide", "odd"])
def test_unusual_files_are_decoded(backend: DecodeBackend, kind: str) -> None:
    source = {
        "progressive": encode_by_pillow(picture(100, 70), "422", progressive=True),
        "one pixel wide": encode(picture(1, 40), "420"),
        "odd": encode(picture(17, 9), "444"),
    }[kind]
    result = decode(backend, batch_of([JPEGS[0], source]))
    assert result.ok, result.reasons
    assert_close(backend, result.output, expected([JPEGS[0], source]))


def test_masks_are_picked_never_mixed(backend: DecodeBackend) -> None:
    labels = np.random.default_rng(5).integers(0, 65536, (93, 121), np.uint16)
    columns: dict[str, Any] = {
        "codec": Codec.RAW,
        "raw_w": 121,
        "raw_h": 93,
        "raw_channels": 1,
        "raw_bits": 16,
        "filter": Filter.NEAREST,
        "flip": 1,
        "pixels": PixelFormat(color="stored", fill=0),
        "channels": 2,
    }
    ours, wanted = (
        pixels_of(each, labels.tobytes(), (64, 50), **columns) for each in (backend, reference())
    )
    assert np.array_equal(ours, wanted)
    assert set(ours.view(np.uint16).ravel().tolist()) <= set(labels.ravel().tolist())


@pytest.mark.parametrize("dtype", [torch.uint8, torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("layout", ["nhwc", "nchw"])
def test_the_output_is_written_as_the_format_says(
    backend: DecodeBackend, dtype: torch.dtype, layout: Any
) -> None:
    """(pixel - mean) / std, in the layout and dtype of the output, from the backend's own pixels."""
    plain = torch.from_numpy(np.asarray(decode(backend, batch_of(JPEGS)).output))
    mean, std = (0.1, 0.2, 0.3), (0.5, 0.25, 2.0)
    shape = (6, SIZE[1], SIZE[0], 3) if layout == "nhwc" else (6, 3, SIZE[1], SIZE[0])
    output = torch.full(shape, 55, dtype=dtype)
    result = run(
        backend,
        JPEGS,
        SIZE,
        output=output,
        exact=1,
        pixels=PixelFormat(layout, "bgr", mean=mean, std=std),
    )
    assert result.ok
    wanted = plain.flip(-1)
    if dtype != torch.uint8:
        low, scale = (torch.tensor([255.0 * each for each in values]) for values in (mean, std))
        wanted = ((wanted.float() - low) / scale).to(dtype)
    if layout == "nchw":
        wanted = wanted.permute(0, 3, 1, 2)
    assert torch.allclose(output.float(), wanted.float(), rtol=1e-2 if dtype != torch.uint8 else 0)


# ---- batches in flight


@pytest.mark.parametrize("sizes", [[0], [1], [6, 0, 3, 1], [40, 2, 100]], ids=str)
def test_batches_of_any_size(new_backend: NewBackend, sizes: list[int]) -> None:
    backend = new_backend()
    wanted = expected(JPEGS)
    tickets = [backend.submit(batch_of([JPEGS[i % 6] for i in range(size)])) for size in sizes]
    for size, ticket in zip(sizes, tickets, strict=True):
        result = backend.collect(ticket)
        assert result.ok
        assert result.status.shape == (size,)
        assert result.times_ns.shape == (size, len(STAGES))
        assert_close(backend, result.output, [wanted[i % 6] for i in range(size)])


def test_slots_without_a_request_are_left_alone(backend: DecodeBackend) -> None:
    output = np.full((5, SIZE[1], SIZE[0], 3), 77, np.uint8)
    run(backend, JPEGS[:2], SIZE, output=output, exact=1).raise_first()
    assert (output[2:] == 77).all()
    assert_close(backend, output[:2], expected(JPEGS[:2]))


def test_tickets_are_collected_in_any_order_or_dropped(backend: DecodeBackend) -> None:
    wanted = expected(JPEGS)
    tickets = [backend.submit(batch_of([JPEGS[i]])) for i in range(6)]
    del tickets[2], tickets[0]
    for place, number in ((3, 5), (0, 1), (2, 4), (1, 3)):
        result = backend.collect(tickets[place])
        assert_close(backend, result.output, wanted[number : number + 1])
    assert_works(backend)


def test_a_bad_batch_between_good_ones(backend: DecodeBackend) -> None:
    batches = [batch_of(JPEGS[i % 4 :]) for i in range(5)]
    batches[2] = batch_of([JPEGS[0], b"", bad_huffman_table(), JPEGS[3][:-2], JPEGS[3]])
    results = [backend.collect(each) for each in [backend.submit(batch) for batch in batches]]
    assert [sorted(result.reasons) for result in results] == [[], [], [1, 2, 3], [], []]
    for i in (0, 1, 3, 4):
        assert_close(backend, results[i].output, expected(JPEGS[i % 4 :]))


def test_the_answer_belongs_to_its_ticket(new_backend: NewBackend) -> None:
    backends = [new_backend(), new_backend()]
    plain = expected(JPEGS)
    tickets = [
        (backend, flip, backend.submit(batch_of(JPEGS, flip=flip)))
        for flip in (0, 1, 0, 1)
        for backend in backends
    ]
    for backend, flip, ticket in tickets:
        assert_close(backend, backend.collect(ticket).output, plain[:, :, ::-1] if flip else plain)


def test_backends_in_two_threads(new_backend: NewBackend) -> None:
    wanted = expected(JPEGS)
    wrong: list[str] = []

    def work(backend: DecodeBackend, first: int) -> None:
        for i in range(first, first + 20):
            pair = [i % 6, (i + 1) % 6]
            result = decode(backend, batch_of([JPEGS[number] for number in pair]))
            try:
                assert result.ok
                assert_close(backend, result.output, wanted[pair])
            except AssertionError as error:
                wrong.append(str(error))

    threads = [threading.Thread(target=work, args=(new_backend(), first)) for first in (0, 3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_done_and_unfinished_agree_with_collect(backend: DecodeBackend) -> None:
    ticket = backend.submit(batch_of(JPEGS))
    assert isinstance(backend.done(ticket), bool)
    assert set(backend.unfinished(ticket)) <= set(range(6))
    assert backend.collect(ticket).ok
    assert backend.unfinished(ticket) == []
    if backend.done(backend.submit(batch_of([]))):  # this backend can tell
        assert backend.done(ticket)


def test_times_are_given_per_stage(backend: DecodeBackend) -> None:
    result = decode(backend, batch_of(JPEGS[:2]))
    assert (result.times_ns[:, STAGES.index("decode")] > 0).all()


class Source(np.ndarray[Any, Any]):
    """Bytes that can be watched."""


def test_sources_of_a_dropped_batch_are_released(new_backend: NewBackend) -> None:
    backend = new_backend()
    source = np.frombuffer(JPEGS[0], np.uint8).copy().view(Source)
    watched = weakref.ref(source)
    ticket = backend.submit(batch_of([source] * 6))
    del ticket, source
    backend.close()

    def released() -> bool:
        gc.collect()
        return watched() is None

    assert wait_until(released)  # a thread may still be finishing the sample that it had begun


# ---- options, wrong batches


def test_threads(new_backend: NewBackend) -> None:
    backend = new_backend(threads=2)
    assert backend.threads == 2
    if backend.adjustable_threads:
        backend.threads = 3
        assert backend.threads == 3
    assert_works(backend)
    for wrong in (0, -1, 1025):
        with pytest.raises(ConfigError, match=f"threads={wrong}: expected 1 to 1024"):
            new_backend(threads=wrong)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"hardware": True}, "hardware=True requires a GPU"),
        ({"device": "mps"}, "device='mps'"),
        ({"device": "gpu"}, "device='gpu'"),
    ],
    ids=str,
)
def test_options_of_gpu_backends_are_checked(
    backend_name: str, new_backend: NewBackend, options: dict[str, Any], message: str
) -> None:
    if BACKENDS[backend_name].on_gpu:
        with pytest.raises(ConfigError, match=message):
            new_backend(**options)
    else:
        assert_works(new_backend(**options))  # the registry passes them to GPU backends only


@pytest.mark.parametrize("shape", [(1, 45, 60, 4), (1, 45, 60, 1), (0, 45, 60, 3), (1, 45, 60)])
def test_an_output_that_cannot_hold_the_batch_raises(
    backend: DecodeBackend, shape: tuple[int, ...]
) -> None:
    with pytest.raises(ConfigError, match="output"):
        run(backend, JPEGS[:1], SIZE, output=np.zeros(shape, np.uint8))
    assert_works(backend)


def test_requests_of_another_dtype_raise(backend: DecodeBackend) -> None:
    others: list[Any] = [
        np.zeros(3, np.int64),
        np.zeros((1, 2), REQUEST),
        np.zeros(2, [("offset", "<u8")]),
    ]
    for requests in others:
        with pytest.raises(ConfigError, match="requests"):
            backend.submit(DecodeBatch([], requests, np.zeros((3, 4, 4, 3), np.uint8)))
    assert_works(backend)


# ---- closing, forking, exiting


def test_closing_cancels_what_is_not_started(new_backend: NewBackend) -> None:
    backend = new_backend()
    batches = [batch_of(JPEGS) for _ in range(12)]
    tickets = [backend.submit(batch) for batch in batches]
    backend.close()
    for ticket in tickets:
        result = backend.collect(ticket)
        assert set(result.status.tolist()) <= {Status.OK, Status.CANCELLED}
        cancelled = np.flatnonzero(result.status == Status.CANCELLED).tolist()
        assert sorted(result.reasons) == cancelled
    backend.close()


def run_python(name: str, code: str) -> subprocess.CompletedProcess[str]:
    program = (
        "import os, sys\n"
        "from fastload._decode.registry import BACKENDS\n"
        "from tests.decode.test_backend_contract import *\n"
        f"backend = BACKENDS[{name!r}].make(threads=1)\n" + code
    )
    return subprocess.run(
        [sys.executable, "-c", program],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )


def test_python_exits_with_batches_in_flight(backend_name: str) -> None:
    code = (
        "tickets = [backend.submit(batch_of(JPEGS)) for _ in range(9)]\n"
        "backend.collect(tickets[1]).raise_first()\n"
        "print('fine')\n"
    )
    ended = run_python(backend_name, code)
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "fine\n", "")


def test_a_forked_child_ends_and_the_parent_goes_on(backend_name: str) -> None:
    """A child may use the object if the backend says so; if not, it makes its own and drops it."""
    code = (
        "tickets = [backend.submit(batch_of(JPEGS)) for _ in range(4)]\n"
        "child = os.fork()\n"
        "if not child:\n"
        "    tickets.clear()\n"
        "    if not backend.survives_fork:\n"
        "        backend = BACKENDS['reference'].make(threads=1)\n"
        "    sys.exit(0 if backend.collect(backend.submit(batch_of(JPEGS))).ok else 3)\n"
        "assert os.waitpid(child, 0)[1] == 0\n"
        "assert all(backend.collect(ticket).ok for ticket in tickets)\n"
        "print('fine')\n"
    )
    ended = run_python(backend_name, code)
    assert (ended.returncode, ended.stdout) == (0, "fine\n"), ended.stderr
