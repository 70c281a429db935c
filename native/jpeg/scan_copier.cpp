#include "jpeg/scan_copier.h"

#include <algorithm>
#include <cstring>
#include <iterator>
#include <numeric>
#include <utility>

#include "cpu/simd.h"
#include "jpeg/bit_reader.h"
#include "jpeg/stuffing.h"
#include "jpeg/symbol_search.h"

namespace fastload {
namespace {

// Bytes after the data that the reader may read before it checks for their end.
constexpr size_t kPadding = 128;
constexpr size_t kTurnBytes = 16;              // no turn uses as many
constexpr size_t kMaxBytes = size_t(1) << 28;  // positions are 32-bit numbers of bits

uint32_t count_codes(const HuffmanCode& code) {
    return std::accumulate(code.lengths + 1, code.lengths + 17, 0u);
}

// Whether every symbol is regular and has one code.
bool is_plain(const HuffmanCode& code, bool dc) {
    bool found[256] = {};
    const uint32_t n = count_codes(code);
    for (uint32_t i = 0; i < n; ++i)
        if (i >= 256 || std::exchange(found[code.symbols[i]], true) ||
            !SymbolMeaning(code.symbols[i], dc).valid)
            return false;
    return true;
}

// Adds DC sizes that a table does not have, after its last code. The code of ones only stays
// unused. There is always room: k of the 12 sizes leave at least 2^(16 - k) codes of 16 bits
// unused.
void add_symbols(HuffmanCode& code, const uint8_t* symbols, uint32_t n_symbols) {
    uint32_t length = 1, used = 0;  // used: of the 1 << 16 codes of 16 bits
    for (uint32_t i = 1; i <= 16; ++i) {
        used = 2 * used + code.lengths[i];
        if (code.lengths[i]) length = i;
    }
    const uint32_t unused = (1u << 16) - used;
    while (unused >> (16 - length) <= n_symbols) ++length;
    std::copy_n(symbols, n_symbols, code.symbols + code.n_symbols);
    code.n_symbols += n_symbols;
    code.lengths[length] = uint8_t(code.lengths[length] + n_symbols);
}

// The next 64 bits.
inline uint64_t bits_at(const uint8_t* data, uint32_t position) {
    const uint8_t* from = data + (position >> 3);
    const uint32_t shift = position & 7;
    uint64_t word;
    std::memcpy(&word, from, sizeof word);
    return swap_to_big_endian(word) << shift | from[8] >> (8 - shift);
}

struct CodeList {
    uint16_t values[256];
    uint8_t sizes[256];
};

// Writes entropy-coded data with its stuffed zeros, mostly 8 bytes at a time. Overwrites up to 8
// bytes after the end.
struct DataWriter {
    uint8_t* to;
    uint64_t waiting = 0;    // the next bits, from the top, then zeros
    uint32_t n_waiting = 0;  // at most 63

    // 1 to 32 bits.
    void put(uint32_t bits, uint32_t n_bits) {
        flush();
        append(uint64_t(bits) << (64 - n_bits), n_bits);
    }

    // Copies the bits from `begin` to `end` of the data. Reads up to 9 bytes after them.
    void copy(const uint8_t* data, uint32_t begin, uint32_t end) {
        flush();
        const uint32_t n = std::min(-n_waiting & 7, end - begin);  // to the end of the byte
        append(bits_at(data, begin), n);
        flush();
        begin = copy_words(data, begin + n, end);
        append(bits_at(data, begin), end - begin);
    }

    // Pads with ones to a whole byte.
    void finish() {
        flush();
        append(~uint64_t(0), -n_waiting & 7);
        flush();
    }

    void put_marker(uint32_t marker) {
        *to++ = 0xFF;
        *to++ = uint8_t(marker);
    }

private:
    // Adds the first 0 to 63 of the bits, from the top.
    void append(uint64_t bits, uint32_t n_bits) {
        waiting |= (bits & ~(~uint64_t(0) >> n_bits)) >> n_waiting;
        n_waiting += n_bits;
    }

    // Writes the whole bytes.
    void flush() {
        if (__builtin_expect(has_ff(waiting), 0)) {
            put_bytes(waiting, n_waiting >> 3);
        } else {
            const uint64_t bytes = swap_to_big_endian(waiting);
            std::memcpy(to, &bytes, sizeof bytes);
            to += n_waiting >> 3;
        }
        waiting <<= n_waiting & ~7u;
        n_waiting &= 7;
    }

    // Copies 64 bits at a time and returns where it stopped. Nothing may be waiting.
    uint32_t copy_words(const uint8_t* data, uint32_t begin, uint32_t end) {
        const uint32_t left = begin & 7, right = 8 - left;
        // The parts of each byte. All bytes are equal, so their order does not matter.
        constexpr uint64_t kEach = ~uint64_t(0) / 255;
        const uint64_t first = kEach * (0xFFu << left & 0xFF), second = kEach * (0xFFu >> right);
        for (const uint8_t* from = data + (begin >> 3); end - begin >= 64; begin += 64, from += 8) {
            uint64_t here, next;
            std::memcpy(&here, from, sizeof here);
            std::memcpy(&next, from + 1, sizeof next);
            const uint64_t bytes = (here << left & first) | (next >> right & second);
            if (__builtin_expect(has_ff(bytes), 0)) {
                put_bytes(swap_to_big_endian(bytes), 8);
            } else {
                std::memcpy(to, &bytes, sizeof bytes);
                to += sizeof bytes;
            }
        }
        return begin;
    }

    void put_bytes(uint64_t bytes, uint32_t n) {
        for (; n; --n, bytes <<= 8) {
            const bool stuffed = bytes >> 56 == 0xFF;
            to[0] = uint8_t(bytes >> 56);
            to[1] = 0;
            to += 1 + stuffed;
        }
    }

    static bool has_ff(uint64_t word) {
        return (~word - 0x0101010101010101) & word & 0x8080808080808080;
    }
};

}  // namespace

bool ScanCopier::may_copy(const ScanShape& shape, size_t size) {
    constexpr uint32_t kAllAcSymbols = 162;
    if (shape.old_interval || size > kMaxBytes) return false;
    for (uint32_t i = 0; i < shape.n_components; ++i) {
        const ScanShape::Component &here = shape.components[i], *first = shape.components;
        while (first->table != here.table) ++first;
        if (here.dc != first->dc || here.ac != first->ac) return false;
        if (count_codes(*here.ac) >= kAllAcSymbols || !is_plain(*here.ac, false) ||
            !is_plain(*here.dc, true))
            return false;
    }
    return true;
}

bool ScanCopier::start(const uint8_t* data, size_t size, const ScanShape& shape) {
    state_ = State::kFailed;
    shape_ = &shape;
    const uint64_t n_blocks = shape.n_mcus() * shape.n_blocks();
    // Every block has two symbols or more, and so at least two bits.
    if (n_blocks > 4 * uint64_t(size)) return false;
    Block* block = blocks_;
    for (uint32_t i = 0, built = 0; i < shape.n_components; ++i) {
        const ScanShape::Component& component = shape.components[i];
        const uint32_t table = component.table;
        if (!(built >> table & 1) &&
            !(ac_[table].build(*component.ac) && dc_[table].build(*component.dc, ac_[table])))
            return false;
        built |= 1u << table;
        for (uint32_t n = component.h * component.v; n; --n, ++block)
            *block = {&ac_[table], &dc_[table], nullptr, block + 1, i};
    }
    block[-1].next = blocks_;
    stream_.block = block - 1;
    while (block-- > blocks_) block->next_dc = block->next->dc;
    if (bytes_.size() < size + kPadding) bytes_.resize(size + kPadding);
    uint8_t* to = bytes_.data();
    const uint8_t* marker = unstuff(data, data + size, to);
    if (!marker || marker[1] != 0xD9) return false;
    n_bytes_ = size_t(to - bytes_.data());
    starts_.resize(n_blocks + 1);
    stream_.start(bytes_.data());
    stream_.progress += Stream::kFull - Stream::kStart;  // the block before the first one ended
    stream_.to = starts_.data();
    state_ = State::kReading;
    return true;
}

// Moves to the next block if the last one ended, and does up to three lookups in it. It has no
// branch that depends on the data: one for the end of a block would often be predicted wrong.
// Returns false if read_slowly() must follow.
inline bool ScanCopier::Stream::turn(Entry found[CopyTable::kLookups]) {
    static_assert(CopyTable::kLookups == 3 && kTurnBytes * 8 > kBits + 27);
    const auto lookup = [this](const CopyTable& table) {
        return table.entries()[bits >> (64 - CopyTable::kLookupBits)];
    };
    refill();
    uint32_t entry = lookup(*block->ac);
    const uint32_t first = block->next_dc->joined()[bits >> (64 - DcTable::kJoinedBits)];
    const int32_t start = kStart + (progress & 255);
    *to = place();
    uint32_t* const next_to = to + 1;
#ifdef FASTLOAD_X86  // compilers do not reliably avoid branches
    asm("cmpl %[full], %[progress]\n\t"
        "cmovge %[first], %[entry]\n\t"
        "cmovge %[next_to], %[to]\n\t"
        "cmovge %[next], %[block]\n\t"
        "cmovge %[start], %[progress]"
        : [entry] "+&r"(entry), [to] "+&r"(to), [block] "+r"(block), [progress] "+&r"(progress)
        : [first] "r"(first), [next_to] "r"(next_to), [next] "m"(block->next), [start] "r"(start),
          [full] "i"(kFull)
        : "cc");
#else
    const bool ended = progress >= kFull;
    entry = ended ? first : entry;
    to = ended ? next_to : to;
    block = ended ? block->next : block;
    progress = ended ? start : progress;
#endif
    const auto in_block = [this] { return (progress - kFull) >> 31; };  // all bits, or none
    const CopyTable& ac = *block->ac;
    advance(found[0] = Entry(entry));
    advance(found[1] = Entry(lookup(ac) & in_block()));
    advance(found[2] = Entry(lookup(ac) & in_block()));
    return is_regular();
}

inline bool ScanCopier::take_turn(Stream& stream) const {
    Entry found[CopyTable::kLookups];
    if (__builtin_expect(stream.turn(found), 1)) return true;
    Stream copy = stream;  // only this copy has its address taken
    const bool good = read_slowly(copy, found);
    stream = copy;
    return good;
}

// The number of turns that cannot exceed the blocks or the buffer, even for damaged data; 0 if
// nothing is left to read.
inline size_t ScanCopier::safe_turns(const Stream& stream) const {
    const uint8_t* const end = bytes_.data() + n_bytes_;
    if (stream.next > end + 8) return 0;
    const size_t n_starts = size_t(starts_.data() + starts_.size() - stream.to);
    return std::min(n_starts, size_t(end + kPadding - stream.next) / kTurnBytes);
}

inline void ScanCopier::read() {
    Stream stream = stream_;
    bool good = true;
    while (size_t n = safe_turns(stream)) {
        for (; n && good; --n) good = take_turn(stream);
        if (!good) break;
    }
    end_reading(stream, good);
}

inline void ScanCopier::read_with(ScanCopier& other) {
    Stream a = stream_, b = other.stream_;
    bool a_good = true, b_good = true;
    while (size_t n = std::min(safe_turns(a), other.safe_turns(b))) {
        do {
            a_good = take_turn(a);
            b_good = other.take_turn(b);
        } while (--n && a_good && b_good);
        if (!a_good || !b_good) break;
    }
    end_reading(a, a_good);
    other.end_reading(b, b_good);
}

void ScanCopier::end_reading(const Stream& stream, bool good) {
    stream_ = stream;
    if (good && safe_turns(stream)) return;
    const bool all = stream.to == starts_.data() + starts_.size();
    state_ = good && all ? State::kDone : State::kFailed;
}

// Reads one symbol that the last lookup did not find, or those up to the end of the block if it
// found more. Returns false for irregular data.
__attribute__((noinline)) bool ScanCopier::read_slowly(
    Stream& stream, const Entry found[CopyTable::kLookups]) const {
    if (stream.to == starts_.data() + starts_.size()) return true;  // after the last block
    const Block& block = *stream.block;
    const Entry last = found[2] ? found[2] : found[1] ? found[1] : found[0];
    stream.progress -= last;
    const bool is_dc = stream.place() == stream.to[-1];
    stream.reload();
    if (!is_dc && last & 255) {  // with fewer bits, a lookup finds fewer symbols
        uint32_t n = CopyTable::kLookupBits;
        Entry entry;
        do {
            if (!--n) return false;
            entry = block.ac->entries(n)[stream.bits >> (64 - n)];
        } while ((stream.progress + entry) >> 8 != Stream::kFull >> 8);
        stream.progress += entry;
    } else {
        DecodedSymbol symbol;
        const uint32_t n_bits =
            is_dc ? block.dc->search(stream.bits, symbol) : block.ac->search(stream.bits, symbol);
        if (!n_bits) return false;
        stream.progress += make_entry(n_bits, is_dc ? 0 : symbol.advance);
    }
    stream.reload();
    return stream.is_regular();
}

// Reads all DC symbols. Returns false for irregular data.
inline bool ScanCopier::find_firsts() {
    const uint8_t* const data = bytes_.data();
    const uint32_t origin = starts_[0], *next_start = &starts_[1];
    end_ = starts_.back() - origin;
    if (8 * uint64_t(n_bytes_) - end_ >= 8) return false;
    uint32_t start = 0;
    int32_t last[kMaxComponents] = {};
    bool good = true;  // false also prevents that the sums overflow
    const auto read = [&](const Block& block) {
        uint64_t word;
        std::memcpy(&word, data + (start >> 3), sizeof word);
        const DcTable::Found found = block.dc->read(swap_to_big_endian(word) << (start & 7));
        const int32_t value = last[block.component] += found.difference;
        good = found.n_bits && value == int16_t(value);
        const FirstDc result{start, start + found.n_bits, value};
        start = *next_start++ - origin;
        return result;
    };
    firsts_.clear();
    const uint64_t interval = shape_->new_interval ? shape_->new_interval : shape_->n_mcus();
    for (uint64_t left = shape_->n_mcus(), n; left && good; left -= n) {
        n = std::min(left, interval);
        const Block* block = blocks_;
        uint32_t component = kMaxComponents;
        do {
            const FirstDc first = read(*block);
            if (block->component != component) firsts_.push_back(first);
            component = block->component;
            block = block->next;
        } while (good && block != blocks_);
        for (uint64_t i = (n - 1) * shape_->n_blocks(); i && good; --i, block = block->next)
            read(*block);
    }
    return good;
}

FASTLOAD_BMI2 bool ScanCopier::find_firsts_bmi2(ScanCopier& copier) {
    return copier.find_firsts();
}

FASTLOAD_BMI2 void ScanCopier::read_bmi2(ScanCopier& copier) {
    copier.read();
}

FASTLOAD_BMI2 void ScanCopier::read_together_bmi2(ScanCopier& one, ScanCopier& other) {
    one.read_with(other);
}

void ScanCopier::read_together(ScanCopier& one, ScanCopier& other) {
    use_avx2() ? read_together_bmi2(one, other) : one.read_with(other);
}

bool ScanCopier::finish(HuffmanCode codes[kTables]) {
    if (has_more()) use_avx2() ? read_bmi2(*this) : read();
    if (state_ != State::kDone || !(use_avx2() ? find_firsts_bmi2(*this) : find_firsts()))
        return false;
    uint32_t needed[2] = {};  // DC sizes, as bits
    for (size_t i = 0; i < firsts_.size(); ++i)
        needed[shape_->components[i % shape_->n_components].table] |= 1u
                                                                      << dc_size(firsts_[i].value);
    for (uint32_t i = 0; i < shape_->n_components; ++i) {
        const ScanShape::Component& component = shape_->components[i];
        HuffmanCode &dc = codes[component.table], &ac = codes[2 + component.table];
        dc = *component.dc;
        ac = *component.ac;
        dc.n_symbols = count_codes(dc);
        ac.n_symbols = count_codes(ac);
        uint32_t missing = needed[component.table], n = 0;
        if (missing >> (kMaxDcSize + 1)) return false;
        for (size_t symbol = 0; symbol < dc.n_symbols; ++symbol)
            missing &= ~(1u << dc.symbols[symbol]);
        uint8_t sizes[kMaxDcSize + 1];
        for (uint32_t size = 0; size <= kMaxDcSize; ++size)
            if (missing >> size & 1) sizes[n++] = uint8_t(size);
        if (n) add_symbols(dc, sizes, n);
    }
    return true;
}

inline void ScanCopier::write_segments(const HuffmanCode codes[kTables], ByteBuffer& out,
                                       std::vector<uint32_t>& index) const {
    const uint32_t n_components = shape_->n_components;
    const size_t n_segments = firsts_.size() / n_components;
    index.reserve(n_segments + 1);
    // Enough even if every byte is stuffed. A DC symbol has at most 27 bits.
    out.reserve(2 * (n_bytes_ + 4 * firsts_.size() + 2 * n_segments) + 16);
    CodeList lists[2];
    for (size_t i = 0; i < 2; ++i) list_codes(codes[i], lists[i].values, lists[i].sizes);
    DataWriter writer{out.end()};
    const FirstDc* first = firsts_.data();
    for (size_t segment = 0; segment < n_segments; ++segment) {
        if (segment) {
            writer.finish();
            writer.put_marker(0xD0 + (segment - 1) % 8);
        }
        index.push_back(uint32_t(writer.to - out.data()));
        for (uint32_t i = 0; i < n_components; ++i, ++first) {
            const CodeList& dc = lists[shape_->components[i].table];
            const uint32_t size = dc_size(first->value);
            writer.put(uint32_t(dc.values[size]) << size | dc_extra(first->value, size),
                       dc.sizes[size] + size);
            const bool last = first + 1 == firsts_.data() + firsts_.size();
            writer.copy(bytes_.data(), first->end, last ? end_ : first[1].begin);
        }
    }
    writer.finish();
    index.push_back(uint32_t(writer.to - out.data()));
    out.end_at(writer.to);
}

FASTLOAD_BMI2 void ScanCopier::write_segments_bmi2(const ScanCopier& copier,
                                                   const HuffmanCode codes[kTables],
                                                   ByteBuffer& out, std::vector<uint32_t>& index) {
    copier.write_segments(codes, out, index);
}

void ScanCopier::write(const HuffmanCode codes[kTables], ByteBuffer& out,
                       std::vector<uint32_t>& index) {
    use_avx2() ? write_segments_bmi2(*this, codes, out, index) : write_segments(codes, out, index);
}

void ScanCopier::shrink(size_t keep_bytes) {
    if (bytes_.capacity() > keep_bytes) std::vector<uint8_t>().swap(bytes_);
    if (starts_.capacity() * sizeof(uint32_t) > keep_bytes) std::vector<uint32_t>().swap(starts_);
    if (firsts_.capacity() * sizeof(FirstDc) > keep_bytes) std::vector<FirstDc>().swap(firsts_);
}

}  // namespace fastload
