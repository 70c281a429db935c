// Chooses the number of MCUs per restart segment of a packed JPEG.
#pragma once

#include <cstddef>
#include <cstdint>

namespace fastload {

// `size` is the number of bytes of entropy-coded data. Returns 0 if restart markers are not worth
// their bytes.
uint32_t restart_interval(uint32_t mcus_per_row, uint32_t mcu_rows, size_t size);

}  // namespace fastload
