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

// Why samples failed, by slot; empty for the others.
class FailureReasons {
public:
    const std::string& operator[](size_t slot) const {
        static const std::string none;
        const auto found = by_slot_.find(slot);
        return found == by_slot_.end() ? none : found->second;
    }
    void keep(size_t slot, std::string why) { by_slot_.emplace(slot, std::move(why)); }

private:
    std::map<size_t, std::string>
        by_slot_;  // few fail: most batches have none to make, to look at and to take down
};

// One batch: what was asked, where it goes, what came of it. The memory it points to belongs to the
// caller, who keeps it until done() or cancel() has returned.
class DecodeBatch {
public:
    DecodeBatch(std::vector<DecodeRequest> requests, std::vector<SourceBytes> sources,
                const BatchOutput& output);

    size_t size() const { return requests_.size(); }
    bool done() const { return finished_.load(std::memory_order_acquire) == size(); }
    // True once every sample is done; false after `timeout`.
    bool wait_for(std::chrono::milliseconds timeout);
    // Takes the samples that no thread has claimed out of the queue, and waits for those that are:
    // at most one claim per thread.
    void cancel();
    // Loads every sample in this thread, one after the other: what a pool's work is compared with.
    void run_here(SampleLoader& loader) {
        for (size_t i = 0; i < size(); ++i) load(i, loader);
        finish(size());
    }

    // To be read when done.
    const std::vector<SampleStatus>& statuses() const { return statuses_; }
    const std::vector<StageTimes>& times() const { return times_; }
    const FailureReasons& reasons() const { return reasons_; }

private:
    friend class Pool;
    struct Claim {
        size_t begin, end;  // begin may pass size(): nothing left
    };
    Claim take() {
        const size_t begin = next_.fetch_add(claim_, std::memory_order_relaxed);
        return {begin, std::min(begin + claim_, size())};
    }
    bool exhausted() const { return next_.load(std::memory_order_relaxed) >= size(); }
    void load(size_t i, SampleLoader& loader);
    void keep_reason(size_t i, std::string why) noexcept;
    void finish(size_t n);  // n more samples are loaded, or will not be
    void skip_rest();

    std::vector<DecodeRequest> requests_;
    std::vector<SourceBytes> sources_;
    std::vector<std::atomic<bool>> verified_;
    BatchOutput output_;
    std::unique_ptr<NormalizeTable> table_;
    std::vector<SampleStatus> statuses_;
    std::vector<StageTimes> times_;
    FailureReasons reasons_;  // under mutex_
    size_t claim_ = 1;        // samples that a thread takes at a time
    alignas(64) std::atomic<size_t> next_{
        0};  // apart from what every row reads: each claim writes it
    std::atomic<size_t> finished_{0};
    std::mutex mutex_;
    std::condition_variable all_done_;
};

}  // namespace fastload
