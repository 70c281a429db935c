"""The rewrite changes no pixel of any kind of JPEG, in two decoders."""

from __future__ import annotations

import itertools
import math
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from tests.corpus import photos
from tests.jpeg_samples import (
    SAMPLINGS,
    decode,
    decode_by_pillow,
    encode,
    encode_by_pillow,
    markers,
    replace_frame,
    sample_image,
)

core = pytest.importorskip("fastload._core", reason="not run: no native core")

SIZES = [
    (1, 1),
    (2, 3),
    (5, 4),
    (7, 17),
    (8, 8),
    (9, 15),
    (16, 16),
    (17, 1),
    (1, 17),
    (15, 33),
    (32, 32),
    (33, 31),
    (63, 47),
    (130, 70),
]


def assert_same_pixels(jpeg: bytes, **options: int) -> bytes:
    """Rewrites and compares the pixels, and the coefficients and bytes with the libjpeg path."""
    rewritten = core.rewrite(jpeg, orient=False, **options)
    written = rewritten.jpeg
    before = decode(jpeg)
    np.testing.assert_array_equal(decode(written), before)
    np.testing.assert_array_equal(decode_by_pillow(written), decode_by_pillow(jpeg))
    assert (rewritten.height, rewritten.width) == before.shape[:2]
    assert rewritten.warning == ""
    slow = core.rewrite(jpeg, orient=False, fast=False, **options)
    assert slow.interval == rewritten.interval
    optimal = core.rewrite(jpeg, orient=False, keep_tables=False, **options)
    assert optimal.jpeg == slow.jpeg, f"{len(optimal.jpeg)} bytes, libjpeg wrote {len(slow.jpeg)}"
    assert optimal.index.tolist() == slow.index.tolist()
    if written != slow.jpeg:  # it has the tables of the source
        again = core.rewrite(written, orient=False, fast=False, restart=slow.interval)
        assert again.jpeg == slow.jpeg
        assert len(rewritten.index) == len(slow.index)
        found, interval = core.find_segments(written)
        assert interval == slow.interval
        assert not interval or found.tolist() == rewritten.index.tolist()
    return bytes(written)


def test_photos_keep_their_pixels() -> None:
    for path in photos():
        jpeg = path.read_bytes()
        written = core.rewrite(jpeg).jpeg
        np.testing.assert_array_equal(decode(written), decode(jpeg), err_msg=path.name)


def test_photos_with_both_paths_and_two_decoders() -> None:
    for path in photos(25):
        assert_same_pixels(path.read_bytes())


def test_every_instruction_set_writes_the_same_bytes() -> None:
    if core.set_simd("avx2") != "avx2":
        pytest.skip("not run: no AVX2 and BMI2 on this processor")
    jpegs = [
        encode(sample_image(130, 70), sampling, quality)
        for sampling in SAMPLINGS
        for quality in (20, 92, 100)
    ]
    jpegs += [
        encode_by_pillow(sample_image(130, 70), sampling, quality, optimize=True)
        for sampling in ("444", "420", "gray")
        for quality in (20, 92, 100)
    ]
    with_bmi2 = [assert_same_pixels(jpeg, restart=3) for jpeg in jpegs]
    core.set_simd("portable")
    try:
        assert [assert_same_pixels(jpeg, restart=3) for jpeg in jpegs] == with_bmi2
    finally:
        core.set_simd("avx512")


@pytest.mark.parametrize("sampling", SAMPLINGS)
def test_samplings_sizes_and_intervals(sampling: str) -> None:
    for (width, height), quality in itertools.product(SIZES, (20, 92, 100)):
        for restart in (-1, 0, 1, 3):
            assert_same_pixels(
                encode(sample_image(width, height), sampling, quality), restart=restart
            )


@pytest.mark.parametrize("size", range(1, 18))
def test_every_small_size(size: int) -> None:
    for sampling in SAMPLINGS:
        assert_same_pixels(encode(sample_image(size, 18 - size), sampling), restart=1)


@pytest.mark.parametrize("sampling", ["444", "422", "420", "gray"])
@pytest.mark.parametrize(
    "options",
    [
        {"progressive": True},
        {"optimize": True},
        {"restart_marker_rows": 1},
        {"restart_marker_blocks": 1},
        {"restart_marker_blocks": 5},
        {"progressive": True, "restart_marker_blocks": 3},
    ],
)
def test_sources_with_other_encoder_options(sampling: str, options: dict[str, object]) -> None:
    for (width, height), quality in itertools.product(SIZES, (50, 95)):
        for restart in (-1, 0, 2):
            assert_same_pixels(
                encode_by_pillow(sample_image(width, height), sampling, quality, **options),
                restart=restart,
            )


@pytest.mark.parametrize(
    ("sampling", "mcu"), [("422", (16, 8)), ("420", (16, 16)), ("440", (8, 16)), ("411", (32, 8))]
)
def test_blocks_beyond_the_edge_of_the_image(sampling: str, mcu: tuple[int, int]) -> None:
    """A reduced size in the header leaves blocks with contents that no decoder shows."""
    for restart_before, share in itertools.product((0, 1, 3), (0.01, 0.3, 0.5, 0.51, 0.9)):
        jpeg = core.rewrite(
            encode(sample_image(128, 128), sampling, 95), restart=restart_before
        ).jpeg
        frame = dict(markers(jpeg))[0xC0]
        width, height = (128 - math.floor(side * (1 - share)) for side in mcu)
        for restart in (0, 1, 2, 4):
            assert_same_pixels(
                replace_frame(
                    jpeg,
                    body=frame[:1]
                    + height.to_bytes(2, "big")
                    + width.to_bytes(2, "big")
                    + frame[5:],
                ),
                restart=restart,
            )


def test_rewriting_twice_changes_nothing() -> None:
    for path in photos(10):
        once = core.rewrite(path.read_bytes(), restart=4, keep_tables=False)
        twice = core.rewrite(once.jpeg, restart=4)
        for name in (
            "jpeg",
            "index_bytes",
            "width",
            "height",
            "interval",
            "orientation",
            "warning",
        ):
            assert getattr(twice, name) == getattr(once, name), name


def test_standard_huffman_tables_keep_pixels() -> None:
    jpeg = photos(1)[0].read_bytes()
    written = core.rewrite(jpeg, optimize=False).jpeg
    np.testing.assert_array_equal(decode(written), decode(jpeg))
    assert len(written) > len(core.rewrite(jpeg).jpeg)


def test_runs_of_zeros_before_the_end_of_block_are_removed() -> None:
    """Such runs are legal, but no encoder writes them. The test inserts them into a stream."""
    jpeg = core.rewrite(
        encode(np.full((8, 8, 3), 128, np.uint8), "gray"), restart=0, optimize=False
    ).jpeg
    body = jpeg[: jpeg.rindex(b"\xff\xda")] + bytes.fromhex("ffda0008010100003f00")
    # The standard codes: DC difference 0 is "00", ZRL "11111111001", EOB "1010".
    for code in ("00" + "1010", "00" + "11111111001" + "1010", "00" + "11111111001" * 3 + "1010"):
        bits = code + "1" * (-len(code) % 8)
        data = int(bits, 2).to_bytes(len(bits) // 8, "big").replace(b"\xff", b"\xff\0")
        assert (
            assert_same_pixels(body + data + b"\xff\xd9", restart=0)
            == core.rewrite(jpeg, restart=0).jpeg
        )
    # Four of them exceed the block. libjpeg accepts that, and so does the slow path.
    code = "00" + "11111111001" * 4
    bits = code + "1" * (-len(code) % 8)
    data = int(bits, 2).to_bytes(len(bits) // 8, "big").replace(b"\xff", b"\xff\0")
    assert_same_pixels(body + data + b"\xff\xd9", restart=0)


def test_runs_of_zeros_are_copied_with_the_old_tables() -> None:
    """libjpeg does not write them. Optimal tables remove them."""
    jpeg = core.rewrite(encode(np.full((16, 8, 3), 128, np.uint8), "gray"), restart=0).jpeg
    written = b"\xff\xd8"
    # The optimal AC code for two ends of block, "0", and one run, "10".
    ac_table = b"\x10" + b"\1\1" + bytes(14) + b"\x00\xf0"
    for marker, body in markers(jpeg):
        new = ac_table if marker == 0xC4 and body[0] == 0x10 else body
        written += bytes([0xFF, marker]) + (len(new) + 2).to_bytes(2, "big") + new
    # Twice: a DC difference of 0, which is "0"; the first block has a run before its end.
    for code in ("0" + "100" + "0" + "0", "0" + "10100" + "0" + "0"):
        bits = code + "1" * (8 - len(code))
        data = bytes([int(bits, 2)])
        runs = written + data + b"\xff\xd9"
        assert assert_same_pixels(runs, restart=0) == runs
        assert core.rewrite(runs, restart=0, keep_tables=False).jpeg == jpeg


def huffman_symbols(jpeg: bytes) -> dict[int, bytes]:
    """The symbols of each Huffman table, by the first byte of its marker."""
    return {body[0]: body[17:] for marker, body in markers(jpeg) if marker == 0xC4}


@pytest.mark.parametrize("sampling", ["444", "422", "420", "gray"])
def test_optimized_tables_of_the_source_are_kept(sampling: str) -> None:
    jpeg = encode_by_pillow(sample_image(130, 70), sampling, optimize=True)
    written = assert_same_pixels(jpeg, restart=0)
    assert [body for marker, body in markers(written) if marker == 0xC4] == [
        body for marker, body in markers(jpeg) if marker == 0xC4
    ]
    assert written[-200:] == jpeg[-200:]  # nothing changes without restart markers
    # Tables with every symbol are those of the standard, and are replaced.
    standard = encode_by_pillow(sample_image(130, 70), sampling)
    assert len(huffman_symbols(standard)[0x10]) == 162
    assert written == core.rewrite(standard, restart=0).jpeg


def test_kept_dc_tables_receive_the_sizes_that_restart_markers_need() -> None:
    """All differences are small here, but a restart marker needs the whole value."""
    ramp = np.arange(128, 256, dtype=np.uint8).repeat(8)
    image = np.broadcast_to(ramp[None, :, None], (8, ramp.size, 3)).copy()
    for sampling, quality in itertools.product(("444", "420", "gray"), (75, 100)):
        jpeg = encode_by_pillow(image, sampling, quality, optimize=True)
        old = huffman_symbols(jpeg)
        assert max(old[0]) <= 7
        assert assert_same_pixels(jpeg, restart=0).count(old[0]) >= 1
        for restart in (1, 2, 5):
            new = huffman_symbols(assert_same_pixels(jpeg, restart=restart))
            assert new[0].startswith(old[0])
            assert len(new[0]) > len(old[0])
            assert all(new[table] == old[table] for table in old if table >= 0x10)


@pytest.mark.parametrize("table", [0x00, 0x10])
def test_tables_with_invalid_symbols_are_not_kept(table: int) -> None:
    """Decoders on a GPU may reject such a table, even though nothing uses the symbol."""
    jpeg = encode_by_pillow(sample_image(130, 70), "gray", optimize=True)
    strange = b"\xff\xd8"
    for marker, old in markers(jpeg):
        body = old
        if marker == 0xC4 and old[0] == table:
            # One more code of 16 bits, for a DC size of 13 or an AC value of 13 bits.
            body = old[:16] + bytes([old[16] + 1]) + old[17:] + bytes([0x0D])
        strange += bytes([0xFF, marker]) + (len(body) + 2).to_bytes(2, "big") + body
    strange += jpeg[jpeg.index(b"\xff\xda") + 10 :]
    assert 0x0D in huffman_symbols(strange)[table]
    np.testing.assert_array_equal(decode(strange), decode(jpeg))
    written = assert_same_pixels(strange, restart=2)
    assert 0x0D not in huffman_symbols(written)[table]
    assert written == core.rewrite(jpeg, restart=2, keep_tables=False).jpeg


def test_threads_rewrite_independently() -> None:
    jpegs = [path.read_bytes() for path in photos(24)]
    expected = [core.rewrite(jpeg).jpeg for jpeg in jpegs]
    with ThreadPoolExecutor(4) as pool:
        for _ in range(3):
            assert [result.jpeg for result in pool.map(core.rewrite, jpegs)] == expected


def test_bytes_like_objects_are_accepted() -> None:
    jpeg = encode(sample_image(40, 30), "420")
    expected = core.rewrite(jpeg).jpeg
    for data in (memoryview(jpeg), bytearray(jpeg), np.frombuffer(jpeg, np.uint8)):
        assert core.rewrite(data).jpeg == expected
    with pytest.raises(TypeError):
        core.rewrite("text")


def test_huffman_tables_contain_only_used_symbols() -> None:
    written = core.rewrite(encode(np.full((64, 64, 3), 200, np.uint8), "444")).jpeg
    tables = [body for marker, body in markers(written) if marker == 0xC4]
    assert len(tables) == 4
    assert all(len(body) <= 17 + 2 for body in tables)


@pytest.mark.parametrize("sampling", ["444", "420"])
def test_a_huffman_table_may_list_a_symbol_twice(sampling: str) -> None:
    """This is legal. Each of the two codes must be read with its own length."""
    jpeg = encode(sample_image(130, 70), sampling)
    # The standard AC tables end with these symbols, which no photograph contains.
    end_of_tables = b"\xf7\xf8\xf9\xfa"
    assert jpeg.count(end_of_tables) == 2
    twice = jpeg.replace(end_of_tables, b"\xf7\xf8\xf9\x01")
    np.testing.assert_array_equal(decode(twice), decode(jpeg))
    assert_same_pixels(twice)
    assert_same_pixels(twice, restart=3)
