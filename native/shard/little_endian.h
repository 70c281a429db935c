// Numbers as the formats on disk have them: little-endian, at any address, and so is every machine
// we build for.
#pragma once

#include <cstdint>
#include <cstring>

namespace fastload {

template <typename T>
T little(const uint8_t* bytes) {
    T value;
    std::memcpy(&value, bytes, sizeof value);
    return value;
}

}  // namespace fastload
