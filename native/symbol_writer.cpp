// From symbols to entropy-coded data.
#include <cstring>

#include "bit_reader.h"
#include "jpeg_symbols.h"

namespace fastload {
namespace {

// By symbol and table: the code with room for the extra bits below it, and in the lowest 5 bits the length of both, 27 at most.
struct CodeTable {
    uint32_t codes[256 * kTables];

    explicit CodeTable(const HuffmanCode tables[kTables]) {
        for (size_t table = 0; table < kTables; ++table) {
            uint16_t values[256];
            uint8_t sizes[256];
            list_codes(tables[table], values, sizes);
            for (size_t symbol = 0; symbol < 256; ++symbol) {
                uint32_t extra = uint32_t(table < 2 ? symbol : symbol & 15);
                codes[256 * table + symbol] = sizes[symbol] ? uint32_t(values[symbol]) << extra << 5 | (sizes[symbol] + extra) : 0;
            }
        }
    }
    uint32_t length(size_t key) const { return codes[key] & 31; }
};

// The bits of a few symbols.
struct Bits {
    uint64_t value;
    uint32_t length;
};

Bits bits_of(Symbol symbol, const CodeTable& table) {
    uint32_t code = table.codes[symbol & kKeyMask];
    return {code >> 5 | symbol >> kExtraShift, code & 31};
}

// Writes symbols as bits, filled up with ones to a whole byte. Up to 8 bytes behind the end are written over.
// Whole words, two symbols each, and no branch on the data: what a stuffed zero needs is looked at afterwards.
uint8_t* pack_bits(const Symbol* symbol, const Symbol* end, const CodeTable& table, uint8_t* to) {
    uint64_t buffer = 0, count = 0;  // the next bit out on top
    auto put = [&](Bits bits) {
        count += bits.length;
        buffer |= bits.value << (64 - count);
        uint64_t word = swap_to_big_endian(buffer);
        std::memcpy(to, &word, sizeof word);
        to += count >> 3;
        buffer <<= count & 56;
        count &= 7;
    };
    for (; end - symbol >= 2; symbol += 2) {
        Bits first = bits_of(symbol[0], table), second = bits_of(symbol[1], table);
        put({first.value << second.length | second.value, first.length + second.length});
    }
    if (symbol < end) put(bits_of(*symbol, table));
    if (count) *to++ = uint8_t(buffer >> 56 | 0xFFu >> count);
    return to;
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

void SymbolList::write(const HuffmanCode codes[kTables], ByteBuffer& out, std::vector<uint32_t>& index) {
    const CodeTable table(codes);
    uint64_t bits = 0;
    for (size_t key = 0; key < 256 * kTables; ++key) bits += uint64_t(counts_[key]) * table.length(key);
    out.reserve(size_t(bits / 8 + ends_.size()) * 2 + ends_.size() * 2);  // if every byte had to be stuffed
    index.reserve(ends_.size() + 1);
    size_t begin = 0;
    for (size_t segment = 0; segment < ends_.size(); ++segment) {
        const Symbol *first = symbols_.get() + begin, *last = symbols_.get() + ends_[segment];
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
