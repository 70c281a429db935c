// From entropy-coded data to symbols. It is instructions that cost here (about 140,000 symbols in a photo of 100 kB): one
// look-up gives a symbol, its extra bits and how to go on, as the very number that is stored.
#include <algorithm>
#include <cstring>

#include "bit_reader.h"
#include "jpeg_symbols.h"

namespace fastload {
namespace {

// The reader's own part of a Symbol: how many bits it took, and how far it moves on in the block.
constexpr uint32_t kBitsShift = 10, kBitsMask = 15, kSkipShift = 14, kSkipMask = 127;
constexpr uint32_t kLook = 11;         // bits looked up at once: 98 % of the symbols of photographs, extra bits included
constexpr uint32_t kUnknown = 0xFF;    // a symbol no block has: look the slow way
constexpr uint32_t kEnd = 63;          // skip of what ends a block
// What the reader may read beyond the data before it asks: an MCU of 10 blocks of 64 symbols of 16 + 11 bits.
constexpr size_t kPadding = 10 * 64 * 27 / 8 + 64;

Symbol make_symbol(uint32_t symbol, uint32_t table, uint32_t bits, uint32_t skip, uint32_t extra) {
    return symbol | table << 8 | bits << kBitsShift | skip << kSkipShift | extra << kExtraShift;
}

// How a symbol is to be read; `valid` is false for what a regular 8-bit file does not have.
struct Meaning {
    uint32_t extra_bits, skip;
    bool valid;

    Meaning(uint32_t symbol, bool dc) {
        extra_bits = dc ? symbol : symbol & 15;
        skip = dc ? 0 : symbol == 0 ? kEnd : symbol == 0xF0 ? 16 : (symbol >> 4) + 1;
        valid = dc ? symbol <= 11 : extra_bits <= 10 && (extra_bits || symbol == 0 || symbol == 0xF0);
    }
};

class DecodeTable {
public:
    // False for what is no table, by libjpeg's rules: too many codes, a code of ones only, a DC symbol above 15.
    // `table` is the number in the new file (0, 1 DC; 2, 3 AC).
    bool build(const HuffmanCode& code, uint32_t table) {
        code_ = &code;
        table_ = table;
        std::fill(std::begin(found_), std::end(found_), make_symbol(kUnknown, table, 0, kSkipMask, 0));
        std::fill(std::begin(short_), std::end(short_), uint16_t(0));
        uint32_t next = 0;
        size_t i = 0;
        for (uint32_t length = 1; length <= 16; ++length, next <<= 1) {
            first_[length] = int32_t(i) - int32_t(next);
            for (size_t n = code.lengths[length]; n; --n, ++i, ++next) {
                if (i >= 256 || next + 1 >= (1u << length) || (table < 2 && code.symbols[i] > 15)) return false;
                if (length <= kLook) list(code.symbols[i], next, length);
            }
            limit_[length] = next;
        }
        return true;
    }

    Symbol look(uint32_t bits) const { return found_[bits]; }  // AC only

    // For DC, and for kUnknown: a long code, or many extra bits. False where there is no such code or it has no business here.
    bool search(BitReader& bits, Symbol& symbol) const {
        bits.refill();
        uint32_t ahead = bits.peek(16), length = short_[ahead >> (16 - kLook)] >> 8, value = short_[ahead >> (16 - kLook)] & 255;
        if (!length) {
            length = kLook + 1;
            while (length <= 16 && ahead >> (16 - length) >= limit_[length]) ++length;
            if (length > 16) return false;
            value = code_->symbols[int32_t(ahead >> (16 - length)) + first_[length]];
        }
        Meaning meaning(value, table_ < 2);
        if (!meaning.valid) return false;
        symbol = make_symbol(value, table_, 0, meaning.skip, bits.peek_behind(length, meaning.extra_bits));
        bits.drop(length + meaning.extra_bits);
        return true;
    }

private:
    void list(uint32_t symbol, uint32_t code, uint32_t length) {
        std::fill_n(short_ + (code << (kLook - length)), size_t(1) << (kLook - length), uint16_t(symbol | length << 8));
        Meaning meaning(symbol, table_ < 2);
        if (table_ < 2 || !meaning.valid || length + meaning.extra_bits > kLook) return;
        uint32_t rest = kLook - length - meaning.extra_bits;
        Symbol* to = found_ + (code << (kLook - length));
        for (uint32_t extra = 0; extra < 1u << meaning.extra_bits; ++extra, to += size_t(1) << rest)
            std::fill_n(to, size_t(1) << rest, make_symbol(symbol, table_, length + meaning.extra_bits, meaning.skip, extra));
    }

    Symbol found_[1 << kLook];
    uint16_t short_[1 << kLook];  // symbol and, above it, length of its code
    const HuffmanCode* code_ = nullptr;
    uint32_t table_ = 0;
    int32_t first_[17];
    uint32_t limit_[17];
};

// Copies a segment without its stuffed zeros. Returns where its marker is, null without one.
const uint8_t* unstuff(const uint8_t* from, const uint8_t* end, uint8_t*& to) {
    while (from < end) {
        const auto* found = static_cast<const uint8_t*>(std::memchr(from, 0xFF, size_t(end - from)));
        if (!found || end - found < 2) return nullptr;
        std::memcpy(to, from, size_t(found - from));
        to += found - from;
        if (found[1] != 0) return found;
        *to++ = 0xFF;
        from = found + 2;
    }
    return nullptr;
}

// Extra bits with a 0 on top stand for the negative numbers.
int32_t difference_of(Symbol dc) {
    int32_t size = int32_t(dc & 15), extra = int32_t(dc >> kExtraShift);
    return extra - ((1 << size) - 1) * (extra < 1 << size >> 1);
}

}  // namespace

class SymbolReader {
public:
    SymbolReader(SymbolList& list, const ScanShape& shape) : list_(list), shape_(shape) {}

    bool run(const uint8_t* data, size_t size) {
        if (!plan()) return false;
        list_.ends_.clear();
        list_.size_ = 0;
        list_.grow_plain(size + kPadding);
        const uint8_t* end = data + size;
        uint64_t n_mcus = uint64_t(shape_.mcus_per_row) * shape_.mcu_rows, step = shape_.old_interval ? shape_.old_interval : n_mcus;
        uint32_t number = 0;
        for (uint64_t first = 0; first < n_mcus; first += step, ++number) {
            uint8_t *plain = list_.plain_.data(), *to = plain;
            const uint8_t* marker = unstuff(data, end, to);
            if (!marker || marker[1] != (first + step >= n_mcus ? 0xD9 : 0xD0 + number % 8)) return false;
            bits_ = BitReader(plain, size_t(to - plain));
            if (!read_segment(first, std::min(first + step, n_mcus))) return false;
            data = marker + 2;
        }
        list_.ends_.push_back(list_.size_);
        for (size_t key = 0; key < 256 * kTables; ++key) list_.counts_[key] = counts_[0][key] + counts_[1][key];
        for (size_t table = 0; table < kTables; ++table) list_.counts_[256 * table + kUnknown] = 0;
        return true;
    }

private:
    struct Block {
        uint32_t component;
        const DecodeTable *dc, *ac;
    };

    bool plan() {
        for (uint32_t i = 0; i < shape_.n_components; ++i) {
            const ScanShape::Component *all = shape_.components, &here = all[i];
            uint32_t dc = 0, ac = 0;  // the first component with the same tables, old and new
            while (all[dc].dc != here.dc || all[dc].table != here.table) ++dc;
            while (all[ac].ac != here.ac || all[ac].table != here.table) ++ac;
            if (dc == i && !dc_[i].build(*here.dc, here.table)) return false;
            if (ac == i && !ac_[i].build(*here.ac, here.table + 2u)) return false;
            for (uint32_t y = 0; y < here.v; ++y)
                for (uint32_t x = 0; x < here.h; ++x) {
                    if ((shape_.mcus_per_row - 1) * here.h + x >= here.width_in_blocks) right_ |= 1u << n_blocks_;
                    if ((shape_.mcu_rows - 1) * here.v + y >= here.height_in_blocks) bottom_ |= 1u << n_blocks_;
                    blocks_[n_blocks_++] = {i, &dc_[dc], &ac_[ac]};
                }
        }
        return true;
    }

    bool read_segment(uint64_t first, uint64_t last) {
        for (uint32_t i = 0; i < 3; ++i) {
            ahead_[i] -= dc_now_[i];
            dc_now_[i] = 0;
        }
        for (uint64_t mcu = first; mcu < last;) {
            uint32_t row = uint32_t(mcu / shape_.mcus_per_row), column = uint32_t(mcu % shape_.mcus_per_row);
            uint64_t n = std::min<uint64_t>(last - mcu, shape_.mcus_per_row - column);
            list_.reserve(size_t(n) * n_blocks_ * 64);
            uint32_t below = row + 1 == shape_.mcu_rows ? bottom_ : 0;
            for (uint32_t stop = column + uint32_t(n); column < stop; ++column, ++mcu) {
                if (mcu == next_start_) start_segment();
                if (!read_mcu(column + 1 == shape_.mcus_per_row ? below | right_ : below)) return false;
            }
        }
        int64_t left = bits_.left();
        return left >= 0 && left < 8;
    }

    // In the new file: there DC starts from 0 again.
    void start_segment() {
        if (next_start_) list_.ends_.push_back(list_.size_);
        next_start_ = shape_.new_interval ? next_start_ + shape_.new_interval : UINT64_MAX;
        for (uint32_t i = 0; i < 3; ++i) ahead_[i] = dc_now_[i];
    }

    bool read_mcu(uint32_t fillers) {
        Symbol* to = list_.symbols_.get() + list_.size_;
        for (uint32_t i = 0; i < n_blocks_; ++i) {
            Symbol* start = to;
            if (!read_dc(blocks_[i], fillers >> i & 1, to) || !read_ac(*blocks_[i].ac, to)) return false;
            if (fillers >> i & 1) empty_block(start, to);
        }
        list_.size_ = size_t(to - list_.symbols_.get());
        return !bits_.overrun();
    }

    bool read_dc(const Block& block, bool filler, Symbol*& to) {
        Symbol symbol;
        if (!block.dc->search(bits_, symbol)) return false;
        int32_t &now = dc_now_[block.component], &ahead = ahead_[block.component], difference = difference_of(symbol);
        now += difference;
        if (now < -32768 || now > 32767) return false;
        if (filler) {
            ahead += difference;
            symbol = symbol & 0x300;
        } else if (ahead) {  // the new file's prediction is another
            difference += ahead;
            ahead = 0;
            uint32_t size = difference ? 32 - uint32_t(__builtin_clz(uint32_t(difference < 0 ? -difference : difference))) : 0;
            if (size > 11) return false;
            uint32_t extra = uint32_t(difference < 0 ? difference - 1 : difference) & ((1u << size) - 1);
            symbol = (symbol & 0x300) | size | extra << kExtraShift;
        }
        ++counts_[0][symbol & kKeyMask];
        *to++ = symbol;
        return true;
    }

    // The rest of the block. Four symbols a turn: each takes kLook bits at most, so one refill serves all. Two sets of counts,
    // in turn, because a count just written is slow to read, and symbols like to repeat.
    bool read_ac(const DecodeTable& codes, Symbol*& out) {
        BitReader bits = bits_;
        Symbol *to = out, symbol;
        uint32_t k = 1;
        auto step = [&](uint32_t* counts) {
            symbol = codes.look(bits.peek(kLook));
            *to++ = symbol;
            ++counts[symbol & kKeyMask];
            bits.drop(symbol >> kBitsShift & kBitsMask);
            k += symbol >> kSkipShift & kSkipMask;
            return k < 64;
        };
        for (;;) {
            do bits.refill();
            while (step(counts_[0]) && step(counts_[1]) && step(counts_[0]) && step(counts_[1]));
            if ((symbol & 255) == kUnknown) {
                k -= kSkipMask;
                if (!codes.search(bits, symbol)) return false;
                to[-1] = symbol;
                ++counts_[0][symbol & kKeyMask];
                k += symbol >> kSkipShift & kSkipMask;
                if (k < 64) continue;
            }
            break;
        }
        bits_ = bits;
        if ((symbol & 255) == 0) {
            // Runs of 16 zeros in front of the end of block are legal, but no encoder needs them, and libjpeg writes none.
            for (; to - out > 1 && (to[-2] & 255) == 0xF0; --to) {
                --counts_[0][to[-2] & kKeyMask];
                to[-2] = to[-1];
            }
        } else if ((symbol & 15) == 0 || k != 64) {
            return false;  // a run beyond the block
        }
        out = to;
        return true;
    }

    // Puts an end of block in the place of a filler's AC.
    void empty_block(const Symbol* start, Symbol*& to) {
        Symbol end = (start[0] & 0x300) + 0x200;
        for (const Symbol* symbol = start + 1; symbol < to; ++symbol) --counts_[0][*symbol & kKeyMask];
        to -= to - start - 1;  // behind the DC
        *to++ = end;
        ++counts_[0][end];
    }

    SymbolList& list_;
    const ScanShape& shape_;
    BitReader bits_;
    DecodeTable dc_[3], ac_[3];
    Block blocks_[10];
    uint32_t n_blocks_ = 0;
    uint32_t right_ = 0, bottom_ = 0;          // which blocks of an MCU at that edge lie beyond it
    int32_t dc_now_[3] = {}, ahead_[3] = {};   // last DC read; by how much the old file's prediction is ahead of the new one's
    uint64_t next_start_ = 0;                  // MCU
    uint32_t counts_[2][256 * kTables] = {};
};

void SymbolList::reserve(size_t more) {
    if (capacity_ - size_ >= more) return;
    size_t wanted = std::max(size_ + more, capacity_ * 2);
    std::unique_ptr<Symbol[]> larger(new Symbol[wanted]);
    if (size_) std::memcpy(larger.get(), symbols_.get(), size_ * sizeof(Symbol));
    symbols_ = std::move(larger);
    capacity_ = wanted;
}

void SymbolList::grow_plain(size_t size) {
    if (plain_.size() < size) plain_.resize(size);
}

void SymbolList::shrink(size_t keep) {
    if (capacity_ * sizeof(Symbol) > keep) {
        symbols_.reset();
        capacity_ = size_ = 0;
    }
    if (plain_.capacity() > keep) std::vector<uint8_t>().swap(plain_);
}

bool SymbolList::read(const uint8_t* data, size_t size, const ScanShape& shape) {
    return std::make_unique<SymbolReader>(*this, shape)->run(data, size);  // 80 kB of tables: too much for a thin thread's stack
}

}  // namespace fastload
