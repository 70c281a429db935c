#include "pixels/wide_resize.h"

#include <algorithm>
#include <cstring>

#include "pixels/row_writer.h"

namespace fastload {
namespace {

constexpr int64_t kHalf = int64_t(1) << (kWideWeightBits - 1);

// The weights are not negative, but may add up to slightly more than 1.
uint16_t to_pixel(int64_t sum) {
    return uint16_t(std::min<int64_t>(sum >> kWideWeightBits, 65535));
}

}  // namespace

void WideResizer::run(const ResizeJob& job, const uint8_t* pixels, ptrdiff_t stride,
                      RowWriter& out) {
    columns_.make(job.in_w, job.x0, job.x1, job.out_w, job.filter, false, job.flip,
                  TapTables::kWide);
    rows_.make(job.in_h, job.y0, job.y1, job.out_h, job.filter, false, false, TapTables::kWide);
    const size_t n = size_t(job.out_w) * size_t(job.channels);
    input_.resize(size_t(job.in_w) * size_t(job.channels));
    ring_.resize(n * size_t(rows_.width));
    row_.resize(n);
    sums_.resize(n);
    int received = 0;
    for (int y = 0; y < job.out_h; ++y) {
        const int first = rows_.first[size_t(y)];
        for (received = std::max(received, first); received < first + rows_.width; ++received)
            columns(pixels + received * stride, job.channels,
                    &ring_[n * size_t(received % rows_.width)]);
        if (rows_.width == 1) {
            out.write_wide(y, ring_.data());
        } else {
            rows(&rows_.weights[size_t(y) * size_t(rows_.width)], first, n);
            out.write_wide(y, row_.data());
        }
    }
}

void WideResizer::columns(const uint8_t* in, int channels, uint16_t* out) {
    std::memcpy(input_.data(), in, 2 * input_.size());
    if (columns_.copy) {
        std::copy(input_.begin(), input_.end(), out);
        return;
    }
    const int32_t* weight = columns_.weights.data();
    for (int i = 0; i < columns_.out; ++i, weight += columns_.width) {
        const uint16_t* from = &input_[size_t(columns_.first[size_t(i)]) * size_t(channels)];
        for (int c = 0; c < channels; ++c, ++from) {
            int64_t sum = kHalf;
            for (int j = 0; j < columns_.width; ++j) sum += int64_t(from[j * channels]) * weight[j];
            *out++ = to_pixel(sum);
        }
    }
}

// Computes row_ from the rows of the ring that start with input row `first`.
void WideResizer::rows(const int32_t* weights, int first, size_t n) {
    std::fill(sums_.begin(), sums_.end(), kHalf);
    for (int j = 0; j < rows_.width; ++j) {
        const uint16_t* from = &ring_[n * size_t((first + j) % rows_.width)];
        const int64_t weight = weights[j];
        if (weight == 0) continue;
        for (size_t i = 0; i < n; ++i) sums_[i] += from[i] * weight;
    }
    for (size_t i = 0; i < n; ++i) row_[i] = to_pixel(sums_[i]);
}

void WideResizer::release_memory() {
    for (auto* buffer : {&input_, &ring_, &row_}) std::vector<uint16_t>().swap(*buffer);
    std::vector<int64_t>().swap(sums_);
}

}  // namespace fastload
