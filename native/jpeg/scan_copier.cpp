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

// Bytes that the reader may read beyond the data before it checks: a block of 64 symbols of 16 + 11
// bits.
constexpr size_t kPadding = 64 * 27 / 8 + 32;
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

    // The next 64 bits.
    static uint64_t bits_at(const uint8_t* data, uint32_t position) {
        const uint8_t* from = data + (position >> 3);
        const uint32_t shift = position & 7;
        uint64_t word;
        std::memcpy(&word, from, sizeof word);
        return swap_to_big_endian(word) << shift | from[8] >> (8 - shift);
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
    mcus_left_ = shape.n_mcus();
    // Every block has two symbols or more, and so at least two bits.
    if (mcus_left_ * shape.n_blocks() > 4 * uint64_t(size)) return false;
    Block* block = blocks_;
    for (uint32_t i = 0, built = 0; i < shape.n_components; ++i) {
        const ScanShape::Component& component = shape.components[i];
        const uint32_t table = component.table;
        if (!(built >> table & 1) &&
            !(dc_[table].build(*component.dc) && ac_[table].build(*component.ac)))
            return false;
        built |= 1u << table;
        for (uint32_t n = component.h * component.v, k = 0; k < n; ++k, ++block)
            *block = {&dc_[table], &ac_[table], block + 1, i};
    }
    block[-1].next = blocks_;
    if (bytes_.size() < size + kPadding) bytes_.resize(size + kPadding);
    uint8_t* to = bytes_.data();
    const uint8_t* marker = unstuff(data, data + size, to);
    if (!marker || marker[1] != 0xD9) return false;
    n_bits_ = 8 * uint64_t(to - bytes_.data());
    std::fill(std::begin(last_dc_), std::end(last_dc_), 0);
    const uint64_t n_segments =
        shape.new_interval ? (mcus_left_ + shape.new_interval - 1) / shape.new_interval : 1;
    firsts_.resize(n_segments * shape.n_components + 1);
    next_first_ = firsts_.data();
    stream_.start(bytes_.data());
    block_ = blocks_;
    state_ = State::kReading;
    start_segment();
    return read_dc(stream_, 0);
}

void ScanCopier::start_segment() {
    const uint64_t n =
        shape_->new_interval ? std::min<uint64_t>(shape_->new_interval, mcus_left_) : mcus_left_;
    mcus_left_ -= n;
    blocks_left_ = n * shape_->n_blocks();
    waiting_ = (1u << shape_->n_components) - 1;
}

// One lookup. Returns true if end_block() must follow.
inline bool ScanCopier::Stream::step(Entry& entry) {
    entry = entries[bits >> (64 - CopyTable::kLookupBits)];
    advance(entry);
    return progress >= kFull;
}

inline void ScanCopier::read() {
    Stream stream = stream_;
    Entry entry;
    for (;;) {
        stream.refill();
        if (stream.step(entry) || stream.step(entry) || stream.step(entry))
            if (!end_block(stream, entry)) break;
    }
    stream_ = stream;
}

inline void ScanCopier::read_with(ScanCopier& other) {
    static_assert(CopyTable::kLookups == 3);
    Stream a = stream_, b = other.stream_;
    Entry entry;
    for (;;) {
        a.refill();
        b.refill();
        if (a.step(entry)) goto end_of_a;
        if (b.step(entry)) goto end_of_b;
        if (a.step(entry)) goto end_of_a;
        if (b.step(entry)) goto end_of_b;
        if (a.step(entry)) goto end_of_a;
        if (b.step(entry)) goto end_of_b;
        continue;
    end_of_a:
        if (!end_block(a, entry)) break;
        continue;
    end_of_b:
        if (!other.end_block(b, entry)) break;
    }
    stream_ = a;
    other.stream_ = b;
}

// Called if the last lookup reached the end of the block, or needs to be repeated. Returns false if
// nothing is left to read.
inline bool ScanCopier::end_block(Stream& stream, Entry entry) {
    if (__builtin_expect(!stream.is_regular(), 0)) {
        Stream copy = stream;  // only this copy has its address taken
        const bool good = read_slowly(copy, entry);
        stream = copy;
        if (!good) return fail();
        if (stream.progress < Stream::kFull) return true;
    }
    stream.start_block();
    const uint64_t position = stream.position(bytes_.data());
    if (position > n_bits_) return fail();
    block_ = block_->next;
    if (__builtin_expect(!--blocks_left_, 0) && !end_segment(position)) return false;
    return read_dc(stream, position);
}

// Reads one symbol that the last lookup did not find, or those up to the end of the block if it
// found more. Returns false for irregular data.
__attribute__((noinline)) bool ScanCopier::read_slowly(Stream& stream, Entry entry) const {
    stream.progress -= entry;
    stream.reload();
    const CopyTable& table = *block_->ac;
    if (entry & 255) {  // with fewer bits, a lookup finds fewer symbols
        uint32_t n = CopyTable::kLookupBits;
        Entry found;
        do {
            if (!--n) return false;
            found = table.entries(n)[stream.bits >> (64 - n)];
        } while ((stream.progress + found) >> 8 != Stream::kFull >> 8);
        stream.progress += found;
    } else {
        DecodedSymbol found;
        const uint32_t n_bits = table.search(stream.bits, found);
        if (!n_bits) return false;
        stream.progress += make_entry(n_bits, found.advance);
    }
    stream.reload();
    return stream.is_regular();
}

// Returns false if it was the last one.
__attribute__((noinline)) bool ScanCopier::end_segment(uint64_t position) {
    if (!mcus_left_) {
        end_ = position;
        state_ = n_bits_ - position < 8 ? State::kDone : State::kFailed;
        return false;
    }
    start_segment();
    return true;
}

inline bool ScanCopier::read_dc(Stream& stream, uint64_t position) {
    stream.refill();
    const Block& block = *block_;
    const DcTable::Found found = block.dc->read(stream.bits);
    if (!found.n_bits) return fail();
    stream.bits <<= found.n_bits;
    stream.progress += int32_t(found.n_bits);
    stream.entries = block.ac->entries();
    const int32_t value = last_dc_[block.component] += found.difference;
    // Stored for every block, because a branch would often be mispredicted.
    *next_first_ = {uint32_t(position), uint32_t(position) + found.n_bits, value};
    next_first_ += waiting_ >> block.component & 1;
    waiting_ &= ~(1u << block.component);
    return value == int16_t(value) || fail();
}

inline bool ScanCopier::fail() {
    state_ = State::kFailed;
    return false;
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
    if (state_ != State::kDone) return false;
    firsts_.pop_back();
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
    out.reserve(2 * (n_bits_ / 8 + 4 * firsts_.size() + 2 * n_segments) + 16);
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
            writer.copy(bytes_.data(), first->end, last ? uint32_t(end_) : first[1].begin);
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
    if (firsts_.capacity() * sizeof(FirstDc) > keep_bytes) std::vector<FirstDc>().swap(firsts_);
}

}  // namespace fastload
