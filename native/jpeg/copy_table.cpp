#include "jpeg/copy_table.h"

#include <algorithm>
#include <iterator>

namespace fastload {
namespace {

// Without kEnd; one too large for an end of block.
uint32_t advance_of(Entry entry) {
    return entry >> 8 & 127;
}

}  // namespace

bool CopyTable::build(const HuffmanCode& code) {
    if (built_ && is_same(code, search_.code())) return true;
    built_ = search_.set(code, false);
    if (!built_) return false;
    uint32_t longest_advance[kLookupBits + 1] = {};
    for (uint32_t n = 1; n <= kLookupBits; ++n) {
        Entry *const first = all_ + (size_t(1) << n), *to = first;
        const bool whole = n == kLookupBits;
        const Entry none = whole ? make_entry(0, kUnknown) : 0;
        // An entry for fewer bits follows symbols that used the others.
        const uint32_t most = kMaxBits - (kLookupBits - n);
        search_.each_code(n, [&](uint32_t symbol, uint32_t value, uint32_t length) {
            const SymbolMeaning meaning(symbol, false);
            const uint32_t used = length + meaning.extra_bits;
            to = std::fill_n(to, first + (size_t(value) << (n - length)) - to, none);
            const Entry one = used <= most ? make_entry(used, meaning.advance) : none;
            const size_t n_entries = size_t(1) << (n - length);
            if (used > most || used >= n || !symbol) {
                to = std::fill_n(to, n_entries, one);
                return;
            }
            const uint32_t left = n - used;
            const Entry* const rest = all_ + (size_t(1) << left);
            const size_t n_rest = size_t(1) << left;
            const bool fits = meaning.advance + longest_advance[left] <= kMaxAdvance;
            for (Entry* const end = to + n_entries; to < end; to += n_rest)
                for (size_t i = 0; i < n_rest; ++i)
                    to[i] = fits || meaning.advance + advance_of(rest[i]) <= kMaxAdvance
                                ? Entry(one + rest[i])
                                : one;
        });
        std::fill(to, first + (size_t(1) << n), none);
        if (!whole)
            for (const Entry* entry = first; entry < first + (size_t(1) << n); ++entry)
                longest_advance[n] = std::max(longest_advance[n], advance_of(*entry));
    }
    return true;
}

bool DcTable::build(const HuffmanCode& code, const CopyTable& ac) {
    if (!search_.set(code, true)) return false;
    const Entry none = make_entry(0, kUnknown);
    std::fill(std::begin(joined_), std::end(joined_), none);
    search_.each_code(kJoinedBits, [&](uint32_t size, uint32_t value, uint32_t length) {
        const uint32_t used = length + size;
        Entry* to = joined_ + (size_t(value) << (kJoinedBits - length));
        Entry* const end = to + (size_t(1) << (kJoinedBits - length));
        if (used >= kJoinedBits) {
            std::fill(to, end, used > CopyTable::kMaxBits ? none : make_entry(used, 0));
            return;
        }
        const Entry* const rest = ac.entries(kJoinedBits - used);
        const size_t n_rest = size_t(1) << (kJoinedBits - used);
        for (; to < end; to += n_rest)
            for (size_t i = 0; i < n_rest; ++i) to[i] = Entry(used + rest[i]);
    });
    std::fill_n(entries_, size_t(1) << kLookupBits, uint16_t(0));
    search_.each_code(kLookupBits, [&](uint32_t size, uint32_t value, uint32_t length) {
        const uint32_t spare = kLookupBits - length;
        std::fill_n(entries_ + (value << spare), 1u << spare,
                    uint16_t((length + size) | size << 8));
    });
    return true;
}

DcTable::Found DcTable::find(uint64_t bits) const {
    DecodedSymbol found;
    const uint32_t n_bits = search_.find(bits, found);
    return {n_bits, dc_difference(found.extra_bits, found.extra)};
}

}  // namespace fastload
