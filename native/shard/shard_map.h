// A published shard, mapped read-only: finds records in its LMDB tree (docs/FORMAT.md), every step
// checked against the file's size.
//
// LMDB's own reader trusts its pages: a damaged one can end the process. Here it is an error, and
// finding a record takes a tenth of the time that a call from Python does.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "shard/record.h"

namespace fastload {

class ShardMap {
public:
    // Maps `size` bytes of an open file, which may be closed afterwards. Throws std::runtime_error.
    ShardMap(int descriptor, size_t size);
    ~ShardMap();
    ShardMap(const ShardMap&) = delete;
    ShardMap& operator=(const ShardMap&) = delete;

    uint64_t entries() const { return entries_; }
    // The record of a sample, in the map. Where there is none, `why` says what is wrong.
    RecordBytes find(uint64_t id, std::string& why) const;

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
