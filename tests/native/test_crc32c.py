"""CRC-32C has the published check value and equals an independent library."""

from __future__ import annotations

from collections.abc import Iterator
from types import ModuleType

import google_crc32c
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fastload._common.native import core


@pytest.fixture(params=["avx2", "portable"])
def native(request: pytest.FixtureRequest) -> Iterator[ModuleType]:
    module = core()
    if module is None:
        pytest.skip("not run: no native core")
    if module.set_simd(request.param) != request.param:
        pytest.skip("not run: no AVX2 on this processor")
    assert module.simd_level() == request.param
    yield module
    module.set_simd("avx512")


def test_check_value_in_one_call_and_in_two(native: ModuleType) -> None:
    assert native.crc32c(b"123456789") == 0xE3069283
    assert native.crc32c(b"6789", native.crc32c(b"12345")) == 0xE3069283


@pytest.mark.parametrize("size", [0, 1, 7, 8, 9, 3071, 3072, 3073, 3072 * 3 + 5, 110_000])
def test_lengths_around_the_lane_size_at_unaligned_addresses(native: ModuleType, size: int) -> None:
    data = bytes(i * 7 + (i >> 8) & 255 for i in range(size))
    for start in range(min(size, 9)):
        assert native.crc32c(memoryview(data)[start:]) == google_crc32c.value(data[start:])


def test_random_bytes_agree_with_google_crc32c(native: ModuleType) -> None:
    @given(st.binary(max_size=10_000), st.integers(0, 2**32 - 1))
    def check(data: bytes, crc: int) -> None:
        assert native.crc32c(data, crc) == google_crc32c.extend(crc, data)

    check()
