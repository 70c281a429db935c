// Threads that load batches of samples. submit() returns at once; several batches may be under way,
// and a thread that finds no sample left in the oldest goes on with the next, so that none idles at
// a batch's end.
#pragma once

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "pool/sample_loader.h"

namespace fastload {

// Why samples failed, by slot; empty for the others.
class Reasons {
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
class Batch {
public:
    Batch(std::vector<Request> requests, std::vector<Source> sources, const Output& output);

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
    const std::vector<Status>& statuses() const { return statuses_; }
    const std::vector<StageTimes>& times() const { return times_; }
    const Reasons& reasons() const { return reasons_; }

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

    std::vector<Request> requests_;
    std::vector<Source> sources_;
    std::vector<std::atomic<bool>> checked_;
    Output output_;
    std::unique_ptr<NormaliseTable> table_;
    std::vector<Status> statuses_;
    std::vector<StageTimes> times_;
    Reasons reasons_;   // under mutex_
    size_t claim_ = 1;  // samples that a thread takes at a time
    alignas(64) std::atomic<size_t> next_{
        0};  // apart from what every row reads: each claim writes it
    std::atomic<size_t> finished_{0};
    std::mutex mutex_;
    std::condition_variable all_done_;
};

class Pool {
public:
    explicit Pool(int threads);
    ~Pool();  // closes
    Pool(const Pool&) = delete;
    Pool& operator=(const Pool&) = delete;

    void submit(std::shared_ptr<Batch> batch);
    void set_threads(int threads);  // threads too many end after their claim
    int threads() const { return wanted_.load(std::memory_order_relaxed); }
    // The samples of a batch that threads are at work on just now: what a batch that does not end
    // waits for.
    std::vector<size_t> under_way(const Batch& batch);
    // Ends the threads; samples not begun become kCancelled. Batches submitted later are cancelled
    // at once.
    void close();

private:
    // What one thread does, for under_way(); on a cache line of its own, since it is written for
    // each sample.
    struct alignas(64) Work {
        std::atomic<const Batch*> batch{nullptr};
        std::atomic<size_t> slot{0};
    };

    void start_missing(int threads);
    void run(int number, SampleLoader& loader, Work& work);
    bool dismissed(int number) const { return number >= wanted_.load(std::memory_order_relaxed); }
    std::shared_ptr<Batch> next_batch(int number, const std::shared_ptr<Batch>& behind);

    std::mutex change_;  // one change of the number of threads at a time
    std::mutex mutex_;   // of what follows
    std::condition_variable work_;
    std::deque<std::shared_ptr<Batch>> queue_;  // oldest first; those with samples left to begin
    std::vector<std::thread> threads_;          // by number
    std::deque<Work> works_;                    // by number; of all threads that there ever were
    std::atomic<int> wanted_{0};  // written under mutex_; a thread with a number from here on ends
    bool closed_ = false;
};

}  // namespace fastload
