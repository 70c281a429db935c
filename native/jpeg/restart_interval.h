// How many MCUs a restart segment of a packed JPEG has.
#pragma once

#include <cstddef>
#include <cstdint>

namespace fastload {

// For an image with `size` bytes of entropy-coded data; 0 if restart markers are not worth their
// bytes.
uint32_t restart_interval(uint32_t mcus_per_row, uint32_t mcu_rows, size_t size);

}  // namespace fastload
