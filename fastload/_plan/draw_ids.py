"""The 64-bit number that selects the random draws of an image: sample id, copy and image.

===== ====== ==================================================================================
bits  field  content
===== ====== ==================================================================================
0-35  sample id of the sample in the packed dataset
36-55 copy   how often the sample occurred before in the same pass; 0 for its first occurrence
56-63 image  reserved for the index of an image in a list field; 0
===== ====== ==================================================================================

Fields with their own transform list differ in the stream of random numbers, not in this number.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fastload.errors import ConfigError

SAMPLE_BITS = 36
COPY_BITS = 20
SAMPLE_MASK = np.uint64((1 << SAMPLE_BITS) - 1)


def check_fits(n_samples: int) -> None:
    """Raises ConfigError if the ids of a dataset would reach into the bits of the copy."""
    if n_samples > 1 << SAMPLE_BITS:
        raise ConfigError(
            f"the dataset has {n_samples} samples: expected at most {1 << SAMPLE_BITS}. "
            "Pack it as several datasets"
        )


def draw_ids(sample_ids: NDArray[np.int64], copies: ArrayLike) -> NDArray[np.int64]:
    """Combines sample ids and copy numbers; copy numbers repeat after 2^20."""
    wrapped = np.asarray(copies, np.int64) % (1 << COPY_BITS)
    return sample_ids | wrapped << SAMPLE_BITS


def sample_ids(draw_ids: NDArray[np.int64]) -> NDArray[np.int64]:
    """Returns the ids in the packed dataset."""
    return draw_ids & np.int64(SAMPLE_MASK)


def copy_numbers(draw_ids: NDArray[np.int64]) -> NDArray[np.int64]:
    """Returns the copy numbers."""
    return draw_ids >> SAMPLE_BITS & ((1 << COPY_BITS) - 1)
