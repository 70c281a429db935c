#include "jpeg_symbols.h"

#include <algorithm>
#include <cstring>

namespace fastload {
namespace {

constexpr uint32_t kLook = 10;      // bits looked up at once; longer codes are rare (under 1 % on photographs)
constexpr uint32_t kStop = 1 << 7;  // ends a block's loop: end of block, unknown code, or nothing a valid file has

// One step of reading: the symbol, the bits of its code, its extra bits, and how far it moves on in the block.
struct Step {
    uint8_t symbol, code_bits, skip, extra_bits;
};

uint64_t load_big_endian(const uint8_t* bytes) {
    uint64_t value;
    std::memcpy(&value, bytes, sizeof value);
#if __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__
    value = __builtin_bswap64(value);
#endif
    return value;
}

void store_big_endian(uint8_t* bytes, uint64_t value) {
#if __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__
    value = __builtin_bswap64(value);
#endif
    std::memcpy(bytes, &value, sizeof value);
}

// The most an MCU can take: 10 blocks of 64 symbols of 16 + 11 bits, and what is read ahead; then overrun() is asked.
constexpr size_t kPadding = 10 * 64 * 27 / 8 + 64;

// 64 bits in advance, the next one on top. No bounds are checked: there are kPadding readable bytes behind the data.
class BitReader {
public:
    BitReader(const uint8_t* bytes, size_t size) : next_(bytes), end_(bytes + size) {}

    void refill() {  // to 56 bits at least
        buffer_ |= load_big_endian(next_) >> count_;
        next_ += (63 - count_) >> 3;
        count_ |= 56;
    }
    uint32_t peek(uint32_t n) const { return uint32_t(buffer_ >> (64 - n)); }
    void drop(uint32_t n) {
        buffer_ <<= n;
        count_ -= n;
    }
    // n bits that come `from` bits ahead; n may be 0
    uint32_t peek_behind(uint32_t from, uint32_t n) const { return uint32_t((buffer_ << from) >> 1 >> (63 - n)); }
    bool overrun() const { return next_ > end_ + 8; }
    // Bits not used yet; negative where more was read than there is.
    int64_t left() const { return int64_t(count_) + 8 * int64_t(end_ - next_); }

private:
    uint64_t buffer_ = 0, count_ = 0;  // count_ has 64 bits so that no uint32_t written elsewhere can be suspected to change it
    const uint8_t *next_, *end_;
};

class DecodeTable {
public:
    // False for a table that is no code. `dc`: the symbol is the number of extra bits, and there is no run.
    bool build(const HuffmanCode& code, bool dc) {
        for (Step& step : steps_) step = {0, 0, kStop, 0};
        uint32_t next = 0;
        size_t i = 0;
        for (uint32_t length = 1; length <= 16; ++length, next <<= 1) {
            first_[length] = int32_t(i) - int32_t(next);
            for (size_t n = code.lengths[length]; n; --n, ++i, ++next) {
                if (i >= 256 || next >= (1u << length)) return false;
                by_order_[i] = make(code.symbols[i], length, dc);
                if (length > kLook) continue;
                uint32_t spread = 1u << (kLook - length);
                std::fill_n(steps_ + (next << (kLook - length)), spread, by_order_[i]);
            }
            limit_[length] = code.lengths[length] ? next : 0;
        }
        return true;
    }

    Step look(uint32_t bits) const { return steps_[bits]; }

    // For what look() does not know: 16 bits ahead in, a step out; code_bits 0 where there is no such code.
    Step search(uint32_t bits16) const {
        for (uint32_t length = kLook + 1; length <= 16; ++length) {
            uint32_t code = bits16 >> (16 - length);
            if (code < limit_[length] && int32_t(code) + first_[length] >= 0) return by_order_[int32_t(code) + first_[length]];
        }
        return {0, 0, kStop, 0};
    }

private:
    static Step make(uint8_t symbol, uint32_t length, bool dc) {
        Step step{symbol, uint8_t(length), 0, uint8_t(dc ? symbol : symbol & 15)};
        if (dc) step.skip = symbol > 11 ? kStop : 0;
        else if (symbol == 0xF0) step.skip = 16;
        else if (step.extra_bits == 0 || step.extra_bits > 10) step.skip = kStop;
        else step.skip = uint8_t((symbol >> 4) + 1);
        if (step.extra_bits > 11) step.extra_bits = 0;
        return step;
    }

    Step steps_[1 << kLook];
    Step by_order_[256];
    int32_t first_[17];
    uint32_t limit_[17];
};

// Copies a segment without its stuffed zeros. Returns the end of the segment (where its marker is), null without one.
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

// The other way round.
uint8_t* stuff(const uint8_t* from, size_t size, uint8_t* to) {
    while (const auto* found = static_cast<const uint8_t*>(std::memchr(from, 0xFF, size))) {
        size_t n = size_t(found - from) + 1;
        std::memcpy(to, from, n);
        to += n;
        *to++ = 0;
        from += n;
        size -= n;
    }
    std::memcpy(to, from, size);
    return to + size;
}

}  // namespace

// Walks over the MCUs. One per image: it holds the decoding tables.
class SymbolReader {
public:
    SymbolReader(SymbolList& list, const ScanShape& shape) : list_(list), shape_(shape) {}

    bool run(const uint8_t* data, size_t size) {
        if (!build_tables()) return false;
        std::memset(list_.counts_, 0, sizeof list_.counts_);
        list_.ends_.clear();
        list_.size_ = 0;
        list_.grow_plain(size + kPadding);
        const uint8_t* end = data + size;
        uint64_t n_mcus = uint64_t(shape_.mcus_per_row) * shape_.mcu_rows;
        uint64_t step = shape_.old_interval ? shape_.old_interval : n_mcus;
        uint32_t number = 0;
        for (uint64_t first = 0; first < n_mcus; first += step, ++number) {
            uint8_t* to = list_.plain_.data();
            const uint8_t* marker = unstuff(data, end, to);
            if (!marker) return false;
            bool last = first + step >= n_mcus;
            if (marker[1] != (last ? 0xD9 : 0xD0 + number % 8)) return false;
            if (!read_segment(list_.plain_.data(), size_t(to - list_.plain_.data()), first, std::min(first + step, n_mcus))) return false;
            data = marker + 2;
        }
        list_.ends_.push_back(list_.size_);
        return true;
    }

private:
    bool build_tables() {
        for (uint32_t i = 0; i < shape_.n_components; ++i) {
            const ScanShape::Component* all = shape_.components;
            uint32_t dc = 0, ac = 0;  // the first component with the same tables
            while (all[dc].dc != all[i].dc) ++dc;
            while (all[ac].ac != all[i].ac) ++ac;
            if (dc == i && !dc_[i].build(*all[i].dc, true)) return false;
            if (ac == i && !ac_[i].build(*all[i].ac, false)) return false;
            dc_of_[i] = &dc_[dc];
            ac_of_[i] = &ac_[ac];
        }
        return true;
    }

    bool read_segment(const uint8_t* bytes, size_t size, uint64_t first, uint64_t last) {
        BitReader bits(bytes, size);
        int32_t old_dc[3] = {};
        for (uint64_t mcu = first; mcu < last;) {
            uint32_t row = uint32_t(mcu / shape_.mcus_per_row), column = uint32_t(mcu % shape_.mcus_per_row);
            uint64_t n = std::min<uint64_t>(last - mcu, shape_.mcus_per_row - column);
            list_.reserve(size_t(n) * blocks_in_mcu() * 64);
            for (uint32_t stop = column + uint32_t(n); column < stop; ++column, ++mcu) {
                if (shape_.new_interval ? mcu % shape_.new_interval == 0 : mcu == 0) {
                    if (mcu) list_.ends_.push_back(list_.size_);
                    std::fill(std::begin(new_dc_), std::end(new_dc_), 0);
                }
                if (!read_mcu(bits, row, column, old_dc) || bits.overrun()) return false;
            }
        }
        int64_t left = bits.left();
        return left >= 0 && left < 8;
    }

    uint32_t blocks_in_mcu() const {
        uint32_t n = 0;
        for (uint32_t i = 0; i < shape_.n_components; ++i) n += shape_.components[i].h * shape_.components[i].v;
        return n;
    }

    bool read_mcu(BitReader& bits, uint32_t row, uint32_t column, int32_t old_dc[3]) {
        for (uint32_t i = 0; i < shape_.n_components; ++i) {
            const ScanShape::Component& component = shape_.components[i];
            for (uint32_t y = 0; y < component.v; ++y)
                for (uint32_t x = 0; x < component.h; ++x) {
                    bool filler = column * component.h + x >= component.width_in_blocks || row * component.v + y >= component.height_in_blocks;
                    if (!read_block(bits, i, old_dc[i], filler)) return false;
                }
        }
        return true;
    }

    bool read_block(BitReader& bits, uint32_t component, int32_t& old_dc, bool filler) {
        uint32_t* start = list_.symbols_.get() + list_.size_;
        uint32_t table = shape_.components[component].table;
        bits.refill();
        Step step = dc_of_[component]->look(bits.peek(kLook));
        if (step.skip == kStop && !find(bits, *dc_of_[component], step)) return false;
        uint32_t raw = bits.peek_behind(step.code_bits, step.extra_bits);
        bits.drop(step.code_bits + step.extra_bits);
        // Extra bits with a 0 on top stand for the negative numbers.
        int32_t n = step.extra_bits;
        old_dc += n && !(raw >> (n - 1)) ? int32_t(raw) - (1 << n) + 1 : int32_t(raw);
        if (old_dc < -32768 || old_dc > 32767) return false;
        if (!filler) {
            int32_t difference = old_dc - new_dc_[component];
            uint32_t size = difference ? 32 - uint32_t(__builtin_clz(uint32_t(difference < 0 ? -difference : difference))) : 0;
            if (size > 11) return false;
            uint32_t extra = uint32_t(difference + (difference >> 31)) & ((1u << size) - 1);
            *start = size | table << 8 | extra << 16;
            new_dc_[component] = old_dc;
        } else {
            *start = table << 8;
        }
        ++list_.counts_[*start & 1023];
        uint32_t* to = start + 1;
        if (!read_ac(bits, *ac_of_[component], (table + 2) << 8, to)) return false;
        if (filler) {
            for (uint32_t* symbol = start + 1; symbol < to; ++symbol) --list_.counts_[*symbol & 1023];
            to = start + 1;
            *to++ = (table + 2) << 8;
            ++list_.counts_[(table + 2) << 8];
        }
        list_.size_ += size_t(to - start);
        return true;
    }

    // The rest of the block. `table` as it stands in a symbol's number.
    bool read_ac(BitReader& source, const DecodeTable& codes, uint32_t table, uint32_t*& out) {
        BitReader bits = source;  // in registers
        uint32_t* to = out;
        uint32_t* counts = list_.counts_ + table;
        uint32_t k = 1;
        for (;;) {
            Step step;
            do {
                bits.refill();
                step = codes.look(bits.peek(kLook));
                *to = step.symbol | table | bits.peek_behind(step.code_bits, step.extra_bits) << 16;
                ++to;
                ++counts[step.symbol];
                bits.drop(step.code_bits + step.extra_bits);
                k += step.skip;
            } while (k < 64);
            if (step.skip == kStop && !step.code_bits) {  // a code too long to look up
                --to;
                --counts[0];
                k -= kStop;
                if (!find(bits, codes, step)) return false;
                *to++ = step.symbol | table | bits.peek_behind(step.code_bits, step.extra_bits) << 16;
                ++counts[step.symbol];
                bits.drop(step.code_bits + step.extra_bits);
                k += step.skip;
                if (k < 64) continue;
            }
            if (step.symbol == 0) break;
            if (step.extra_bits == 0 || k != 64) return false;  // a run beyond the block, or a symbol no block has
            source = bits;
            out = to;
            return true;
        }
        // Runs of 16 zeros in front of the end of block are legal, but no encoder needs them, and libjpeg's writes none.
        while (to - out > 1 && to[-2] == (0xF0 | table)) {
            --counts[0xF0];
            --to;
            to[-1] = table;
        }
        source = bits;
        out = to;
        return true;
    }

    static bool find(const BitReader& bits, const DecodeTable& codes, Step& step) {
        if (!step.code_bits) step = codes.search(bits.peek(16));
        return step.code_bits && (step.skip != kStop || step.symbol == 0);
    }

    SymbolList& list_;
    const ScanShape& shape_;
    DecodeTable dc_[3], ac_[3];
    const DecodeTable *dc_of_[3] = {}, *ac_of_[3] = {};
    int32_t new_dc_[3] = {};
};

void SymbolList::reserve(size_t more) {
    if (capacity_ - size_ >= more) return;
    size_t wanted = std::max(size_ + more, capacity_ * 2);
    std::unique_ptr<uint32_t[]> larger(new uint32_t[wanted]);
    if (size_) std::memcpy(larger.get(), symbols_.get(), size_ * sizeof(uint32_t));
    symbols_ = std::move(larger);
    capacity_ = wanted;
}

void SymbolList::shrink(size_t keep) {
    if (capacity_ * sizeof(uint32_t) > keep) {
        symbols_.reset();
        capacity_ = size_ = 0;
    }
    if (plain_.capacity() > keep) std::vector<uint8_t>().swap(plain_);
}

bool SymbolList::read(const uint8_t* data, size_t size, const ScanShape& shape) { return SymbolReader(*this, shape).run(data, size); }

void SymbolList::grow_plain(size_t size) {
    if (plain_.size() < size) plain_.resize(size);
}

namespace {

// By symbol and table: the code with room for the extra bits below it, and the length of both.
struct CodeTable {
    uint32_t shifted[256 * SymbolList::kTables], total[256 * SymbolList::kTables];

    explicit CodeTable(const HuffmanCode codes[SymbolList::kTables]) {
        for (size_t table = 0; table < SymbolList::kTables; ++table) {
            uint16_t values[256];
            uint8_t sizes[256];
            list_codes(codes[table], values, sizes);
            for (size_t symbol = 0; symbol < 256; ++symbol) {
                uint32_t extra = !sizes[symbol] ? 0 : table < 2 ? uint32_t(symbol) : uint32_t(symbol & 15);
                shifted[256 * table + symbol] = sizes[symbol] ? uint32_t(values[symbol]) << extra : 0;
                total[256 * table + symbol] = sizes[symbol] + extra;
            }
        }
    }
};

// Writes symbols as bits, filled up with ones to a whole byte. 8 bytes at `to` beyond the end are written, too.
uint8_t* pack_bits(const uint32_t* symbol, const uint32_t* end, const CodeTable& codes, uint8_t* to) {
    uint64_t buffer = 0, count = 0;  // the next bit out on top
    for (; symbol < end; ++symbol) {
        uint32_t key = *symbol & 1023, length = codes.total[key];
        count += length;
        buffer |= uint64_t(codes.shifted[key] | *symbol >> 16) << (64 - count);
        store_big_endian(to, buffer);
        to += count >> 3;
        buffer <<= count & 56;
        count &= 7;
    }
    if (count) *to++ = uint8_t(buffer >> 56 | 0xFFu >> count);
    return to;
}

}  // namespace

void SymbolList::write(const HuffmanCode codes[kTables], ByteBuffer& out, std::vector<uint32_t>& index) {
    const CodeTable table(codes);
    uint64_t bits = 0;
    for (size_t i = 0; i < 256 * kTables; ++i) bits += uint64_t(counts_[i]) * table.total[i];
    out.reserve(size_t(bits / 8 + ends_.size()) * 2 + ends_.size() * 2);  // if every byte had to be stuffed
    size_t begin = 0;
    for (size_t segment = 0; segment < ends_.size(); ++segment) {
        const uint32_t *first = symbols_.get() + begin, *last = symbols_.get() + ends_[segment];
        grow_plain(size_t(last - first) * 4 + 16);
        uint8_t* end = pack_bits(first, last, table, plain_.data());
        if (segment) out.put16(0xFFD0 + uint32_t(segment - 1) % 8);
        index.push_back(uint32_t(out.size()));
        out.end_at(stuff(plain_.data(), size_t(end - plain_.data()), out.end()));
        begin = ends_[segment];
    }
    index.push_back(uint32_t(out.size()));
}

}  // namespace fastload
