#include "jpeg/rewrite.h"

#include <jerror.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <new>
#include <numeric>

#include "jpeg/coefficients.h"
#include "jpeg/image_limits.h"
#include "jpeg/layout.h"
#include "jpeg/libjpeg_errors.h"
#include "jpeg/markers.h"
#include "jpeg/restart_interval.h"
#include "jpeg/scan_copier.h"
#include "jpeg/symbol_list.h"
#include "jpeg/symbol_reader.h"
#include "jpeg/symbol_writer.h"

namespace fastload {
namespace {

// Enough for the coefficients of 64 megapixels with three components of 2 bytes: 384 MB.
constexpr long kMaxMemory = 512L << 20;
constexpr size_t kKeepBytes = size_t(4) << 20;  // per buffer that a thread keeps between images

[[noreturn]] void refuse(const std::string& error) {
    throw BadJpeg("cannot be rewritten without loss: " + error);
}

void check_kind(const JpegHeader& header) {
    if (header.arithmetic()) refuse("arithmetic coding");
    if (header.sof != 0xC0 && header.sof != 0xC1 && header.sof != 0xC2)
        refuse("frame type SOF" + std::to_string(header.sof - 0xC0) +
               " (lossless or hierarchical)");
    if (header.precision != 8)
        refuse(std::to_string(header.precision) + " bits per sample, expected 8");
    if (header.n_components == 4)
        refuse(header.adobe_transform == 2 ? "YCCK, four components" : "CMYK, four components");
    if (header.n_components == 2) refuse("two components");
}

// Returns false for warnings that cannot affect a pixel. All other warnings mean that libjpeg
// guessed. That includes bytes between the markers of the header: they may be padding, but also a
// damaged table or color marker (after one flipped bit in a DHT marker, libjpeg continued with the
// standard table).
bool is_fatal(j_common_ptr common) {
    switch (common->err->msg_code) {
        case JWRN_JFIF_MAJOR:  // unknown JFIF version: has no effect
        // Unknown Adobe color code: libjpeg assumes YCbCr, and the new file declares it.
        case JWRN_ADOBE_XFORM:
            return false;
        default:
            return true;
    }
}

uint32_t divide_up(uint32_t value, uint32_t by) {
    return (value + by - 1) / by;
}

class Rewriter {
public:
    Rewriter() {
        errors_.fatal_warning = &is_fatal;
        source_.err = target_.err = &errors_;
        // The scans were counted before libjpeg reads the file. This limits them even if libjpeg
        // finds more.
        guard_.progress_monitor = [](j_common_ptr common) {
            if (reinterpret_cast<j_decompress_ptr>(common)->input_scan_number > int(MAX_SCANS))
                ERREXIT(common, JERR_BAD_LENGTH);
        };
    }
    ~Rewriter() {
        close();
        std::free(allocated_);
    }
    Rewriter(const Rewriter&) = delete;
    Rewriter& operator=(const Rewriter&) = delete;

    // Parses the header. Throws BadJpeg.
    void start(const uint8_t* bytes, size_t size, const RewriteOptions& options) {
        JpegHeader header = read_jpeg_header(bytes, size);
        check_limits(header, size);
        check_kind(header);
        errors_.reset();
        release();
        result_.index.clear();
        is_open_ = true;
        if (!read_markers(bytes, size)) fail();
        set_frame(header, options);
        optimize_ = options.optimize;
        flip_ = options.orient && can_flip(frame_, header.orientation);
        result_.orientation = flip_ ? 1 : header.orientation;
        result_.n_components = header.n_components;
        result_.common = is_common(header);
        path_ = Path::kCoefficients;
        if (!options.fast || !optimize_ || flip_ || !plan_scan()) return;
        const uint8_t* data = source_.src->next_input_byte;
        const size_t n_bytes = source_.src->bytes_in_buffer;
        if (options.keep_tables && ScanCopier::may_copy(shape_, n_bytes) &&
            copier_.start(data, n_bytes, shape_))
            path_ = Path::kCopy;
        else if (scan_.start(data, n_bytes, shape_, symbols_))
            path_ = Path::kSymbols;
    }

    // Reads two scans at the same time to the end of one of them, if both are on the same path.
    static void read_together(Rewriter& one, Rewriter& other) {
        if (one.path_ != other.path_ || !one.has_more() || !other.has_more()) return;
        if (one.path_ == Path::kCopy)
            ScanCopier::read_together(one.copier_, other.copier_);
        else
            ScanReader::read_together(one.scan_, other.scan_);
    }
    // Whether a part of the scan is left for read_together().
    bool has_more() const {
        return path_ == Path::kCopy      ? copier_.has_more()
               : path_ == Path::kSymbols ? scan_.has_more()
                                         : false;
    }

    // Writes the new image. Throws BadJpeg.
    const RewrittenJpeg& complete() {
        if (!(path_ == Path::kCopy && copy_scan()) &&
            !(path_ == Path::kSymbols && rewrite_symbols()) &&
            !rewrite_coefficients(flip_, optimize_))
            fail();
        finish();
        close();
        return result_;
    }

    // Frees what start() created; also after an exception.
    // The libjpeg objects are created for each image, which takes a few microseconds. A reused
    // decoder keeps the tables of the previous image, and a file without tables would be read with
    // them. A reused encoder keeps its Huffman tables, too.
    void close() {
        if (!is_open_) return;
        is_open_ = false;
        path_ = Path::kCoefficients;
        jpeg_destroy_decompress(&source_);
        jpeg_destroy_compress(&target_);
    }

private:
    void release() {
        std::free(allocated_);
        allocated_ = nullptr;
        allocated_size_ = 0;
        buffer_.shrink(kKeepBytes);
        buffer_.clear();
        symbols_.shrink(kKeepBytes);
        copier_.shrink(kKeepBytes);
    }

    // Throws the error of libjpeg. Insufficient memory is not an error of the image: a pack run
    // that skips bad images must not lose it.
    [[noreturn]] void fail() const {
        if (errors_.msg_code == JERR_OUT_OF_MEMORY) throw std::bad_alloc();
        throw BadJpeg(errors_.text);
    }

    bool read_markers(const uint8_t* bytes, size_t size) {
        if (setjmp(errors_.jump)) return false;
        jpeg_create_decompress(&source_);
        source_.mem->max_memory_to_use = kMaxMemory;
        source_.progress = &guard_;
        jpeg_mem_src(&source_, bytes, static_cast<unsigned long>(size));
        jpeg_read_header(&source_, TRUE);
        return true;
    }

    // Fills in the header of the new file. Component ids and the color marker define the colors for
    // every decoder.
    void set_frame(const JpegHeader& header, const RewriteOptions& options) {
        static const uint8_t ids[2][3] = {{1, 2, 3}, {'R', 'G', 'B'}};
        frame_ = {};
        frame_.width = source_.image_width;
        frame_.height = source_.image_height;
        frame_.rgb = source_.jpeg_color_space == JCS_RGB;
        frame_.n_components = uint32_t(source_.num_components);
        uint32_t max_h = 1, max_v = 1;
        for (uint32_t i = 0; i < frame_.n_components; ++i) {
            const jpeg_component_info& old = source_.comp_info[i];
            // The sampling factors of a gray image have no meaning. Every decoder accepts 1x1.
            bool gray = frame_.n_components == 1;
            frame_.components[i] = {ids[frame_.rgb][i], uint8_t(gray ? 1 : old.h_samp_factor),
                                    uint8_t(gray ? 1 : old.v_samp_factor),
                                    uint8_t(old.quant_tbl_no), uint8_t(!frame_.rgb && i > 0)};
            max_h = std::max<uint32_t>(max_h, frame_.components[i].h);
            max_v = std::max<uint32_t>(max_v, frame_.components[i].v);
        }
        mcus_per_row_ = divide_up(frame_.width, 8 * max_h);
        mcu_rows_ = divide_up(frame_.height, 8 * max_v);
        frame_.interval = options.restart >= 0
                              ? uint32_t(options.restart)
                              : restart_interval(mcus_per_row_, mcu_rows_,
                                                 header.end_offset - header.scan_offset);
    }

    // Keeps the Huffman tables of a file with one regular scan. Returns false if that is not
    // possible, and libjpeg decides.
    bool copy_scan() {
        HuffmanCode codes[kTables];
        if (!copier_.finish(codes)) return false;
        put_markers(buffer_, frame_, codes);
        copier_.write(codes, buffer_, result_.index);
        end_image();
        return true;
    }

    // The same with optimal tables: converts Huffman symbols directly.
    bool rewrite_symbols() {
        HuffmanCode codes[kTables];
        if (!scan_.finish() || !make_codes(codes)) return false;
        put_markers(buffer_, frame_, codes);
        if (!write_symbols(symbols_, codes, buffer_, result_.index)) return false;
        end_image();
        return true;
    }

    void end_image() {
        buffer_.put16(0xFFD9);
        result_.bytes = buffer_.data();
        result_.size = buffer_.size();
    }

    bool make_codes(HuffmanCode codes[kTables]) const {
        for (size_t table = 0; table < kTables; ++table)
            if ((table % 2 == 0 || (frame_.n_components == 3 && !frame_.rgb)) &&
                !make_optimal_code(symbols_.symbol_counts(table), codes[table]))
                return false;
        return true;
    }

    bool plan_scan() {
        if (source_.progressive_mode || source_.arith_code ||
            source_.comps_in_scan != source_.num_components)
            return false;
        if (source_.Ss != 0 || source_.Se != 63 || source_.Ah != 0 || source_.Al != 0) return false;
        shape_ = {};
        shape_.n_components = frame_.n_components;
        shape_.mcus_per_row = mcus_per_row_;
        shape_.mcu_rows = mcu_rows_;
        shape_.old_interval = source_.restart_interval;
        shape_.new_interval = frame_.interval;
        for (uint32_t i = 0; i < shape_.n_components; ++i) {
            const jpeg_component_info* old = source_.cur_comp_info[i];
            if (old != &source_.comp_info[i])
                return false;  // the scan has another order than the frame
            const JHUFF_TBL *dc = table(source_.dc_huff_tbl_ptrs, old->dc_tbl_no),
                            *ac = table(source_.ac_huff_tbl_ptrs, old->ac_tbl_no);
            if (!dc || !ac || old->quant_tbl_no < 0 || old->quant_tbl_no >= NUM_QUANT_TBLS ||
                !source_.quant_tbl_ptrs[old->quant_tbl_no])
                return false;
            frame_.quantization[old->quant_tbl_no] =
                source_.quant_tbl_ptrs[old->quant_tbl_no]->quantval;
            const JpegFrame::Component& component = frame_.components[i];
            shape_.components[i] = {component.h,
                                    component.v,
                                    old->width_in_blocks,
                                    old->height_in_blocks,
                                    component.huffman,
                                    copy_code(codes_[old->dc_tbl_no], *dc),
                                    copy_code(codes_[NUM_HUFF_TBLS + old->ac_tbl_no], *ac)};
        }
        static_assert(kMaxBlocks == D_MAX_BLOCKS_IN_MCU);
        return shape_.n_blocks() <= kMaxBlocks;
    }

    static const JHUFF_TBL* table(JHUFF_TBL* const* tables, int number) {
        return number >= 0 && number < NUM_HUFF_TBLS ? tables[number] : nullptr;
    }

    static const HuffmanCode* copy_code(HuffmanCode& code, const JHUFF_TBL& from) {
        code = {};
        std::copy_n(from.bits + 1, 16, code.lengths + 1);
        std::copy_n(from.huffval, 256, code.symbols);
        return &code;
    }

    // The libjpeg path, through the coefficients: for progressive files, several scans and anything
    // unusual.
    bool rewrite_coefficients(bool flip, bool optimize) {
        if (setjmp(errors_.jump)) return false;
        jpeg_create_compress(&target_);
        target_.mem->max_memory_to_use = kMaxMemory;
        jvirt_barray_ptr* coefficients = jpeg_read_coefficients(&source_);
        if (!is_complete(source_)) {
            std::strcpy(errors_.text, "incomplete JPEG: scans are missing");
            return false;
        }
        if (flip) flip_vertically(source_, coefficients);
        jpeg_copy_critical_parameters(&source_, &target_);
        for (int i = 0; i < target_.num_components; ++i) {
            target_.comp_info[i].component_id = frame_.components[i].id;
            target_.comp_info[i].h_samp_factor = frame_.components[i].h;
            target_.comp_info[i].v_samp_factor = frame_.components[i].v;
        }
        target_.JFIF_major_version = target_.JFIF_minor_version = 1;
        target_.density_unit = 0;
        target_.X_density = target_.Y_density = 1;
        target_.optimize_coding = optimize ? TRUE : FALSE;
        target_.restart_interval = frame_.interval;
        jpeg_mem_dest(&target_, &allocated_, &allocated_size_);
        jpeg_write_coefficients(&target_, coefficients);
        jpeg_finish_compress(&target_);
        result_.bytes = allocated_;
        result_.size = allocated_size_;
        return true;
    }

    void finish() {
        if (result_.size > UINT32_MAX) refuse("the new file exceeds 4 GiB");
        JpegLayout layout;
        bool simple = read_layout(result_.bytes, result_.size, layout);
        if (frame_.interval && result_.index.empty())
            simple = simple && find_segments(result_.bytes, result_.size, layout, result_.index);
        if (!simple) refuse("the new file is not one scan with regular restart markers");
        if (!frame_.interval) result_.index.clear();
        result_.width = frame_.width;
        result_.height = frame_.height;
        result_.interval = frame_.interval;
        result_.warning = errors_.warning;
    }

    JpegErrors errors_;
    jpeg_decompress_struct source_{};
    jpeg_compress_struct target_{};
    jpeg_progress_mgr guard_{};
    JpegFrame frame_;
    ScanShape shape_;
    uint32_t mcus_per_row_ = 0, mcu_rows_ = 0;
    bool is_open_ = false, flip_ = false, optimize_ = false;
    enum class Path { kCoefficients, kSymbols, kCopy } path_ = Path::kCoefficients;
    HuffmanCode codes_[2 * NUM_HUFF_TBLS];
    SymbolList symbols_;
    ScanReader scan_;
    ScanCopier copier_;
    ByteBuffer buffer_;
    unsigned char* allocated_ = nullptr;  // allocated by libjpeg
    unsigned long allocated_size_ = 0;
    RewrittenJpeg result_;
};

// Two, because two scans are read at the same time.
Rewriter* rewriters() {
    thread_local Rewriter rewriters[2];
    return rewriters;
}

}  // namespace

const RewrittenJpeg& rewrite_jpeg(const uint8_t* bytes, size_t size,
                                  const RewriteOptions& options) {
    Rewriter& rewriter = rewriters()[0];
    rewriter.close();
    rewriter.start(bytes, size, options);
    return rewriter.complete();
}

void rewrite_jpegs(const std::vector<JpegBytes>& jpegs, const RewriteOptions& options,
                   const std::function<void(size_t, const RewrittenJpeg*)>& each) {
    // The largest first, so that only a small one is read alone at the end.
    std::vector<size_t> waiting(jpegs.size());
    std::iota(waiting.begin(), waiting.end(), size_t(0));
    std::sort(waiting.begin(), waiting.end(),
              [&](size_t a, size_t b) { return jpegs[a].size < jpegs[b].size; });
    Rewriter* const lanes = rewriters();
    size_t numbers[2];
    bool active[2] = {};
    const auto start = [&](int lane) {
        numbers[lane] = waiting.back();
        waiting.pop_back();
        const JpegBytes& jpeg = jpegs[numbers[lane]];
        lanes[lane].close();
        try {
            lanes[lane].start(jpeg.bytes, jpeg.size, options);
            active[lane] = true;
        } catch (const BadJpeg&) {
            each(numbers[lane], nullptr);
        }
    };
    const auto complete = [&](int lane) {
        const RewrittenJpeg* result = nullptr;
        try {
            result = &lanes[lane].complete();
        } catch (const BadJpeg&) {
        }
        active[lane] = false;
        each(numbers[lane], result);
    };
    for (;;) {
        for (int lane = 0; lane < 2; ++lane)
            while (!active[lane] && !waiting.empty()) start(lane);
        if (active[0] && active[1]) {
            Rewriter::read_together(lanes[0], lanes[1]);
            complete(lanes[0].has_more() ? 1 : 0);
        } else if (active[0] || active[1]) {
            complete(active[0] ? 0 : 1);
        } else {
            return;
        }
    }
}

}  // namespace fastload
