// Asks the kernel for records before they are needed, so that a cold disk streams instead of
// waiting for one page fault after another.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "shard/shard_map.h"

namespace fastload {

// Bytes of a map that are asked for in one go.
struct ByteRun {
    uintptr_t start;
    size_t size;
};

// Where some samples lie (their shards' numbers and ids), by shard and address; neighbors share a
// run. Those that are nowhere are left out.
std::vector<ByteRun> find_runs(const std::vector<const ShardMap*>& maps, const int64_t* shards,
                               const int64_t* ids, size_t n);

// Has the kernel begin to read a run; may wait while the disk is behind. Throws std::system_error.
void request_pages(const ByteRun& run);

}  // namespace fastload
