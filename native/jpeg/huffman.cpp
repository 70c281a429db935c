#include "jpeg/huffman.h"

#include <algorithm>
#include <functional>

namespace fastload {
namespace {

// A symbol that never occurs. It receives the code of ones only, which no real symbol may have.
constexpr size_t kReserved = 256;
constexpr size_t kMaxLength = 32;  // as in libjpeg; limited to 16 afterwards

// Computes code lengths with Huffman's method. A node is identified by one of its symbols; `next`
// links the symbols of a node. The order of equal counts decides which of several optimal codes
// results. As in libjpeg, the larger symbol is first.
class HuffmanTree {
public:
    explicit HuffmanTree(const uint32_t counts[256]) {
        for (size_t symbol = 0; symbol < kReserved; ++symbol)
            if (counts[symbol]) push(counts[symbol], symbol);
        push(1, kReserved);
    }

    const uint8_t* build() {
        std::fill(std::begin(next_), std::end(next_), -1);
        while (n_ > 1) {
            uint64_t first = pop(), second = pop();
            push((first >> 9) + (second >> 9), join(symbol_of(first), symbol_of(second)));
        }
        return sizes_;
    }

private:
    static size_t symbol_of(uint64_t node) { return 511 - size_t(node & 511); }

    void push(uint64_t count, size_t symbol) {
        heap_[n_++] = count << 9 | (511 - symbol);
        std::push_heap(heap_, heap_ + n_, std::greater<>());
    }

    uint64_t pop() {
        std::pop_heap(heap_, heap_ + n_, std::greater<>());
        return heap_[--n_];
    }

    size_t join(size_t first, size_t second) {
        size_t last = first;
        for (++sizes_[last]; next_[last] >= 0; ++sizes_[last]) last = size_t(next_[last]);
        next_[last] = int(second);
        for (++sizes_[second]; next_[second] >= 0; ++sizes_[second]) second = size_t(next_[second]);
        return first;
    }

    uint64_t heap_[kReserved + 1];
    size_t n_ = 0;
    int next_[kReserved + 1];
    uint8_t sizes_[kReserved + 1] = {};
};

// Limits codes to 16 bits: of a pair of the longest codes, one is shortened by a bit and the other
// moves below the next shorter code (annex K.2 of the standard).
void shorten(uint32_t lengths[kMaxLength + 1]) {
    for (size_t i = kMaxLength; i > 16; --i)
        while (lengths[i] > 0) {
            size_t j = i - 2;
            while (lengths[j] == 0) --j;
            lengths[i] -= 2;
            lengths[i - 1] += 1;
            lengths[j + 1] += 2;
            lengths[j] -= 1;
        }
}

}  // namespace

bool make_optimal_code(const uint32_t counts[256], HuffmanCode& code) {
    HuffmanTree tree(counts);
    const uint8_t* sizes = tree.build();
    uint32_t lengths[kMaxLength + 1] = {}, next[kMaxLength + 2] = {};
    for (size_t symbol = 0; symbol <= kReserved; ++symbol) {
        if (sizes[symbol] > kMaxLength) return false;
        if (sizes[symbol]) ++lengths[sizes[symbol]];
    }
    code = {};
    for (size_t size = 1; size <= kMaxLength; ++size)
        next[size + 1] = next[size] + lengths[size] - (size == sizes[kReserved]);
    for (size_t symbol = 0; symbol < kReserved; ++symbol)  // sorted by size, then by symbol
        if (sizes[symbol]) code.symbols[next[sizes[symbol]]++] = uint8_t(symbol), ++code.n_symbols;
    shorten(lengths);
    size_t longest = 16;
    while (longest > 1 && !lengths[longest]) --longest;
    if (lengths[longest]) --lengths[longest];  // the reserved symbol
    for (size_t i = 1; i <= 16; ++i) code.lengths[i] = uint8_t(lengths[i]);
    return true;
}

bool is_same(const HuffmanCode& one, const HuffmanCode& other) {
    return std::equal(one.lengths, one.lengths + 17, other.lengths) &&
           std::equal(one.symbols, one.symbols + 256, other.symbols);
}

void list_codes(const HuffmanCode& code, uint16_t codes[256], uint8_t sizes[256]) {
    std::fill(sizes, sizes + 256, uint8_t(0));
    uint32_t next = 0;
    size_t i = 0;
    for (uint8_t size = 1; size <= 16; ++size, next <<= 1)
        for (size_t n = code.lengths[size]; n; --n, ++i) {
            codes[code.symbols[i]] = uint16_t(next++);
            sizes[code.symbols[i]] = size;
        }
}

}  // namespace fastload
