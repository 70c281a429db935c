#include "pixels/row_writer.h"

#include <algorithm>
#include <cstring>

#include "cpu/simd.h"

namespace fastload {
namespace {

// Looks up n pixel values, `step` bytes apart, and stores the results `stride` bytes apart.
template <typename Item>
void look_up(const uint8_t* row, int step, const uint32_t* values, uint8_t* to, ptrdiff_t stride,
             int n) {
    for (int i = 0; i < n; ++i, row += step, to += stride) {
        Item item = Item(values[*row]);
        std::memcpy(to, &item, sizeof item);
    }
}

// The weights of libjpeg and Pillow. The sum of 16-bit pixels fits 32 bits.
template <typename Pixel>
Pixel luma(const Pixel* rgb) {
    return Pixel((19595u * rgb[0] + 38470u * rgb[1] + 7471u * rgb[2] + 32768u) >> 16);
}

void split3(const uint8_t* row, uint8_t* const planes[3], size_t n, [[maybe_unused]] bool vector) {
#ifdef FASTLOAD_X86
    if (vector) return detail::split3_avx2(row, planes[0], planes[1], planes[2], n);
#endif
    detail::split3_portable(row, planes[0], planes[1], planes[2], n);
}

// Fills the rectangle [left, right) x [top, bottom) of a slot with the fill color.
void fill_rectangle(const BatchOutput& output, const NormalizeTable* table, uint8_t* slot,
                    ptrdiff_t left, ptrdiff_t right, ptrdiff_t top, ptrdiff_t bottom) {
    for (int channel = 0; channel < output.channels; ++channel) {
        const uint32_t item = table ? table->fill(channel) : output.fill[channel];
        const size_t size = output.item_size();
        for (ptrdiff_t y = top; y < bottom; ++y) {
            uint8_t* to = slot + y * output.row_stride + left * output.pixel_stride +
                          channel * output.channel_stride;
            if (size == 1 && output.pixel_stride == 1) {
                std::memset(to, int(item), size_t(std::max<ptrdiff_t>(right - left, 0)));
                continue;
            }
            for (ptrdiff_t x = left; x < right; ++x, to += output.pixel_stride) {
                if (size == 1)
                    *to = uint8_t(item);
                else if (size == 2) {
                    uint16_t half = uint16_t(item);
                    std::memcpy(to, &half, 2);
                } else
                    std::memcpy(to, &item, 4);
            }
        }
    }
}

}  // namespace

void RowWriter::begin(const BatchOutput& output, const NormalizeTable* table, int64_t slot,
                      int left, int top, int width, int height, int channels, bool swap_red_blue) {
    output_ = &output;
    table_ = table;
    slot_ = output.memory + slot * output.slot_stride;
    left_ = left;
    top_ = top;
    width_ = width;
    height_ = height;
    channels_ = channels;
    swap_ = swap_red_blue && channels == 3;
    vector_ = use_avx2() && output.bits == 8;
    const auto item = ptrdiff_t(output.item_size());
    contiguous_planes_ = output.pixel_stride == item;
    contiguous_pixels_ =
        output.channels == 3 && output.channel_stride == item && output.pixel_stride == 3 * item;
    direct_ = output.dtype == Dtype::kUint8 && channels == output.channels && !swap_ &&
              output.pixel_stride == channels && (channels == 1 || output.channel_stride == 1);
}

void RowWriter::write(int y, const uint8_t* row) {
    if (direct_) {
        std::memcpy(place(y, 0), row, size_t(width_) * size_t(channels_));
        return;
    }
    if (channels_ == 3 && output_->channels == 1) {
        gray_.resize(size_t(width_));
        for (int i = 0; i < width_; ++i) {
            const uint8_t* pixel = row + 3 * i;
            gray_[size_t(i)] = luma(pixel);
        }
        write_plane(place(y, 0), gray_.data(), 1, 0);
        return;
    }
    const bool bytes = output_->dtype == Dtype::kUint8;
    if (channels_ == 3 && output_->channels == 3 && contiguous_planes_ && (bytes || vector_)) {
        if (!bytes) split_.resize(3 * size_t(width_));
        uint8_t* planes[3];
        for (int channel = 0; channel < 3; ++channel)
            planes[swap_ ? 2 - channel : channel] =
                bytes ? place(y, channel) : &split_[size_t(channel * width_)];
        split3(row, planes, size_t(width_), vector_);
        for (int channel = 0; channel < 3 && !bytes; ++channel)
            write_plane(place(y, channel), &split_[size_t(channel * width_)], 1, channel);
        return;
    }
    if (channels_ == 3 && contiguous_pixels_ && !bytes && !swap_ && vector_) {
        write_contiguous(place(y, 0), row, 3 * size_t(width_), NormalizeTable::kInterleaved);
        return;
    }
    const bool widen = output_->color == Color::kStored && channels_ < output_->channels;
    for (int channel = 0; channel < output_->channels; ++channel) {
        const int from = widen ? channel : channels_ == 1 ? 0 : swap_ ? 2 - channel : channel;
        if (from < channels_)
            write_plane(place(y, channel), row + from, channels_, channel);
        else
            write_plane(place(y, channel), zeros(size_t(width_)), 1, channel);
    }
}

void RowWriter::write_wide(int y, const uint16_t* row) {
    if (output_->bits == 8) {  // the upper byte, as torchvision and Pillow convert
        narrow_.resize(size_t(width_) * size_t(channels_));
        for (size_t i = 0; i < narrow_.size(); ++i) narrow_[i] = uint8_t(row[i] >> 8);
        write(y, narrow_.data());
        return;
    }
    int step = channels_;
    if (channels_ == 3 && output_->channels == 1) {
        wide_gray_.resize(size_t(width_));
        for (int i = 0; i < width_; ++i) wide_gray_[size_t(i)] = luma(row + 3 * i);
        row = wide_gray_.data();
        step = 1;
    }
    for (int channel = 0; channel < output_->channels; ++channel) {
        const int from = step == 1 ? 0 : swap_ ? 2 - channel : channel;
        table_->write_wide(row + from, step, width_, channel, place(y, channel),
                           output_->pixel_stride);
    }
}

// Copies rows without gaps on both sides at once: the C library copies a large block faster than
// many small ones (raw 128x128, benchmarks/decode.py --stages).
void RowWriter::write_rows(int y, const uint8_t* rows, ptrdiff_t stride, int n) {
    const ptrdiff_t bytes = ptrdiff_t(width_) * channels_;
    if (direct_ && stride == bytes && output_->row_stride == bytes) {
        std::memcpy(place(y, 0), rows, size_t(bytes) * size_t(n));
        return;
    }
    for (int i = 0; i < n; ++i) write(y + i, rows + i * stride);
}

// Zeros for the upper bytes of numbers that are stored in fewer bytes than the output has.
const uint8_t* RowWriter::zeros(size_t n) {
    if (zeros_.size() < n) zeros_.resize(n);
    return zeros_.data();
}

void RowWriter::write_plane(uint8_t* to, const uint8_t* row, int step, int channel) const {
    const ptrdiff_t stride = output_->pixel_stride;
    if (vector_ && output_->dtype != Dtype::kUint8 && contiguous_planes_ && step == 1) {
        write_contiguous(to, row, size_t(width_), channel);
        return;
    }
    switch (output_->dtype) {
        case Dtype::kUint8:
            if (stride == 1 && step == 1)
                std::memcpy(to, row, size_t(width_));
            else
                for (int i = 0; i < width_; ++i, row += step, to += stride) *to = *row;
            break;
        case Dtype::kFloat32:
            look_up<uint32_t>(row, step, table_->values(channel), to, stride, width_);
            break;
        case Dtype::kUint16:
        case Dtype::kFloat16:
        case Dtype::kBfloat16:
            look_up<uint16_t>(row, step, table_->values(channel), to, stride, width_);
            break;
    }
}

// `channel` may be NormalizeTable::kInterleaved for whole pixels.
void RowWriter::write_contiguous(uint8_t* to, const uint8_t* pixels, size_t n, int channel) const {
    size_t done = 0;
#ifdef FASTLOAD_X86
    done = detail::normalize_avx2(pixels, n, table_->pattern(channel), output_->dtype, to);
#endif
    const size_t size = output_->item_size();
    for (; done < n; ++done) {
        const uint32_t item = table_->values(
            channel == NormalizeTable::kInterleaved ? int(done % 3) : channel)[pixels[done]];
        std::memcpy(to + done * size, &item, size);  // the low half on a little-endian processor
    }
}

void RowWriter::fill_borders() {
    const ptrdiff_t right = left_ + width_, bottom = top_ + height_, full = output_->width;
    if (top_ > 0) fill_rectangle(*output_, table_, slot_, 0, full, 0, top_);
    if (bottom < output_->height)
        fill_rectangle(*output_, table_, slot_, 0, full, bottom, output_->height);
    if (left_ > 0) fill_rectangle(*output_, table_, slot_, 0, left_, top_, bottom);
    if (right < full) fill_rectangle(*output_, table_, slot_, right, full, top_, bottom);
}

void RowWriter::fill_slot(const BatchOutput& output, const NormalizeTable* table, int64_t slot) {
    fill_rectangle(output, table, output.memory + slot * output.slot_stride, 0, output.width, 0,
                   output.height);
}

namespace detail {

void split3_portable(const uint8_t* in, uint8_t* a, uint8_t* b, uint8_t* c, size_t n) {
    for (size_t i = 0; i < n; ++i, in += 3) a[i] = in[0], b[i] = in[1], c[i] = in[2];
}

}  // namespace detail
}  // namespace fastload
