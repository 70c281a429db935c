// From entropy-coded data to tokens. It is the wait for the next look-up that costs here (about 140,000 symbols in a photo of
// 100 kB): each one finds as many symbols as it can, and nothing but the number of bits used lies between it and the next.
#include <algorithm>
#include <cstring>

#include "jpeg_symbols.h"

namespace fastload {
namespace {

// What the reader may read beyond the data before it asks: an MCU of 10 blocks of 64 symbols of 16 + 11 bits.
constexpr size_t kPadding = 10 * 64 * 27 / 8 + 64;
constexpr size_t kMostTokens = 2 * 64;  // of a block: a symbol that no look-up finds takes two

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

}  // namespace

class SymbolReader {
public:
    SymbolReader(SymbolList& list, const ScanShape& shape) : list_(list), tables_(*list.tables_), shape_(shape), counts_(tables_.counts) {}

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
            bits_ = BitReader();
            bits_.next = plain;
            end_ = to;
            if (!read_segment(first, std::min(first + step, n_mcus))) return false;
            data = marker + 2;
        }
        list_.ends_.push_back(list_.size_);
        std::copy_n(counts_ + kCodeTokens, 256 * kTables, list_.counts_);
        for (const SymbolTable* table : tables_.used) table->count(counts_, list_.counts_);
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
            uint32_t dc = 0, ac = 0;  // the first component with the same tables, old and new
            while (all[dc].dc != here.dc || all[dc].table != here.table) ++dc;
            while (all[ac].ac != here.ac || all[ac].table != here.table) ++ac;
            if (dc == i && !use(tables_.dc[i], *here.dc, here.table, kDcTokens + (i << kDcBits))) return false;
            if (ac == i && !use(tables_.ac[i], *here.ac, here.table + 2u, kAcTokens + (i << kAcBits))) return false;
            for (uint32_t y = 0; y < here.v; ++y)
                for (uint32_t x = 0; x < here.h; ++x) {
                    if ((shape_.mcus_per_row - 1) * here.h + x >= here.width_in_blocks) right_ |= 1u << n_blocks_;
                    if ((shape_.mcu_rows - 1) * here.v + y >= here.height_in_blocks) bottom_ |= 1u << n_blocks_;
                    blocks_[n_blocks_++] = {i, &tables_.dc[dc], &tables_.ac[ac]};
                }
        }
        return true;
    }

    bool use(SymbolTable& table, const HuffmanCode& code, uint32_t new_table, uint32_t first_token) {
        tables_.used.push_back(&table);
        return table.build(code, new_table, first_token);
    }

    bool read_segment(uint64_t first, uint64_t last) {
        for (uint32_t i = 0; i < kMaxComponents; ++i) {
            ahead_[i] -= dc_now_[i];
            dc_now_[i] = 0;
        }
        for (uint64_t mcu = first; mcu < last;) {
            uint32_t row = uint32_t(mcu / shape_.mcus_per_row), column = uint32_t(mcu % shape_.mcus_per_row);
            uint64_t n = std::min<uint64_t>(last - mcu, shape_.mcus_per_row - column);
            list_.reserve(size_t(n) * n_blocks_ * kMostTokens);
            uint32_t below = row + 1 == shape_.mcu_rows ? bottom_ : 0;
            for (uint32_t stop = column + uint32_t(n); column < stop; ++column, ++mcu) {
                if (mcu == next_start_) start_segment();
                if (!read_mcu(column + 1 == shape_.mcus_per_row ? below | right_ : below)) return false;
            }
        }
        int64_t left = bits_.left(end_);
        return left >= 0 && left < 8;
    }

    // In the new file: there DC starts from 0 again.
    void start_segment() {
        if (next_start_) list_.ends_.push_back(list_.size_);
        next_start_ = shape_.new_interval ? next_start_ + shape_.new_interval : UINT64_MAX;
        for (uint32_t i = 0; i < kMaxComponents; ++i) ahead_[i] = dc_now_[i];
    }

    bool read_mcu(uint32_t fillers) {
        BitReader bits = bits_;  // in registers, as long as nothing but look-ups is needed
        Token* to = list_.tokens_.get() + list_.size_;
        for (uint32_t i = 0; i < n_blocks_; ++i) {
            const Block& block = blocks_[i];
            const bool filler = fillers >> i & 1;
            int32_t& now = dc_now_[block.component];
            bits.refill();
            const uint32_t next = bits.peek(kDcBits), entry = block.dc->look_dc(next);
            if ((entry & 63) && !filler && !ahead_[block.component]) {
                bits.drop(entry & 63);
                now += int32_t(entry) >> 16;
                put(Token(block.dc->first_token() + next), to);
            } else {
                bits_ = bits;
                if (!read_dc(block, filler, to)) return false;
                bits = bits_;
            }
            if (now < -32768 || now > 32767) return false;
            Token* ac = to;
            if (!read_ac(*block.ac, bits, to)) return false;
            if (filler) empty_block(*block.ac, ac, to);
        }
        bits_ = bits;
        list_.size_ = size_t(to - list_.tokens_.get());
        return bits_.left(end_) >= 0;
    }

    // A difference that no look-up finds, or which is another in the new file.
    bool read_dc(const Block& block, bool filler, Token*& to) {
        Found found;
        if (!block.dc->search(bits_, found)) return false;
        int32_t difference = dc_difference(found.extra_bits, found.extra), &ahead = ahead_[block.component];
        dc_now_[block.component] += difference;
        difference += ahead;
        ahead = filler ? difference : 0;
        if (filler) difference = 0;
        const uint32_t size = difference ? 32 - uint32_t(__builtin_clz(uint32_t(difference < 0 ? -difference : difference))) : 0;
        if (size > 11) return false;
        put_apart(*block.dc, size, size, uint32_t(difference < 0 ? difference - 1 : difference) & ((1u << size) - 1), to);
        return true;
    }

    void put(Token token, Token*& to) {
        *to++ = token;
        ++counts_[token];
    }

    void put_apart(const SymbolTable& table, uint32_t symbol, uint32_t extra_bits, uint32_t extra, Token*& to) {
        put(table.code_token(symbol), to);
        if (extra_bits) *to++ = Token(kExtraTokens + (1u << extra_bits) + extra);
    }

    // The rest of the block. Four look-ups a turn: one refill serves all.
    bool read_ac(const SymbolTable& table, BitReader& reader, Token*& out) {
        BitReader bits = reader;
        Token* to = out;
        const uint32_t first_token = table.first_token();
        uint32_t* const counts = counts_ + first_token;
        uint32_t k = 1, entry;
        auto step = [&] {
            const uint32_t next = bits.peek(kAcBits);
            entry = table.look(next);
            bits.drop(entry & 63);
            *to++ = Token(first_token + next);
            ++counts[next];
            k += entry >> 6;
            return k < 64;
        };
        for (;;) {
            do bits.refill();
            while (step() && step() && step() && step());
            if (k - SymbolTable::kEnd < 64) {  // most blocks end here
                // Runs of 16 zeros in front of the end of block are legal, but no encoder needs them, and libjpeg writes none.
                if (bool(entry >> 6 == SymbolTable::kEnd) & table.is_zeros(to[-2])) drop_zeros(table, out, to);
                out = to;
                reader = bits;
                return true;
            }
            bits_ = bits;
            --counts_[*--to];
            k -= entry >> 6;
            // A symbol that the look-up does not hold; or the block is full, and what follows is another's: one by one then.
            const bool whole = entry >> 6 != SymbolTable::kUnknown;
            if (whole) bits_.go_back(entry & 63);
            do
                if (!search_ac(table, k, to)) return false;
            while (whole && k < 64);
            bits = bits_;
            if (k >= 64) {
                reader = bits;
                return end_block(table, k, out, to);
            }
        }
    }

    bool search_ac(const SymbolTable& table, uint32_t& k, Token*& to) {
        Found found;
        if (!table.search(bits_, found)) return false;
        put_apart(table, found.symbol, found.extra_bits, found.extra, to);
        k += found.advance;
        return true;
    }

    bool end_block(const SymbolTable& table, uint32_t k, Token*& out, Token* to) {
        if (k >= SymbolTable::kEnd) drop_zeros(table, out, to);
        else if (k != 64 || table.is_zeros(to[-1])) return false;  // a run beyond the block
        out = to;
        return true;
    }

    // Those in front of the end of block, which is the last token.
    void drop_zeros(const SymbolTable& table, const Token* begin, Token*& to) {
        for (; to - begin > 1 && table.is_zeros(to[-2]); --to) {
            --counts_[to[-2]];
            to[-2] = to[-1];
        }
    }

    // Puts an end of block in the place of a filler's AC.
    void empty_block(const SymbolTable& table, Token* ac, Token*& to) {
        for (const Token* token = ac; token < to; ++token)
            if (*token < kExtraTokens || *token >= kDcTokens) --counts_[*token];
        to = ac;
        put(table.code_token(0), to);
    }

    SymbolList& list_;
    SymbolList::Tables& tables_;
    const ScanShape& shape_;
    uint32_t* const counts_;                   // by token
    BitReader bits_;
    const uint8_t* end_ = nullptr;             // of the bits
    Block blocks_[10];
    uint32_t n_blocks_ = 0;
    uint32_t right_ = 0, bottom_ = 0;          // which blocks of an MCU at that edge lie beyond it
    int32_t dc_now_[kMaxComponents] = {}, ahead_[kMaxComponents] = {};  // last DC read; how far the old prediction is ahead of the new
    uint64_t next_start_ = 0;                  // MCU
};

void SymbolList::reserve(size_t more) {
    if (capacity_ - size_ >= more) return;
    size_t wanted = std::max(size_ + more, capacity_ * 2);
    std::unique_ptr<Token[]> larger(new Token[wanted]);
    if (size_) std::memcpy(larger.get(), tokens_.get(), size_ * sizeof(Token));
    tokens_ = std::move(larger);
    capacity_ = wanted;
}

void SymbolList::grow_plain(size_t size) {
    if (plain_.size() < size) plain_.resize(size);
}

void SymbolList::shrink(size_t keep) {
    if (capacity_ * sizeof(Token) > keep) {
        tokens_.reset();
        capacity_ = size_ = 0;
    }
    if (plain_.capacity() > keep) std::vector<uint8_t>().swap(plain_);
}

bool SymbolList::read(const uint8_t* data, size_t size, const ScanShape& shape) {
    if (!tables_) tables_ = std::make_unique<Tables>();
    return SymbolReader(*this, shape).run(data, size);
}

}  // namespace fastload
