// A published shard, mapped read-only. Finds records in its LMDB tree (docs/FORMAT.md) and checks
// every step against the size of the file.
//
// The reader of LMDB itself trusts its pages, so a damaged page can crash the process. Here it is
// an error. Finding a record also takes a tenth of the time of a call from Python.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "shard/record.h"

namespace fastload {

class ShardMap {
public:
    // Maps `size` bytes of an open file. The descriptor may be closed afterwards. Throws
    // std::runtime_error.
    ShardMap(int descriptor, size_t size);
    ~ShardMap();
    ShardMap(const ShardMap&) = delete;
    ShardMap& operator=(const ShardMap&) = delete;

    uint64_t entries() const { return entries_; }
    // Returns the record of a sample. If there is none, `error` has the reason.
    RecordBytes find(uint64_t id, std::string& error) const;

private:
    struct Page {
        const uint8_t* bytes;
        size_t n_keys;
        bool leaf;
    };

    void read_meta();
    void request_tree_pages(uint64_t pages) const;
    const uint8_t* at(uint64_t page) const { return memory_ + page * page_size_; }
    bool open_page(uint64_t number, Page& page) const;
    const uint8_t* node(const Page& page, size_t place, size_t& left) const;
    bool key(const Page& page, size_t place, uint64_t& found) const;
    bool last_not_above(const Page& page, uint64_t id, size_t& place) const;
    RecordBytes value(const Page& page, size_t place) const;

    const uint8_t* memory_ = nullptr;
    size_t size_ = 0;
    size_t page_size_ = 0;
    uint64_t pages_ = 0, root_ = 0, entries_ = 0;
};

}  // namespace fastload
