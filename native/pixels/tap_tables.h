// Tables of resize weights for the vector kernels.
#pragma once

#include <cstddef>
#include <cstdint>

#include "pixels/taps.h"

namespace fastload {

// Fills the tables of `taps` from its weights.
void make_tap_tables(Taps& taps, TapTables requested);

namespace detail {
// Writes the digits of n weights (a multiple of 4), padded with zeros to a multiple of 16.
void split_digits_avx512(const int32_t* weights, size_t n, uint32_t* digit2, uint32_t* digit1,
                         uint32_t* digit0);
// Fills Taps::lanes from first, digits and bases.
void fill_lanes_avx512(Taps& columns);
}  // namespace detail

}  // namespace fastload
