// The random numbers of order and plan, as defined in fastload/_order/permutation.py and
// fastload/_plan/rng.py. Integer arithmetic only, so the results are the same on every machine. The
// NumPy version allocates an array for every intermediate step.
#pragma once

#include <cstddef>
#include <cstdint>

namespace fastload {

// A permutation of 0..n-1: a Feistel network over 2 * half_bits bits, applied until the value is
// below n (cycle walking).
struct FeistelNetwork {
    uint64_t n;
    unsigned half_bits;
    const uint64_t* keys;
    size_t n_keys;
};

// Writes the permuted value of each position. Every position must be below network.n.
void permute(const FeistelNetwork& network, const int64_t* positions, size_t count,
             int64_t* result);

struct PhiloxCounter {
    uint32_t stream, block;
};

// Philox 4x32-10 with the counter (id low, id high, stream, block). Writes four rows of `count`
// numbers in [0, 1) per counter.
void uniform(uint32_t key_low, uint32_t key_high, const uint64_t* ids, size_t count,
             const PhiloxCounter* counters, size_t n_counters, double* result);

}  // namespace fastload
