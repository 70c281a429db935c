#include "jpeg/cut.h"

#include <algorithm>
#include <numeric>

#include "jpeg/layout.h"

namespace fastload {
namespace {

constexpr uint8_t kRST0 = 0xD0, kEOI = 0xD9;

// A half-open range of MCUs, rows or columns.
struct McuRange {
    uint32_t begin = 0, end = 0;
};

// Returns the MCUs that contain the pixels [start, start + length) and `margin` more on both sides,
// extended to multiples of `unit`.
McuRange cover(uint32_t start, uint32_t length, uint32_t margin, uint32_t mcu_size, uint32_t n_mcus,
               uint32_t unit) {
    uint32_t first = (start - std::min(start, margin)) / mcu_size;
    uint32_t last = (start + length - 1 + margin) / mcu_size;
    return {first / unit * unit, std::min(n_mcus, (last / unit + 1) * unit)};
}

uint32_t pixels(const McuRange& mcus, uint32_t mcu_size, uint32_t image_size) {
    return std::min(image_size, mcus.end * mcu_size) - mcus.begin * mcu_size;
}

class Cutter {
public:
    Cutter(const uint8_t* jpeg, size_t size, const uint8_t* index, size_t n_index,
           std::vector<uint8_t>& out)
        : jpeg_(jpeg),
          size_(size),
          index_(index),
          n_segments_(n_index ? n_index - 1 : 0),
          out_(out) {}

    bool run(uint32_t interval, const Roi& roi, uint32_t scale, uint32_t& x0, uint32_t& y0) {
        if (!n_segments_ || !read_layout(jpeg_, size_, layout_)) return false;
        if (!layout_.interval || layout_.interval != interval ||
            layout_.n_segments() != n_segments_)
            return false;
        if (!has_valid_ends()) return false;
        if (roi.width < 1 || roi.width > layout_.width || roi.x > layout_.width - roi.width)
            return false;
        if (roi.height < 1 || roi.height > layout_.height || roi.y > layout_.height - roi.height)
            return false;
        choose_mcus(roi, scale);
        if (columns_.end - columns_.begin == layout_.mcus_per_row &&
            rows_.end - rows_.begin == layout_.mcu_rows)
            return false;
        out_.assign(jpeg_, jpeg_ + layout_.scan_offset);
        copied_ = layout_.scan_offset;
        if (!copy_segments()) return false;
        out_.push_back(0xFF);
        out_.push_back(kEOI);
        patch_size();
        x0 = columns_.begin * layout_.mcu_width;
        y0 = rows_.begin * layout_.mcu_height;
        return true;
    }

private:
    void choose_mcus(const Roi& roi, uint32_t scale) {
        bool narrow = false, low = false;  // any component is upsampled horizontally, vertically
        for (size_t i = 0; i < layout_.n_components; ++i) {
            narrow |= layout_.h[i] != layout_.max_h;
            low |= layout_.v[i] != layout_.max_v;
        }
        // libjpeg blends each sample with the neighbor on its nearer side, so one output pixel
        // beyond the ROI is enough.
        uint32_t per_row = layout_.mcus_per_row, interval = layout_.interval;
        bool across = per_row % interval == 0;
        uint32_t unit = across ? interval : per_row;
        columns_ = cover(roi.x, roi.width, narrow ? scale : 0, layout_.mcu_width, per_row, unit);
        // With fewer than 3 samples per row, libjpeg repeats samples instead (downsampled_width > 2
        // in jdsample.c).
        while (narrow && pixels(columns_, layout_.mcu_width, layout_.width) <= 4 * scale &&
               columns_.end - columns_.begin < per_row) {
            if (columns_.begin)
                columns_.begin -= unit;
            else
                columns_.end += unit;
        }
        // The image can be cut before a row that starts a segment.
        uint32_t step = interval / std::gcd(interval, per_row);
        rows_ =
            cover(roi.y, roi.height, low ? scale : 0, layout_.mcu_height, layout_.mcu_rows, step);
    }

    bool copy_segments() {
        uint64_t per_row = layout_.mcus_per_row, interval = layout_.interval;
        if (columns_.end - columns_.begin == per_row)  // whole rows are one run
            return copy_run(size_t(rows_.begin * per_row / interval),
                            size_t((rows_.end * per_row + interval - 1) / interval));
        for (uint64_t row = rows_.begin; row < rows_.end; ++row)
            if (!copy_run(size_t((row * per_row + columns_.begin) / interval),
                          size_t((row * per_row + columns_.end) / interval)))
                return false;
        return true;
    }

    // Copies segments [first, last) and renumbers the restart markers between them.
    bool copy_run(size_t first, size_t last) {
        if (first >= last || last > n_segments_) return false;
        size_t begin = offset(first), end = offset(last) - (last < n_segments_ ? 2 : 0);
        // Runs must be in order and disjoint, so the output is never larger than the input,
        // whatever the index says.
        if (begin < copied_ || end > size_ || begin >= end) return false;
        if (first && !is_marker(begin, first)) return false;
        if (last < n_segments_ && !is_marker(end + 2, last)) return false;
        if (out_.size() > layout_.scan_offset) put_marker();
        copied_ = end;
        size_t at = out_.size();
        out_.insert(out_.end(), jpeg_ + begin, jpeg_ + end);
        for (size_t segment = first + 1, previous = begin; segment < last; ++segment) {
            size_t start = offset(segment);
            if (start < previous + 3 || start > end || !is_marker(start, segment)) return false;
            out_[at + start - begin - 1] = uint8_t(kRST0 + n_markers_++ % 8);
            previous = start;
        }
        return true;
    }

    // Returns whether the index starts and ends with the entropy-coded data. An index that is off
    // by 8 segments passes all other checks.
    bool has_valid_ends() const {
        size_t end = offset(n_segments_);
        return offset(0) == layout_.scan_offset && end < size_ && size_ - end >= 2 &&
               jpeg_[end] == 0xFF && jpeg_[end + 1] == kEOI;
    }

    void put_marker() {
        out_.push_back(0xFF);
        out_.push_back(uint8_t(kRST0 + n_markers_++ % 8));
    }

    // Returns whether the restart marker of this segment is directly before `start`.
    bool is_marker(size_t start, size_t segment) const {
        if (start < layout_.scan_offset + 2 || start > size_) return false;
        return jpeg_[start - 2] == 0xFF && jpeg_[start - 1] == kRST0 + (segment - 1) % 8;
    }

    size_t offset(size_t i) const {
        const uint8_t* entry = index_ + 4 * i;
        return size_t(entry[0]) | size_t(entry[1]) << 8 | size_t(entry[2]) << 16 |
               size_t(entry[3]) << 24;
    }

    void patch_size() {
        uint32_t height = pixels(rows_, layout_.mcu_height, layout_.height),
                 width = pixels(columns_, layout_.mcu_width, layout_.width);
        uint8_t* frame = out_.data() + layout_.frame_offset;
        frame[0] = uint8_t(height >> 8);
        frame[1] = uint8_t(height);
        frame[2] = uint8_t(width >> 8);
        frame[3] = uint8_t(width);
    }

    const uint8_t* jpeg_;
    size_t size_;
    const uint8_t* index_;
    size_t n_segments_, n_markers_ = 0, copied_ = 0;
    std::vector<uint8_t>& out_;
    JpegLayout layout_;
    McuRange columns_, rows_;
};

}  // namespace

bool cut_jpeg(const uint8_t* jpeg, size_t size, const uint8_t* index, size_t n_index,
              uint32_t interval, const Roi& roi, uint32_t scale, std::vector<uint8_t>& out,
              uint32_t& x0, uint32_t& y0) {
    x0 = y0 = 0;
    return Cutter(jpeg, size, index, n_index, out).run(interval, roi, scale, x0, y0);
}

}  // namespace fastload
