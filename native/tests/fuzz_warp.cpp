// Warps planes by random matrices, with portable and vector code: fuzz_warp ROUNDS
// Both must produce the same bytes. Every buffer has its exact size, so that a sanitizer detects
// accesses beyond it.
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <memory>
#include <random>

#include "cpu/simd.h"
#include "pixels/warp.h"

using namespace fastload;

int main(int argc, char** argv) {
    if (argc != 2) return std::fprintf(stderr, "usage: %s ROUNDS\n", argv[0]), 2;
    const int rounds = std::atoi(argv[1]);
    std::mt19937 engine(1);
    const auto number = [&engine](float scale) {
        return scale * (float(engine() % 20001) - 10000.0f) / 10000.0f;
    };
    for (int round = 0; round < rounds; ++round) {
        const PlaneShape shape{1 + engine() % 3, 1 + engine() % 4, 1 + engine() % 40,
                               1 + engine() % 40};
        const size_t n_pixels = shape.n * shape.channels * shape.height * shape.width;
        std::unique_ptr<float[]> input(new float[n_pixels]), fill(new float[shape.channels]);
        std::unique_ptr<float[]> inverse(new float[6 * shape.n]);
        for (size_t i = 0; i < n_pixels; ++i) input[i] = number(255.0f);
        for (size_t i = 0; i < shape.channels; ++i) fill[i] = number(255.0f);
        const float scale = round % 3 ? 2.0f : 1e6f;  // some are far outside
        for (size_t i = 0; i < 6 * shape.n; ++i)
            inverse[i] = number(i % 3 == 2 ? 20.0f * scale : scale);
        if (round % 7 == 0)
            inverse[engine() % (6 * shape.n)] = round % 2 ? std::numeric_limits<float>::quiet_NaN()
                                                          : std::numeric_limits<float>::infinity();
        std::unique_ptr<float[]> outputs[2];
        for (int vector = 0; vector < 2; ++vector) {
            set_simd(vector ? Simd::kAvx512 : Simd::kPortable);
            outputs[vector].reset(new float[n_pixels]);
            warp_affine(shape, input.get(), outputs[vector].get(), inverse.get(), fill.get());
        }
        if (std::memcmp(outputs[0].get(), outputs[1].get(), n_pixels * sizeof(float)))
            return std::fprintf(stderr, "round %d: vector and portable code differ\n", round), 1;
    }
    std::printf("%d warps\n", rounds);
}
