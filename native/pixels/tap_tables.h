// The tables that the vector kernels read the weights of a resize from.
#pragma once

#include <cstddef>
#include <cstdint>

#include "pixels/taps.h"

namespace fastload {

// Fills the tables of `taps`, whose weights are complete.
void make_tap_tables(Taps& taps, TapTables wanted);

namespace detail {
// Writes the digits of n weights, n a multiple of 4, and of zeros up to the next multiple of 16.
void split_digits_avx512(const int32_t* weights, size_t n, uint32_t* digit2, uint32_t* digit1,
                         uint32_t* digit0);
// Writes Taps::lanes from first, digits and bases.
void fill_lanes_avx512(Taps& columns);
}  // namespace detail

}  // namespace fastload
