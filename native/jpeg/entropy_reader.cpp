#include "jpeg/entropy_reader.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>

namespace fastload {
namespace {

// The first members of struct jpeg_entropy_decoder in libjpeg (jpegint.h).
struct EntropyEntries {
    void (*start_pass)(j_decompress_ptr);
    boolean (*decode_mcu)(j_decompress_ptr, JBLOCKROW*);
};

EntropyEntries& entries(jpeg_decompress_struct& decoder) {
    return *reinterpret_cast<EntropyEntries*>(decoder.entropy);
}

// bytes: 64 codes of 16 bits, each with 15 extra bits
constexpr size_t kWorstBlock = 64 * (16 + 15) / 8;
constexpr size_t kChunk = 8192;

}  // namespace

bool EntropyReader::attach(jpeg_decompress_struct& decoder, unsigned first_column,
                           unsigned last_column) {
    if (decoder.progressive_mode || decoder.arith_code ||
        decoder.comps_in_scan != decoder.num_components || decoder.Ss != 0 ||
        decoder.Se != DCTSIZE2 - 1 || decoder.Ah || decoder.Al ||
        decoder.blocks_in_MCU > D_MAX_BLOCKS_IN_MCU)
        return false;
    for (int i = 0; i < decoder.comps_in_scan; ++i) {
        const jpeg_component_info& component = *decoder.cur_comp_info[i];
        const JHUFF_TBL *dc = decoder.dc_huff_tbl_ptrs[component.dc_tbl_no],
                        *ac = decoder.ac_huff_tbl_ptrs[component.ac_tbl_no];
        if (!dc || !ac) return false;
        dc_[component.dc_tbl_no].make(*dc, true);
        ac_[component.ac_tbl_no].make(*ac, false);
    }
    n_blocks_ = decoder.blocks_in_MCU;
    for (int i = 0; i < n_blocks_; ++i) {
        const int number = decoder.MCU_membership[i];
        const jpeg_component_info& component = *decoder.cur_comp_info[number];
        const bool needed = component.component_needed;
        blocks_[i] = {&dc_[component.dc_tbl_no], &ac_[component.ac_tbl_no], uint8_t(number), needed,
                      needed && block_side(component) > 1};
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
    if (unstuffed_.size() < room) unstuffed_.resize(room);
    next_ = decoder.src->next_input_byte;
    stop_ = next_ + decoder.src->bytes_in_buffer;
    begin_segment();
    decoder.client_data = this;
    entries(decoder).decode_mcu = &EntropyReader::decode_mcu;
    return true;
}

void EntropyReader::begin_segment() {
    std::fill(std::begin(last_dc_), std::end(last_dc_), 0u);
    segment_left_ = interval_ ? interval_ : UINT32_MAX;
    at_ = end_ = unstuffed_.data();
    at_marker_ = false;
    buffer_ = 0;
    count_ = 0;
}

// Moves the unused bytes to the front and appends more of the file, without the zero that follows
// each 0xFF.
void EntropyReader::refill_bytes() {
    uint8_t* to = unstuffed_.data();
    const size_t left = size_t(end_ - at_);
    std::memmove(to, at_, left);
    at_ = unstuffed_.data();
    to += left;
    uint8_t* const full = unstuffed_.data() + worst_mcu_ + kChunk;
    while (!at_marker_ && to < full) {
        const size_t size = std::min(size_t(stop_ - next_), size_t(full - to));
        const void* found = size ? std::memchr(next_, 0xFF, size) : nullptr;
        const size_t n_plain = found ? size_t(static_cast<const uint8_t*>(found) - next_) : size;
        if (n_plain) std::memcpy(to, next_, n_plain);
        to += n_plain;
        next_ += n_plain;
        if (!found) {
            at_marker_ = next_ == stop_;  // truncated; detected where a marker is expected
            continue;
        }
        if (stop_ - next_ >= 2 && next_[1] == 0) {
            *to++ = 0xFF;
            next_ += 2;
            // Also for 0xFF 0xFF 0, which libjpeg reads in a second pass, over the values of the
            // first.
        } else {
            at_marker_ = true;
        }
    }
    end_ = to;
    std::memset(to, 0, worst_mcu_);  // read, but never used with regular data
}

// Called after the last MCU of a segment: all its bytes must be used, and the next marker must be
// the expected one.
bool EntropyReader::end_segment() {
    while (!at_marker_) {
        if (end_ - at_ > 16) return false;
        refill_bytes();
    }
    if ((end_ - at_) * 8 + ptrdiff_t(count_) >= 8) return false;
    if (mcus_left_ == 0) {  // libjpeg continues from here
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

// For codes whose values do not fit a table entry.
bool EntropyReader::decode_dc_slow(BitReader& bits, const EntropyTable& table, int32_t& value) {
    bits.refill();
    unsigned length;
    const unsigned size = table.find(bits.peek(16), length) & 15;
    bits.drop(length);
    value = size ? extended(bits.peek(size), size) : 0;
    bits.drop(size);
    return length != 0;
}

// Decodes one AC code of any length.
bool EntropyReader::decode_slow(BitReader& bits, const EntropyTable& table, unsigned& k,
                                JCOEF* block) {
    bits.refill();  // at least 56 bits, of which at most 16 + 15 are used
    unsigned length;
    const unsigned symbol = table.find(bits.peek(16), length), size = symbol & 15,
                   run = symbol >> 4;
    if (!length) return false;
    bits.drop(length);
    if (size) {
        k += run;
        if (block) block[kNatural.place[k]] = JCOEF(extended(bits.peek(size), size));
        bits.drop(size);
        ++k;
    } else {
        k += run == 15 ? 16 : kEndOfBlock;
    }
    return true;
}

// Decodes the AC values of one block. `bits` stays in registers: functions that are not inlined
// receive only a copy.
template <bool kStore>
inline __attribute__((always_inline)) bool EntropyReader::decode_ac(BitReader& bits,
                                                                    const EntropyTable& table,
                                                                    JCOEF* block) {
    unsigned k = 1, before = 1;
    uint32_t found = 0;
    do {
        bits.refill();
        for (int i = 0; i < 4; ++i) {  // 4 * 11 of 56 bits
            before = k;
            found = table.fast[bits.peek(EntropyTable::kBits)];
            if (__builtin_expect(found & kSlow, 0)) {
                BitReader copy = bits;
                unsigned place = k;
                if (!decode_slow(copy, table, place, kStore ? block : nullptr)) return false;
                bits = copy;
                k = place;
                // in between: the run exceeds the block
                if (k >= 64) return k == 64 || k > kEndOfBlock;
                break;
            }
            bits.drop(bits_of(found));
            k += advance_of(found);
            if (kStore) {
                block[kNatural.place[k - 1]] = JCOEF(second_of(found));
                block[kNatural.place[before + run_of(found)]] = JCOEF(first_of(found));
            }
            if (k >= 64) break;
        }
    } while (k < 64);
    if (__builtin_expect(k == 64 || (k > kEndOfBlock && k < 64 + kEndOfBlock), 1)) return true;
    // The first of two values was the last of the block. The second one belongs to the next block.
    BitReader copy = bits;
    copy.go_back(bits_of(found));
    if (!decode_slow(copy, table, before, nullptr) || before != 64) return false;
    bits = copy;
    return true;
}

template <bool kStore>
bool EntropyReader::decode_blocks(JBLOCKROW* blocks) {
    BitReader bits{buffer_, count_, at_};
    for (int i = 0; i < n_blocks_; ++i) {
        const Block& block = blocks_[i];
        bits.refill();
        const uint32_t found = block.dc->fast[bits.peek(EntropyTable::kBits)];
        int32_t value = first_of(found);
        if (__builtin_expect(found & kSlow, 0)) {
            BitReader copy = bits;
            if (!decode_dc_slow(copy, *block.dc, value)) return false;
            bits = copy;
        } else {
            bits.drop(bits_of(found));
        }
        last_dc_[block.component] += uint32_t(value);
        if (kStore && block.store_dc) blocks[i][0][0] = JCOEF(last_dc_[block.component]);
        if (kStore && block.store_ac) {
            if (!decode_ac<true>(bits, *block.ac, blocks[i][0])) return false;
        } else if (!decode_ac<false>(bits, *block.ac, nullptr)) {
            return false;
        }
    }
    buffer_ = bits.buffer;
    count_ = bits.count;
    at_ = bits.next;
    return (at_ - end_) * 8 <= ptrdiff_t(count_);  // false if more bits were used than exist
}

bool EntropyReader::decode(JBLOCKROW* blocks) {
    if (!at_marker_ && size_t(end_ - at_) < worst_mcu_) refill_bytes();
    const bool store = blocks && column_ >= first_column_ && column_ <= last_column_;
    if (!(store ? decode_blocks<true>(blocks) : decode_blocks<false>(nullptr))) return false;
    if (++column_ == columns_) column_ = 0;
    --mcus_left_;
    if (--segment_left_ == 0 || mcus_left_ == 0) return end_segment();
    return true;
}

}  // namespace fastload
