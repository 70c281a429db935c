// One batch of samples, decoded by any number of threads.
#pragma once

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "pixels/normalize.h"
#include "pixels/output.h"
#include "pool/decode_request.h"
#include "pool/sample_loader.h"

namespace fastload {

// Error messages by slot; empty for slots without an error.
class FailureReasons {
public:
    const std::string& operator[](size_t slot) const {
        static const std::string none;
        const auto found = by_slot_.find(slot);
        return found == by_slot_.end() ? none : found->second;
    }
    void keep(size_t slot, std::string error) { by_slot_.emplace(slot, std::move(error)); }

private:
    // Sparse, because few samples fail: most batches then have nothing to allocate or free.
    std::map<size_t, std::string> by_slot_;
};

// Requests, output and results of one batch. The caller owns the memory that it points to and keeps
// it until done() is true or cancel() has returned.
class DecodeBatch {
public:
    DecodeBatch(std::vector<DecodeRequest> requests, std::vector<SourceBytes> sources,
                const BatchOutput& output);
    ~DecodeBatch();

    size_t size() const { return requests_.size(); }
    bool done() const { return finished_.load(std::memory_order_acquire) == size(); }
    // Returns false if the batch is not done after `timeout`.
    bool wait_for(std::chrono::milliseconds timeout);
    // Cancels the unclaimed samples and waits for the claimed ones, at most one claim per thread.
    void cancel();
    // Loads all samples in this thread. Benchmarks compare the pool with it.
    void run_inline(SampleLoader& loader) {
        for (size_t i = 0; i < size(); ++i) load(i, loader);
        finish(size());
    }

    // Valid once the batch is done.
    const std::vector<SampleStatus>& statuses() const { return statuses_; }
    const std::vector<StageTimes>& times() const { return times_; }
    const FailureReasons& reasons() const { return reasons_; }

private:
    friend class Pool;
    struct Claim {
        size_t begin, end;  // begin >= size(): no samples left
    };
    Claim claim() {
        const size_t begin = next_.fetch_add(claim_size_, std::memory_order_relaxed);
        return {begin, std::min(begin + claim_size_, size())};
    }
    bool exhausted() const { return next_.load(std::memory_order_relaxed) >= size(); }
    void load(size_t i, SampleLoader& loader);
    void store_reason(size_t i, std::string error) noexcept;
    void finish(size_t n);  // Counts n more samples as loaded or cancelled.
    void cancel_unclaimed();

    std::vector<DecodeRequest> requests_;
    std::vector<SourceBytes> sources_;
    std::vector<std::atomic<const uint8_t*>> verified_;  // by source
    BatchOutput output_;
    std::unique_ptr<NormalizeTable> table_;
    std::vector<SampleStatus> statuses_;
    std::vector<StageTimes> times_;
    FailureReasons reasons_;  // under mutex_
    size_t claim_size_ = 1;   // samples per claim
    // On its own cache line: every claim writes it, and every sample reads the members above.
    alignas(64) std::atomic<size_t> next_{0};
    std::atomic<size_t> finished_{0};
    std::mutex mutex_;
    std::condition_variable all_done_;
};

}  // namespace fastload
