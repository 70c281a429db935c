// Reads and writes the little-endian numbers of the on-disk formats, at any address. All supported
// machines are little-endian.
#pragma once

#include <cstdint>
#include <cstring>

namespace fastload {

template <typename Number>
Number read_little_endian(const uint8_t* bytes) {
    Number value;
    std::memcpy(&value, bytes, sizeof value);
    return value;
}

template <typename Number>
void write_little_endian(uint8_t* bytes, Number value) {
    std::memcpy(bytes, &value, sizeof value);
}

}  // namespace fastload
