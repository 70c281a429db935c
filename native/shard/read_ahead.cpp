#include "shard/read_ahead.h"

#include <fcntl.h>

#include <algorithm>
#include <string>
#include <system_error>
#include <tuple>

namespace fastload {
namespace {

// The kernel truncates a longer request to the read-ahead size of the device, 128 KiB by default,
// and ignores the rest.
constexpr int64_t kPiece = 128 << 10;
// Records of one block are separated by page headers and tree pages. Reading those costs less than
// another request.
constexpr int64_t kGap = 32 << 10;

struct RecordExtent {
    int64_t shard, start, end;
};

}  // namespace

std::vector<ByteRun> find_runs(const std::vector<const ShardFile*>& files, const int64_t* shards,
                               const int64_t* ids, size_t n) {
    std::vector<RecordExtent> places;
    LeafPage leaf;
    const auto find = [&](size_t i) {
        std::string error;
        const ShardFile* file =
            size_t(shards[i]) < files.size() ? files[size_t(shards[i])] : nullptr;
        const RecordPlace found = file ? file->find(uint64_t(ids[i]), leaf, error) : RecordPlace{};
        const int64_t start = int64_t(found.offset);
        return RecordExtent{shards[i], start, start + int64_t(found.size)};
    };
    const auto add = [&](const RecordExtent& extent) {
        if (extent.end > extent.start) places.push_back(extent);
    };
    for (size_t first = 0, next; first < n; first = next) {
        next = first + 1;
        while (next < n && shards[next] == shards[first] && ids[next] == ids[next - 1] + 1) ++next;
        // The packer stores records in the order of their ids, so the first and the last one of a
        // block are enough. A block has thousands of tiny records.
        const RecordExtent start = find(first), end = next - first > 1 ? find(next - 1) : start;
        if (start.end > start.start && end.end > end.start && end.start >= start.start) {
            add({start.shard, start.start, end.end});
        } else {  // damaged, or not written by the packer
            for (size_t i = first; i < next; ++i) add(find(i));
        }
    }
    std::sort(places.begin(), places.end(), [](const RecordExtent& one, const RecordExtent& other) {
        return std::tie(one.shard, one.start) < std::tie(other.shard, other.start);
    });
    std::vector<ByteRun> runs;
    for (size_t i = 0; i < places.size();) {
        const RecordExtent first = places[i];
        int64_t end = first.end;
        for (++i;
             i < places.size() && places[i].shard == first.shard && places[i].start <= end + kGap;
             ++i)
            end = std::max(end, places[i].end);
        runs.push_back({files[size_t(first.shard)]->descriptor(), first.start, end - first.start});
    }
    return runs;
}

void request_pages(const ByteRun& run) {
    const int64_t end = run.offset + run.size;
    for (int64_t first = run.offset - run.offset % int64_t(kTreePageSize); first < end;
         first += kPiece)
        if (const int error = posix_fadvise(int(run.descriptor), first,
                                            std::min(kPiece, end - first), POSIX_FADV_WILLNEED))
            throw std::system_error(error, std::generic_category(),
                                    "cannot request pages of a shard (posix_fadvise)");
}

}  // namespace fastload
