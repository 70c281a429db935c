// Converts entropy-coded data to tokens, for jpeg/symbol_reader.cpp. A photo of 100 kB has about
// 140,000 symbols, and the latency of the table lookup dominates. So each lookup finds as many
// symbols as possible, the next lookup depends only on the number of bits used, and the end of a
// block is not a branch: it selects the next table.
#pragma once

#include "cpu/simd.h"
#include "jpeg/bit_reader.h"
#include "jpeg/symbol_list.h"

namespace fastload {

// One table of an MCU: DC and AC of the first block, DC and AC of the second, and so on.
struct Turn {
    SymbolTable* after;  // the table of the next turn
    const Turn* next;
    SymbolTable* table;
};

// The state is a plain struct that the caller copies to a local variable, so that it stays in
// registers. Without tokens, it only finds where each symbol of a block ends, and counts symbols.
template <bool kTokens>
struct SymbolStream {
    static constexpr size_t kMaxTokens = 2 * 64 + 8;  // written by fast_steps() or one slow_step()

    uint64_t bits = 0;              // the next bits, from the top
    const uint8_t* next = nullptr;  // the bytes after the first 63 bits
    // Sum of the entries of the lookups. In the low byte: the number of those 63 bits that are
    // used. Above it: the place in the block, minus 65.
    int32_t progress = kStart;
    Token* to = nullptr;
    uint32_t* end = nullptr;  // receives end_mark() at the end of each turn
    SymbolTable* table = nullptr;
    const Turn* turn = nullptr;
    static constexpr int32_t kStart = (1 - 65) * 256, kFull = (64 - 65) * 256;

    SymbolStream() = default;
    // Copies member by member: GCC keeps a struct that is copied as a whole in memory.
    SymbolStream(const SymbolStream& other) { *this = other; }
    SymbolStream& operator=(const SymbolStream& other) {
        bits = other.bits;
        next = other.next;
        progress = other.progress;
        to = other.to;
        end = other.end;
        table = other.table;
        turn = other.turn;
        return *this;
    }

    void start(const uint8_t* from) {
        bits = 0;
        next = from;
        progress = kStart + 63;
    }

    // Returns the number of bits from `data` to the next bit.
    uint64_t position(const uint8_t* data) const {
        return 8 * uint64_t(next - data) + uint32_t(progress & 255) - 63;
    }

    // What `end` receives. With tokens, the low half of the address of the next one. Without, the
    // position of the next bit: position(data) is the difference from end_mark(data).
    static uint32_t end_mark(const Token* token) {
        return uint32_t(reinterpret_cast<uintptr_t>(token));
    }
    static uint32_t end_mark(const uint8_t* byte, int32_t progress_at_start = kStart + 63) {
        return uint32_t(8 * reinterpret_cast<uintptr_t>(byte)) + uint32_t(progress_at_start);
    }

    // Loads the next kBits or more. Reads 8 bytes, even beyond the end of the data. The address
    // does not depend on the last lookups, so that they need not wait for the load. Bits that are
    // loaded twice have the same value.
    static constexpr uint32_t kBits = 56;
    void refill() {
        uint64_t word;
        std::memcpy(&word, next, sizeof word);
        bits |= swap_to_big_endian(word) >> (~progress & 63);
        next += (progress & 255) >> 3;
        progress &= ~0xF8;
    }

    // One lookup. Returns false if slow_step() has to repeat it: the table does not hold the
    // symbol, or the block is full and the lookup read symbols of the next block.
    bool fast_step(uint32_t& looked_up) {
        looked_up = uint32_t(bits >> (64 - kLookupBits));
        const SymbolTable::Entry entry = table->entries[looked_up];
        ++table->counts[looked_up];
        if (kTokens) *to++ = table->first_token + Token(bits >> (64 - kLookupBits - kTailBits));
        bits <<= entry & 63;  // the mask costs nothing
        progress += entry;
        if (__builtin_expect(!is_regular(), 0)) return false;
        end_turn();
        return true;
    }

    // Reads one symbol that the last lookup did not find, or all symbols to the end of a full
    // block. Returns false for irregular data.
    bool slow_step(uint32_t looked_up, uint32_t* counts) {
        const SymbolTable::Entry entry = table->entries[looked_up];
        --table->counts[looked_up];
        if (kTokens) --to;
        progress -= entry;
        reload();
        do {
            DecodedSymbol found;
            const uint32_t n_bits = table->search(bits, found);
            if (!n_bits) return false;
            progress += SymbolTable::make_entry(n_bits, found.advance);
            reload();
            if (table->is_dc()) {
                put(dc_token(table->new_table(), found.extra_bits, found.extra), counts);
            } else {
                put(table->code_token(found.symbol), counts);
                if (kTokens && found.extra_bits)
                    *to++ = (kExtraTokens + (1u << found.extra_bits) + found.extra) << kTailBits;
            }
        } while (entry & 255 && progress < kFull);
        if (!is_regular()) return false;  // a run exceeds the block
        end_turn();
        return true;
    }

private:
    // The place in the block is below 65, or the block ended before it exceeded 64.
    bool is_regular() const { return progress & 64 * 256; }

    // Loads the bits after the used ones again. `bits` may have lost some of them.
    void reload() {
        const int32_t n_unused = 63 - (progress & 255), n_used_of_byte = -n_unused & 7;
        next -= (n_unused + 7) / 8;
        uint64_t word;
        std::memcpy(&word, next, sizeof word);
        bits = swap_to_big_endian(word) << n_used_of_byte;
        next += 7;
        progress = (progress & ~255) + 7 + n_used_of_byte;
    }

    // Moves to the next table if the block, or its DC symbol, ends here. A branch would be
    // predicted wrong once per block, and compilers do not reliably avoid it.
    void end_turn() {
        const int32_t start = kStart + (progress & 255);
        *end = kTokens ? end_mark(to) : end_mark(next, start);
        uint32_t* const next_end = end + 1;
#ifdef FASTLOAD_X86
        asm("cmpl %[full], %[progress]\n\t"
            "cmovge %[next_end], %[end]\n\t"
            "cmovge %[after], %[table]\n\t"
            "cmovge %[next], %[turn]\n\t"
            "cmovge %[start], %[progress]"
            : [end] "+r"(end), [table] "+r"(table), [turn] "+&r"(turn), [progress] "+&r"(progress)
            : [next_end] "r"(next_end), [after] "m"(turn->after), [next] "m"(turn->next),
              [start] "r"(start), [full] "i"(kFull)
            : "cc");
#else
        const bool ends = progress >= kFull;
        end = ends ? next_end : end;
        table = ends ? turn->after : table;
        turn = ends ? turn->next : turn;
        progress = ends ? start : progress;
#endif
    }

    void put(Token token, uint32_t* counts) {
        if (kTokens) *to++ = token;
        ++counts[(token >> kTailBits) - kCodeTokens];
    }
};

}  // namespace fastload
