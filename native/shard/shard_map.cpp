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

// The file format of LMDB 0.9, version 1, on 64-bit little-endian machines. Every shard has it.
constexpr uint32_t kMagic = 0xBEEFC0DE, kVersion = 1;
constexpr size_t kPageHeader = 16, kNodeHeader = 8, kKey = 8;
constexpr size_t kMeta = 136, kFreePad = 24, kMainDb = 72,
                 kTransaction = 128;  // offsets in the body of a meta page
constexpr size_t kBranches = 8, kLeaves = 16, kOverflows = 24, kEntries = 32,
                 kRoot = 40;  // offsets in the tree description of a meta page
constexpr uint16_t kBranch = 1, kLeaf = 2, kOverflow = 4, kMetaPage = 8, kBigData = 1;
constexpr uint64_t kNoPage = ~uint64_t(0);
constexpr int kMaxDepth = 32;
constexpr size_t kDefaultPageSize = 4096;

uint64_t read_big_endian(const uint8_t* bytes) {
    uint64_t value = 0;
    for (size_t i = 0; i < kKey; ++i) value = value << 8 | bytes[i];
    return value;
}

// Requests pages that are needed soon. Errors are harmless.
void try_request_pages(const uint8_t* bytes, size_t size) {
    try {
        request_pages({reinterpret_cast<uintptr_t>(bytes), size});
    } catch (const std::system_error&) {  // Each page is then read on first access.
    }
}

bool is_meta(const uint8_t* page) {
    return (read_little_endian<uint16_t>(page + 10) & kMetaPage) &&
           read_little_endian<uint32_t>(page + kPageHeader) == kMagic &&
           read_little_endian<uint32_t>(page + kPageHeader + 4) == kVersion;
}

}  // namespace

ShardMap::ShardMap(int descriptor, size_t size) : size_(size) {
    if (size < 2 * (kPageHeader + kMeta))
        throw std::runtime_error("not an LMDB file: only " + std::to_string(size) + " bytes");
    void* memory = mmap(nullptr, size, PROT_READ, MAP_SHARED, descriptor, 0);
    if (memory == MAP_FAILED)
        throw std::system_error(errno, std::generic_category(), "cannot map the file (mmap)");
    memory_ = static_cast<const uint8_t*>(memory);
    // The loader reads ahead in the order of the epoch, which the kernel does not know.
    madvise(memory, size, MADV_RANDOM);
    try {
        try_request_pages(memory_, 2 * kDefaultPageSize);
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
    if (!is_meta(memory_)) throw std::runtime_error("not an LMDB file: no meta page at its start");
    page_size_ = read_little_endian<uint32_t>(memory_ + kPageHeader + kFreePad);
    if (page_size_ < 512 || page_size_ > 65536 || (page_size_ & (page_size_ - 1)) ||
        size_ < 2 * page_size_)
        throw std::runtime_error("LMDB page size is " + std::to_string(page_size_) +
                                 ", expected a power of 2 from 512 to 65536 and a file of at least "
                                 "two pages");
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

// The packer writes the tree at the end of a shard, unless the tree pages hold the records
// themselves. In other LMDB files these are unrelated pages, and the read is wasted.
void ShardMap::request_tree_pages(uint64_t pages) const {
    constexpr uint64_t kMaxBytes = 16 << 20;
    pages = std::min<uint64_t>(pages, kMaxBytes / page_size_);
    if (root_ < pages_ && pages <= root_ && pages <= pages_ / 16 + 16)
        try_request_pages(at(root_ + 1 - pages), pages * page_size_);
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

// Returns a node, and in `left` the bytes from there to the end of the page. Returns null if it is
// outside the page.
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
    found = read_big_endian(start + kNodeHeader);
    return true;
}

// Finds the last entry whose key is at most `id`. The first key of a branch page counts as the
// lowest. Returns false if a key is damaged.
bool ShardMap::last_not_above(const Page& page, uint64_t id, size_t& place) const {
    size_t low = 0,
           high = page.n_keys;  // keys before `low` are <= id, keys from `high` on are > id
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
    // The header of the overflow page is not checked: reading it would be the first access to the
    // record.
    if (number >= pages_ || size_ - number * page_size_ < kPageHeader + size) return {};
    return {at(number) + kPageHeader, size};
}

RecordBytes ShardMap::find(uint64_t id, std::string& error) const {
    uint64_t number = root_;
    if (number == kNoPage) return error = "the record is missing", RecordBytes{};
    for (int level = 0; level < kMaxDepth; ++level) {
        Page page;
        size_t place = 0, left = 0;
        if (!open_page(number, page) || !last_not_above(page, id, place)) break;
        if (page.leaf) {
            uint64_t found;
            if (!key(page, place, found)) break;
            if (found != id) return error = "the record is missing", RecordBytes{};
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
    return error = "a tree page of the shard is damaged", RecordBytes{};
}

}  // namespace fastload
