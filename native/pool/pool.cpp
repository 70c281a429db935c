#include "pool/pool.h"

#ifdef __linux__
#include <pthread.h>
#include <sys/resource.h>
#endif

#include <algorithm>
#include <new>
#include <stdexcept>
#include <system_error>

namespace fastload {
namespace {

// Raw pixels are copied in a few microseconds. Taking such samples one by one costs half a percent
// of that: the counter waits until the pixels before it are written, and neighbours in the batch
// share the cache lines that their threads report in (benchmarks/decode.py --handover and --gains).
// What is decoded takes so long that only an even end of the batch counts.
size_t claim_of(const std::vector<Request>& requests) {
    constexpr uint64_t kBytes = 256 << 10;
    constexpr size_t kLeastClaims = 32;
    uint64_t bytes = 1;
    for (const Request& request : requests) {
        if (request.codec != uint8_t(Codec::kRaw)) return 1;
        const auto area = [](int32_t w, int32_t h) {
            return uint64_t(std::max(w, 0)) * uint64_t(std::max(h, 0));
        };
        bytes = std::max(
            {bytes,
             area(request.raw_w, request.raw_h) * request.raw_channels * request.raw_bits / 8,
             area(request.out_w, request.out_h)});
    }
    return size_t(std::clamp<uint64_t>(kBytes / bytes, 1,
                                       std::max<size_t>(requests.size() / kLeastClaims, 1)));
}

constexpr int kNicer = 5;  // than the process (benchmarks/niceness.py); with 19 a trainer that
                           // computes on the CPU waits for batches

// The calling thread gets a name for top -H and perf, and steps back: where every processor is
// busy, the trainer's own threads and the one that hands batches over come first. They wake up for
// a moment at each batch, and would each wait for the end of a decode thread's time slice. Where a
// processor is free it changes nothing.
void step_back() {
#ifdef __linux__
    setpriority(PRIO_PROCESS, 0,
                std::min(getpriority(PRIO_PROCESS, 0) + kNicer,
                         19));  // Linux: of this thread only; never refused
    pthread_setname_np(pthread_self(), "fastload-decode");  // 15 characters at most
#endif
}

}  // namespace

Batch::Batch(std::vector<Request> requests, std::vector<Source> sources, const Output& output)
    : requests_(std::move(requests)),
      sources_(std::move(sources)),
      output_(output),
      statuses_(requests_.size(), Status::kCancelled),
      times_(requests_.size()),
      claim_(claim_of(requests_)) {
    checked_ = std::vector<std::atomic<bool>>(sources_.size());
    for (size_t i = 0; i < sources_.size(); ++i) sources_[i].right = &checked_[i];
    if (output_.dtype != Dtype::kUint8) table_ = std::make_unique<NormaliseTable>(output_);
}

void Batch::load(size_t i, SampleLoader& loader) {
    const Request& request = requests_[i];
    static const Source nothing;
    const Source& source = request.source < sources_.size() ? sources_[request.source] : nothing;
    std::string why;
    statuses_[i] = loader.load(request, source, output_, table_.get(), int64_t(i), times_[i], why);
    if (statuses_[i] != Status::kOk) keep_reason(i, std::move(why));
}

void Batch::keep_reason(size_t i, std::string why) noexcept {
    std::lock_guard<std::mutex> lock(mutex_);
    try {
        reasons_.keep(i, std::move(why));
    } catch (const std::bad_alloc&) {  // the status says it
    }
}

void Batch::finish(size_t n) {
    if (finished_.fetch_add(n, std::memory_order_acq_rel) + n < size()) return;
    std::lock_guard<std::mutex> lock(mutex_);  // a waiter is either before its check or asleep
    all_done_.notify_all();
}

bool Batch::wait_for(std::chrono::milliseconds timeout) {
    std::unique_lock<std::mutex> lock(mutex_);
    return all_done_.wait_for(lock, timeout, [&] { return done(); });
}

void Batch::skip_rest() {
    const size_t begun = std::min(next_.exchange(size(), std::memory_order_relaxed), size());
    if (begun < size()) finish(size() - begun);
}

void Batch::cancel() {
    skip_rest();
    std::unique_lock<std::mutex> lock(mutex_);
    all_done_.wait(lock, [&] { return done(); });
}

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

void Pool::submit(std::shared_ptr<Batch> batch) {
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
std::shared_ptr<Batch> Pool::next_batch(int number, const std::shared_ptr<Batch>& behind) {
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
    step_back();
    std::shared_ptr<Batch> batch;
    while ((batch = next_batch(number, batch))) {
        size_t loaded = 0;  // told once, when none is left: the batch cannot be done before, and
                            // each time costs the other threads a cache miss
        for (Batch::Claim claim;
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

std::vector<size_t> Pool::under_way(const Batch& batch) {
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
    std::deque<std::shared_ptr<Batch>> left;
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
