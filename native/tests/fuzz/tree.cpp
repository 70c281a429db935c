// Fuzz target: the LMDB tree of a shard. Looks up samples and reads their records.
#include <sys/mman.h>
#include <unistd.h>

#include <memory>
#include <stdexcept>

#include "shard/read_ahead.h"
#include "shard/shard_file.h"
#include "verify/record_check.h"

using namespace fastload;

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
        for (const int64_t id : ids) {
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
