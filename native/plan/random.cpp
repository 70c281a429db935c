#include "plan/random.h"

namespace fastload {
namespace {

constexpr double kStep = 1.0 / 4294967296.0;
constexpr int kRounds = 10;

uint64_t splitmix64(uint64_t value) {  // the finalizer of SplitMix64
    value = (value ^ value >> 30) * 0xBF58476D1CE4E5B9u;
    value = (value ^ value >> 27) * 0x94D049BB133111EBu;
    return value ^ value >> 31;
}

}  // namespace

void permute(const FeistelNetwork& network, const int64_t* positions, size_t count,
             int64_t* result) {
    const uint64_t mask = (uint64_t(1) << network.half_bits) - 1;
    for (size_t i = 0; i < count; ++i) {
        uint64_t value = uint64_t(positions[i]);
        do {
            uint64_t left = value >> network.half_bits, right = value & mask;
            for (size_t round = 0; round < network.n_keys; ++round) {
                const uint64_t next = left ^ (splitmix64(right ^ network.keys[round]) & mask);
                left = right;
                right = next;
            }
            value = left << network.half_bits | right;
        } while (value >= network.n);
        result[i] = int64_t(value);
    }
}

void uniform(uint32_t key_low, uint32_t key_high, const uint64_t* ids, size_t count,
             const PhiloxCounter* counters, size_t n_counters, double* result) {
    for (size_t which = 0; which < n_counters; ++which, result += 4 * count) {
        for (size_t i = 0; i < count; ++i) {
            uint32_t words[4] = {uint32_t(ids[i]), uint32_t(ids[i] >> 32), counters[which].stream,
                                 counters[which].block};
            uint32_t low = key_low, high = key_high;
            for (int round = 0; round < kRounds; ++round, low += 0x9E3779B9u, high += 0xBB67AE85u) {
                const uint64_t first = uint64_t(words[0]) * 0xD2511F53u,
                               second = uint64_t(words[2]) * 0xCD9E8D57u;
                words[0] = uint32_t(second >> 32) ^ words[1] ^ low;
                words[1] = uint32_t(second);
                words[2] = uint32_t(first >> 32) ^ words[3] ^ high;
                words[3] = uint32_t(first);
            }
            for (size_t word = 0; word < 4; ++word) result[word * count + i] = kStep * words[word];
        }
    }
}

}  // namespace fastload
