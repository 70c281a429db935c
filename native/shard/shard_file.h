// A published shard, read with pread(2). Finds records in its LMDB tree (docs/FORMAT.md) and checks
// every step against the size of the file.
//
// LMDB itself trusts its pages, so a damaged page can crash the process. Here it is an error. The
// file is not mapped: truncating a mapped file kills its readers (SIGBUS), and bytes in a map may
// change after their checksum was verified. Reading 110 kB costs 1 us more than touching a map.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "shard/record.h"

namespace fastload {

constexpr size_t kTreePageSize = 4096;

// Position of a record in its shard.
struct RecordPlace {
    uint64_t offset = 0;
    size_t size = 0;                 // 0: not found
    const uint8_t* bytes = nullptr;  // the record, if it is stored in the page that was read
};

class ChunkCache;
class ShardFile;

// The leaf page that a lookup read last. Neighboring records are often in the same page.
struct LeafPage {
    const ShardFile* file = nullptr;  // null: none was read
    uint64_t number = 0;
    uint8_t bytes[kTreePageSize];
};

// Where a record must be, according to the branch pages. Only a hint: the first key of the leftmost
// page is unknown.
struct LeafGuess {
    uint64_t page;
    uint64_t first_key;
};

class ShardFile {
public:
    // Duplicates the descriptor of a file of `size` bytes. Throws std::runtime_error.
    ShardFile(int descriptor, size_t size);
    ~ShardFile();
    ShardFile(const ShardFile&) = delete;
    ShardFile& operator=(const ShardFile&) = delete;

    int descriptor() const { return descriptor_; }
    uint64_t number() const { return number_; }  // unique in this process
    size_t size() const { return size_; }
    uint64_t entries() const { return entries_; }
    // Finds the record of a sample. Reads a leaf page into `leaf`, unless it is that page. If there
    // is no such record, `error` has the reason.
    RecordPlace find(uint64_t id, LeafPage& leaf, std::string& error) const;
    // The same with leaf pages from `chunks`. Needs the result of guess_leaf().
    RecordPlace find(uint64_t id, const LeafGuess& guess, ChunkCache& chunks) const;
    LeafGuess guess_leaf(uint64_t id) const;
    // Returns false, and in `error` the reason, if not all bytes could be read.
    bool read(uint64_t offset, uint8_t* to, size_t size, std::string& error) const;

private:
    struct Page {
        const uint8_t* bytes;
        size_t n_keys;
        bool leaf;
    };

    void read_meta();
    void request_tree_pages(uint64_t pages) const;
    const uint8_t* branch(uint64_t number) const;
    bool open_page(uint64_t number, const uint8_t* bytes, Page& page) const;
    bool read_leaf(uint64_t number, LeafPage& leaf, std::string& error) const;
    bool find_value(uint64_t number, const Page& page, size_t place, RecordPlace& found) const;

    const uint64_t number_;
    int descriptor_ = -1;
    size_t size_ = 0;
    uint64_t pages_ = 0, root_ = 0, entries_ = 0;
    // A copy of the branch pages, which every lookup needs. They are the last pages of the tree.
    std::vector<uint8_t> branches_;
    uint64_t first_branch_ = 0;
};

// Returns the probable address of a record's entry in a leaf page, without any check.
const uint8_t* guess_entry(const uint8_t* page, size_t place);

// The record of a sample: its position, and a copy of its first bytes in memory that only this
// process writes. Whatever is read later is compared with them.
struct StoredRecord {
    const ShardFile* file = nullptr;  // null: not found
    uint64_t offset = 0;
    size_t size = 0;
    const uint8_t* bytes = nullptr;
    size_t n_bytes = 0;  // `size` if all of it was read; otherwise header and part table

    bool complete() const { return n_bytes == size; }
};

// Reads a whole record into `to`, which has room for `size` bytes, and verifies that it starts with
// the bytes read before and that its checksum is correct. Returns the error, empty if it is valid.
std::string read_checked(const StoredRecord& record, uint8_t* to);

}  // namespace fastload
