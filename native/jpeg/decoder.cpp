#include "jpeg/decoder.h"

#include <jerror.h>

#include <algorithm>
#include <new>

#include "jpeg/coefficients.h"
#include "jpeg/entropy_hook.h"
#include "jpeg/header.h"
#include "jpeg/image_limits.h"

namespace fastload {
namespace {

constexpr UINT16 kStaleQuantization = 0xABCD;
constexpr UINT8 kStaleCode = 255;  // in bits[0], which libjpeg sets to 0 and never uses

// A separate function: variables that change after setjmp must not be in the frame of the caller.
bool read_rows(jpeg_decompress_struct& decoder, uint8_t* rows, ptrdiff_t stride, int n) {
    constexpr int kMost = 16;
    JSAMPROW pointers[kMost];
    while (n > 0) {
        const int some = std::min(n, kMost);
        for (int i = 0; i < some; ++i) pointers[i] = rows + i * stride;
        const int got = int(jpeg_read_scanlines(&decoder, pointers, JDIMENSION(some)));
        if (got == 0) return false;
        rows += got * stride;
        n -= got;
    }
    return true;
}

// Sets how many samples per row the upsampling of each component reads. The crop of libjpeg-turbo
// (at least 2.1) ignores that chroma may be scaled less than the image: 4:1:0 at 1/2 then loses the
// right half of its colors. `side` is the size of a scaled block of the image.
void set_sample_widths(jpeg_decompress_struct& decoder, unsigned side) {
    const unsigned whole = unsigned(decoder.max_h_samp_factor) * side;
    for (int i = 0; i < decoder.num_components; ++i) {
        jpeg_component_info& component = decoder.comp_info[i];
        component.downsampled_width =
            (decoder.output_width * unsigned(component.h_samp_factor) * block_side(component) +
             whole - 1) /
            whole;
    }
}

}  // namespace

// Every warning is an error, as in the strict mode of simplejpeg, because libjpeg warns when it
// makes up pixels. The hook is tested here and not by the first decode thread: a fork during the
// test would leave the child waiting forever.
JpegDecoder::JpegDecoder() {
    entropy_hook_works();
    errors_.fatal_warning = [](j_common_ptr) { return true; };
    decoder_.err = &errors_;
    if (setjmp(errors_.jump)) throw std::bad_alloc();  // the only possible error here
    jpeg_create_decompress(&decoder_);
}

JpegDecoder::~JpegDecoder() {
    jpeg_destroy_decompress(&decoder_);
}

bool JpegDecoder::fail(const char* text) {
    error_ = text;
    jpeg_abort_decompress(&decoder_);
    return false;
}

bool JpegDecoder::out_of_memory() const {
    return errors_.msg_code == JERR_OUT_OF_MEMORY;
}

void JpegDecoder::close() {
    jpeg_abort_decompress(&decoder_);
}

bool JpegDecoder::open(const uint8_t* bytes, size_t size) {
    errors_.reset();
    hooked_ = false;
    bytes_ = bytes;
    size_ = size;
    if (!size) return fail("empty file");
    if (setjmp(errors_.jump)) return fail(errors_.text);
    if (recreate_) {
        jpeg_destroy_decompress(&decoder_);
        jpeg_create_decompress(&decoder_);
        recreate_ = false;
    }
    mark_tables_stale();
    jpeg_mem_src(&decoder_, bytes, static_cast<unsigned long>(size));
    jpeg_read_header(&decoder_, TRUE);
    drop_stale_tables();
    return within_limits(size);
}

// libjpeg keeps the tables of an image and uses them for the next image if that lacks its own. So
// tables are marked before the header is read, and tables that are still marked afterwards are
// removed. (Removing all of them before would leak memory: libjpeg frees tables only with the
// object.)
void JpegDecoder::mark_tables_stale() {
    for (JQUANT_TBL* table : decoder_.quant_tbl_ptrs)
        if (table)
            std::fill(std::begin(table->quantval), std::end(table->quantval), kStaleQuantization);
    for (int i = 0; i < NUM_HUFF_TBLS; ++i)
        for (JHUFF_TBL* table : {decoder_.dc_huff_tbl_ptrs[i], decoder_.ac_huff_tbl_ptrs[i]})
            if (table) table->bits[0] = kStaleCode;
}

void JpegDecoder::drop_stale_tables() {
    const auto drop = [&](auto*& table, bool missing) {
        if (!missing) return;
        table = nullptr;
        recreate_ = true;
    };
    for (JQUANT_TBL*& table : decoder_.quant_tbl_ptrs)
        drop(table, table && std::all_of(std::begin(table->quantval), std::end(table->quantval),
                                         [](UINT16 value) { return value == kStaleQuantization; }));
    for (int i = 0; i < NUM_HUFF_TBLS; ++i)
        for (JHUFF_TBL** table : {&decoder_.dc_huff_tbl_ptrs[i], &decoder_.ac_huff_tbl_ptrs[i]})
            drop(*table, *table && (*table)->bits[0] == kStaleCode);
}

bool JpegDecoder::within_limits(size_t size) {
    const uint64_t w = decoder_.image_width, h = decoder_.image_height;
    const auto shaped = [&](const std::string& rest) {
        return fail((std::to_string(w) + "x" + std::to_string(h) + " pixels" + rest).c_str());
    };
    if (std::max(w, h) > MAX_SIDE)
        return shaped(": sides may be at most " + std::to_string(MAX_SIDE));
    if (w * h > MAX_PIXELS)
        return shaped(": at most " + std::to_string(MAX_PIXELS / 1000000) + " megapixels");
    if (w * h > MAX_PIXELS_PER_BYTE * size)
        return shaped(" in " + std::to_string(size) +
                      " bytes: truncated or a decompression bomb (at most " +
                      std::to_string(MAX_PIXELS_PER_BYTE) + " pixels per byte)");
    if (decoder_.arith_code || decoder_.data_precision != 8 ||
        (decoder_.num_components != 1 && decoder_.num_components != 3))
        return fail(
            "unsupported JPEG: expected Huffman coding, 8 bits per sample, 1 or 3 components");
    if (!jpeg_has_multiple_scans(&decoder_)) return true;
    try {  // libjpeg decodes any number of scans, so count them first
        const uint32_t scans = read_jpeg_header(bytes_, size_).n_scans;
        if (scans > MAX_SCANS)
            return fail(
                (std::to_string(scans) + " scans: at most " + std::to_string(MAX_SCANS)).c_str());
    } catch (const BadJpeg& error) {
        return fail(error.what());
    }
    return true;
}

bool JpegDecoder::start(int denominator, Pixels pixels, int x0, int x1, int y0, bool libjpeg_only) {
    if (setjmp(errors_.jump)) return fail(errors_.text);
    decoder_.scale_num = 1;
    decoder_.scale_denom = static_cast<unsigned>(denominator);
    decoder_.out_color_space = pixels == Pixels::kGray  ? JCS_GRAYSCALE
                               : pixels == Pixels::kBgr ? JCS_EXT_BGR
                                                        : JCS_EXT_RGB;
    decoder_.dct_method = JDCT_ISLOW;
    decoder_.do_fancy_upsampling = TRUE;
    jpeg_start_decompress(&decoder_);
    // libjpeg treats the edge of a crop as the edge of the image and smooths chroma without
    // neighbors there. One more pixel on each side is enough: on the left, libjpeg rounds down to a
    // whole MCU, which then is the previous one.
    const int full = int(decoder_.output_width);
    // libjpeg does not smooth either if a crop has fewer than 3 chroma samples (jdsample.c), so
    // decode at least kNarrow pixels.
    constexpr int kNarrow = 16;
    int begin = std::max(0, x0 - 1);
    const int end = std::min(full, std::max(x1 + 1, begin + kNarrow));
    begin = std::max(0, std::min(begin, end - kNarrow));
    JDIMENSION offset = 0, width = JDIMENSION(full);
    // If scans are missing, libjpeg smooths over several blocks, but not across the edge of a crop.
    if ((begin > 0 || end < full) && is_complete(decoder_)) {
        offset = JDIMENSION(begin), width = JDIMENSION(end - begin);
        jpeg_crop_scanline(&decoder_, &offset, &width);
        set_sample_widths(decoder_, unsigned(DCTSIZE / denominator));
    }
    left_ = x0 - int(offset);
    if (!libjpeg_only && use_entropy_hook()) {
        const unsigned mcu = unsigned(
            DCTSIZE / denominator * (decoder_.comps_in_scan > 1 ? decoder_.max_h_samp_factor : 1));
        hooked_ = entropy_.attach(decoder_, offset / mcu, (offset + width - 1) / mcu);
    }
    if (y0 > 0) jpeg_skip_scanlines(&decoder_, JDIMENSION(y0));
    return true;
}

bool JpegDecoder::read(uint8_t* rows, ptrdiff_t stride, int n) {
    if (setjmp(errors_.jump)) return fail(errors_.text);
    return read_rows(decoder_, rows, stride, n) || fail("libjpeg returned no more rows");
}

bool JpegDecoder::finish() {
    if (decoder_.output_scanline < decoder_.output_height) {
        close();
        return true;
    }
    if (setjmp(errors_.jump)) return fail(errors_.text);
    jpeg_finish_decompress(&decoder_);
    return true;
}

}  // namespace fastload
