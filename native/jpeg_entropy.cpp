#include "jpeg_entropy.h"

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <cstring>

namespace fastload {
namespace {

// The beginning of libjpeg's struct jpeg_entropy_decoder (jpegint.h).
struct EntropyEntries {
    void (*start_pass)(j_decompress_ptr);
    boolean (*decode_mcu)(j_decompress_ptr, JBLOCKROW*);
};

EntropyEntries& entries(jpeg_decompress_struct& decoder) { return *reinterpret_cast<EntropyEntries*>(decoder.entropy); }

// Of an entry of Table::fast: bits 0-4 how many bits it takes, 5-8 the size of what is still to be read (0: the value is
// complete), 9-15 by how much the place in the block advances before the value, 16-31 the value. 0: a longer code, or none.
constexpr uint32_t entry(int32_t value, unsigned advance, unsigned size, unsigned bits) {
    return uint32_t(value) << 16 | advance << 9 | size << 5 | bits;
}

// An advance that no run can reach (63 + 15 at most).
constexpr unsigned kEndOfBlock = 80;

// Zigzag to row order. An end of block and runs beyond it are stored like values, as a 0 in the last place: that is 0
// then, since it has not been reached, and one branch less.
struct NaturalOrder {
    uint8_t place[64 + kEndOfBlock];
};
constexpr NaturalOrder make_natural_order() {
    NaturalOrder order{};
    int x = 0, y = 0, direction = 1;  // up and right
    for (int i = 0; i < 64; ++i) {
        order.place[i] = uint8_t(8 * y + x);
        const bool blocked = direction > 0 ? x == 7 || y == 0 : y == 7 || x == 0;
        if (!blocked) {
            x += direction, y -= direction;
            continue;
        }
        if (direction > 0) x == 7 ? ++y : ++x;
        else y == 7 ? ++x : ++y;
        direction = -direction;
    }
    for (unsigned i = 64; i < 64 + kEndOfBlock; ++i) order.place[i] = 63;
    return order;
}
constexpr NaturalOrder kNatural = make_natural_order();

// The value that `size` extra bits stand for.
int32_t extended(uint32_t extra, unsigned size) {
    return extra < (1u << (size - 1)) ? int32_t(extra) - (1 << size) + 1 : int32_t(extra);
}

constexpr size_t kWorstBlock = 64 * (16 + 15) / 8;  // bytes: 64 codes of 16 bits with 15 extra
constexpr size_t kChunk = 8192;

uint64_t big_endian(const uint8_t* bytes) {
    uint64_t value;
    std::memcpy(&value, bytes, 8);
    return __builtin_bswap64(value);
}

std::atomic<bool>& hook_state() {
    static std::atomic<bool> on{true};
    return on;
}

}  // namespace

// The state of reading, in registers while an MCU is decoded.
struct EntropyReader::Bits {
    uint64_t buffer;
    unsigned count;
    const uint8_t* at;

    // At least 56 bits afterwards. No branch: what is loaded twice is the same bits.
    void refill() {
        buffer |= big_endian(at) >> count;
        at += (63 - count) >> 3;
        count |= 56;
    }
    unsigned peek(int n) const { return unsigned(buffer >> (64 - n)); }
    void drop(unsigned n) {
        buffer <<= n;
        count -= n;
    }
};

void EntropyReader::Table::make(const JHUFF_TBL& table, bool is_dc) {
    if (valid && !std::memcmp(lengths, table.bits, sizeof lengths) && !std::memcmp(symbols, table.huffval, sizeof symbols)) return;
    valid = true;
    dc = is_dc;
    std::memcpy(lengths, table.bits, sizeof lengths);
    std::memcpy(symbols, table.huffval, sizeof symbols);
    uint32_t code = 0;
    int32_t index = 0;
    uint32_t* to = fast;
    for (int length = 1; length <= 16; ++length, code <<= 1) {
        offset[length] = index - int32_t(code);
        for (int i = 0; i < lengths[length]; ++i, ++code, ++index) {
            if (length > kBits) continue;
            const unsigned symbol = symbols[index], size = symbol & 15, run = dc ? 0 : symbol >> 4;
            const unsigned spare = unsigned(kBits - length);
            if (size == 0 || size > spare) {
                // Size 0 is a DC difference of 0; 16 zeros, of which one is stored like a value; or the end of the block.
                const unsigned advance = size || dc || run == 15 ? run : kEndOfBlock;
                to = std::fill_n(to, 1u << spare, entry(0, advance, size, unsigned(length)));
            } else {
                const unsigned repeat = 1u << (spare - size);
                for (uint32_t extra = 0; extra < (1u << size); ++extra)
                    to = std::fill_n(to, repeat, entry(extended(extra, size), run, 0, unsigned(length) + size));
            }
        }
        limit[length] = code << (16 - length);
    }
    std::fill(to, std::end(fast), 0u);
}

uint32_t EntropyReader::Table::find_long(uint32_t next16) const {
    int length = kBits + 1;
    while (length <= 16 && next16 >= limit[length]) ++length;
    if (length > 16) return 0;
    const unsigned symbol = symbols[(int32_t(next16 >> (16 - length)) + offset[length]) & 255];
    const unsigned size = symbol & 15, run = dc ? 0 : symbol >> 4;
    return entry(0, size || dc || run == 15 ? run : kEndOfBlock, size, unsigned(length));
}

bool EntropyReader::take_over(jpeg_decompress_struct& decoder, unsigned first_column, unsigned last_column) {
    if (decoder.progressive_mode || decoder.arith_code || decoder.comps_in_scan != decoder.num_components || decoder.Ss != 0 ||
        decoder.Se != DCTSIZE2 - 1 || decoder.Ah || decoder.Al || decoder.blocks_in_MCU > D_MAX_BLOCKS_IN_MCU)
        return false;
    for (int i = 0; i < decoder.comps_in_scan; ++i) {
        const jpeg_component_info& component = *decoder.cur_comp_info[i];
        const JHUFF_TBL *dc = decoder.dc_huff_tbl_ptrs[component.dc_tbl_no], *ac = decoder.ac_huff_tbl_ptrs[component.ac_tbl_no];
        if (!dc || !ac) return false;
        dc_[component.dc_tbl_no].make(*dc, true);
        ac_[component.ac_tbl_no].make(*ac, false);
    }
    n_blocks_ = decoder.blocks_in_MCU;
    for (int i = 0; i < n_blocks_; ++i) {
        const int number = decoder.MCU_membership[i];
        const jpeg_component_info& component = *decoder.cur_comp_info[number];
#if JPEG_LIB_VERSION >= 70
        const bool only_dc = component.DCT_h_scaled_size == 1 && component.DCT_v_scaled_size == 1;
#else
        const bool only_dc = component.DCT_scaled_size == 1;
#endif
        const bool needed = component.component_needed;
        blocks_[i] = {&dc_[component.dc_tbl_no], &ac_[component.ac_tbl_no], uint8_t(number), needed, needed && !only_dc};
    }
    decoder_ = &decoder;
    columns_ = decoder.MCUs_per_row;
    mcus_left_ = uint64_t(decoder.MCUs_per_row) * decoder.MCU_rows_in_scan;
    column_ = 0;
    first_column_ = first_column;
    last_column_ = last_column;
    interval_ = decoder.restart_interval;
    segment_ = 0;
    worst_mcu_ = size_t(n_blocks_) * kWorstBlock + 16;
    const size_t room = kChunk + 2 * worst_mcu_;
    if (plain_.size() < room) plain_.resize(room);
    next_ = decoder.src->next_input_byte;
    stop_ = next_ + decoder.src->bytes_in_buffer;
    begin_segment();
    decoder.client_data = this;
    entries(decoder).decode_mcu = &EntropyReader::decode_mcu;
    return true;
}

void EntropyReader::begin_segment() {
    std::fill(std::begin(last_dc_), std::end(last_dc_), 0);
    segment_left_ = interval_ ? interval_ : UINT32_MAX;
    at_ = end_ = plain_.data();
    at_marker_ = false;
    buffer_ = 0;
    count_ = 0;
}

// Moves what is left to the front and takes more of the file, without the zero that follows each 0xFF.
void EntropyReader::more_bytes() {
    uint8_t* to = plain_.data();
    const size_t left = size_t(end_ - at_);
    std::memmove(to, at_, left);
    at_ = plain_.data();
    to += left;
    uint8_t* const full = plain_.data() + worst_mcu_ + kChunk;
    while (!at_marker_ && to < full) {
        const size_t size = std::min(size_t(stop_ - next_), size_t(full - to));
        const void* found = size ? std::memchr(next_, 0xFF, size) : nullptr;
        const size_t plain = found ? size_t(static_cast<const uint8_t*>(found) - next_) : size;
        if (plain) std::memcpy(to, next_, plain);
        to += plain;
        next_ += plain;
        if (!found) {
            at_marker_ = next_ == stop_;  // cut off; noticed where a marker is expected
            continue;
        }
        const uint8_t* behind = next_ + 1;
        while (behind < stop_ && *behind == 0xFF) ++behind;
        if (behind < stop_ && *behind == 0) {
            *to++ = 0xFF;
            next_ = behind + 1;
        } else {
            at_marker_ = true;
        }
    }
    end_ = to;
    std::memset(to, 0, worst_mcu_);  // read, but never used by what is regular
}

// Behind the last MCU of a segment: all its bytes must be used up, and the next marker be the right one.
bool EntropyReader::end_segment() {
    while (!at_marker_) {
        if (end_ - at_ > 16) return false;
        more_bytes();
    }
    if ((end_ - at_) * 8 + ptrdiff_t(count_) >= 8) return false;
    if (mcus_left_ == 0) {  // libjpeg reads on from here
        decoder_->src->bytes_in_buffer = size_t(stop_ - next_);
        decoder_->src->next_input_byte = next_;
        return true;
    }
    const uint8_t* marker = next_;
    while (marker < stop_ && *marker == 0xFF) ++marker;
    if (marker == next_ || marker >= stop_ || *marker != 0xD0 + segment_ % 8) return false;
    ++segment_;
    next_ = marker + 1;
    begin_segment();
    return true;
}

boolean EntropyReader::decode_mcu(j_decompress_ptr decoder, JBLOCKROW* blocks) {
    EntropyReader& self = *static_cast<EntropyReader*>(decoder->client_data);
    if (self.decode(blocks)) return TRUE;
    JpegErrors& errors = JpegErrors::of(reinterpret_cast<j_common_ptr>(decoder));
    std::strcpy(errors.text, "irregular entropy-coded data");
    std::longjmp(errors.jump, 1);
}

// The next code's entry and value. A refill gives 56 bits, of which this takes 31 at most.
inline bool EntropyReader::decode_value(Bits& bits, const Table& table, uint32_t& found, int32_t& value) {
    bits.refill();
    found = table.fast[bits.peek(Table::kBits)];
    if (__builtin_expect(!found, 0) && !(found = table.find_long(bits.peek(16)))) return false;
    bits.drop(found & 31);
    value = int32_t(found) >> 16;
    if (const unsigned size = found >> 5 & 15) {
        value = extended(bits.peek(int(size)), size);
        bits.drop(size);
    }
    return true;
}

template <bool kStore>
bool EntropyReader::decode_ac(Bits& bits, const Table& table, JCOEF* block) {
    unsigned k = 1;
    do {
        uint32_t found;
        int32_t value;
        if (!decode_value(bits, table, found, value)) return false;
        k += found >> 9 & 127;
        if (kStore) block[kNatural.place[k]] = JCOEF(value);
        ++k;
    } while (k < 64);
    return k == 64 || k > kEndOfBlock;  // between: a run beyond the block
}

bool EntropyReader::decode(JBLOCKROW* blocks) {
    if (!at_marker_ && size_t(end_ - at_) < worst_mcu_) more_bytes();
    Bits bits{buffer_, count_, at_};
    const bool store = blocks && column_ >= first_column_ && column_ <= last_column_;
    for (int i = 0; i < n_blocks_; ++i) {
        const Block& block = blocks_[i];
        uint32_t found;
        int32_t value;
        if (!decode_value(bits, *block.dc, found, value)) return false;
        last_dc_[block.component] += value;
        if (store && block.store_dc) blocks[i][0][0] = JCOEF(last_dc_[block.component]);
        if (!(store && block.store_ac ? decode_ac<true>(bits, *block.ac, blocks[i][0]) : decode_ac<false>(bits, *block.ac, nullptr))) return false;
    }
    buffer_ = bits.buffer;
    count_ = bits.count;
    at_ = bits.at;
    if ((at_ - end_) * 8 > ptrdiff_t(count_)) return false;  // more was read than there is
    if (++column_ == columns_) column_ = 0;
    --mcus_left_;
    if (--segment_left_ == 0 || mcus_left_ == 0) return end_segment();
    return true;
}

namespace {

// A picture of noise, 40 x 24 in 4:2:0, a restart marker every 2 MCUs.
size_t make_test_jpeg(jpeg_compress_struct& encoder, unsigned char** bytes) {
    unsigned long size = 0;
    jpeg_create_compress(&encoder);
    jpeg_mem_dest(&encoder, bytes, &size);
    encoder.image_width = 40;
    encoder.image_height = 24;
    encoder.input_components = 3;
    encoder.in_color_space = JCS_RGB;
    jpeg_set_defaults(&encoder);
    encoder.restart_interval = 2;
    jpeg_start_compress(&encoder, TRUE);
    uint32_t random = 1;
    JSAMPLE row[40 * 3];
    JSAMPROW rows[1] = {row};
    while (encoder.next_scanline < encoder.image_height) {
        for (JSAMPLE& sample : row) sample = JSAMPLE((random = random * 1664525u + 1013904223u) >> 24);
        jpeg_write_scanlines(&encoder, rows, 1);
    }
    jpeg_finish_compress(&encoder);
    return size;
}

void decode_test_jpeg(jpeg_decompress_struct& decoder, const unsigned char* bytes, size_t size, EntropyReader* reader, JSAMPLE* pixels) {
    jpeg_create_decompress(&decoder);
    jpeg_mem_src(&decoder, bytes, static_cast<unsigned long>(size));
    jpeg_read_header(&decoder, TRUE);
    jpeg_start_decompress(&decoder);
    if (reader) reader->take_over(decoder, 0, decoder.MCUs_per_row);
    while (decoder.output_scanline < decoder.output_height) {
        JSAMPROW rows[1] = {pixels + size_t(decoder.output_scanline) * 40 * 3};
        jpeg_read_scanlines(&decoder, rows, 1);
    }
    jpeg_finish_decompress(&decoder);
}

bool try_hook() {
    JpegErrors errors;
    EntropyReader reader;
    jpeg_compress_struct encoder{};
    jpeg_decompress_struct plain{}, hooked{};
    encoder.err = plain.err = hooked.err = &errors;
    static unsigned char* volatile bytes_seen;  // static: must survive the jump
    unsigned char* bytes = nullptr;
    JSAMPLE expected[24 * 40 * 3] = {}, found[24 * 40 * 3] = {};
    volatile bool equal = false;
    bytes_seen = nullptr;
    if (!setjmp(errors.jump)) {
        const size_t size = make_test_jpeg(encoder, &bytes);
        bytes_seen = bytes;
        decode_test_jpeg(plain, bytes, size, nullptr, expected);
        decode_test_jpeg(hooked, bytes, size, &reader, found);
        equal = reader.finished() && !std::memcmp(expected, found, sizeof expected);
    }
    std::free(bytes_seen);
    jpeg_destroy_compress(&encoder);
    jpeg_destroy_decompress(&plain);
    jpeg_destroy_decompress(&hooked);
    return equal;
}

}  // namespace

bool entropy_hook_works() {
    static const bool works = try_hook();
    return works;
}

bool use_entropy_hook() { return hook_state().load(std::memory_order_relaxed) && entropy_hook_works(); }

bool set_entropy_hook(bool wanted) {
    hook_state().store(wanted, std::memory_order_relaxed);
    return use_entropy_hook();
}

}  // namespace fastload
