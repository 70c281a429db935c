#include "shard/shard_map.h"

#include <sys/mman.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <stdexcept>
#include <system_error>

#include "shard/little_endian.h"
#include "shard/read_ahead.h"

namespace fastload {
namespace {

// LMDB 0.9's file format, version 1, on 64-bit little-endian machines: what every shard is written
// in.
constexpr uint32_t kMagic = 0xBEEFC0DE, kVersion = 1;
constexpr size_t kPageHeader = 16, kNodeHeader = 8, kKey = 8;
constexpr size_t kMeta = 136, kFreePad = 24, kMainDb = 72,
                 kTransaction = 128;  // within a meta page's body
constexpr size_t kBranches = 8, kLeaves = 16, kOverflows = 24, kEntries = 32,
                 kRoot = 40;  // within what it says of the tree
constexpr uint16_t kBranch = 1, kLeaf = 2, kOverflow = 4, kMetaPage = 8, kBigData = 1;
constexpr uint64_t kNoPage = ~uint64_t(0);
constexpr int kMostLevels = 32;
constexpr size_t kUsualPage = 4096;

uint64_t big(const uint8_t* bytes) {
    uint64_t value = 0;
    for (size_t i = 0; i < kKey; ++i) value = value << 8 | bytes[i];
    return value;
}

// Has pages read together that are needed at once.
void request_pages_quietly(const uint8_t* bytes, size_t size) {
    try {
        request_pages({reinterpret_cast<uintptr_t>(bytes), size});
    } catch (const std::system_error&) {  // then each comes when it is looked at
    }
}

bool is_meta(const uint8_t* page) {
    return (read_little_endian<uint16_t>(page + 10) & kMetaPage) &&
           read_little_endian<uint32_t>(page + kPageHeader) == kMagic &&
           read_little_endian<uint32_t>(page + kPageHeader + 4) == kVersion;
}

}  // namespace

ShardMap::ShardMap(int descriptor, size_t size) : size_(size) {
    if (size < 2 * (kPageHeader + kMeta)) throw std::runtime_error("too short for an LMDB file");
    void* memory = mmap(nullptr, size, PROT_READ, MAP_SHARED, descriptor, 0);
    if (memory == MAP_FAILED) throw std::system_error(errno, std::generic_category(), "mapping it");
    memory_ = static_cast<const uint8_t*>(memory);
    madvise(memory, size, MADV_RANDOM);  // who reads ahead knows the order; the kernel does not
    try {
        request_pages_quietly(memory_, 2 * kUsualPage);
        read_meta();
    } catch (...) {
        munmap(memory, size);
        throw;
    }
}

ShardMap::~ShardMap() {
    munmap(const_cast<uint8_t*>(memory_), size_);
}

void ShardMap::read_meta() {
    if (!is_meta(memory_)) throw std::runtime_error("it does not start like an LMDB file");
    page_size_ = read_little_endian<uint32_t>(memory_ + kPageHeader + kFreePad);
    if (page_size_ < 512 || page_size_ > 65536 || (page_size_ & (page_size_ - 1)) ||
        size_ < 2 * page_size_)
        throw std::runtime_error("its LMDB page size is " + std::to_string(page_size_));
    pages_ = size_ / page_size_;
    const uint8_t* newest = memory_ + kPageHeader;
    const uint8_t* other = at(1) + kPageHeader;
    if (is_meta(at(1)) && read_little_endian<uint64_t>(other + kTransaction) >
                              read_little_endian<uint64_t>(newest + kTransaction))
        newest = other;
    const uint8_t* tree = newest + kMainDb;
    entries_ = read_little_endian<uint64_t>(tree + kEntries);
    root_ = read_little_endian<uint64_t>(tree + kRoot);
    if (read_little_endian<uint64_t>(tree + kOverflows))
        request_tree_pages(read_little_endian<uint64_t>(tree + kBranches) +
                           read_little_endian<uint64_t>(tree + kLeaves));
}

// Our shards end with their tree, unless it holds the records itself; in another's these are some
// other pages, and read_little_endian is lost.
void ShardMap::request_tree_pages(uint64_t pages) const {
    constexpr uint64_t kMost = 16 << 20;
    pages = std::min<uint64_t>(pages, kMost / page_size_);
    if (root_ < pages_ && pages <= root_ && pages <= pages_ / 16 + 16)
        request_pages_quietly(at(root_ + 1 - pages), pages * page_size_);
}

bool ShardMap::open_page(uint64_t number, Page& page) const {
    if (number >= pages_) return false;
    page.bytes = at(number);
    const uint16_t flags = read_little_endian<uint16_t>(page.bytes + 10),
                   lower = read_little_endian<uint16_t>(page.bytes + 12);
    if (read_little_endian<uint64_t>(page.bytes) != number || lower < kPageHeader ||
        lower > page_size_)
        return false;
    page.n_keys = (lower - kPageHeader) / 2;
    page.leaf = flags & kLeaf;
    return page.n_keys > 0 && page.leaf != bool(flags & kBranch) &&
           !(flags & (kOverflow | kMetaPage));
}

// A node and how many bytes are left from it to the page's end; null where it is not inside the
// page.
const uint8_t* ShardMap::node(const Page& page, size_t place, size_t& left) const {
    const size_t offset = read_little_endian<uint16_t>(page.bytes + kPageHeader + 2 * place);
    if (offset < kPageHeader || offset + kNodeHeader > page_size_) return nullptr;
    left = page_size_ - offset;
    return page.bytes + offset;
}

bool ShardMap::key(const Page& page, size_t place, uint64_t& found) const {
    size_t left = 0;
    const uint8_t* start = node(page, place, left);
    if (!start || read_little_endian<uint16_t>(start + 6) != kKey || left < kNodeHeader + kKey)
        return false;
    found = big(start + kNodeHeader);
    return true;
}

// The last place whose key is not above `id`; the first key of a branch page counts as lowest.
// False where keys cannot be read.
bool ShardMap::last_not_above(const Page& page, uint64_t id, size_t& place) const {
    size_t low = 0,
           high = page.n_keys;  // the keys before `low` are not above, those from `high` on are
    if (!page.leaf) low = 1;
    while (low < high) {
        const size_t middle = (low + high) / 2;
        uint64_t found;
        if (!key(page, middle, found)) return false;
        if (found <= id)
            low = middle + 1;
        else
            high = middle;
    }
    place = low ? low - 1 : 0;
    return true;
}

RecordBytes ShardMap::value(const Page& page, size_t place) const {
    size_t left = 0;
    const uint8_t* start = node(page, place, left);
    const size_t size = read_little_endian<uint16_t>(start) |
                        size_t(read_little_endian<uint16_t>(start + 2)) << 16,
                 from = kNodeHeader + kKey;
    if (!(read_little_endian<uint16_t>(start + 4) & kBigData))
        return size <= left - from ? RecordBytes{start + from, size} : RecordBytes{};
    if (left < from + sizeof(uint64_t)) return {};
    const uint64_t number = read_little_endian<uint64_t>(start + from);
    if (number >= pages_ || size_ - number * page_size_ < kPageHeader + size)
        return {};  // its own header is the record's first read
    return {at(number) + kPageHeader, size};
}

RecordBytes ShardMap::find(uint64_t id, std::string& why) const {
    uint64_t number = root_;
    if (number == kNoPage) return why = "the record is missing", RecordBytes{};
    for (int level = 0; level < kMostLevels; ++level) {
        Page page;
        size_t place = 0, left = 0;
        if (!open_page(number, page) || !last_not_above(page, id, place)) break;
        if (page.leaf) {
            uint64_t found;
            if (!key(page, place, found)) break;
            if (found != id) return why = "the record is missing", RecordBytes{};
            const RecordBytes record = value(page, place);
            if (!record.bytes) break;
            return record;
        }
        const uint8_t* start = node(page, place, left);
        if (!start) break;
        number = read_little_endian<uint16_t>(start) |
                 uint64_t(read_little_endian<uint16_t>(start + 2)) << 16 |
                 uint64_t(read_little_endian<uint16_t>(start + 4)) << 32;
    }
    return why = "a page of the shard's tree is damaged", RecordBytes{};
}

}  // namespace fastload
