// The memory of a list of symbols.
#include <algorithm>
#include <cstring>

#include "jpeg/symbol_list.h"

namespace fastload {

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

}  // namespace fastload
