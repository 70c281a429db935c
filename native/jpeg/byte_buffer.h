// Bytes that are written once and never zeroed first, as std::vector would.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>

namespace fastload {

class ByteBuffer {
public:
    uint8_t* data() { return bytes_.get(); }
    const uint8_t* data() const { return bytes_.get(); }
    uint8_t* end() { return bytes_.get() + size_; }
    size_t size() const { return size_; }
    size_t capacity() const { return capacity_; }
    void clear() { size_ = 0; }

    // Makes room for `more` bytes behind the end; pointers into the buffer are then stale.
    void reserve(size_t more) {
        if (capacity_ - size_ < more) grow(more);
    }
    // The bytes up to `end` (within the room reserved) have been written.
    void end_at(const uint8_t* end) { size_ = size_t(end - bytes_.get()); }

    void put(uint32_t byte) {
        reserve(1);
        bytes_[size_++] = uint8_t(byte);
    }
    void put16(uint32_t value) {  // big-endian, as JPEG has it
        put(value >> 8);
        put(value & 255);
    }
    void put(const void* bytes, size_t size) {
        reserve(size);
        std::memcpy(end(), bytes, size);
        size_ += size;
    }
    // Gives back what one huge image made it keep.
    void shrink(size_t keep) {
        if (capacity_ <= keep) return;
        bytes_.reset();
        size_ = capacity_ = 0;
    }

private:
    __attribute__((noinline)) void grow(size_t more) {  // seldom called, from hundreds of places
        size_t wanted = size_ + more > 2 * capacity_ ? size_ + more : 2 * capacity_;
        std::unique_ptr<uint8_t[]> larger(new uint8_t[wanted]);
        if (size_) std::memcpy(larger.get(), bytes_.get(), size_);
        bytes_ = std::move(larger);
        capacity_ = wanted;
    }

    std::unique_ptr<uint8_t[]> bytes_;
    size_t size_ = 0, capacity_ = 0;
};

}  // namespace fastload
