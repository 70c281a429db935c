// Converts entropy-coded data to tokens, for jpeg/symbol_reader.cpp. A photo of 100 kB has about
// 140,000 symbols, and the latency of the table lookup dominates. So each lookup finds as many
// symbols as possible, the next lookup depends only on the number of bits used, and the end of a
// block is not a branch: it selects the next table.
#pragma once

#include "cpu/simd.h"
#include "jpeg/symbol_bits.h"
#include "jpeg/symbol_list.h"

namespace fastload {

// One table of an MCU: DC and AC of the first block, DC and AC of the second, and so on.
struct Turn {
    SymbolTable* after;  // the table of the next turn
    const Turn* next;
    SymbolTable* table;
};

// The state is a plain struct that the caller copies to a local variable, so that it stays in
// registers.
struct SymbolStream : SymbolBits {
    static constexpr size_t kMaxTokens = 2 * 64 + 8;  // written by fast_steps() or one slow_step()

    Token* to = nullptr;
    uint32_t* end = nullptr;  // receives end_mark() at the end of each turn
    SymbolTable* table = nullptr;
    const Turn* turn = nullptr;

    SymbolStream() = default;
    // Copies member by member: GCC keeps a struct that is copied as a whole in memory.
    SymbolStream(const SymbolStream& other) : SymbolBits() { *this = other; }
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

    // What `end` receives: the low half of the address of the next token.
    static uint32_t end_mark(const Token* token) {
        return uint32_t(reinterpret_cast<uintptr_t>(token));
    }

    // One lookup. Returns false if slow_step() has to repeat it: the table does not hold the
    // symbol, or the block is full and the lookup read symbols of the next block.
    bool fast_step(uint32_t& looked_up) {
        looked_up = uint32_t(bits >> (64 - kLookupBits));
        const Entry entry = table->entries[looked_up];
        ++table->counts[looked_up];
        *to++ = table->first_token + Token(bits >> (64 - kLookupBits - kTailBits));
        advance(entry);
        if (__builtin_expect(!is_regular(), 0)) return false;
        end_turn();
        return true;
    }

    // Reads one symbol that the last lookup did not find, or all symbols to the end of a full
    // block. Returns false for irregular data.
    bool slow_step(uint32_t looked_up, uint32_t* counts) {
        const Entry entry = table->entries[looked_up];
        --table->counts[looked_up];
        --to;
        progress -= entry;
        reload();
        do {
            DecodedSymbol found;
            const uint32_t n_bits = table->search(bits, found);
            if (!n_bits) return false;
            progress += make_entry(n_bits, found.advance);
            reload();
            if (table->is_dc()) {
                put(dc_token(table->new_table(), found.extra_bits, found.extra), counts);
            } else {
                put(table->code_token(found.symbol), counts);
                if (found.extra_bits)
                    *to++ = (kExtraTokens + (1u << found.extra_bits) + found.extra) << kTailBits;
            }
        } while (entry & 255 && progress < kFull);
        if (!is_regular()) return false;  // a run exceeds the block
        end_turn();
        return true;
    }

private:
    // Moves to the next table if the block, or its DC symbol, ends here. A branch would be
    // predicted wrong once per block, and compilers do not reliably avoid it.
    void end_turn() {
        const int32_t start = kStart + (progress & 255);
        *end = end_mark(to);
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
        *to++ = token;
        ++counts[(token >> kTailBits) - kCodeTokens];
    }
};

}  // namespace fastload
