#include "jpeg/symbol_writer.h"

#include <cstring>

#include "cpu/simd.h"
#include "jpeg/bit_reader.h"

namespace fastload {
namespace {

// Writes tokens as bits, padded with ones to a whole byte. Overwrites up to 8 bytes after the end.
// Writes whole words of two tokens without branches that are hard to predict. stuff() inserts the
// stuffed zeros afterwards.
uint8_t* pack_bits(const Token* token, const Token* end, const TokenCode* token_codes,
                   uint8_t* to) {
    constexpr uint64_t kMaxBits = 56, kHalf = 28;
    uint64_t buffer = 0, count = 0;  // next bit at the top; fewer than 8 bits remain
    auto put = [&](uint64_t value, uint64_t length) {  // at most kMaxBits bits
        count += length;
        buffer |= value << (64 - count);
        uint64_t word = swap_to_big_endian(buffer);
        std::memcpy(to, &word, sizeof word);
        to += count >> 3;
        buffer <<= count & 56;
        count &= 7;
    };
    // Returns the bits of a token, followed by its tail bits.
    auto bits_of = [](Token from, TokenCode code) {
        const uint64_t tail = code >> 6 & 7;
        return (code >> 9) << tail | (from & ((1u << kTailBits) - 1)) >> (kTailBits - tail);
    };
    auto put_any = [&](Token from) {
        const TokenCode code = token_codes[from >> kTailBits];
        const uint64_t value = bits_of(from, code), length = code & 63;
        if (length <= kHalf) return put(value, length);
        put(value >> kHalf, length - kHalf);
        put(value & ((uint64_t(1) << kHalf) - 1), kHalf);
    };
    for (; end - token >= 2; token += 2) {
        const TokenCode first = token_codes[token[0] >> kTailBits],
                        second = token_codes[token[1] >> kTailBits];
        const uint64_t length = (first & 63) + (second & 63);
        if (length <= kMaxBits) {
            put(bits_of(token[0], first) << (second & 63) | bits_of(token[1], second), length);
        } else {
            put_any(token[0]);
            put_any(token[1]);
        }
    }
    if (token < end) put_any(*token);
    if (count) *to++ = uint8_t(buffer >> 56 | 0xFFu >> count);
    return to;
}

FASTLOAD_BMI2 uint8_t* pack_bits_bmi2(const Token* token, const Token* end,
                                      const TokenCode* token_codes, uint8_t* to) {
    return pack_bits(token, end, token_codes, to);
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

}  // namespace

void write_symbols(SymbolList& list, const HuffmanCode codes[kTables], ByteBuffer& out,
                   std::vector<uint32_t>& index) {
    TokenCode* token_codes = list.tables->token_codes;
    list_token_codes(codes, token_codes);
    for (const SymbolTable* table : list.tables->used) table->translate(token_codes);
    uint64_t bits = 0;
    for (size_t key = 0; key < 256 * kTables; ++key) {
        const size_t extra = key < 512 ? key & 255 : key & 15;
        bits += uint64_t(list.counts[key]) * ((token_codes[kCodeTokens + key] & 63) + extra);
    }
    // Enough even if every byte is stuffed.
    out.reserve(size_t(bits / 8 + list.segment_ends.size()) * 2 + list.segment_ends.size() * 2);
    index.reserve(list.segment_ends.size() + 1);
    const auto pack = use_avx2() ? pack_bits_bmi2 : pack_bits;
    size_t begin = 0;
    for (size_t segment = 0; segment < list.segment_ends.size(); ++segment) {
        const Token *first = list.tokens.get() + begin,
                    *last = list.tokens.get() + list.segment_ends[segment];
        list.grow_unstuffed(size_t(last - first) * 8 + 16);
        uint8_t* end = pack(first, last, token_codes, list.unstuffed.data());
        if (segment) out.put16(0xFFD0 + uint32_t(segment - 1) % 8);
        index.push_back(uint32_t(out.size()));
        out.end_at(stuff(list.unstuffed.data(), size_t(end - list.unstuffed.data()), out.end()));
        begin = list.segment_ends[segment];
    }
    index.push_back(uint32_t(out.size()));
}

}  // namespace fastload
