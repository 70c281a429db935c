#include "jpeg/symbol_writer.h"

#include <algorithm>
#include <cstring>

#include "cpu/simd.h"
#include "jpeg/bit_reader.h"

namespace fastload {
namespace {

// Writes bits without stuffed zeros; stuff() inserts them afterwards. Overwrites up to 8 bytes
// after the end. All shifts by a number of bits use only its low 6 bits, as the processor does.
struct BitWriter {
    uint8_t* to;
    uint64_t buffer = 0, count = 0;  // the last `count` bits of the buffer are not yet written

    static constexpr uint32_t kMaxBits = 56;
    void put(uint64_t bits, uint64_t n_bits) {
        buffer = buffer << (n_bits & 63) | bits;
        count += n_bits;
        const uint64_t word = swap_to_big_endian(buffer << (-count & 63));
        std::memcpy(to, &word, sizeof word);
        to += count >> 3;
        count &= 7;
    }
    // Pads with ones to a whole byte and returns the end.
    uint8_t* finish() {
        if (count) *to++ = uint8_t(buffer << (8 - count) | 0xFFu >> count);
        return to;
    }
};

// Returns the bits of a token, followed by its tail bits.
uint64_t bits_of(Token token, TokenCode code) {
    return code >> 12 | (token & ((1u << kTailBits) - 1)) >> (code >> 6 & 63);
}

// Writes three tokens per word, without branches that are hard to predict.
uint8_t* pack_tokens(const Token* token, const Token* end, const TokenCode* token_codes,
                     uint8_t* to) {
    BitWriter writer{to};
    for (; end - token >= 3; token += 3) {
        const TokenCode first = token_codes[token[0] >> kTailBits],
                        second = token_codes[token[1] >> kTailBits],
                        third = token_codes[token[2] >> kTailBits];
        const uint64_t a = bits_of(token[0], first), b = bits_of(token[1], second),
                       c = bits_of(token[2], third);
        const uint64_t n_bits = (first & 63) + (second & 63) + (third & 63);
        if (__builtin_expect(n_bits <= BitWriter::kMaxBits, 1)) {
            writer.put((a << (second & 63) | b) << (third & 63) | c, n_bits);
        } else {
            writer.put(a, first & 63);
            writer.put(b, second & 63);
            writer.put(c, third & 63);
        }
    }
    for (; token < end; ++token) {
        const TokenCode code = token_codes[*token >> kTailBits];
        writer.put(bits_of(*token, code), code & 63);
    }
    return writer.finish();
}

FASTLOAD_BMI2 uint8_t* pack_tokens_bmi2(const Token* token, const Token* end,
                                        const TokenCode* token_codes, uint8_t* to) {
    return pack_tokens(token, end, token_codes, to);
}

struct CodeList {
    uint16_t values[256];
    uint8_t sizes[256];
};

// Writes DC symbols with new codes (`codes` by new table) and copies the AC symbols.
uint8_t* pack_blocks(const SymbolList& list, size_t begin, size_t end,
                     const CodeList codes[kTables], uint8_t* to) {
    BitWriter writer{to};
    for (size_t i = begin; i < end; ++i) {
        const CopiedBlock block = list.blocks[i];
        const CodeList& dc = codes[block.table];
        const uint64_t dc_bits =
            uint64_t(dc.values[block.dc_size]) << block.dc_size | block.dc_extra;
        const uint32_t n_dc_bits = uint32_t(dc.sizes[block.dc_size]) + block.dc_size;
        if (__builtin_expect(!block.n_bits, 0)) {
            const CodeList& ac = codes[2 + block.table];
            writer.put(dc_bits << ac.sizes[0] | ac.values[0], n_dc_bits + ac.sizes[0]);
            continue;
        }
        // The DC symbol has at most 27 bits.
        uint32_t n = std::min(block.n_bits, BitWriter::kMaxBits - 27);
        uint32_t from = block.ac, left = block.n_bits - n;
        writer.put(dc_bits << n | list.bits_at(from) >> (64 - n), n_dc_bits + n);
        from += n;
        for (; left > BitWriter::kMaxBits; left -= BitWriter::kMaxBits) {
            writer.put(list.bits_at(from) >> (64 - BitWriter::kMaxBits), BitWriter::kMaxBits);
            from += BitWriter::kMaxBits;
        }
        if (left) writer.put(list.bits_at(from) >> (64 - left), left);
    }
    return writer.finish();
}

FASTLOAD_BMI2 uint8_t* pack_blocks_bmi2(const SymbolList& list, size_t begin, size_t end,
                                        const CodeList codes[kTables], uint8_t* to) {
    return pack_blocks(list, begin, end, codes, to);
}

// Copies the bytes and inserts a zero after each 0xFF.
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

// Appends all segments to `out`. pack(begin, end, to) writes one from `list.segment_ends` and
// returns its end. `n_bytes` is the size of all segments without stuffed zeros, or more.
template <typename Pack>
void write_segments(SymbolList& list, size_t n_bytes, ByteBuffer& out, std::vector<uint32_t>& index,
                    Pack pack) {
    // Enough even if every byte is stuffed.
    out.reserve(2 * (n_bytes + 2 * list.segment_ends.size()));
    index.reserve(list.segment_ends.size() + 1);
    if (list.packed.size() < n_bytes + 8) list.packed.resize(n_bytes + 8);
    uint8_t* const packed = list.packed.data();
    size_t begin = 0;
    for (size_t segment = 0; segment < list.segment_ends.size(); ++segment) {
        const uint8_t* end = pack(begin, list.segment_ends[segment], packed);
        if (segment) out.put16(0xFFD0 + uint32_t(segment - 1) % 8);
        index.push_back(uint32_t(out.size()));
        out.end_at(stuff(packed, size_t(end - packed), out.end()));
        begin = list.segment_ends[segment];
    }
    index.push_back(uint32_t(out.size()));
}

// Returns the size of all segments without stuffed zeros, rounded up. `n_bits` of each symbol.
template <typename Bits>
size_t count_bytes(const SymbolList& list, Bits n_bits) {
    uint64_t bits = 0;
    for (size_t key = 0; key < 256 * kTables; ++key) {
        const size_t extra = key < 512 ? key & 255 : key & 15;
        bits += uint64_t(list.counts[key]) * (n_bits(key) + extra);
    }
    return size_t(bits / 8 + list.segment_ends.size());
}

}  // namespace

bool write_symbols(SymbolList& list, const HuffmanCode codes[kTables], ByteBuffer& out,
                   std::vector<uint32_t>& index) {
    TokenCode* token_codes = list.tables->token_codes;
    list_token_codes(codes, token_codes);
    for (const SymbolTable* table : list.tables->used)
        if (!table->translate(token_codes)) return false;
    const size_t n_bytes =
        count_bytes(list, [&](size_t key) { return token_codes[kCodeTokens + key] & 63; });
    const auto pack = use_avx2() ? pack_tokens_bmi2 : pack_tokens;
    write_segments(list, n_bytes, out, index, [&](size_t begin, size_t end, uint8_t* to) {
        return pack(list.tokens.get() + begin, list.tokens.get() + end, token_codes, to);
    });
    return true;
}

void write_blocks(SymbolList& list, const HuffmanCode codes[kTables], ByteBuffer& out,
                  std::vector<uint32_t>& index) {
    CodeList lists[kTables];
    for (size_t i = 0; i < kTables; ++i) list_codes(codes[i], lists[i].values, lists[i].sizes);
    const size_t n_bytes =
        count_bytes(list, [&](size_t key) { return lists[key / 256].sizes[key % 256]; });
    const auto pack = use_avx2() ? pack_blocks_bmi2 : pack_blocks;
    write_segments(list, n_bytes, out, index, [&](size_t begin, size_t end, uint8_t* to) {
        return pack(list, begin, end, lists, to);
    });
}

}  // namespace fastload
