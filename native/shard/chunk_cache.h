// Chunks of shards in private memory, for datasets of small records whose order uses all bytes of
// a chunk soon. One pread(2) then serves some 70 records of 900 bytes.
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <vector>

#include "shard/shard_file.h"

namespace fastload {

// Holds at most `capacity` bytes of chunks and replaces the oldest one. The block order needs no
// more: it uses all chunks of a window before those of the next window. For one thread at a time.
class ChunkCache {
public:
    // A window of 64 MiB has 1,000 chunks. Larger ones waste more at the ends of its blocks.
    static constexpr size_t kChunk = 64 << 10;

    explicit ChunkCache(size_t capacity);
    ~ChunkCache();
    ChunkCache(const ChunkCache&) = delete;
    ChunkCache& operator=(const ChunkCache&) = delete;

    size_t capacity() const { return slots_.size() * kChunk; }
    // Returns a page of a shard, valid until the next call; null if it cannot be read.
    const uint8_t* page(const ShardFile& file, uint64_t number);
    // Copies bytes of a shard. Returns false if they cannot be read.
    bool copy(const ShardFile& file, uint64_t offset, uint8_t* to, size_t size);
    void clear();

private:
    struct Slot {
        uint64_t file = 0;  // ShardFile::number(), which is never reused
        uint64_t chunk = 0;
        size_t size = 0;  // 0: empty
        int32_t next = kNone;
    };
    static constexpr int32_t kNone = -1;

    int32_t& head(uint64_t file, uint64_t chunk);
    void remove(int32_t slot);
    // Returns `size` bytes that are inside one chunk, or null.
    const uint8_t* find(const ShardFile& file, uint64_t offset, size_t size);
    int32_t load(const ShardFile& file, uint64_t chunk);

    std::vector<Slot> slots_;
    std::vector<int32_t> heads_;  // hash table: the first slot of each chain
    size_t oldest_ = 0;
    uint8_t* memory_ = nullptr;
};

}  // namespace fastload
