#include "jpeg/symbol_reader.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>

#include "cpu/simd.h"
#include "jpeg/stuffing.h"
#include "jpeg/symbol_stream.h"

namespace fastload {
namespace {

// Bytes that the reader may read beyond the data before it checks: an MCU of 10 blocks of 64
// symbols of 16 + 11 bits.
constexpr size_t kPadding = 10 * 64 * 27 / 8 + 64;

class SymbolReader {
    using Stream = SymbolStream;

public:
    SymbolReader(SymbolList& list, const ScanShape& shape)
        : list_(list), tables_(*list.tables), shape_(shape) {}

    // Prepares the tables and the memory, and moves to the first segment of the old file.
    bool start(const uint8_t* data, size_t size) {
        data_ = data;
        data_end_ = data + size;
        if (!plan()) return false;
        n_mcus_ = shape_.n_mcus();
        step_ = shape_.old_interval ? std::min<uint64_t>(shape_.old_interval, n_mcus_) : n_mcus_;
        list_.segment_ends.clear();
        list_.size = 0;
        list_.grow_unstuffed(size + kPadding);
        // Every block of the old file has two symbols or more, and so at least two bits.
        if (n_mcus_ * n_blocks_ > 4 * uint64_t(size)) return false;
        list_.turn_ends.resize(2 * size_t(n_mcus_) * n_blocks_ + 4);
        list_.reserve(size + 2 * kReserve);  // photos have 0.9 tokens per byte
        stream_.to = list_.tokens.get();
        stream_.end = list_.turn_ends.data();
        stream_.turn = turns_;
        stream_.table = turns_->table;
        return start_segment();
    }

    // Whether run_together() can read more: not after the last fast step of the only segment.
    bool has_more() const { return !failed_ && step_ == n_mcus_ && fast_rounds(stream_); }

    // Reads all segments of the old file to the end.
    bool run() {
        while (!failed_) {
            if (!read_rest()) return false;
            if (first_ + step_ >= n_mcus_) return finish_tokens();
            first_ += step_;
            if (!start_segment()) return false;
        }
        return false;
    }

    // Reads two files at the same time until one of them is nearly at its end. One file alone waits
    // for each lookup.
    static void run_together(SymbolReader& one, SymbolReader& other) {
        Stream a = one.stream_, b = other.stream_;
        for (;;) {
            one.make_room(a);
            other.make_room(b);
            size_t rounds = std::min(one.fast_rounds(a), other.fast_rounds(b));
            if (!rounds) break;
            for (; rounds; --rounds) {
                a.refill();
                b.refill();
#pragma GCC unroll 3
                for (int i = 0; i < kSteps; ++i) {
                    uint32_t looked_up;
                    if (!a.fast_step(looked_up)) {
                        if (!one.slow_step(a, looked_up)) return one.fail(other, b);
                        rounds = 1;
                    }
                    if (!b.fast_step(looked_up)) {
                        if (!other.slow_step(b, looked_up)) return other.fail(one, a);
                        rounds = 1;
                    }
                }
            }
        }
        one.stream_ = a;
        other.stream_ = b;
    }

private:
    static constexpr int kSteps = 3;  // lookups after one refill
    static constexpr size_t kReserve = kSteps * Stream::kMaxTokens;
    static constexpr uint32_t kBitsOfRound = kSteps * (kLookupBits + kTailBits);
    static_assert(kBitsOfRound <= Stream::kBits);

    struct Block {
        uint32_t component;
        const SymbolTable *dc, *ac;
    };

    bool plan() {
        tables_.used.clear();
        std::fill(std::begin(tables_.counts), std::end(tables_.counts), 0u);
        for (uint32_t i = 0; i < shape_.n_components; ++i) {
            const ScanShape::Component *all = shape_.components, &here = all[i];
            uint32_t dc = 0, ac = 0;  // first component with the same old and new tables
            while (all[dc].dc != here.dc || all[dc].table != here.table) ++dc;
            while (all[ac].ac != here.ac || all[ac].table != here.table) ++ac;
            if (dc == i &&
                !use(tables_.dc[i], *here.dc, here.table, kDcTokens + (i << kLookupBits)))
                return false;
            if (ac == i &&
                !use(tables_.ac[i], *here.ac, here.table + 2u, kAcTokens + (i << kLookupBits)))
                return false;
            for (uint32_t y = 0; y < here.v; ++y)
                for (uint32_t x = 0; x < here.h; ++x) {
                    if ((shape_.mcus_per_row - 1) * here.h + x >= here.width_in_blocks)
                        right_ |= 1u << n_blocks_;
                    if ((shape_.mcu_rows - 1) * here.v + y >= here.height_in_blocks)
                        bottom_ |= 1u << n_blocks_;
                    turns_[2 * n_blocks_].table = &tables_.dc[dc];
                    turns_[2 * n_blocks_ + 1].table = &tables_.ac[ac];
                    blocks_[n_blocks_++] = {i, &tables_.dc[dc], &tables_.ac[ac]};
                }
        }
        for (uint32_t i = 0; i < 2 * n_blocks_; ++i) {
            turns_[i].next = turns_ + (i + 1) % (2 * n_blocks_);
            turns_[i].after = turns_[i].next->table;
        }
        return true;
    }

    bool use(SymbolTable& table, const HuffmanCode& code, uint32_t new_table, uint32_t first) {
        tables_.used.push_back(&table);
        return table.build(code, new_table, first);
    }

    bool start_segment() {
        uint8_t *unstuffed = list_.unstuffed.data(), *to = unstuffed;
        const uint8_t* marker = unstuff(data_, data_end_, to);
        const bool last = first_ + step_ >= n_mcus_;
        if (!marker || marker[1] != (last ? 0xD9 : 0xD0 + first_ / step_ % 8)) return false;
        data_ = marker + 2;
        stream_.start(unstuffed);
        n_bits_ = 8 * uint64_t(to - unstuffed);
        end_ = list_.turn_ends.data() + 2 * n_blocks_ * size_t(std::min(first_ + step_, n_mcus_));
        set_room();
        return true;
    }

    bool read_rest() {
        Stream stream = stream_;
        uint32_t looked_up;
        for (;;) {
            make_room(stream);
            size_t rounds = fast_rounds(stream);
            if (!rounds) break;
            for (; rounds; --rounds) {
                stream.refill();
#pragma GCC unroll 3
                for (int i = 0; i < kSteps; ++i)
                    if (!stream.fast_step(looked_up)) {
                        if (!slow_step(stream, looked_up)) return false;
                        rounds = 1;
                    }
            }
        }
        while (stream.end != end_) {
            stream.refill();
            if (!stream.fast_step(looked_up) && !slow_step(stream, looked_up)) return false;
            if (position(stream) > n_bits_) return false;
            make_room(stream);
        }
        stream_ = stream;
        return n_bits_ - position(stream) < 8;
    }

    uint64_t position(const Stream& stream) const {
        return stream.position(list_.unstuffed.data());
    }

    // Returns how many rounds of kSteps fast steps surely stay inside the segment and the tokens.
    // After a slow step, only the current round is safe.
    size_t fast_rounds(const Stream& stream) const {
        const uint64_t used = position(stream);
        if (used >= n_bits_ || stream.to >= room_) return 0;
        return std::min({size_t(n_bits_ - used + kBitsOfRound - 1) / kBitsOfRound,
                         size_t(end_ - stream.end - 1) / kSteps,
                         size_t(room_ - stream.to + kSteps - 1) / kSteps});
    }

    bool slow_step(Stream& stream, uint32_t looked_up) {
        Stream copy = stream;  // only this copy has its address taken
        const bool good = slow_step_apart(copy, looked_up);
        stream = copy;
        return good;
    }

    __attribute__((noinline)) bool slow_step_apart(Stream& stream, uint32_t looked_up) {
        return stream.slow_step(looked_up, tables_.counts);
    }

    void set_room() { room_ = list_.tokens.get() + list_.capacity - kReserve; }

    void make_room(Stream& stream) {
        if (stream.to < room_) return;
        Stream copy = stream;
        grow(copy);
        stream = copy;
    }

    __attribute__((noinline)) void grow(Stream& stream) {
        const auto before = Stream::end_mark(list_.tokens.get());
        list_.size = size_t(stream.to - list_.tokens.get());
        list_.reserve(list_.size + 2 * kReserve);
        const auto now = Stream::end_mark(list_.tokens.get());
        for (uint32_t* end = list_.turn_ends.data(); end < stream.end; ++end) *end += now - before;
        stream.to = list_.tokens.get() + list_.size;
        set_room();
    }

    void fail(SymbolReader& other, const Stream& stream) {
        failed_ = true;
        other.stream_ = stream;
    }

    // Calls start_segment() for each segment of the new file except for the first, and each(block,
    // is_filler, before, written) for each block, with the DC values before it in the old and the
    // new file. Returns false if `each` does.
    template <typename StartSegment, typename Each>
    bool each_block(StartSegment start_segment, Each each) {
        int32_t old_dc[kMaxComponents] = {}, new_dc[kMaxComponents] = {};
        uint64_t next_start = shape_.new_interval, next_old_start = step_, mcu = 0;
        for (uint32_t row = 0; row < shape_.mcu_rows; ++row)
            for (uint32_t column = 0; column < shape_.mcus_per_row; ++column, ++mcu) {
                if (mcu == next_old_start) {
                    next_old_start += step_;
                    std::fill(std::begin(old_dc), std::end(old_dc), 0);
                }
                if (mcu == next_start && mcu) {
                    next_start += shape_.new_interval;
                    std::fill(std::begin(new_dc), std::end(new_dc), 0);
                    start_segment();
                }
                const uint32_t fillers = (row + 1 == shape_.mcu_rows ? bottom_ : 0) |
                                         (column + 1 == shape_.mcus_per_row ? right_ : 0);
                for (uint32_t i = 0; i < n_blocks_; ++i) {
                    const Block& block = blocks_[i];
                    if (!each(block, fillers >> i & 1, old_dc[block.component],
                              new_dc[block.component]))
                        return false;
                }
            }
        return true;
    }

    static bool is_in_range(int32_t dc) { return dc >= -32768 && dc < 32768; }

    // Adapts the blocks whose DC prediction changes and those beyond the edge of the image, finds
    // the segments of the new file, and counts the symbols.
    bool finish_tokens() {
        Token* const tokens = list_.tokens.get();
        const uint32_t base = Stream::end_mark(tokens), *ends = list_.turn_ends.data();
        uint32_t begin = 0;
        const auto each = [&](const Block& block, bool filler, int32_t& before, int32_t& written) {
            const uint32_t ac = (*ends++ - base) / sizeof(Token),
                           end = (*ends++ - base) / sizeof(Token);
            const DecodedSymbol dc = block.dc->dc_symbol(tokens[begin]);
            const int32_t now = before + dc_difference(dc.extra_bits, dc.extra);
            if (__builtin_expect(filler | (before != written), 0)) {
                if (!set_dc(block, tokens[begin], filler ? 0 : now - written)) return false;
                if (filler) empty_block(block, tokens + ac, tokens + end);
            }
            if (!filler) written = now;
            before = now;
            // Runs of 16 zeros before the end of block are legal, but no encoder needs them, and
            // libjpeg does not write them.
            if (__builtin_expect(block.ac->is_zeros(tokens[end - 1]), 0)) return false;
            if (__builtin_expect(block.ac->is_zeros(tokens[end - 2]), 0) &&
                block.ac->is_end(tokens[end - 1]))
                drop_zeros(block, tokens + ac, tokens + end);
            begin = end;
            return is_in_range(now);
        };
        if (!each_block([&] { list_.segment_ends.push_back(begin); }, each)) return false;
        list_.size = begin;
        list_.segment_ends.push_back(begin);
        count_symbols();
        return true;
    }

    bool set_dc(const Block& block, Token& token, int32_t difference) {
        const uint32_t size = dc_size(difference);
        if (size > kMaxDcSize) return false;
        uncount(token);
        token = dc_token(block.dc->new_table(), size, dc_extra(difference, size));
        ++tables_.counts[(token >> kTailBits) - kCodeTokens];
        return true;
    }

    // Replaces the AC tokens of a filler block by an end of block.
    void empty_block(const Block& block, Token* ac, Token* end) {
        for (Token* token = ac; token < end; ++token) {
            uncount(*token);
            *token = kNoToken;
        }
        *ac = block.ac->code_token(0);
        ++tables_.counts[(*ac >> kTailBits) - kCodeTokens];
    }

    // Removes the runs of 16 zeros before the end of block, which is the last token.
    void drop_zeros(const Block& block, Token* ac, Token* end) {
        const Token last = end[-1];
        Token* zeros = end - 1;
        while (zeros > ac && block.ac->is_zeros(zeros[-1])) {
            *zeros-- = kNoToken;
            uncount(*zeros);
        }
        *zeros = last;
    }

    void uncount(Token token) {
        const uint32_t number = token >> kTailBits;
        if (number >= kExtraTokens) return;
        if (number >= kCodeTokens) {
            --tables_.counts[number - kCodeTokens];
            return;
        }
        for (SymbolTable* table : tables_.used)
            if (table->has(token)) --table->counts[(token - table->first_token) >> kTailBits];
    }

    void count_symbols() {
        std::copy_n(tables_.counts, 256 * kTables, list_.counts);
        for (uint32_t table = 0; table < 2; ++table)
            for (uint32_t size = 0; size <= kMaxDcSize; ++size) {
                const uint32_t* first =
                    tables_.counts - kCodeTokens + (dc_token(table, size, 0) >> kTailBits);
                const uint32_t n = size > kTailBits ? 1u << (size - kTailBits) : 1;
                for (uint32_t i = 0; i < n; ++i) list_.counts[256 * table + size] += first[i];
            }
        for (const SymbolTable* table : tables_.used) table->count(list_.counts);
    }

    SymbolList& list_;
    SymbolList::Tables& tables_;
    const ScanShape& shape_;
    const uint8_t *data_ = nullptr, *data_end_ = nullptr;  // of the remaining segments
    uint64_t n_bits_ = 0;                                  // in the segment
    Stream stream_;
    const uint32_t* end_ = nullptr;  // end of the last turn of the segment
    const Token* room_ = nullptr;    // a round of steps is possible below it
    Turn turns_[2 * kMaxBlocks];
    Block blocks_[kMaxBlocks];
    uint32_t n_blocks_ = 0;
    uint32_t right_ = 0, bottom_ = 0;  // blocks of an MCU that are beyond this edge of the image
    uint64_t n_mcus_ = 0, step_ = 0, first_ = 0;  // MCUs: all, in a segment, before the segment
    bool failed_ = false;
};

FASTLOAD_BMI2 bool run_bmi2(SymbolReader& reader) {
    return reader.run();
}

FASTLOAD_BMI2 void run_together_bmi2(SymbolReader& one, SymbolReader& other) {
    SymbolReader::run_together(one, other);
}

}  // namespace

struct ScanReader::Impl : SymbolReader {
    using SymbolReader::SymbolReader;
};

ScanReader::ScanReader() = default;
ScanReader::~ScanReader() = default;

bool ScanReader::start(const uint8_t* data, size_t size, const ScanShape& shape, SymbolList& list) {
    list.make_tables();
    impl_ = std::make_unique<Impl>(list, shape);
    return impl_->start(data, size);
}

bool ScanReader::finish() {
    const bool good = use_avx2() ? run_bmi2(*impl_) : impl_->run();
    impl_.reset();
    return good;
}

void ScanReader::read_together(ScanReader& one, ScanReader& other) {
    const auto run = use_avx2() ? run_together_bmi2 : SymbolReader::run_together;
    run(*one.impl_, *other.impl_);
}

bool ScanReader::has_more() const {
    return impl_->has_more();
}

}  // namespace fastload
