// Records as Python objects: their positions in memory-mapped shards. The maps stay open as long as
// any of the records is referenced.
#pragma once

#include <nanobind/nanobind.h>

#include <memory>
#include <vector>

#include "shard/shard_map.h"

namespace fastload {

// The records of one batch, or of several batches that were read together. The pool reads them
// directly. Indexing in Python creates a memoryview.
class Records {
public:
    using All = std::vector<RecordBytes>;

    Records(All all, nanobind::object maps)
        : all_(std::make_shared<const All>(std::move(all))),
          count_(all_->size()),
          maps_(std::move(maps)) {}

    size_t size() const { return count_; }
    const RecordBytes& operator[](size_t place) const { return (*all_)[first_ + place]; }
    const nanobind::object& maps() const { return maps_; }

    Records part(size_t first, size_t count) const {
        Records part(*this);
        part.first_ += first;
        part.count_ = count;
        return part;
    }

private:
    std::shared_ptr<const All> all_;
    size_t first_ = 0, count_;
    nanobind::object maps_;
};

}  // namespace fastload
