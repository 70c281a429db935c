#include "jpeg/stuffing.h"

#include <cstring>

namespace fastload {

const uint8_t* unstuff(const uint8_t* from, const uint8_t* end, uint8_t*& to) {
    while (from < end) {
        const auto* found =
            static_cast<const uint8_t*>(std::memchr(from, 0xFF, size_t(end - from)));
        if (!found || end - found < 2) return nullptr;
        std::memcpy(to, from, size_t(found - from));
        to += found - from;
        if (found[1] != 0) return found;
        *to++ = 0xFF;
        from = found + 2;
    }
    return nullptr;
}

uint8_t* stuff(const uint8_t* from, size_t size, uint8_t* to) {
    while (const auto* found = static_cast<const uint8_t*>(std::memchr(from, 0xFF, size))) {
        size_t n = size_t(found - from) + 1;
        std::memcpy(to, from, n);
        to += n;
        *to++ = 0;
        from += n;
        size -= n;
    }
    std::memcpy(to, from, size);
    return to + size;
}

}  // namespace fastload
