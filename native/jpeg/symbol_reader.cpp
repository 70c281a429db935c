#include "jpeg/symbol_reader.h"

#include <algorithm>
#include <cstring>

#include "cpu/simd.h"
#include "jpeg/block_reader.h"

namespace fastload {
namespace {

// Bytes that the reader may read beyond the data before it checks: an MCU of 10 blocks of 64
// symbols of 16 + 11 bits.
constexpr size_t kPadding = 10 * 64 * 27 / 8 + 64;

// Copies a segment without its stuffed zeros. Returns its marker, or null if there is none.
const uint8_t* unstuff(const uint8_t* from, const uint8_t* end, uint8_t*& to) {
    while (from < end) {
        const auto* found =
            static_cast<const uint8_t*>(std::memchr(from, 0xFF, size_t(end - from)));
        if (!found || end - found < 2) return nullptr;
        std::memcpy(to, from, size_t(found - from));
        to += found - from;
        if (found[1] != 0) return found;
        *to++ = 0xFF;
        from = found + 2;
    }
    return nullptr;
}

class SymbolReader {
public:
    SymbolReader(SymbolList& list, const ScanShape& shape)
        : list_(list), tables_(*list.tables), shape_(shape), reader_(tables_.counts) {}

    bool run(const uint8_t* data, size_t size) {
        if (!plan()) return false;
        list_.segment_ends.clear();
        list_.size = 0;
        list_.grow_unstuffed(size + kPadding);
        const uint8_t* end = data + size;
        uint64_t n_mcus = uint64_t(shape_.mcus_per_row) * shape_.mcu_rows,
                 step = shape_.old_interval ? shape_.old_interval : n_mcus;
        uint32_t number = 0;
        for (uint64_t first = 0; first < n_mcus; first += step, ++number) {
            uint8_t *unstuffed = list_.unstuffed.data(), *to = unstuffed;
            const uint8_t* marker = unstuff(data, end, to);
            if (!marker || marker[1] != (first + step >= n_mcus ? 0xD9 : 0xD0 + number % 8))
                return false;
            bits_ = BitReader();
            bits_.next = unstuffed;
            end_ = to;
            if (!read_segment(first, std::min(first + step, n_mcus))) return false;
            data = marker + 2;
        }
        list_.segment_ends.push_back(list_.size);
        count_symbols();
        return true;
    }

private:
    struct Block {
        uint32_t component;
        const SymbolTable *dc, *ac;
    };

    bool plan() {
        tables_.used.clear();
        std::fill(std::begin(tables_.counts), std::end(tables_.counts), 0u);
        for (uint32_t i = 0; i < shape_.n_components; ++i) {
            const ScanShape::Component *all = shape_.components, &here = all[i];
            uint32_t dc = 0, ac = 0;  // first component with the same old and new tables
            while (all[dc].dc != here.dc || all[dc].table != here.table) ++dc;
            while (all[ac].ac != here.ac || all[ac].table != here.table) ++ac;
            if (dc == i && !tables_.dc[i].build(*here.dc, here.table, kDcTokens)) return false;
            if (ac == i &&
                !tables_.ac[i].build(*here.ac, here.table + 2u, kAcTokens + (i << kLookupBits)))
                return false;
            if (ac == i) tables_.used.push_back(&tables_.ac[i]);
            for (uint32_t y = 0; y < here.v; ++y)
                for (uint32_t x = 0; x < here.h; ++x) {
                    if ((shape_.mcus_per_row - 1) * here.h + x >= here.width_in_blocks)
                        right_ |= 1u << n_blocks_;
                    if ((shape_.mcu_rows - 1) * here.v + y >= here.height_in_blocks)
                        bottom_ |= 1u << n_blocks_;
                    blocks_[n_blocks_++] = {i, &tables_.dc[dc], &tables_.ac[ac]};
                }
        }
        return true;
    }

    void count_symbols() {
        std::copy_n(tables_.counts + kCodeTokens, 256 * kTables, list_.counts);
        for (uint32_t table = 0; table < 2; ++table)
            for (uint32_t size = 0; size <= kTailBits; ++size)
                list_.counts[256 * table + size] +=
                    tables_.counts[kDcTokens + (kTailBits + 1) * table + size];
        for (const SymbolTable* table : tables_.used) table->count(tables_.counts, list_.counts);
    }

    bool read_segment(uint64_t first, uint64_t last) {
        for (uint32_t i = 0; i < kMaxComponents; ++i) {
            ahead_[i] -= dc_now_[i];
            dc_now_[i] = 0;
        }
        for (uint64_t mcu = first; mcu < last;) {
            uint32_t row = uint32_t(mcu / shape_.mcus_per_row),
                     column = uint32_t(mcu % shape_.mcus_per_row);
            uint64_t n = std::min<uint64_t>(last - mcu, shape_.mcus_per_row - column);
            list_.reserve(size_t(n) * n_blocks_ * kMaxTokens);
            uint32_t below = row + 1 == shape_.mcu_rows ? bottom_ : 0;
            for (uint32_t stop = column + uint32_t(n); column < stop; ++column, ++mcu) {
                if (mcu == next_start_) start_segment();
                if (!read_mcu(column + 1 == shape_.mcus_per_row ? below | right_ : below))
                    return false;
            }
        }
        int64_t left = bits_.left(end_);
        return left >= 0 && left < 8;
    }

    // Starts a segment of the new file, where DC prediction restarts from 0.
    void start_segment() {
        if (next_start_) list_.segment_ends.push_back(list_.size);
        next_start_ = shape_.new_interval ? next_start_ + shape_.new_interval : UINT64_MAX;
        for (uint32_t i = 0; i < kMaxComponents; ++i) ahead_[i] = dc_now_[i];
    }

    bool read_mcu(uint32_t fillers) {
        BitReader bits = bits_;
        Token* to = list_.tokens.get() + list_.size;
        for (uint32_t i = 0; i < n_blocks_; ++i) {
            const Block& block = blocks_[i];
            const bool filler = fillers >> i & 1;
            if (!read_dc(block, filler, bits, to)) return false;
            Token* ac = to;
            if (!reader_.read_ac(*block.ac, bits, to)) return false;
            if (filler) reader_.empty_block(*block.ac, ac, to);
        }
        bits_ = bits;
        list_.size = size_t(to - list_.tokens.get());
        return bits_.left(end_) >= 0;
    }

    bool read_dc(const Block& block, bool filler, BitReader& bits, Token*& to) {
        uint32_t size, extra;
        if (!reader_.read_dc(*block.dc, bits, size, extra)) return false;
        int32_t difference = dc_difference(size, extra), &now = dc_now_[block.component],
                &ahead = ahead_[block.component];
        now += difference;
        if (filler || ahead) {  // the difference changes in the new file
            difference += ahead;
            ahead = filler ? difference : 0;
            if (filler) difference = 0;
            size = difference ? 32 - uint32_t(__builtin_clz(
                                         uint32_t(difference < 0 ? -difference : difference)))
                              : 0;
            extra = uint32_t(difference < 0 ? difference - 1 : difference) & ((1u << size) - 1);
            if (size > 11) return false;
        }
        reader_.put_dc(*block.dc, size, extra, to);
        return now >= -32768 && now <= 32767;
    }

    SymbolList& list_;
    SymbolList::Tables& tables_;
    const ScanShape& shape_;
    BlockReader reader_;
    BitReader bits_;
    const uint8_t* end_ = nullptr;  // end of the unstuffed data
    Block blocks_[10];
    uint32_t n_blocks_ = 0;
    uint32_t right_ = 0, bottom_ = 0;  // blocks of an MCU that are beyond this edge of the image
    // Last DC value, and the difference between the old and the new prediction.
    int32_t dc_now_[kMaxComponents] = {}, ahead_[kMaxComponents] = {};
    uint64_t next_start_ = 0;  // MCU
};

FASTLOAD_BMI2 bool read_bmi2(SymbolReader reader, const uint8_t* data, size_t size) {
    return reader.run(data, size);
}

}  // namespace

bool read_symbols(const uint8_t* data, size_t size, const ScanShape& shape, SymbolList& list) {
    if (!list.tables) list.tables = std::make_unique<SymbolList::Tables>();
    SymbolReader reader(list, shape);
    return use_avx2() ? read_bmi2(reader, data, size) : reader.run(data, size);
}

}  // namespace fastload
