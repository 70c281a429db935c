#include "shard/read_ahead.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <string>
#include <system_error>
#include <tuple>

namespace fastload {
namespace {

// The kernel truncates a longer request to the read-ahead size of the device, 128 KiB by default,
// and ignores the rest.
constexpr size_t kPiece = 128 << 10;
// Records of one block are separated by page headers and tree pages. Reading those costs less than
// another request.
constexpr size_t kGap = 32 << 10;

struct RecordExtent {
    int64_t shard;
    uintptr_t start, end;
};

}  // namespace

std::vector<ByteRun> find_runs(const std::vector<const ShardMap*>& maps, const int64_t* shards,
                               const int64_t* ids, size_t n) {
    std::vector<RecordExtent> places;
    places.reserve(n);
    std::string error;
    for (size_t i = 0; i < n; ++i) {
        const ShardMap* map = size_t(shards[i]) < maps.size() ? maps[size_t(shards[i])] : nullptr;
        const RecordBytes record = map ? map->find(uint64_t(ids[i]), error) : RecordBytes{};
        const uintptr_t start = reinterpret_cast<uintptr_t>(record.bytes);
        if (start) places.push_back({shards[i], start, start + record.size});
    }
    std::sort(places.begin(), places.end(), [](const RecordExtent& one, const RecordExtent& other) {
        return std::tie(one.shard, one.start) < std::tie(other.shard, other.start);
    });
    std::vector<ByteRun> runs;
    for (size_t i = 0; i < places.size();) {
        const RecordExtent first = places[i];
        uintptr_t end = first.end;
        for (++i;
             i < places.size() && places[i].shard == first.shard && places[i].start <= end + kGap;
             ++i)
            end = std::max(end, places[i].end);
        runs.push_back({first.start, end - first.start});
    }
    return runs;
}

void request_pages(const ByteRun& run) {
    static const uintptr_t page = uintptr_t(sysconf(_SC_PAGESIZE));
    const uintptr_t end = run.start + run.size;
    for (uintptr_t first = run.start - run.start % page; first < end; first += kPiece)
        if (madvise(reinterpret_cast<void*>(first), std::min<size_t>(kPiece, end - first),
                    MADV_WILLNEED))
            throw std::system_error(errno, std::generic_category(),
                                    "cannot request pages of a shard (madvise)");
}

}  // namespace fastload
