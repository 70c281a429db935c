#include "pool/decode_batch.h"

#include <algorithm>
#include <new>

namespace fastload {
namespace {

// Chooses the number of samples per claim. A raw image is copied in a few microseconds.
// Claiming such samples one by one costs half a percent of that: the atomic increment waits for the
// preceding stores, and neighboring slots share the cache lines of statuses and times
// (benchmarks/decode.py --handover and --gains). Decoding takes much longer, so one sample per
// claim balances the end of the batch best.
size_t claim_size(const std::vector<DecodeRequest>& requests) {
    constexpr uint64_t kBytes = 256 << 10;
    constexpr size_t kMinClaims = 32;
    uint64_t bytes = 1;
    for (const DecodeRequest& request : requests) {
        if (request.codec != uint8_t(RequestCodec::kRaw)) return 1;
        const auto area = [](int32_t w, int32_t h) {
            return uint64_t(std::max(w, 0)) * uint64_t(std::max(h, 0));
        };
        bytes = std::max(
            {bytes,
             area(request.raw_w, request.raw_h) * request.raw_channels * request.raw_bits / 8,
             area(request.out_w, request.out_h)});
    }
    return size_t(
        std::clamp<uint64_t>(kBytes / bytes, 1, std::max<size_t>(requests.size() / kMinClaims, 1)));
}

}  // namespace

DecodeBatch::DecodeBatch(std::vector<DecodeRequest> requests, std::vector<SourceBytes> sources,
                         const BatchOutput& output)
    : requests_(std::move(requests)),
      sources_(std::move(sources)),
      output_(output),
      statuses_(requests_.size(), SampleStatus::kCancelled),
      times_(requests_.size()),
      claim_size_(claim_size(requests_)) {
    verified_ = std::vector<std::atomic<const uint8_t*>>(sources_.size());
    for (size_t i = 0; i < sources_.size(); ++i) {
        sources_[i].verified = &verified_[i];
        sources_[i].shared = requests_.size() > sources_.size();
    }
    if (output_.dtype != Dtype::kUint8) table_ = std::make_unique<NormalizeTable>(output_);
}

DecodeBatch::~DecodeBatch() {
    for (size_t i = 0; i < sources_.size(); ++i)
        if (!sources_[i].bytes) delete[] verified_[i].load(std::memory_order_relaxed);
}

void DecodeBatch::load(size_t i, SampleLoader& loader) {
    const DecodeRequest& request = requests_[i];
    static const SourceBytes nothing;
    const SourceBytes& source =
        request.source < sources_.size() ? sources_[request.source] : nothing;
    std::string error;
    statuses_[i] =
        loader.load(request, source, output_, table_.get(), int64_t(i), times_[i], error);
    if (statuses_[i] != SampleStatus::kOk) store_reason(i, std::move(error));
}

void DecodeBatch::store_reason(size_t i, std::string error) noexcept {
    std::lock_guard<std::mutex> lock(mutex_);
    try {
        reasons_.keep(i, std::move(error));
    } catch (const std::bad_alloc&) {  // The status still reports the failure.
    }
}

void DecodeBatch::finish(size_t n) {
    if (finished_.fetch_add(n, std::memory_order_acq_rel) + n < size()) return;
    // a waiter has either not checked yet or is already waiting
    std::lock_guard<std::mutex> lock(mutex_);
    all_done_.notify_all();
}

bool DecodeBatch::wait_for(std::chrono::milliseconds timeout) {
    std::unique_lock<std::mutex> lock(mutex_);
    return all_done_.wait_for(lock, timeout, [&] { return done(); });
}

void DecodeBatch::cancel_unclaimed() {
    const size_t begun = std::min(next_.exchange(size(), std::memory_order_relaxed), size());
    if (begun < size()) finish(size() - begun);
}

void DecodeBatch::cancel() {
    cancel_unclaimed();
    std::unique_lock<std::mutex> lock(mutex_);
    all_done_.wait(lock, [&] { return done(); });
}

}  // namespace fastload
