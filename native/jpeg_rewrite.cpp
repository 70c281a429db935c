#include "jpeg_rewrite.h"

#include <algorithm>
#include <cstdlib>

#include "jpeg_error.h"
#include "jpeg_layout.h"
#include "image_limits.h"

#include <jerror.h>

namespace fastload {
namespace {

// Coefficients of 64 megapixels, three components, 2 bytes each: 384 MB. libjpeg refuses beyond.
constexpr long kMemory = 512L << 20;

[[noreturn]] void refuse(const std::string& why) { throw BadJpeg("cannot be rewritten losslessly: " + why); }

void check_kind(const JpegHeader& header) {
    if (header.arithmetic()) refuse("arithmetic coding");
    if (header.sof != 0xC0 && header.sof != 0xC1 && header.sof != 0xC2)
        refuse("frame type SOF" + std::to_string(header.sof - 0xC0) + " (lossless or hierarchical)");
    if (header.precision != 8) refuse(std::to_string(header.precision) + " bits per sample, expected 8");
    if (header.n_components == 4) refuse(header.adobe_transform == 2 ? "YCCK, four components" : "CMYK, four components");
    if (header.n_components == 2) refuse("two components");
}

// Warnings that cannot have changed a pixel. Everything else libjpeg warns of means that it guessed.
bool is_fatal(j_common_ptr common) {
    switch (common->err->msg_code) {
        case JWRN_JFIF_MAJOR:   // an unknown JFIF version: nothing depends on it
        case JWRN_ADOBE_XFORM:  // an unknown Adobe colour code: every libjpeg takes it for YCbCr, and we write that down
            return false;
        case JWRN_EXTRANEOUS_DATA:  // between the header's markers: padding of careless writers. Behind a scan: lost image data.
            return !common->is_decompressor || reinterpret_cast<j_decompress_ptr>(common)->input_scan_number > 0;
        default: return true;
    }
}

class Rewriter {
public:
    Rewriter() {
        errors_.fatal_warning = &is_fatal;
        source_.err = target_.err = &errors_;
        if (setjmp(errors_.jump)) throw std::bad_alloc();
        jpeg_create_decompress(&source_);
        jpeg_create_compress(&target_);
        source_.mem->max_memory_to_use = target_.mem->max_memory_to_use = kMemory;
        // The scans were counted before libjpeg saw the file; this holds even if it should find more.
        guard_.progress_monitor = [](j_common_ptr common) {
            if (reinterpret_cast<j_decompress_ptr>(common)->input_scan_number > int(MAX_SCANS)) ERREXIT(common, JERR_BAD_LENGTH);
        };
        source_.progress = &guard_;
    }
    ~Rewriter() {
        jpeg_destroy_decompress(&source_);
        jpeg_destroy_compress(&target_);
        std::free(buffer_);
    }
    Rewriter(const Rewriter&) = delete;
    Rewriter& operator=(const Rewriter&) = delete;

    const RewrittenJpeg& run(const uint8_t* bytes, size_t size, const RewriteOptions& options) {
        JpegHeader header = read_jpeg_header(bytes, size);
        check_limits(header, size);
        check_kind(header);
        errors_.reset();
        result_.orientation = header.orientation;
        bool done = read_markers(bytes, size) && transcode(options);
        jpeg_abort_compress(&target_);
        jpeg_abort_decompress(&source_);
        if (!done) throw BadJpeg(errors_.text);
        finish(options);
        return result_;
    }

private:
    bool read_markers(const uint8_t* bytes, size_t size) {
        if (setjmp(errors_.jump)) return false;
        jpeg_mem_src(&source_, bytes, static_cast<unsigned long>(size));
        jpeg_read_header(&source_, TRUE);
        return true;
    }

    bool transcode(const RewriteOptions& options) {
        if (setjmp(errors_.jump)) return false;
        jvirt_barray_ptr* coefficients = jpeg_read_coefficients(&source_);
        jpeg_copy_critical_parameters(&source_, &target_);
        describe(options);
        std::free(buffer_);
        buffer_ = nullptr;
        jpeg_mem_dest(&target_, &buffer_, &buffer_size_);
        jpeg_write_coefficients(&target_, coefficients);
        jpeg_finish_compress(&target_);
        return true;
    }

    // What the new file says of itself: component ids and the one marker that leave no decoder in doubt about the colours.
    void describe(const RewriteOptions& options) {
        static const int kRgb[] = {'R', 'G', 'B'};
        bool rgb = source_.jpeg_color_space == JCS_RGB;
        for (int i = 0; i < target_.num_components; ++i) target_.comp_info[i].component_id = rgb ? kRgb[i] : i + 1;
        if (target_.num_components == 1) target_.comp_info[0].h_samp_factor = target_.comp_info[0].v_samp_factor = 1;
        target_.density_unit = 0;
        target_.X_density = target_.Y_density = 1;
        target_.optimize_coding = options.optimize ? TRUE : FALSE;
        int max_h = 1, max_v = 1;
        for (int i = 0; i < target_.num_components; ++i) {
            max_h = std::max(max_h, target_.comp_info[i].h_samp_factor);
            max_v = std::max(max_v, target_.comp_info[i].v_samp_factor);
        }
        uint32_t mcu_width = 8u * uint32_t(max_h), mcu_height = 8u * uint32_t(max_v);
        target_.restart_interval = options.restart >= 0 ? unsigned(options.restart)
            : restart_interval((target_.image_width + mcu_width - 1) / mcu_width, (target_.image_height + mcu_height - 1) / mcu_height, mcu_width);
    }

    void finish(const RewriteOptions&) {
        JpegLayout layout;
        if (!read_layout(buffer_, buffer_size_, layout)) refuse("the rewritten file has no simple structure");
        if (!layout.interval) result_.index.clear();
        else if (!find_segments(buffer_, buffer_size_, layout, result_.index)) refuse("the rewritten file lacks restart markers");
        result_.bytes = buffer_;
        result_.size = buffer_size_;
        result_.width = layout.width;
        result_.height = layout.height;
        result_.interval = layout.interval;
        result_.warning = errors_.warning;
    }

    JpegErrors errors_;
    jpeg_decompress_struct source_{};
    jpeg_compress_struct target_{};
    jpeg_progress_mgr guard_{};
    unsigned char* buffer_ = nullptr;
    unsigned long buffer_size_ = 0;
    RewrittenJpeg result_;
};

}  // namespace

uint32_t restart_interval(uint32_t mcus_per_row, uint32_t mcu_rows, uint32_t mcu_width) {
    uint32_t best = mcus_per_row;
    if (mcu_rows == 1 && mcus_per_row == 1) return 0;
    for (uint32_t n = 1; n < mcus_per_row; ++n) {
        uint32_t width = n * mcu_width;
        if (mcus_per_row % n == 0 && width >= 64 && width <= 192) best = n;
    }
    return best;
}

const RewrittenJpeg& rewrite_jpeg(const uint8_t* bytes, size_t size, const RewriteOptions& options) {
    thread_local Rewriter rewriter;
    return rewriter.run(bytes, size, options);
}

}  // namespace fastload
