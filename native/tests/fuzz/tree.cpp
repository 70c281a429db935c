// Fuzz target: the LMDB tree of a shard. Looks up samples and reads their records, from the file
// and through a cache of chunks.
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <memory>
#include <stdexcept>
#include <vector>

#include "shard/chunk_cache.h"
#include "shard/read_ahead.h"
#include "shard/shard_file.h"
#include "verify/record_check.h"

using namespace fastload;

namespace {

void read_from_chunks(const ShardFile& shard, uint64_t id, ChunkCache& chunks) {
    const LeafGuess guess = shard.guess_leaf(id);
    if (const uint8_t* page = chunks.page(shard, guess.page)) {
        const uint8_t* entry = guess_entry(page, size_t(id - guess.first_key));
        if (entry < page || entry >= page + kTreePageSize) __builtin_trap();
    }
    const RecordPlace place = shard.find(id, guess, chunks);
    if (!place.size) return;
    if (place.offset > shard.size() || place.size > shard.size() - place.offset) __builtin_trap();
    std::vector<uint8_t> bytes(place.size);
    if (place.bytes) std::copy_n(place.bytes, place.size, bytes.data());
    if (!chunks.copy(shard, place.offset, bytes.data(), place.size)) __builtin_trap();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
    static const int file = memfd_create("tree", 0);
    if (ftruncate(file, off_t(size)) || pwrite(file, data, size, 0) != ssize_t(size)) return 0;
    try {
        const ShardFile shard(file, size);
        std::vector<int64_t> ids;
        for (int64_t i = 0; i < 300; i += i < 20 ? 1 : 37) ids.push_back(i);
        const std::vector<int64_t> shards(ids.size(), 0);
        find_runs({&shard}, shards.data(), ids.data(), ids.size());
        check_records(shard, 0, 40, {{ValueCheck::kImage, true}, {ValueCheck::kNumber, false}});
        LeafPage leaf;
        ChunkCache chunks(ChunkCache::kChunk);
        for (const int64_t id : ids) {
            read_from_chunks(shard, uint64_t(id), chunks);
            std::string error;
            const RecordPlace place = shard.find(uint64_t(id), leaf, error);
            if (!place.size) continue;
            if (place.offset > size || place.size > size - place.offset) __builtin_trap();
            const std::unique_ptr<uint8_t[]> bytes(new uint8_t[place.size]);
            read_checked({&shard, place.offset, place.size, nullptr, 0}, bytes.get());
        }
    } catch (const std::runtime_error&) {  // not a shard
    }
    return 0;
}
