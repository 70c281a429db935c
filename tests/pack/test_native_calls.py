"""The packer's native calls per image equal the Python paths, or return None to request them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fastload._pack.shard import as_record
from fastload._store.record import Part, encode_record
from fastload.errors import ConfigError
from tests.jpeg_samples import encode, sample_image
from tests.packing import file_of, pixels

module: Any = pytest.importorskip("fastload._core", reason="not run: no native core")

PARTS = st.lists(
    st.builds(
        Part,
        st.integers(0, 0xFFFF),
        st.binary(max_size=40),
        st.integers(0, 3),
        st.integers(0, 5),
        st.integers(0, 1),
        st.integers(0, 255),
        st.integers(0, 255),
        st.integers(0, 0xFFFF),
        st.integers(0, 0xFFFF),
        st.integers(0, 0xFFFF),
        st.integers(0, 8),
    ),
    max_size=6,
    unique_by=lambda part: (part.field, part.item, part.role),
)


@given(st.integers(0, 2**63 - 1), PARTS)
def test_native_record_equals_python_record(sample_id: int, parts: list[Part]) -> None:
    assert module.encode_record(sample_id, parts) == encode_record(sample_id, parts)


@pytest.mark.parametrize(
    "bad",
    [
        [Part(0x10000, b"")],
        [Part(-1, b"")],
        [Part(0, b"", codec=6)],
        [Part(0, b"", role=2)],
        [Part(0, b"", width=1 << 16)],
        [Part(0, b"", orientation=9)],
        [Part(0, b"", bits=1 << 70)],
        [Part(1, b"a"), Part(1, b"b")],
        [Part(0, bytes(65 << 20))],
    ],
)
def test_record_that_does_not_fit_is_reported_by_python(bad: list[Part]) -> None:
    assert module.encode_record(0, bad) is None
    with pytest.raises(ConfigError):
        as_record(0, bad)
    good = [Part(0, b"x"), Part(1, memoryview(b"yy"))]
    assert as_record(7, good) == encode_record(7, good)


@pytest.mark.parametrize("sampling", ["gray", "444", "422", "420", "440", "411"])
def test_common_jpeg_rewrite_equals_general_rewrite(sampling: str) -> None:
    data = encode(sample_image(150, 90), sampling)
    rewritten = module.rewrite(data, restart=3)
    (common,) = module.rewrite_common([data], 3)
    assert common.jpeg == rewritten.jpeg
    assert common.index_bytes == rewritten.index_bytes == rewritten.index.tobytes()
    assert common.n_components == (1 if sampling == "gray" else 3)
    for name in ("width", "height", "interval", "orientation", "warning"):
        assert getattr(common, name) == getattr(rewritten, name)


def test_jpegs_that_are_rewritten_together_do_not_affect_each_other() -> None:
    data = [
        file_of(
            pixels(16 + 40 * (i % 5), 16 + 9 * i, seed=i, gray=i % 7 == 3, grain=2 + i % 4),
            quality=20 + 4 * i,
            progressive=i % 6 == 5,
            optimize=i % 2 == 0,  # keeps its Huffman tables, unless it has restart markers
            restart_marker_blocks=3 if i % 5 == 4 else 0,
        )
        for i in range(17)
    ]
    data[6] = data[6][:-40] + data[6][-20:]  # the scan ends early
    expected = [module.rewrite_common([each], -1)[0] for each in data]
    found = module.rewrite_common(data, -1)
    assert [each is None for each in found] == [i == 6 for i in range(17)]
    for one, other in zip(expected, found, strict=True):
        assert (one and one.jpeg) == (other and other.jpeg)
        assert (one and one.index_bytes) == (other and other.index_bytes)
    assert module.rewrite_common([], -1) == []


def test_unusual_and_damaged_jpegs_take_the_slow_path() -> None:
    good = encode(sample_image(64, 48), "420")
    odd_sampling = bytearray(encode(sample_image(64, 48), "444"))
    frame = odd_sampling.index(b"\xff\xc0")
    odd_sampling[frame + 14] = 0x21  # the second component twice as wide as the first
    for data in (
        good[:-2],
        good[:200],
        b"\xff\xd8\xff\xd9",
        bytes(odd_sampling),
        file_of(pixels(8, 8), "PNG"),
    ):
        bad, after = module.rewrite_common([data, good], -1)
        assert bad is None
        assert after.jpeg == module.rewrite(good).jpeg


def test_single_threaded_decode_equals_pool_decode() -> None:
    from fastload._decode.backend import DecodeBatch, new_requests
    from fastload._decode.native import NativeBackend

    data = [encode(sample_image(100 + i, 80), "420") for i in range(5)]
    requests = new_requests(5)
    requests["size"] = [len(one) for one in data]
    requests["out_w"], requests["out_h"] = 40, 30
    pool, bare = np.zeros((2, 5, 30, 40, 3), np.uint8)
    with NativeBackend(threads=2) as backend:
        backend.collect(backend.submit(DecodeBatch(data, requests, pool))).raise_first()
    seconds, inside = module.Pool.bare_loop(
        data, requests, bare, planar=False, color=0, fill=(0, 0, 0), mean=(), std=(), bits=8
    )
    assert 0 < inside <= seconds
    np.testing.assert_array_equal(pool, bare)
