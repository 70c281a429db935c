#include "jpeg/restart_interval.h"

namespace fastload {

// A segment costs about 3 bytes in the file and 4 in the index. A crop decodes about one segment
// width more than it needs. With kWeight = 5, 1 % more bytes must save 5 % of the time to decode a
// whole image. Measured on ImageNet photos with 12 RandomResizedCrops (8 to 100 % of the area) per
// photo. Bytes include the index and are relative to no markers; the CPU time of decoding the cut
// images is relative to one marker per row. Decoding whole images takes the same time with all of
// them.
//   segment px   row   112    96    64    48    32    16   this rule
//   bytes %     +0.3  +1.0  +1.7  +2.1  +2.6  +5.3  +8.6   +2.1
//   CPU time    1.00   .86   .76   .76   .71   .70   .67    .75
uint32_t restart_interval(uint32_t mcus_per_row, uint32_t mcu_rows, size_t size) {
    constexpr double kSegmentBytes = 7, kWeight = 5, kMaxOverhead = 0.04;
    const double bytes_per_mcu = double(size) / (double(mcus_per_row) * mcu_rows);
    double best_cost = 1e9;
    uint32_t best = 0;
    for (uint32_t n = 1; n <= mcus_per_row; ++n) {
        const double overhead = kSegmentBytes / (n * bytes_per_mcu);
        const double cost = double(n) / mcus_per_row + kWeight * overhead;
        if (mcus_per_row % n || overhead > kMaxOverhead || cost >= best_cost) continue;
        best = n;
        best_cost = cost;
    }
    return best == mcus_per_row && mcu_rows == 1 ? 0 : best;
}

}  // namespace fastload
