#include "shard/shard_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <stdexcept>
#include <system_error>

#include "shard/chunk_cache.h"
#include "shard/little_endian.h"
#include "shard/read_ahead.h"

namespace fastload {
namespace {

// The file format of LMDB 0.9, version 1, on 64-bit little-endian machines, with pages of 4,096
// bytes. Every shard has it.
constexpr uint32_t kMagic = 0xBEEFC0DE, kVersion = 1;
constexpr size_t kPageHeader = 16, kNodeHeader = 8, kKey = 8;
constexpr size_t kMetaPages = 2 * kTreePageSize;
constexpr size_t kFreePad = 24, kMainDb = 72, kTransaction = 128;  // in the body of a meta page
constexpr size_t kBranches = 8, kLeaves = 16, kOverflows = 24, kEntries = 32,
                 kRoot = 40;  // offsets in the tree description of a meta page
constexpr uint16_t kBranch = 1, kLeaf = 2, kOverflow = 4, kMetaPage = 8, kBigData = 1;
constexpr uint64_t kNoPage = ~uint64_t(0);
constexpr int kMaxDepth = 32;
constexpr uint64_t kMaxTreeBytes = 16 << 20;  // requested or copied when a shard is opened

std::atomic<uint64_t> n_opened{0};

uint64_t read_big_endian(const uint8_t* bytes) {
    uint64_t value = 0;
    for (size_t i = 0; i < kKey; ++i) value = value << 8 | bytes[i];
    return value;
}

bool is_meta(const uint8_t* page) {
    return (read_little_endian<uint16_t>(page + 10) & kMetaPage) &&
           read_little_endian<uint32_t>(page + kPageHeader) == kMagic &&
           read_little_endian<uint32_t>(page + kPageHeader + 4) == kVersion;
}

// Returns a node, and in `left` the bytes from there to the end of the page. Returns null if it is
// outside the page.
const uint8_t* find_node(const uint8_t* page, size_t place, size_t& left) {
    const size_t offset = read_little_endian<uint16_t>(page + kPageHeader + 2 * place);
    if (offset < kPageHeader || offset + kNodeHeader > kTreePageSize) return nullptr;
    left = kTreePageSize - offset;
    return page + offset;
}

bool read_key(const uint8_t* page, size_t place, uint64_t& found) {
    size_t left = 0;
    const uint8_t* node = find_node(page, place, left);
    if (!node || read_little_endian<uint16_t>(node + 6) != kKey || left < kNodeHeader + kKey)
        return false;
    found = read_big_endian(node + kNodeHeader);
    return true;
}

// Finds the last entry whose key is at most `id`. The first key of a branch page counts as the
// lowest. Returns false if a key is damaged.
bool last_not_above(const uint8_t* page, size_t n_keys, bool leaf, uint64_t id, size_t& place) {
    size_t low = leaf ? 0 : 1,
           high = n_keys;  // keys before `low` are <= id, keys from `high` on are > id
    while (low < high) {
        const size_t middle = (low + high) / 2;
        uint64_t found;
        if (!read_key(page, middle, found)) return false;
        if (found <= id)
            low = middle + 1;
        else
            high = middle;
    }
    place = low ? low - 1 : 0;
    return true;
}

// Finds the page below an entry of a branch page. Returns false if the entry is damaged.
bool read_child(const uint8_t* page, size_t place, uint64_t& number) {
    size_t left = 0;
    const uint8_t* node = find_node(page, place, left);
    if (!node) return false;
    number = read_little_endian<uint16_t>(node) |
             uint64_t(read_little_endian<uint16_t>(node + 2)) << 16 |
             uint64_t(read_little_endian<uint16_t>(node + 4)) << 32;
    return true;
}

}  // namespace

ShardFile::ShardFile(int descriptor, size_t size)
    : number_(++n_opened), size_(size), pages_(size / kTreePageSize) {
    if (size < kMetaPages)
        throw std::runtime_error("not an LMDB file: only " + std::to_string(size) + " bytes");
    descriptor_ = fcntl(descriptor, F_DUPFD_CLOEXEC, 0);
    if (descriptor_ < 0)
        throw std::system_error(errno, std::generic_category(), "cannot open the file (dup)");
    // The loader reads ahead in the order of the epoch, which the kernel does not know.
    posix_fadvise(descriptor_, 0, 0, POSIX_FADV_RANDOM);
    try {
        read_meta();
    } catch (...) {
        close(descriptor_);
        throw;
    }
}

ShardFile::~ShardFile() {
    close(descriptor_);
}

bool ShardFile::read(uint64_t offset, uint8_t* to, size_t size, std::string& error) const {
    while (size) {
        const ssize_t n = pread(descriptor_, to, size, off_t(offset));
        if (n < 0 && errno == EINTR) continue;
        if (n <= 0) {
            error = n ? std::string("cannot be read: ") + std::strerror(errno)
                      : "the file ends at byte " + std::to_string(offset) +
                            ": it was truncated after it was opened";
            return false;
        }
        offset += uint64_t(n);
        to += n;
        size -= size_t(n);
    }
    return true;
}

void ShardFile::read_meta() {
    uint8_t meta[kMetaPages];
    std::string error;
    if (!read(0, meta, sizeof meta, error)) throw std::runtime_error(error);
    if (!is_meta(meta)) throw std::runtime_error("not an LMDB file: no meta page at its start");
    const uint8_t* newest = meta + kPageHeader;
    const uint8_t* other = meta + kTreePageSize + kPageHeader;
    const uint32_t page_size = read_little_endian<uint32_t>(newest + kFreePad);
    if (page_size != kTreePageSize)
        throw std::runtime_error("LMDB page size is " + std::to_string(page_size) + ", expected " +
                                 std::to_string(kTreePageSize));
    if (is_meta(meta + kTreePageSize) && read_little_endian<uint64_t>(other + kTransaction) >
                                             read_little_endian<uint64_t>(newest + kTransaction))
        newest = other;
    const uint8_t* tree = newest + kMainDb;
    entries_ = read_little_endian<uint64_t>(tree + kEntries);
    root_ = read_little_endian<uint64_t>(tree + kRoot);
    const uint64_t branches = read_little_endian<uint64_t>(tree + kBranches);
    if (read_little_endian<uint64_t>(tree + kOverflows))
        request_tree_pages(branches + read_little_endian<uint64_t>(tree + kLeaves));
    if (root_ < pages_ && branches <= root_ && branches <= kMaxTreeBytes / kTreePageSize) {
        std::vector<uint8_t> pages(size_t(branches) * kTreePageSize);
        first_branch_ = root_ + 1 - branches;
        if (read(first_branch_ * kTreePageSize, pages.data(), pages.size(), error))
            branches_ = std::move(pages);
    }
}

// The packer writes the tree at the end of a shard, unless the tree pages hold the records
// themselves. In other LMDB files these are unrelated pages, and the read is wasted.
void ShardFile::request_tree_pages(uint64_t pages) const {
    pages = std::min<uint64_t>(pages, kMaxTreeBytes / kTreePageSize);
    if (root_ >= pages_ || pages > root_ || pages > pages_ / 16 + 16) return;
    try {
        request_pages({descriptor_, int64_t((root_ + 1 - pages) * kTreePageSize),
                       int64_t(pages * kTreePageSize)});
    } catch (const std::system_error&) {  // Each page is then read on first access.
    }
}

bool ShardFile::read_leaf(uint64_t number, LeafPage& leaf, std::string& error) const {
    if (leaf.file == this && leaf.number == number) return true;
    leaf.file = nullptr;
    if (!read(number * kTreePageSize, leaf.bytes, kTreePageSize, error)) return false;
    leaf.file = this;
    leaf.number = number;
    return true;
}

const uint8_t* ShardFile::branch(uint64_t number) const {
    const bool copied =
        number >= first_branch_ && number - first_branch_ < branches_.size() / kTreePageSize;
    return copied ? branches_.data() + (number - first_branch_) * kTreePageSize : nullptr;
}

// Checks the header of a page. Returns false if it is damaged.
bool ShardFile::open_page(uint64_t number, const uint8_t* bytes, Page& page) const {
    const uint16_t flags = read_little_endian<uint16_t>(bytes + 10),
                   lower = read_little_endian<uint16_t>(bytes + 12);
    if (read_little_endian<uint64_t>(bytes) != number || lower < kPageHeader ||
        lower > kTreePageSize)
        return false;
    page = {bytes, size_t(lower - kPageHeader) / 2, bool(flags & kLeaf)};
    return page.n_keys > 0 && page.leaf != bool(flags & kBranch) &&
           !(flags & (kOverflow | kMetaPage));
}

// Finds the value of an entry whose key is valid. Returns false if it is not inside the file.
bool ShardFile::find_value(uint64_t number, const Page& page, size_t place,
                           RecordPlace& found) const {
    size_t left = 0;
    const uint8_t* node = find_node(page.bytes, place, left);
    const size_t size = read_little_endian<uint16_t>(node) |
                        size_t(read_little_endian<uint16_t>(node + 2)) << 16,
                 from = kNodeHeader + kKey;
    if (!size || size > kMaxRecordBytes) return false;
    if (!(read_little_endian<uint16_t>(node + 4) & kBigData)) {
        if (size > left - from) return false;
        found = {number * kTreePageSize + size_t(node + from - page.bytes), size, node + from};
        return true;
    }
    if (left < from + sizeof(uint64_t)) return false;
    const uint64_t first = read_little_endian<uint64_t>(node + from);
    // The header of the overflow page is not checked: reading it would be the first access to the
    // record.
    if (first >= pages_ || size_ - first * kTreePageSize < kPageHeader + size) return false;
    found = {first * kTreePageSize + kPageHeader, size, nullptr};
    return true;
}

RecordPlace ShardFile::find(uint64_t id, LeafPage& leaf, std::string& error) const {
    RecordPlace found;
    uint64_t number = root_;
    if (number == kNoPage) return error = "the record is missing", found;
    for (int level = 0; level < kMaxDepth; ++level) {
        Page page;
        size_t place = 0;
        const uint8_t* bytes = number < pages_ ? branch(number) : nullptr;
        if (!bytes && number < pages_ && read_leaf(number, leaf, error)) bytes = leaf.bytes;
        if (!bytes || !open_page(number, bytes, page) ||
            !last_not_above(page.bytes, page.n_keys, page.leaf, id, place))
            break;
        if (page.leaf) {
            uint64_t key;
            if (!read_key(page.bytes, place, key)) break;
            if (key != id) return error = "the record is missing", found;
            if (!find_value(number, page, place, found)) break;
            return found;
        }
        if (!read_child(page.bytes, place, number)) break;
    }
    if (error.empty()) error = "a tree page of the shard is damaged";
    return found;
}

LeafGuess ShardFile::guess_leaf(uint64_t id) const {
    LeafGuess guess{root_, 0};
    for (int level = 0; level < kMaxDepth; ++level) {
        const uint8_t* bytes = branch(guess.page);
        Page page;
        size_t place = 0;
        if (!bytes || !open_page(guess.page, bytes, page) || page.leaf) break;
        if (!last_not_above(bytes, page.n_keys, false, id, place) ||
            !read_child(bytes, place, guess.page))
            return {kNoPage, 0};
        if (place) read_key(bytes, place, guess.first_key);
    }
    return guess;
}

RecordPlace ShardFile::find(uint64_t id, const LeafGuess& guess, ChunkCache& chunks) const {
    RecordPlace found;
    const uint8_t* bytes = guess.page < pages_ ? chunks.page(*this, guess.page) : nullptr;
    Page page;
    if (!bytes || !open_page(guess.page, bytes, page) || !page.leaf) return found;
    size_t place = size_t(id - guess.first_key);  // keys are consecutive
    uint64_t key = 0;
    if (place >= page.n_keys || !read_key(bytes, place, key) || key != id) {
        if (!last_not_above(bytes, page.n_keys, true, id, place) || !read_key(bytes, place, key))
            return found;
    }
    if (key != id || !find_value(guess.page, page, place, found)) return {};
    return found;
}

const uint8_t* guess_entry(const uint8_t* page, size_t place) {
    const size_t pointer = kPageHeader + 2 * std::min(place, size_t(kTreePageSize / 4));
    return page + read_little_endian<uint16_t>(page + pointer) % kTreePageSize;
}

std::string read_checked(const StoredRecord& record, uint8_t* to) {
    std::string error;
    if (!record.file->read(record.offset, to, record.size, error)) return error;
    if (record.n_bytes && std::memcmp(to, record.bytes, record.n_bytes))
        return "the record changed after its header was read";
    return check_record({to, record.size});
}

}  // namespace fastload
