"""The contract of fastload._decode.backend.DecodeBackend, for every backend on the CPU."""

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
from numpy.typing import NDArray

from fastload._common.native import core
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
from tests.decoding import native, pixels_of, record, reference, run
from tests.gpu_backends import max_differences
from tests.jpeg_samples import encode, encode_by_pillow, sample_image
from tests.loading import wait_until

ROOT = Path(__file__).resolve().parents[2]
FILL = (1, 2, 3)
SIZE = (60, 45)  # of outputs: width, height
JPEGS = [
    encode(sample_image(120 + 8 * i, 90 + 4 * i, i), ("420", "444", "gray")[i % 3])
    for i in range(6)
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


def oracle(backend: DecodeBackend) -> tuple[DecodeBackend, bool]:
    """Returns the backend to compare with, and whether all bytes must be equal.

    On the CPU nvJPEG uses the same decoder and the same integer arithmetic as the native core. The
    other backends resize with a slightly different rounding than the reference.
    """
    if backend.name == "nvjpeg" and core() is not None:
        return native(), True
    return reference(), backend.name == "reference"


def expected(backend: DecodeBackend, sources: list[bytes], **columns: Any) -> Any:
    """Decodes with the oracle of the backend; bad sources are filled."""
    return decode(oracle(backend)[0], batch_of(sources, **columns)).output


def assert_pixels(backend: DecodeBackend, found: Any, wanted: Any, slots: Any = None) -> None:
    """Asserts byte equality with the oracle, or a difference that the backend allows."""
    identical = oracle(backend)[1]
    for slot in range(len(found)) if slots is None else slots:
        if identical:
            assert np.array_equal(found[slot], wanted[slot]), f"slot {slot}"
            continue
        inside, edge, corner = max_differences(found[slot], wanted[slot])
        assert inside <= 1, f"slot {slot}: {inside}"
        assert edge <= backend.edge_error, f"slot {slot}, edge: {edge}"
        assert corner <= 2 * backend.edge_error, f"slot {slot}, corner: {corner}"


def assert_works(backend: DecodeBackend) -> None:
    """Asserts that the backend still decodes good samples."""
    result = decode(backend, batch_of(JPEGS))
    assert result.ok, result.reasons
    assert_pixels(backend, result.output, expected(backend, JPEGS))


def bad_huffman_table() -> bytes:
    """Returns a JPEG with valid markers and a Huffman table that only a decoder can reject."""
    jpeg = bytearray(JPEGS[1])
    jpeg[jpeg.find(b"\xff\xc4") + 5] = 255
    return bytes(jpeg)


def bomb() -> bytes:
    """Returns a small file whose header claims 16000 x 16000 pixels."""
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


# ---- status per sample


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
        assert_pixels(backend, result.output, expected(backend, JPEGS[:3]), {0, 1, 2} - {place})
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
        assert_pixels(backend, result.output, expected(backend, JPEGS[:1] * 3), {0, 1, 2} - {place})
    assert decode(backend, batch_of([source] * 3, **columns)).ok


def test_images_can_share_a_record(backend: DecodeBackend) -> None:
    source, offset = record(JPEGS[0] + JPEGS[2])
    sizes = [len(JPEGS[0]), len(JPEGS[2])]
    batch = batch_of([source] * 2, check=1, size=sizes, offset=[offset, offset + sizes[0]])
    batch.requests["source"] = 0
    result = decode(backend, DecodeBatch([source], batch.requests, batch.output))
    result.raise_first()
    assert_pixels(backend, batch.output, expected(backend, [JPEGS[0], JPEGS[2]]))


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
def test_an_invalid_request_fails_alone(backend: DecodeBackend, row: dict[str, Any]) -> None:
    batch = batch_of(JPEGS[:1] * 3, source=0)
    for name, value in row.items():
        batch.requests[name][1] = value
    result = decode(backend, batch)
    assert result.status[0] == result.status[2] == Status.OK
    assert result.status[1] in (Status.BAD_REQUEST, Status.BAD_IMAGE)
    assert result.reasons.keys() == {1}
    assert result.reasons[1].strip()
    assert (np.asarray(result.output)[1] == FILL).all()
    assert_pixels(backend, result.output, expected(backend, JPEGS[:1] * 3), (0, 2))


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
def test_pixels_match_the_oracle(backend: DecodeBackend, plan: str) -> None:
    columns = PLANS[plan]
    result = decode(backend, batch_of(JPEGS, **columns))
    assert result.ok, result.reasons
    wanted = expected(backend, JPEGS, **columns)
    top = columns.get("pad_top", 0)
    rows = slice(top, top + columns.get("out_h", SIZE[1]))
    assert_pixels(backend, np.asarray(result.output)[:, rows], wanted[:, rows])
    assert np.array_equal(np.asarray(result.output)[:, :top], wanted[:, :top])


@pytest.mark.parametrize(
    "columns",
    [
        {"x": 8, "y": 8, "w": SIZE[0], "h": SIZE[1]},
        {"x": 8, "y": 8, "w": SIZE[0], "h": SIZE[1], "flip": 1},
        {"filter": Filter.NEAREST, "flip": 1},
        {"filter": Filter.NEAREST, "x": 5, "y": 9, "w": 71, "h": 33},
    ],
    ids=["crop", "crop and flip", "nearest", "nearest crop"],
)
def test_pixels_that_are_not_interpolated_are_identical(
    backend: DecodeBackend, columns: dict[str, Any]
) -> None:
    """Without interpolation every backend returns exactly the bytes of the reference."""
    result = decode(backend, batch_of(JPEGS, **columns))
    assert result.ok, result.reasons
    assert np.array_equal(result.output, decode(reference(), batch_of(JPEGS, **columns)).output)


@pytest.mark.parametrize("kind", ["progressive", "one pixel wide", "odd"])
def test_unusual_files_are_decoded(backend: DecodeBackend, kind: str) -> None:
    source = {
        "progressive": encode_by_pillow(sample_image(100, 70), "422", progressive=True),
        "one pixel wide": encode(sample_image(1, 40), "420"),
        "odd": encode(sample_image(17, 9), "444"),
    }[kind]
    result = decode(backend, batch_of([JPEGS[0], source]))
    assert result.ok, result.reasons
    assert_pixels(backend, result.output, expected(backend, [JPEGS[0], source]))


def test_mask_values_are_never_interpolated(backend: DecodeBackend) -> None:
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
    found, wanted = (
        pixels_of(each, labels.tobytes(), (64, 50), **columns) for each in (backend, reference())
    )
    assert np.array_equal(found, wanted)
    assert set(found.view(np.uint16).ravel().tolist()) <= set(labels.ravel().tolist())


@pytest.mark.parametrize("dtype", [torch.uint8, torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("layout", ["nhwc", "nchw"])
def test_the_output_has_the_requested_format(
    backend: DecodeBackend, dtype: torch.dtype, layout: Any
) -> None:
    """Values are exactly (pixel - mean) / std of the pixels that the backend decodes as uint8."""
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
    assert torch.equal(output, wanted)


# ---- 16 bits


def wide_batch(dtype: Any = torch.uint16, **columns: Any) -> DecodeBatch:
    """Returns raw images of 16 bits, of 8 bits, and a JPEG, in a batch of 16 bits."""
    random = np.random.default_rng(7)
    wide = random.integers(0, 65536, (93, 121, 3), np.uint16)
    narrow = random.integers(0, 256, (93, 121, 3), np.uint8)
    batch = batch_of([wide.tobytes(), narrow.tobytes(), JPEGS[0]], **RAW)
    batch.requests["raw_w"] = 121
    batch.requests["raw_h"] = 93
    batch.requests["raw_bits"] = [16, 8, 0]
    batch.requests["codec"][2] = Codec.JPEG
    for name, value in columns.items():
        batch.requests[name] = value
    output = torch.zeros(3, SIZE[1], SIZE[0], 3, dtype=dtype)
    return DecodeBatch(
        batch.sources, batch.requests, output, PixelFormat(fill=(1, 40_000, 65_535), bits=16)
    )


def values_of(result: DecodeResult) -> NDArray[np.int64]:
    """Returns the output as integers; torch.uint16 has few operations."""
    assert result.ok, result.reasons
    values: NDArray[np.int64] = np.asarray(result.output).astype(np.int64)
    return values


@pytest.mark.parametrize("plan", PLANS)
def test_16_bit_pixels_match_the_reference(backend: DecodeBackend, plan: str) -> None:
    found, wanted = (
        values_of(decode(each, wide_batch(**PLANS[plan]))) for each in (backend, reference())
    )
    assert found[0].max() > 255
    assert abs(found[0] - wanted[0]).max() <= 1
    # 8-bit images are resized with 8 bits, then multiplied by 257.
    assert abs(found[1:] - wanted[1:]).max() <= 257
    inside = slice(PLANS[plan].get("pad_top", 0), -8 if "pad_top" in PLANS[plan] else None)
    assert (found[1:, inside] % 257 == 0).all()
    if "pad_top" in PLANS[plan]:
        assert (found[:, :8] == (1, 40_000, 65_535)).all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("layout", ["nhwc", "nchw"])
def test_16_bit_pixels_are_normalized(
    backend: DecodeBackend, dtype: torch.dtype, layout: Any
) -> None:
    """Values are exactly (pixel - mean) / std in float32, rounded to the dtype."""
    mean, std = (0.1, 0.2, 0.3), (0.5, 0.25, 2.0)
    plain = torch.from_numpy(values_of(decode(backend, wide_batch()))).float()
    low, scale = (torch.tensor([65535.0 * each for each in values]) for values in (mean, std))
    wanted = ((plain.flip(-1) - low) / scale).to(dtype)
    wanted = wanted.permute(0, 3, 1, 2) if layout == "nchw" else wanted
    batch = wide_batch()
    output = torch.zeros(wanted.shape, dtype=dtype)
    pixels = PixelFormat(layout, "bgr", mean=mean, std=std, bits=16)
    decode(backend, DecodeBatch(batch.sources, batch.requests, output, pixels)).raise_first()
    assert torch.equal(output, wanted)


def test_16_bit_images_lose_their_lower_bits_in_an_8_bit_batch(backend: DecodeBackend) -> None:
    batch = wide_batch()
    wanted = values_of(decode(backend, batch))
    output = np.zeros((3, SIZE[1], SIZE[0], 3), np.uint8)
    found = decode(backend, DecodeBatch(batch.sources, batch.requests, output))
    assert np.array_equal(values_of(found)[:2], wanted[:2] // 256)


@pytest.mark.parametrize("channels", [1, 3])
def test_16_bit_gray_and_color_become_the_color_of_the_output(
    backend: DecodeBackend, channels: int
) -> None:
    image = np.random.default_rng(8).integers(0, 65536, (45, 60, channels), np.uint16)
    color: Any = "rgb" if channels == 1 else "gray"
    found = pixels_of(
        backend,
        image.tobytes(),
        SIZE,
        **{**RAW, "raw_channels": channels, "raw_bits": 16},
        pixels=PixelFormat(color=color, bits=16),
        channels=4 - channels,
        dtype=np.uint16,
    )
    if channels == 1:
        assert np.array_equal(found, image.repeat(3, axis=2))
    else:
        luma = (image.astype(np.int64) @ [19595, 38470, 7471] + 32768) // 65536
        assert np.array_equal(found[..., 0], luma)


def test_a_damaged_16_bit_image_fails_alone(backend: DecodeBackend) -> None:
    batch = wide_batch()
    wanted = values_of(decode(backend, batch))
    sources = [batch.sources[0][:-1], *batch.sources[1:]]
    output = torch.zeros(3, SIZE[1], SIZE[0], 3, dtype=torch.uint16)
    result = decode(backend, DecodeBatch(sources, batch.requests, output, batch.pixels))
    assert result.status.tolist() == [Status.BAD_IMAGE, Status.OK, Status.OK]
    found = output.numpy().astype(np.int64)
    assert (found[0] == (1, 40_000, 65_535)).all()
    assert np.array_equal(found[1:], wanted[1:])


def test_the_depth_of_a_batch_must_fit_its_dtype(backend: DecodeBackend) -> None:
    for dtype, bits in ((torch.uint8, 16), (torch.uint16, 8)):
        output = torch.zeros(3, SIZE[1], SIZE[0], 3, dtype=dtype)
        batch = wide_batch()
        with pytest.raises(ConfigError, match=f"bits={bits}: expected {24 - bits}"):
            backend.submit(
                DecodeBatch(batch.sources, batch.requests, output, PixelFormat(bits=bits))
            )
    with pytest.raises(ConfigError, match="bits=12: expected 8 or 16"):
        PixelFormat(bits=12)
    assert_works(backend)


# ---- batches in flight


@pytest.mark.parametrize("sizes", [[0], [1], [6, 0, 3, 1], [40, 2, 100]], ids=str)
def test_batches_of_any_size(new_backend: NewBackend, sizes: list[int]) -> None:
    backend = new_backend()
    wanted = expected(backend, JPEGS)
    tickets = [backend.submit(batch_of([JPEGS[i % 6] for i in range(size)])) for size in sizes]
    for size, ticket in zip(sizes, tickets, strict=True):
        result = backend.collect(ticket)
        assert result.ok
        assert result.status.shape == (size,)
        assert result.times_ns.shape == (size, len(STAGES))
        assert_pixels(backend, result.output, [wanted[i % 6] for i in range(size)])


def test_slots_without_a_request_stay_unmodified(backend: DecodeBackend) -> None:
    output = np.full((5, SIZE[1], SIZE[0], 3), 77, np.uint8)
    run(backend, JPEGS[:2], SIZE, output=output, exact=1).raise_first()
    assert (output[2:] == 77).all()
    assert_pixels(backend, output[:2], expected(backend, JPEGS[:2]))


def test_tickets_are_collected_in_any_order_or_dropped(backend: DecodeBackend) -> None:
    wanted = expected(backend, JPEGS)
    tickets = [backend.submit(batch_of([JPEGS[i]])) for i in range(6)]
    del tickets[2], tickets[0]
    for place, number in ((3, 5), (0, 1), (2, 4), (1, 3)):
        result = backend.collect(tickets[place])
        assert_pixels(backend, result.output, wanted[number : number + 1])
    assert_works(backend)


def test_a_bad_batch_between_good_ones(backend: DecodeBackend) -> None:
    batches = [batch_of(JPEGS[i % 4 :]) for i in range(5)]
    batches[2] = batch_of([JPEGS[0], b"", bad_huffman_table(), JPEGS[3][:-2], JPEGS[3]])
    results = [backend.collect(each) for each in [backend.submit(batch) for batch in batches]]
    assert [sorted(result.reasons) for result in results] == [[], [], [1, 2, 3], [], []]
    for i in (0, 1, 3, 4):
        assert_pixels(backend, results[i].output, expected(backend, JPEGS[i % 4 :]))


def test_a_result_belongs_to_its_ticket(new_backend: NewBackend) -> None:
    backends = [new_backend(), new_backend()]
    plain = expected(backends[0], JPEGS)
    tickets = [
        (backend, flip, backend.submit(batch_of(JPEGS, flip=flip)))
        for flip in (0, 1, 0, 1)
        for backend in backends
    ]
    for backend, flip, ticket in tickets:
        assert_pixels(backend, backend.collect(ticket).output, plain[:, :, ::-1] if flip else plain)


def test_backends_in_two_threads(new_backend: NewBackend) -> None:
    backends = [new_backend(), new_backend()]
    wanted = expected(backends[0], JPEGS)
    wrong: list[str] = []

    def work(backend: DecodeBackend, first: int) -> None:
        for i in range(first, first + 20):
            pair = [i % 6, (i + 1) % 6]
            result = decode(backend, batch_of([JPEGS[number] for number in pair]))
            try:
                assert result.ok
                assert_pixels(backend, result.output, wanted[pair])
            except AssertionError as error:
                wrong.append(str(error))

    threads = [
        threading.Thread(target=work, args=each) for each in zip(backends, (0, 3), strict=True)
    ]
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
    if backend.done(backend.submit(batch_of([]))):  # this backend reports progress
        assert backend.done(ticket)


def test_times_are_reported_per_stage(backend: DecodeBackend) -> None:
    result = decode(backend, batch_of(JPEGS[:2]))
    assert (result.times_ns[:, STAGES.index("decode")] > 0).all()


class Source(np.ndarray[Any, Any]):
    """Bytes that support weak references."""


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

    assert wait_until(released)  # a thread may still be decoding a sample


# ---- options and invalid batches


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


# ---- close, fork and exit


def test_closing_cancels_samples_that_have_not_started(new_backend: NewBackend) -> None:
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
        timeout=600,
    )


def test_python_exits_with_batches_in_flight(backend_name: str) -> None:
    code = (
        "tickets = [backend.submit(batch_of(JPEGS)) for _ in range(9)]\n"
        "backend.collect(tickets[1]).raise_first()\n"
        "print('fine')\n"
    )
    ended = run_python(backend_name, code)
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "fine\n", "")


def test_a_forked_child_exits_and_the_parent_continues(backend_name: str) -> None:
    """The child uses the backend if it survives a fork; otherwise it creates another one."""
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


def test_the_reference_initializes_torch_before_its_threads_run() -> None:
    """Without it, 2 of 10 children that were forked during the first decode waited forever."""
    code = (
        "from fastload._decode import reference\n"
        "decode_one = reference._load\n"
        "outcomes = []\n"
        "reference._load = lambda *given: outcomes.append(decode_one(*given))\n"
        "reference._initialize_torch.cache_clear()\n"
        "reference.ReferenceBackend(threads=1)\n"
        "print([each.reason for each in outcomes])\n"
    )
    assert run_python("reference", code).stdout == f"{[''] * 9}\n"
