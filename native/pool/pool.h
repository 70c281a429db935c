// Threads that load batches of samples. submit() returns at once; several batches may be under way,
// and a thread that finds no sample left in the oldest goes on with the next, so that none idles at
// a batch's end.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <deque>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "pool/decode_batch.h"
#include "pool/sample_loader.h"

namespace fastload {

class Pool {
public:
    explicit Pool(int threads);
    ~Pool();  // closes
    Pool(const Pool&) = delete;
    Pool& operator=(const Pool&) = delete;

    void submit(std::shared_ptr<DecodeBatch> batch);
    void set_threads(int threads);  // threads too many end after their claim
    int threads() const { return wanted_.load(std::memory_order_relaxed); }
    // The samples of a batch that threads are at work on just now: what a batch that does not end
    // waits for.
    std::vector<size_t> in_flight(const DecodeBatch& batch);
    // Ends the threads; samples not begun become kCancelled. Batches submitted later are cancelled
    // at once.
    void close();

private:
    // What one thread does, for in_flight(); on a cache line of its own, since it is written for
    // each sample.
    struct alignas(64) Work {
        std::atomic<const DecodeBatch*> batch{nullptr};
        std::atomic<size_t> slot{0};
    };

    void start_missing(int threads);
    void run(int number, SampleLoader& loader, Work& work);
    bool dismissed(int number) const { return number >= wanted_.load(std::memory_order_relaxed); }
    std::shared_ptr<DecodeBatch> next_batch(int number, const std::shared_ptr<DecodeBatch>& behind);

    std::mutex change_;  // one change of the number of threads at a time
    std::mutex mutex_;   // of what follows
    std::condition_variable work_;
    std::deque<std::shared_ptr<DecodeBatch>>
        queue_;                         // oldest first; those with samples left to begin
    std::vector<std::thread> threads_;  // by number
    std::deque<Work> works_;            // by number; of all threads that there ever were
    std::atomic<int> wanted_{0};  // written under mutex_; a thread with a number from here on ends
    bool closed_ = false;
};

}  // namespace fastload
