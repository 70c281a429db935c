#include "jpeg/symbol_writer.h"

#include <algorithm>
#include <cstring>

#include "cpu/simd.h"
#include "jpeg/bit_reader.h"
#include "jpeg/stuffing.h"

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

// Returns the size of all segments without stuffed zeros, rounded up.
size_t count_bytes(const SymbolList& list, const TokenCode* token_codes) {
    uint64_t bits = 0;
    for (size_t key = 0; key < 256 * kTables; ++key) {
        const size_t extra = key < 512 ? key & 255 : key & 15;
        bits += uint64_t(list.counts[key]) * ((token_codes[kCodeTokens + key] & 63) + extra);
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
    const size_t n_bytes = count_bytes(list, token_codes);
    // Enough even if every byte is stuffed.
    out.reserve(2 * (n_bytes + 2 * list.segment_ends.size()));
    index.reserve(list.segment_ends.size() + 1);
    if (list.packed.size() < n_bytes + 8) list.packed.resize(n_bytes + 8);
    uint8_t* const packed = list.packed.data();
    const auto pack = use_avx2() ? pack_tokens_bmi2 : pack_tokens;
    const Token* begin = list.tokens.get();
    for (size_t segment = 0; segment < list.segment_ends.size(); ++segment) {
        const Token* const end = list.tokens.get() + list.segment_ends[segment];
        const uint8_t* const packed_end = pack(begin, end, token_codes, packed);
        if (segment) out.put16(0xFFD0 + uint32_t(segment - 1) % 8);
        index.push_back(uint32_t(out.size()));
        out.end_at(stuff(packed, size_t(packed_end - packed), out.end()));
        begin = end;
    }
    index.push_back(uint32_t(out.size()));
    return true;
}

}  // namespace fastload
