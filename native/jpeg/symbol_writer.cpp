// From symbols to entropy-coded data.
#include <cstring>

#include "cpu/simd.h"
#include "jpeg/bit_reader.h"
#include "jpeg/symbol_list.h"

namespace fastload {
namespace {

// Writes tokens as bits, filled up with ones to a whole byte. Up to 8 bytes behind the end are
// written over. Whole words, two tokens each, and no branch that is hard to foresee: what a stuffed
// zero needs is looked at afterwards.
uint8_t* pack_bits(const Token* token, const Token* end, const Output* outputs, uint8_t* to) {
    constexpr uint64_t kMost = 56, kHalf = 28;
    uint64_t buffer = 0, count = 0;  // the next bit out on top; less than 8 of them
    auto put = [&](uint64_t value, uint64_t length) {  // kMost bits at most
        count += length;
        buffer |= value << (64 - count);
        uint64_t word = swap_to_big_endian(buffer);
        std::memcpy(to, &word, sizeof word);
        to += count >> 3;
        buffer <<= count & 56;
        count &= 7;
    };
    // The bits of a token, those of its tail at the end.
    auto bits_of = [](Token from, Output output) {
        const uint64_t tail = output >> 6 & 7;
        return (output >> 9) << tail | (from & ((1u << kTailBits) - 1)) >> (kTailBits - tail);
    };
    auto put_any = [&](Token from) {
        const Output output = outputs[from >> kTailBits];
        const uint64_t value = bits_of(from, output), length = output & 63;
        if (length <= kHalf) return put(value, length);
        put(value >> kHalf, length - kHalf);
        put(value & ((uint64_t(1) << kHalf) - 1), kHalf);
    };
    for (; end - token >= 2; token += 2) {
        const Output first = outputs[token[0] >> kTailBits],
                     second = outputs[token[1] >> kTailBits];
        const uint64_t length = (first & 63) + (second & 63);
        if (length <= kMost) {
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

FASTLOAD_BMI2 uint8_t* pack_bits_bmi2(const Token* token, const Token* end, const Output* outputs,
                                      uint8_t* to) {
    return pack_bits(token, end, outputs, to);
}

// Copies with a zero behind each 0xFF.
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

void SymbolList::write(const HuffmanCode codes[kTables], ByteBuffer& out,
                       std::vector<uint32_t>& index) {
    Output* outputs = tables_->outputs;
    list_outputs(codes, outputs);
    for (const SymbolTable* table : tables_->used) table->translate(outputs);
    uint64_t bits = 0;
    for (size_t key = 0; key < 256 * kTables; ++key) {
        const size_t extra = key < 512 ? key & 255 : key & 15;
        bits += uint64_t(counts_[key]) * ((outputs[kCodeTokens + key] & 63) + extra);
    }
    out.reserve(size_t(bits / 8 + ends_.size()) * 2 +
                ends_.size() * 2);  // if every byte had to be stuffed
    index.reserve(ends_.size() + 1);
    const auto pack = use_avx2() ? pack_bits_bmi2 : pack_bits;
    size_t begin = 0;
    for (size_t segment = 0; segment < ends_.size(); ++segment) {
        const Token *first = tokens_.get() + begin, *last = tokens_.get() + ends_[segment];
        grow_plain(size_t(last - first) * 8 + 16);
        uint8_t* end = pack(first, last, outputs, plain_.data());
        if (segment) out.put16(0xFFD0 + uint32_t(segment - 1) % 8);
        index.push_back(uint32_t(out.size()));
        out.end_at(stuff(plain_.data(), size_t(end - plain_.data()), out.end()));
        begin = ends_[segment];
    }
    index.push_back(uint32_t(out.size()));
}

}  // namespace fastload
