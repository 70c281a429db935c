// Asks the kernel for records before they are needed, so that a cold disk streams instead of
// waiting for one page fault after another.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "shard/shard_map.h"

namespace fastload {

// Bytes of a map that are asked for in one go.
struct Run {
    uintptr_t start;
    size_t size;
};

// Where some samples lie (their shards' numbers and ids), by shard and address; neighbours share a
// run. Those that are nowhere are left out.
std::vector<Run> runs_of(const std::vector<const ShardMap*>& maps, const int64_t* shards,
                         const int64_t* ids, size_t n);

// Has the kernel begin to read a run; may wait while the disk is behind. Throws std::system_error.
void ask_for(const Run& run);

}  // namespace fastload
