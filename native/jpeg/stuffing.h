// The zero byte that follows each 0xFF in entropy-coded data, so that it is not taken for a marker.
#pragma once

#include <cstddef>
#include <cstdint>

namespace fastload {

// Copies entropy-coded data up to the next marker, without its stuffed zeros. Moves `to` to the end
// of the copy, which is never longer. Returns the marker, or null if there is none.
const uint8_t* unstuff(const uint8_t* from, const uint8_t* end, uint8_t*& to);

// Copies bytes and inserts a zero after each 0xFF. Returns the end of the copy.
uint8_t* stuff(const uint8_t* from, size_t size, uint8_t* to);

}  // namespace fastload
