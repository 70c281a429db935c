#include "pool/pool.h"

#ifdef __linux__
#include <pthread.h>
#include <sys/resource.h>
#endif

#include <algorithm>
#include <stdexcept>
#include <system_error>

namespace fastload {
namespace {

// Added to the niceness of the process. Measured with benchmarks/niceness.py: with 19, a trainer
// that computes on the CPU waits for batches.
constexpr int kNiceIncrement = 5;

// Names the calling thread for top -H and perf and lowers its priority. When all processors are
// busy, the threads of the trainer and the feeder thread then run first. They wake up briefly for
// each batch and would otherwise wait for the end of the time slice of a decode thread. With an
// idle processor, this has no effect.
void lower_priority() {
#ifdef __linux__
    // Linux applies this to the calling thread only and never denies an increase.
    setpriority(PRIO_PROCESS, 0, std::min(getpriority(PRIO_PROCESS, 0) + kNiceIncrement, 19));
    pthread_setname_np(pthread_self(), "fastload-decode");  // at most 15 characters
#endif
}

}  // namespace

Pool::Pool(int threads) {
    try {
        set_threads(threads);
    } catch (...) {
        // The destructor does not run, and destroying a joinable thread would end the process.
        close();
        throw;
    }
}

Pool::~Pool() {
    close();
}

void Pool::set_threads(int threads) {
    std::lock_guard<std::mutex> one(change_);
    std::vector<std::thread> exiting;
    {
        std::lock_guard<std::mutex> lock(mutex_);
        if (closed_) return;
        threads = std::max(threads, 1);
        while (int(threads_.size()) > threads) {
            exiting.push_back(std::move(threads_.back()));
            threads_.pop_back();
        }
        n_threads_ = int(threads_.size());
        start_threads(threads);
    }
    work_.notify_all();
    for (std::thread& thread : exiting) thread.join();
}

// Everything that can fail (memory, the thread limit) fails here, in the thread of the caller.
// Threads that have started stay.
void Pool::start_threads(int threads) {
    while (int(threads_.size()) < threads) {
        auto loader = std::make_unique<SampleLoader>();
        const int number = int(threads_.size());
        if (int(thread_states_.size()) == number) thread_states_.emplace_back();
        try {
            threads_.emplace_back([this, number, state = &thread_states_[size_t(number)],
                                   owned = std::move(loader)] { run(number, *owned, *state); });
        } catch (const std::system_error& error) {
            throw std::runtime_error(
                "cannot start decode thread " + std::to_string(number + 1) + " of " +
                std::to_string(threads) + ": " + error.code().message() +
                ". Use fewer threads, or raise the thread limit (ulimit -u, or the pids limit of "
                "the container).");
        }
        n_threads_ = int(threads_.size());
    }
}

void Pool::submit(std::shared_ptr<DecodeBatch> batch) {
    if (batch->size() == 0) return;
    {
        std::lock_guard<std::mutex> lock(mutex_);
        if (closed_) {
            batch->cancel_unclaimed();
            return;
        }
        queue_.push_back(std::move(batch));
    }
    work_.notify_all();
}

// Removes `drained` (which has no unclaimed samples) from the queue and returns the oldest batch
// with unclaimed samples. Returns null if the thread must exit.
std::shared_ptr<DecodeBatch> Pool::next_batch(int number,
                                              const std::shared_ptr<DecodeBatch>& drained) {
    std::unique_lock<std::mutex> lock(mutex_);
    for (;;) {
        if (must_exit(number)) return nullptr;
        while (!queue_.empty() && (queue_.front() == drained || queue_.front()->exhausted()))
            queue_.pop_front();
        if (!queue_.empty()) return queue_.front();
        work_.wait(lock);
    }
}

void Pool::run(int number, SampleLoader& loader, ThreadState& state) {
    lower_priority();
    std::shared_ptr<DecodeBatch> batch;
    while ((batch = next_batch(number, batch))) {
        // Reported once per batch: the batch cannot be done earlier, and every report costs the
        // other threads a cache miss.
        size_t loaded = 0;
        for (DecodeBatch::Claim claim;
             !must_exit(number) && (claim = batch->claim()).begin < batch->size();
             loaded += claim.end - claim.begin)
            for (size_t i = claim.begin; i < claim.end; ++i) {
                state.slot.store(i, std::memory_order_relaxed);
                state.batch.store(batch.get(), std::memory_order_release);
                batch->load(i, loader);
            }
        state.batch.store(nullptr, std::memory_order_relaxed);
        if (loaded) batch->finish(loaded);
    }
}

std::vector<size_t> Pool::in_flight(const DecodeBatch& batch) {
    std::vector<size_t> slots;
    std::lock_guard<std::mutex> lock(mutex_);
    for (const ThreadState& state : thread_states_) {
        if (state.batch.load(std::memory_order_acquire) != &batch) continue;
        const size_t slot = state.slot.load(std::memory_order_relaxed);
        if (slot < batch.size()) slots.push_back(slot);
    }
    return slots;
}

void Pool::close() {
    std::lock_guard<std::mutex> one(change_);
    std::vector<std::thread> exiting;
    std::deque<std::shared_ptr<DecodeBatch>> left;
    {
        std::lock_guard<std::mutex> lock(mutex_);
        closed_ = true;
        n_threads_ = 0;
        exiting.swap(threads_);
        left.swap(queue_);
    }
    work_.notify_all();
    for (auto& batch : left) batch->cancel_unclaimed();
    for (std::thread& thread : exiting) thread.join();
}

}  // namespace fastload
