// A byte buffer that, unlike std::vector, does not zero memory before it is written.
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

    // Reserves `more` bytes after the end. Invalidates pointers into the buffer.
    void reserve(size_t more) {
        if (capacity_ - size_ < more) grow(more);
    }
    // Sets the end after writing to reserved memory.
    void end_at(const uint8_t* end) { size_ = size_t(end - bytes_.get()); }

    void put(uint32_t byte) {
        reserve(1);
        bytes_[size_++] = uint8_t(byte);
    }
    void put16(uint32_t value) {  // big-endian, as in JPEG
        put(value >> 8);
        put(value & 255);
    }
    void put(const void* bytes, size_t size) {
        reserve(size);
        std::memcpy(end(), bytes, size);
        size_ += size;
    }
    // Frees the memory if one huge image made it exceed `keep` bytes.
    void shrink(size_t keep) {
        if (capacity_ <= keep) return;
        bytes_.reset();
        size_ = capacity_ = 0;
    }

private:
    // rarely called, but from hundreds of places
    __attribute__((noinline)) void grow(size_t more) {
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
