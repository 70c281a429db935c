// Requests records from the kernel before they are needed, so that a cold disk streams instead of
// serving one read after another.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "shard/shard_file.h"

namespace fastload {

// A contiguous range of an open file that is requested at once.
struct ByteRun {
    int64_t descriptor, offset, size;
};

// Finds the samples with these shard numbers and ids, sorts them by shard and offset, and merges
// neighbors into runs. Skips missing samples.
std::vector<ByteRun> find_runs(const std::vector<const ShardFile*>& files, const int64_t* shards,
                               const int64_t* ids, size_t n);

// Starts reading a run. May block while the disk queue is full. Throws std::system_error.
void request_pages(const ByteRun& run);

}  // namespace fastload
