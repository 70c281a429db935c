// Records as Python objects. Their bytes are read into memory of this process before they are used,
// so that a file that changes or shrinks meanwhile is detected and never crashes a reader.
#pragma once

#include <nanobind/nanobind.h>

#include <memory>
#include <vector>

#include "shard/shard_file.h"

namespace fastload {

// The records of one read_records() call and the memory of their bytes.
struct RecordSet {
    std::vector<StoredRecord> records;
    nanobind::object files;  // the open shards of these records

    // Returns memory that lives as long as this object.
    uint8_t* allocate(size_t size) {
        size = (size + 15) / 16 * 16;  // aligned like the numbers in a record
        // The rest of the current chunk stays in use.
        if (size > kChunk / 4) return adopt(std::unique_ptr<uint8_t[]>(new uint8_t[size]));
        if (size > left_) {
            next_ = adopt(std::unique_ptr<uint8_t[]>(new uint8_t[kChunk]));
            left_ = kChunk;
        }
        uint8_t* memory = next_;
        next_ += size;
        left_ -= size;
        return memory;
    }
    uint8_t* adopt(std::unique_ptr<uint8_t[]> memory) {
        chunks_.push_back(std::move(memory));
        return chunks_.back().get();
    }

private:
    static constexpr size_t kChunk = 64 << 10;
    std::vector<std::unique_ptr<uint8_t[]>> chunks_;
    uint8_t* next_ = nullptr;
    size_t left_ = 0;
};

// The records of one batch, or of several batches that were read together. The pool reads them
// directly. Indexing in Python reads the rest of a record and creates a memoryview.
class Records {
public:
    explicit Records(std::shared_ptr<RecordSet> set)
        : set_(std::move(set)), count_(set_->records.size()) {}

    size_t size() const { return count_; }
    StoredRecord& operator[](size_t place) const { return set_->records[first_ + place]; }
    const std::shared_ptr<RecordSet>& set() const { return set_; }

    Records part(size_t first, size_t count) const {
        Records part(*this);
        part.first_ += first;
        part.count_ = count;
        return part;
    }

private:
    std::shared_ptr<RecordSet> set_;
    size_t first_ = 0, count_;
};

}  // namespace fastload
