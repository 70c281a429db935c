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

constexpr int kNiceIncrement = 5;  // than the process (benchmarks/niceness.py); with 19 a trainer
                                   // that computes on the CPU waits for batches

// The calling thread gets a name for top -H and perf, and steps back: where every processor is
// busy, the trainer's own threads and the one that hands batches over come first. They wake up for
// a moment at each batch, and would each wait for the end of a decode thread's time slice. Where a
// processor is free it changes nothing.
void lower_priority() {
#ifdef __linux__
    setpriority(PRIO_PROCESS, 0,
                std::min(getpriority(PRIO_PROCESS, 0) + kNiceIncrement,
                         19));  // Linux: of this thread only; never refused
    pthread_setname_np(pthread_self(), "fastload-decode");  // 15 characters at most
#endif
}

}  // namespace

Pool::Pool(int threads) {
    try {
        set_threads(threads);
    } catch (...) {  // no destructor runs then, and a thread that nobody joins ends the process
        close();
        throw;
    }
}

Pool::~Pool() {
    close();
}

void Pool::set_threads(int threads) {
    std::lock_guard<std::mutex> one(change_);
    std::vector<std::thread> leaving;
    {
        std::lock_guard<std::mutex> lock(mutex_);
        if (closed_) return;
        threads = std::max(threads, 1);
        while (int(threads_.size()) > threads) {
            leaving.push_back(std::move(threads_.back()));
            threads_.pop_back();
        }
        wanted_ = int(threads_.size());
        start_missing(threads);
    }
    work_.notify_all();
    for (std::thread& thread : leaving) thread.join();
}

// What can fail (memory, the system's limit of threads) fails here, in the caller's thread; those
// begun before stay.
void Pool::start_missing(int threads) {
    while (int(threads_.size()) < threads) {
        auto loader = std::make_unique<SampleLoader>();
        const int number = int(threads_.size());
        if (int(works_.size()) == number) works_.emplace_back();
        try {
            threads_.emplace_back([this, number, work = &works_[size_t(number)],
                                   owned = std::move(loader)] { run(number, *owned, *work); });
        } catch (const std::system_error& error) {
            throw std::runtime_error(
                "the system refuses decode thread " + std::to_string(number + 1) + " of " +
                std::to_string(threads) + " (" + error.code().message() +
                "): ask for fewer, or raise the limit of threads (ulimit -u, a container's pids)");
        }
        wanted_ = int(threads_.size());
    }
}

void Pool::submit(std::shared_ptr<DecodeBatch> batch) {
    if (batch->size() == 0) return;
    {
        std::lock_guard<std::mutex> lock(mutex_);
        if (closed_) {
            batch->skip_rest();
            return;
        }
        queue_.push_back(std::move(batch));
    }
    work_.notify_all();
}

// The oldest batch with samples left to begin, and `behind` (just found empty) out of the queue;
// null: the thread shall end.
std::shared_ptr<DecodeBatch> Pool::next_batch(int number,
                                              const std::shared_ptr<DecodeBatch>& behind) {
    std::unique_lock<std::mutex> lock(mutex_);
    for (;;) {
        if (dismissed(number)) return nullptr;
        while (!queue_.empty() && (queue_.front() == behind || queue_.front()->exhausted()))
            queue_.pop_front();
        if (!queue_.empty()) return queue_.front();
        work_.wait(lock);
    }
}

void Pool::run(int number, SampleLoader& loader, Work& work) {
    lower_priority();
    std::shared_ptr<DecodeBatch> batch;
    while ((batch = next_batch(number, batch))) {
        size_t loaded = 0;  // told once, when none is left: the batch cannot be done before, and
                            // each time costs the other threads a cache miss
        for (DecodeBatch::Claim claim;
             !dismissed(number) && (claim = batch->take()).begin < batch->size();
             loaded += claim.end - claim.begin)
            for (size_t i = claim.begin; i < claim.end; ++i) {
                work.slot.store(i, std::memory_order_relaxed);
                work.batch.store(batch.get(), std::memory_order_release);
                batch->load(i, loader);
            }
        work.batch.store(nullptr, std::memory_order_relaxed);
        if (loaded) batch->finish(loaded);
    }
}

std::vector<size_t> Pool::in_flight(const DecodeBatch& batch) {
    std::vector<size_t> slots;
    std::lock_guard<std::mutex> lock(mutex_);
    for (const Work& work : works_) {
        if (work.batch.load(std::memory_order_acquire) != &batch) continue;
        const size_t slot = work.slot.load(std::memory_order_relaxed);
        if (slot < batch.size()) slots.push_back(slot);
    }
    return slots;
}

void Pool::close() {
    std::lock_guard<std::mutex> one(change_);
    std::vector<std::thread> leaving;
    std::deque<std::shared_ptr<DecodeBatch>> left;
    {
        std::lock_guard<std::mutex> lock(mutex_);
        closed_ = true;
        wanted_ = 0;
        leaving.swap(threads_);
        left.swap(queue_);
    }
    work_.notify_all();
    for (auto& batch : left) batch->skip_rest();
    for (std::thread& thread : leaving) thread.join();
}

}  // namespace fastload
