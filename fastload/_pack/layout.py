"""The cut of the packing order into parts.

A part is a fixed range of positions of the packing order and becomes one shard. The cut is decided
once, before packing, from the sizes of a few samples. A part therefore depends on nothing but the
listing and the options: any machine can pack any part, and all of them produce the same bytes.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fastload._order.permutation import Permutation
from fastload.errors import ConfigError

# Samples whose sizes decide the number of parts, and at most one in _FRACTION of the listing, so
# that a small pack does not encode everything twice. A shard of 4,900 photos then varies by 1 %
# from the sizes of its own photos and by 4 % from the estimate.
_MEASURED = 256
_LEAST_MEASURED = 16
_FRACTION = 16
# A shard takes up to 352 bytes in the manifest, which may have 64 MiB. Some parts become two
# shards.
MAX_PARTS = 160_000


@dataclass(frozen=True, slots=True)
class Layout:
    """The cut of the packing order into parts."""

    n: int  # samples in the listing
    per_part: int  # positions per part

    @classmethod
    def of(cls, n: int, mean_bytes: float, shard_size: int) -> Layout:
        """Returns parts of equal length whose records take about ``shard_size`` bytes or less.

        Raises ConfigError if the manifest could not hold all shards.
        """
        n_parts = max(1, min(n, -(-int(n * mean_bytes) // shard_size)))
        if n_parts > MAX_PARTS:
            needed = int(n * mean_bytes) // MAX_PARTS
            raise ConfigError(
                f"{n} samples of about {mean_bytes:.0f} bytes fill {n_parts} shards of "
                f"{shard_size} bytes, expected at most {MAX_PARTS}. Pass --shard-size "
                f"{-(-needed // (1 << 30))}GiB (shard_size= in Python)"
            )
        return cls(n, -(-n // n_parts))

    @property
    def n_parts(self) -> int:
        return -(-self.n // self.per_part)

    def positions(self, part: int) -> range:
        start = part * self.per_part
        return range(start, min(start + self.per_part, self.n))


def measured_rows(n: int) -> list[int]:
    """Returns the rows of the listing whose encoded sizes decide the layout: a random choice.

    Equal distances would measure the same camera of every scene in a listing that alternates.
    """
    count = min(n, max(_LEAST_MEASURED, min(_MEASURED, n // _FRACTION)))
    return sorted(Permutation(n, seed=0)(np.arange(count)).tolist())
