// The random numbers of order and plan, as fastload/_order/permutation.py and fastload/_plan/rng.py
// define them: whole numbers only, so the same on every machine. numpy makes an array for every
// step in between.
#pragma once

#include <cstddef>
#include <cstdint>

namespace fastload {

// A permutation of 0..n-1: a Feistel network over 2 * half_bits bits, walked until it lands below
// n.
struct FeistelNetwork {
    uint64_t n;
    unsigned half_bits;
    const uint64_t* keys;
    size_t n_keys;
};

// What stands at each position; every position must be below network.n.
void permute(const FeistelNetwork& network, const int64_t* positions, size_t count,
             int64_t* result);

struct PhiloxCounter {
    uint32_t stream, block;
};

// Philox 4x32-10 with the counter (id low, id high, stream, block): for each counter four rows of
// `count` numbers in [0, 1).
void uniform(uint32_t key_low, uint32_t key_high, const uint64_t* ids, size_t count,
             const PhiloxCounter* counters, size_t n_counters, double* result);

}  // namespace fastload
