"""A random permutation of 0..n-1 that is computed instead of stored: O(1) memory for any n.

A Feistel network permutes the numbers below the next even power of two. A result of n or more goes
through the network again until it is below n. That takes at most 4 passes on average, because the
power of two is below 4n. Only 64-bit integer arithmetic is used, so a seed produces the same
permutation on every machine and with every NumPy version.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from fastload._common.native import core

Indices = NDArray[np.int64]

_ROUNDS = 6
_GOLDEN = 0x9E3779B97F4A7C15  # SplitMix64's constants
_MIX_1 = 0xBF58476D1CE4E5B9
_MIX_2 = 0x94D049BB133111EB
_MASK = 2**64 - 1


class Permutation:
    """Maps positions to the numbers at these positions.

    Examples:
        >>> order = Permutation(5, seed=1)
        >>> sorted(order(np.arange(5)).tolist())
        [0, 1, 2, 3, 4]
    """

    def __init__(self, n: int, *, seed: int) -> None:
        if n < 0:
            raise ValueError(f"n={n}: expected 0 or more")
        self.n = n
        self._half_bits = max(1, (max(n - 1, 1).bit_length() + 1) // 2)
        self._keys = np.array(
            [_mixed((seed + i * _GOLDEN) & _MASK) for i in range(1, _ROUNDS + 1)], np.uint64
        )

    def __len__(self) -> int:
        return self.n

    def __call__(self, positions: Indices) -> Indices:
        """Returns the numbers at ``positions`` (each 0..n-1) as an array of the same shape."""
        values = np.asarray(positions, np.int64)
        if values.size and (values.min() < 0 or values.max() >= self.n):
            raise IndexError(
                f"positions {values.min()}..{values.max()}: expected 0 to {self.n - 1}, "
                f"the range of a permutation of {self.n} numbers"
            )
        module = core()
        if module is None:
            return self._in_numpy(values)
        found = np.empty(values.shape, np.int64)
        module.permute(
            np.ascontiguousarray(values),
            found,
            n=self.n,
            half_bits=self._half_bits,
            keys=self._keys,
        )
        return found

    def _in_numpy(self, values: Indices) -> Indices:
        """Does the same as ``permute`` of the native core."""
        result = self._network(values.astype(np.uint64))
        while (outside := result >= np.uint64(self.n)).any():
            result[outside] = self._network(result[outside])
        return result.astype(np.int64)

    def _network(self, values: NDArray[np.uint64]) -> NDArray[np.uint64]:
        half_bits = np.uint64(self._half_bits)
        mask = np.uint64((1 << self._half_bits) - 1)
        left = values >> half_bits
        right = values & mask
        for key in self._keys:
            left, right = right, left ^ (mixed_array(right ^ key) & mask)
        return (left << half_bits) | right


def mixed_key(*numbers: int) -> int:
    """Hashes several numbers, such as (seed, epoch, part), to one 64-bit seed."""
    key = _GOLDEN
    for number in numbers:
        key = _mixed(key ^ (number & _MASK))
    return key


def _mixed(value: int) -> int:
    """SplitMix64's finalizer: every input bit affects every output bit.

    Uses Python integers because NumPy scalars are slow.
    """
    value = ((value ^ (value >> 30)) * _MIX_1) & _MASK
    value = ((value ^ (value >> 27)) * _MIX_2) & _MASK
    return value ^ (value >> 31)


def mixed_array(value: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """``_mixed`` for an array."""
    with np.errstate(over="ignore"):  # overflow is intended
        value = (value ^ (value >> np.uint64(30))) * np.uint64(_MIX_1)
        value = (value ^ (value >> np.uint64(27))) * np.uint64(_MIX_2)
        return value ^ (value >> np.uint64(31))
