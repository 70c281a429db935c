// Converts the entropy-coded data of one block to tokens, for jpeg/symbol_reader.cpp. The latency
// of the table lookup dominates here (about 140,000 symbols in a photo of 100 kB). So each lookup
// finds as many symbols as possible, and the next lookup depends only on the number of bits used.
#pragma once

#include "jpeg/symbol_tables.h"

namespace fastload {

constexpr size_t kMaxTokens = 2 * 64;  // per block: a symbol that no lookup finds takes two tokens

// Appends tokens and counts them. Every function returns false for irregular data; the results are
// then invalid.
class BlockReader {
public:
    explicit BlockReader(uint32_t* counts) : counts_(counts) {}  // indexed by token number

    // Reads a DC difference without converting it.
    static bool read_dc(const SymbolTable& table, BitReader& bits, uint32_t& size,
                        uint32_t& extra) {
        DecodedSymbol found;
        bits.refill();
        const bool good = table.find_dc(bits, found);
        size = found.extra_bits;
        extra = found.extra;
        return good;
    }

    void put_dc(const SymbolTable& table, uint32_t size, uint32_t extra, Token*& to) {
        if (size <= kTailBits)
            put(table.dc_token(size, extra), to);
        else
            put_apart(table, size, size, extra, to);
    }

    // Reads the AC symbols of the block. One refill serves three lookups.
    bool read_ac(const SymbolTable& table, BitReader& reader, Token*& out) {
        static_assert(3 * (kLookupBits + kTailBits) <= 56);
        BitReader bits = reader;  // a local copy stays in registers
        Token* to = out;
        const Token first = table.first_token();
        uint32_t* const counts = counts_ + (first >> kTailBits);
        uint32_t k = 1, entry;
        auto step = [&] {
            const uint32_t next = bits.peek(kLookupBits);
            entry = table.look_up(next);
            *to++ = first + bits.peek(kLookupBits + kTailBits);
            bits.drop(entry & 63);
            ++counts[next];
            k += entry >> 6;
            return k < 64;
        };
        for (;;) {
            do bits.refill();
            while (step() && step() && step());
            if (k - SymbolTable::kEnd < 64) {  // the end of most blocks
                // Runs of 16 zeros before the end of block are legal, but no encoder needs them,
                // and libjpeg does not write them.
                if (bool(entry >> 6 == SymbolTable::kEnd) & table.is_zeros(to[-2]))
                    drop_zeros(table, out, to);
                out = to;
                reader = bits;
                return true;
            }
            --counts_[*--to >> kTailBits];
            k -= entry >> 6;
            // Either the lookup table does not hold the symbol, or the block is full and the lookup
            // read symbols of the next block. Read symbol by symbol then.
            const bool whole = entry >> 6 != SymbolTable::kUnknown;
            if (whole) bits.go_back(entry & 63);
            do
                if (!search_ac(table, bits, k, to)) return false;
            while (whole && k < 64);
            if (k >= 64) {
                reader = bits;
                return end_block(table, k, out, to);
            }
        }
    }

    // Replaces the AC tokens of a filler block by an end of block.
    void empty_block(const SymbolTable& table, Token* ac, Token*& to) {
        for (const Token* token = ac; token < to; ++token)
            if (*token >> kTailBits < kCountedTokens) --counts_[*token >> kTailBits];
        to = ac;
        put(table.code_token(0), to);
    }

private:
    void put(Token token, Token*& to) {
        *to++ = token;
        ++counts_[token >> kTailBits];
    }

    void put_apart(const SymbolTable& table, uint32_t symbol, uint32_t extra_bits, uint32_t extra,
                   Token*& to) {
        put(table.code_token(symbol), to);
        if (extra_bits) *to++ = (kExtraTokens + (1u << extra_bits) + extra) << kTailBits;
    }

    bool search_ac(const SymbolTable& table, BitReader& bits, uint32_t& k, Token*& to) {
        DecodedSymbol found;
        if (!table.search(bits, found)) return false;
        put_apart(table, found.symbol, found.extra_bits, found.extra, to);
        k += found.advance;
        return true;
    }

    bool end_block(const SymbolTable& table, uint32_t k, Token*& out, Token* to) {
        if (k >= SymbolTable::kEnd)
            drop_zeros(table, out, to);
        else if (k != 64 || table.is_zeros(to[-1]))
            return false;  // the run exceeds the block
        out = to;
        return true;
    }

    // Removes runs of 16 zeros before the end of block, which is the last token.
    void drop_zeros(const SymbolTable& table, const Token* begin, Token*& to) {
        for (; to - begin > 1 && table.is_zeros(to[-2]); --to) {
            --counts_[to[-2] >> kTailBits];
            to[-2] = to[-1];
        }
    }

    uint32_t* const counts_;
};

}  // namespace fastload
