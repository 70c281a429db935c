// Threads that load batches of samples. submit() returns immediately. Several batches may be in
// flight: a thread that finds no unclaimed sample in the oldest batch continues with the next one,
// so no thread idles at the end of a batch.
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
    void set_threads(int threads);  // excess threads exit after their current claim
    int threads() const { return n_threads_.load(std::memory_order_relaxed); }
    // Returns the samples of a batch that threads are loading now. Timeout messages name them.
    std::vector<size_t> in_flight(const DecodeBatch& batch);
    // Stops the threads. Samples that have not started become kCancelled, and so do batches that
    // are submitted later.
    void close();

private:
    // The sample that one thread is loading, for in_flight(). On its own cache line because it is
    // written for every sample.
    struct alignas(64) ThreadState {
        std::atomic<const DecodeBatch*> batch{nullptr};
        std::atomic<size_t> slot{0};
    };

    void start_threads(int threads);
    void run(int number, SampleLoader& loader, ThreadState& state);
    bool must_exit(int number) const {
        return number >= n_threads_.load(std::memory_order_relaxed);
    }
    std::shared_ptr<DecodeBatch> next_batch(int number,
                                            const std::shared_ptr<DecodeBatch>& drained);

    std::mutex change_;  // serializes changes of the number of threads
    std::mutex mutex_;   // protects the members below
    std::condition_variable work_;
    // Batches with unclaimed samples, oldest first.
    std::deque<std::shared_ptr<DecodeBatch>> queue_;
    std::vector<std::thread> threads_;       // by number
    std::deque<ThreadState> thread_states_;  // by thread number; never shrinks
    // Written under mutex_. A thread with this number or a higher one exits.
    std::atomic<int> n_threads_{0};
    bool closed_ = false;
};

}  // namespace fastload
