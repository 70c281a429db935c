// Measures rewrite and cut without Python: bench_transform rewrite|together|libjpeg|cut ROUNDS
// FILE... Under valgrind --tool=callgrind the instruction counts do not depend on the load of the
// machine.
#include <chrono>
#include <cstdio>
#include <cstring>
#include <ctime>
#include <fstream>
#include <iterator>
#include <random>
#include <string>
#include <vector>

#include "jpeg/cut.h"
#include "jpeg/rewrite.h"

namespace {

struct Image {
    std::vector<uint8_t> bytes;
    std::vector<uint32_t> index;
    uint32_t width = 0, height = 0, interval = 0;
};

double cpu_seconds() {
    timespec now;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
    return double(now.tv_sec) + 1e-9 * double(now.tv_nsec);
}

std::vector<uint8_t> read_file(const char* path) {
    std::ifstream file(path, std::ios::binary);
    return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

size_t rewrite(const Image& image, bool fast) {
    fastload::RewriteOptions options;
    options.fast = fast;
    return fastload::rewrite_jpeg(image.bytes.data(), image.bytes.size(), options).size;
}

size_t cut(const Image& image) {
    std::minstd_rand random(1);
    static std::vector<uint8_t> out;
    uint32_t w = image.width * 6 / 10 + 1, h = image.height * 6 / 10 + 1, x0, y0;
    fastload::Roi roi{uint32_t(random() % (image.width - w + 1)),
                      uint32_t(random() % (image.height - h + 1)), w, h};
    fastload::cut_jpeg(image.bytes.data(), image.bytes.size(),
                       reinterpret_cast<const uint8_t*>(image.index.data()), image.index.size(),
                       image.interval, roi, 1, out, x0, y0);
    return out.size();
}

}  // namespace

int main(int argc, char** argv) {
    if (argc < 4)
        return std::fprintf(stderr, "usage: %s rewrite|together|libjpeg|cut ROUNDS FILE...\n",
                            argv[0]),
               2;
    std::string mode = argv[1];
    int rounds = std::atoi(argv[2]);
    std::vector<Image> images;
    size_t in = 0, out = 0;
    for (int i = 3; i < argc; ++i) {
        Image image;
        image.bytes = read_file(argv[i]);
        if (mode == "cut") {
            const auto& result = fastload::rewrite_jpeg(image.bytes.data(), image.bytes.size(), {});
            image.bytes.assign(result.bytes, result.bytes + result.size);
            image.index = result.index;
            image.width = result.width;
            image.height = result.height;
            image.interval = result.interval;
        }
        in += image.bytes.size();
        images.push_back(std::move(image));
    }
    if (mode == "together") {  // in groups of 8, as the packer does
        double best = 1e9;
        for (int round = 0; round < rounds; ++round) {
            double start = cpu_seconds();
            out = 0;
            for (size_t i = 0; i < images.size(); i += 8) {
                std::vector<fastload::JpegBytes> group;
                for (size_t k = i; k < std::min(i + 8, images.size()); ++k)
                    group.push_back({images[k].bytes.data(), images[k].bytes.size()});
                fastload::rewrite_jpegs(group, {},
                                        [&](size_t, const fastload::RewrittenJpeg* result) {
                                            out += result ? result->size : 0;
                                        });
            }
            best = std::min(best, cpu_seconds() - start);
        }
        std::printf("together: %.1f us per image (best of %d), bytes out / in %.4f\n",
                    1e6 * best / double(images.size()), rounds, double(out) / double(in));
        return 0;
    }
    double total = 0;  // Sum of the best round of each image, as on an idle machine.
    for (const Image& image : images) {
        double best = 1e9;
        size_t size = 0;
        for (int round = 0; round < rounds; ++round) {
            double start = cpu_seconds();
            size = mode == "cut" ? cut(image) : rewrite(image, mode == "rewrite");
            best = std::min(best, cpu_seconds() - start);
        }
        total += best;
        out += size;
    }
    std::printf("%s: %.1f us per image (best of %d, %zu images), bytes out / in %.4f\n",
                mode.c_str(), 1e6 * total / double(images.size()), rounds, images.size(),
                double(out) / double(in));
}
