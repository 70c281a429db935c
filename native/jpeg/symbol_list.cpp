#include "jpeg/symbol_list.h"

#include <algorithm>
#include <cstring>

namespace fastload {

void SymbolList::make_tables() {
    if (tables) return;
    tables = std::make_unique<Tables>();
    list_extra_codes(tables->token_codes);
}

void SymbolList::reserve(size_t n_more_tokens) {
    if (capacity - size >= n_more_tokens) return;
    const size_t wanted = std::max(size + n_more_tokens, capacity * 2);
    std::unique_ptr<Token[]> larger(new Token[wanted]);
    if (size) std::memcpy(larger.get(), tokens.get(), size * sizeof(Token));
    tokens = std::move(larger);
    capacity = wanted;
}

void SymbolList::grow_unstuffed(size_t n_bytes) {
    if (unstuffed.size() < n_bytes) unstuffed.resize(n_bytes);
}

void SymbolList::shrink(size_t keep_bytes) {
    if (capacity * sizeof(Token) > keep_bytes) {
        tokens.reset();
        capacity = 0;
        size = 0;
    }
    if (unstuffed.capacity() > keep_bytes) std::vector<uint8_t>().swap(unstuffed);
    if (packed.capacity() > keep_bytes) std::vector<uint8_t>().swap(packed);
    if (turn_ends.capacity() * sizeof(uint32_t) > keep_bytes)
        std::vector<uint32_t>().swap(turn_ends);
}

}  // namespace fastload
