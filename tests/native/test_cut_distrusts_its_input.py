"""cut returns the whole image or a part of it for any index, JPEG and region, even damaged ones."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest

from tests.jpeg_samples import (
    decode,
    encode,
    encode_by_pillow,
    markers,
    replace_frame,
    sample_image,
)

Sample = tuple[bytes, npt.NDArray[np.uint32], int]
core = pytest.importorskip("fastload._core", reason="not run: no native core")


@pytest.fixture(name="sample")
def _sample() -> Sample:
    rewritten = core.rewrite(encode(sample_image(120, 90), "420"), restart=2)
    return rewritten.jpeg, rewritten.index, rewritten.interval


def assert_not_cut(
    jpeg: bytes, index: object, interval: int, box: tuple[int, int, int, int] = (50, 40, 10, 10)
) -> None:
    found = core.cut(jpeg, index, interval, *box)
    assert (found.jpeg, found.x0, found.y0) == (jpeg, 0, 0)


def test_an_image_without_index_is_not_cut(sample: Sample) -> None:
    jpeg, _, interval = sample
    assert_not_cut(jpeg, b"", interval)
    assert_not_cut(jpeg, b"\0\0\0", interval)
    plain = encode(sample_image(120, 90), "420")
    assert_not_cut(plain, *core.find_segments(plain))


def test_a_region_that_needs_every_mcu_is_not_cut(sample: Sample) -> None:
    assert_not_cut(*sample, (0, 0, 120, 90))
    assert_not_cut(*sample, (1, 1, 118, 88))


@pytest.mark.parametrize(
    "box",
    [
        (0, 0, 0, 10),
        (0, 0, 10, 0),
        (120, 0, 1, 1),
        (0, 90, 1, 1),
        (100, 0, 21, 5),
        (0, 80, 5, 11),
        (2**32 - 1, 0, 2, 1),
        (0, 2**32 - 1, 1, 2),
        (5, 5, 2**32 - 1, 2**32 - 1),
    ],
)
def test_a_region_outside_the_image_is_not_cut(
    sample: Sample, box: tuple[int, int, int, int]
) -> None:
    assert_not_cut(*sample, box)


def test_arguments_of_a_wrong_type_raise(sample: Sample) -> None:
    jpeg, index, interval = sample
    for bad in (-1, 2**32, 1.5):
        with pytest.raises(TypeError):
            core.cut(jpeg, index, interval, bad, 0, 1, 1)
    with pytest.raises(ValueError, match="scale: expected 1, 2, 4 or 8"):
        core.cut(jpeg, index, interval, 0, 0, 1, 1, scale=3)


def test_an_index_that_does_not_match_is_ignored(sample: Sample) -> None:
    jpeg, index, interval = sample
    assert_not_cut(jpeg, index, interval + 1)
    assert_not_cut(jpeg, index, 0)
    assert_not_cut(jpeg, index[:-1].copy(), interval)
    assert_not_cut(jpeg, np.append(index, index[-1]), interval)
    for wrong in (
        index[::-1].copy(),
        index + 1,
        index * 0,
        index * 0 + np.uint32(2**32 - 1),
        np.roll(index, 1),
        np.roll(index, 8),
        np.minimum(index, 1200),
        np.full_like(index, len(jpeg)),
    ):
        assert_not_cut(jpeg, wrong, interval)


def test_a_mutated_index_gives_correct_pixels_or_an_invalid_jpeg(sample: Sample) -> None:
    """A part is never larger than the file. It has correct pixels or cannot be decoded."""
    jpeg, index, interval = sample
    whole = decode(jpeg)
    rng = np.random.default_rng(1)
    refused = 0
    for _ in range(3000):
        wrong = index.copy()
        for _ in range(int(rng.integers(1, 4))):
            kind, at = int(rng.integers(0, 4)), int(rng.integers(0, len(index)))
            wrong[at] = (
                int(rng.integers(0, 2**32)),
                int(rng.integers(0, len(jpeg) + 9)),
                int(index[rng.integers(0, len(index))]),
                (int(index[at]) + int(rng.integers(-3, 4))) % 2**32,
            )[kind]
        x, y = int(rng.integers(0, 100)), int(rng.integers(0, 70))
        found = core.cut(jpeg, wrong, interval, x, y, 20, 20)
        assert len(found.jpeg) <= len(jpeg)
        if found.jpeg == jpeg:
            refused += 1
            continue
        try:
            pixels = decode(found.jpeg)
        except ValueError:  # the offset points to another marker with the same number
            continue
        left = x - found.x0
        top = y - found.y0
        np.testing.assert_array_equal(
            pixels[top : top + 20, left : left + 20], whole[y : y + 20, x : x + 20]
        )
    assert 300 < refused < 2900


def test_a_mutated_or_truncated_jpeg_never_grows(sample: Sample) -> None:
    jpeg, index, interval = sample
    rng = np.random.default_rng(2)
    start = sum(4 + len(body) for _, body in markers(jpeg)) + 2
    for _ in range(3000):
        wrong = bytearray(jpeg)
        for _ in range(int(rng.integers(1, 4))):
            wrong[int(rng.integers(0, start))] = int(
                rng.choice([0, 1, 17, 0xC0, 0xC2, 0xDA, 0xFF, int(rng.integers(0, 256))])
            )
        found = core.cut(bytes(wrong), index, interval, 50, 40, 20, 20)
        assert len(found.jpeg) <= len(jpeg)
    for length in range(0, len(jpeg), 5):
        found = core.cut(jpeg[:length], index, interval, 50, 40, 20, 20)
        assert len(found.jpeg) <= length


def test_unsupported_structures_are_not_cut(sample: Sample) -> None:
    jpeg, index, interval = sample
    progressive = encode_by_pillow(
        sample_image(120, 90), "420", progressive=True, restart_marker_blocks=2
    )
    assert_not_cut(progressive, index, interval)
    for marker in (0xC2, 0xC3, 0xC9):
        assert_not_cut(replace_frame(jpeg, marker=marker), index, interval)
    at = jpeg.index(b"\xff\xc4")
    assert_not_cut(jpeg[:at] + b"\xff" + jpeg[at:], index + np.uint32(1), interval)  # a fill byte
    assert_not_cut(
        jpeg[:at] + b"\xff\xdc\0\4\0\x5a" + jpeg[at:], index + np.uint32(6), interval
    )  # DNL


def test_markers_may_have_any_order(sample: Sample) -> None:
    """DRI before the frame, tables and comments in any position: all legal."""
    jpeg, index, interval = sample
    whole = decode(jpeg)
    head = [
        bytes((0xFF, marker)) + (len(body) + 2).to_bytes(2, "big") + body
        for marker, body in markers(jpeg)
    ]
    scan = head.pop()
    data = jpeg[2 + sum(map(len, head)) + len(scan) :]
    for order in (head[::-1], sorted(head), [*head[2:], *head[:2]]):
        shuffled = b"\xff\xd8" + b"".join(order) + b"\xff\xfe\0\7hello" + scan + data
        np.testing.assert_array_equal(decode(shuffled), whole)
        found = core.cut(shuffled, index + np.uint32(9), interval, 50, 40, 20, 20)
        assert len(found.jpeg) < len(jpeg) - 100
        left = 50 - found.x0
        top = 40 - found.y0
        np.testing.assert_array_equal(
            decode(found.jpeg)[top : top + 20, left : left + 20], whole[40:60, 50:70]
        )


def test_an_index_at_an_unaligned_address_works(sample: Sample) -> None:
    """LMDB aligns values to 2 bytes, not to 4."""
    jpeg, index, interval = sample
    expected = core.cut(jpeg, index, interval, 50, 40, 20, 20)
    assert len(expected.jpeg) < len(jpeg)
    for shift in (1, 2, 3):
        padded = memoryview(bytes(shift) + index.tobytes())[shift:]
        found = core.cut(jpeg, padded, interval, 50, 40, 20, 20)
        assert (found.jpeg, found.x0, found.y0) == (expected.jpeg, expected.x0, expected.y0)
