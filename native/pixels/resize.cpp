#include "pixels/resize.h"

#include <algorithm>
#include <cstring>

#include "cpu/simd.h"
#include "pixels/row_writer.h"

namespace fastload {
namespace {

constexpr int32_t kHalf = 1 << (kWeightBits - 1);

uint8_t to_byte(int32_t sum) {
    return uint8_t(std::clamp(sum >> kWeightBits, 0, 255));
}

}  // namespace

void Resizer::begin(const ResizeJob& job) {
    job_ = job;
    TapTables columns = TapTables::kNone, rows = TapTables::kNone;
    if (use_avx2() && job.filter != Filter::kNearest) {
        rows = use_avx512() ? TapTables::kQuads : TapTables::kBytePairs;
        if (job.channels == 1) columns = TapTables::kEights;
        if (job.channels == 3)
            columns = use_avx512() ? TapTables::kQuadColumns : TapTables::kPairColumns;
    }
    columns_.make(job.in_w, job.x0, job.x1, job.out_w, job.filter, job.scaled, job.flip, columns);
    rows_.make(job.in_h, job.y0, job.y1, job.out_h, job.filter, job.scaled, false, rows);
    received_ = next_out_ = 0;
    ring_rows_ = rows_.copy ? kStripRows : rows_.width + kStripRows;
    ring_stride_ = (size_t(job.out_w) * size_t(job.channels) + kRowPadding + 31) / 32 * 32;
    if (ring_.size() < ring_stride_ * size_t(ring_rows_))
        ring_.resize(ring_stride_ * size_t(ring_rows_));
    if (row_.size() < ring_stride_) row_.resize(ring_stride_);
    sources_.resize(size_t(rows_.width));
}

void Resizer::release_memory() {
    std::vector<uint8_t>().swap(ring_);
    std::vector<uint8_t>().swap(row_);
}

void Resizer::push(const uint8_t* pixels, ptrdiff_t stride, int n, RowWriter& out) {
    if (is_identity()) {
        out.write_rows(next_out_, pixels, stride, n);
        next_out_ += n;
        return;
    }
    if (job_.filter == Filter::kNearest) return push_nearest(pixels, stride, n, out);
    for (int done = 0; done < n; done += kStripRows) {
        columns(pixels + done * stride, stride, std::min(kStripRows, n - done));
        emit(out);
    }
}

void Resizer::push_nearest(const uint8_t* pixels, ptrdiff_t stride, int n, RowWriter& out) {
    const int begin = received_;
    received_ += n;
    const size_t channels = size_t(job_.channels);
    int filled = -1;  // input row in row_: enlarging repeats rows
    while (next_out_ < job_.out_h && rows_.first[size_t(next_out_)] < received_) {
        const int y = rows_.first[size_t(next_out_)];
        const uint8_t* in = pixels + (y - begin) * stride;
        if (filled != y) {
            uint8_t* to = row_.data();
            const int32_t* x = columns_.first.data();
            if (channels == 1) {
                for (int i = 0; i < job_.out_w; ++i) to[i] = in[x[i]];
            } else {
                for (int i = 0; i < job_.out_w; ++i, to += channels)
                    std::memcpy(to, in + size_t(x[i]) * channels, channels);
            }
            filled = y;
        }
        out.write(next_out_++, row_.data());
    }
}

void Resizer::columns(const uint8_t* pixels, ptrdiff_t stride, int n) {
    const size_t bytes = size_t(job_.out_w) * size_t(job_.channels);
#ifdef FASTLOAD_X86
    if (!columns_.copy && (columns_.tables == TapTables::kQuadColumns ||
                           columns_.tables == TapTables::kPairColumns)) {
        columns_in_groups(pixels, stride, n);
        received_ += n;
        return;
    }
#endif
    for (int i = 0; i < n; ++i, ++received_) {
        const uint8_t* in = pixels + i * stride;
        uint8_t* to = ring_row(received_);
        if (columns_.copy) {
            std::memcpy(to, in, bytes);
#ifdef FASTLOAD_X86
        } else if (columns_.tables == TapTables::kEights) {
            const bool two = i + 1 < n;  // otherwise process the same row twice
            detail::columns_gray_avx2(in, two ? in + stride : in, to,
                                      two ? ring_row(received_ + 1) : to, columns_);
            i += two;
            received_ += two;
#endif
        } else {
            detail::columns_portable(in, to, columns_, job_.channels);
        }
    }
}

#ifdef FASTLOAD_X86
// Processes four rows at a time, in blocks of pixel groups whose table stays in the L1 cache for
// all rows.
void Resizer::columns_in_groups(const uint8_t* pixels, ptrdiff_t stride, int n) {
    constexpr size_t kTableBytes = 16384;
    const auto kernel = columns_.tables == TapTables::kQuadColumns ? detail::columns_rgb_avx512
                                                                   : detail::columns_rgb_avx2;
    const int groups = columns_.groups(),
              some = std::max(1, int(kTableBytes / (columns_.group_words() * 4)));
    for (int begin = 0; begin < groups; begin += some) {
        for (int i = 0; i < n; i += 4) {
            const uint8_t* from[4];
            uint8_t* to[4];
            for (int k = 0; k < 4; ++k) {
                // Repeat the last row if there are fewer than four.
                const int row = std::min(i + k, n - 1);
                from[k] = pixels + row * stride;
                to[k] = ring_row(received_ + row);
            }
            kernel(from, to, columns_, begin, std::min(begin + some, groups));
        }
    }
}
#endif

void Resizer::emit(RowWriter& out) {
    const size_t bytes = size_t(job_.out_w) * size_t(job_.channels);
    for (; next_out_ < job_.out_h; ++next_out_) {
        if (rows_.copy) {
            if (next_out_ >= received_) return;
            out.write(next_out_, ring_row(next_out_));
            continue;
        }
        const int start = rows_.first[size_t(next_out_)];
        if (std::min(start + rows_.width, rows_.in) > received_) return;
        // With fewer inputs than weights, the remaining weights are 0 and any row may be read for
        // them.
        for (int j = 0; j < rows_.width; ++j)
            sources_[size_t(j)] = ring_row(std::min(start + j, rows_.in - 1));
        uint8_t* direct = out.direct(next_out_);
        uint8_t* to = direct ? direct : row_.data();
#ifdef FASTLOAD_X86
        if (rows_.tables == TapTables::kQuads)
            detail::rows_avx512(sources_.data(), rows_, next_out_, to, bytes);
        else if (rows_.tables == TapTables::kBytePairs && (!direct || bytes >= 32))
            detail::rows_avx2(sources_.data(), rows_, next_out_, to, std::max<size_t>(bytes, 32));
        else
#endif
            detail::rows_portable(sources_.data(),
                                  &rows_.weights[size_t(next_out_) * size_t(rows_.width)],
                                  rows_.width, to, bytes);
        if (!direct) out.write(next_out_, to);
    }
}

namespace detail {

void columns_portable(const uint8_t* in, uint8_t* out, const Taps& columns, int channels) {
    const int32_t* weight = columns.weights.data();
    // In very narrow images the width is rounded up beyond the input, with weights of 0. Do not
    // read there.
    const int taps = std::min(columns.width, columns.in);
    for (int i = 0; i < columns.out; ++i, weight += columns.width) {
        const uint8_t* from = in + ptrdiff_t(columns.first[size_t(i)]) * channels;
        if (channels == 3) {
            int32_t r = kHalf, g = kHalf, b = kHalf;
            for (int j = 0; j < taps; ++j, from += 3) {
                r += from[0] * weight[j];
                g += from[1] * weight[j];
                b += from[2] * weight[j];
            }
            out[0] = to_byte(r), out[1] = to_byte(g), out[2] = to_byte(b);
            out += 3;
        } else {
            for (int c = 0; c < channels; ++c) {
                int32_t sum = kHalf;
                for (int j = 0; j < taps; ++j) sum += from[j * channels + c] * weight[j];
                *out++ = to_byte(sum);
            }
        }
    }
}

void rows_portable(const uint8_t* const* in, const int32_t* weights, int taps, uint8_t* out,
                   size_t n) {
    constexpr size_t kBlock = 256;  // the sums of a block stay in registers and L1 cache
    for (size_t begin = 0; begin < n; begin += kBlock) {
        const size_t size = std::min(kBlock, n - begin);
        int32_t sums[kBlock];
        std::fill(sums, sums + size, kHalf);
        for (int j = 0; j < taps; ++j) {
            const uint8_t* from = in[j] + begin;
            const int32_t weight = weights[j];
            for (size_t i = 0; i < size; ++i) sums[i] += from[i] * weight;
        }
        for (size_t i = 0; i < size; ++i) out[begin + i] = to_byte(sums[i]);
    }
}

}  // namespace detail
}  // namespace fastload
