// Damages JPEGs and indexes at random and passes them to rewrite and cut: fuzz_transform ROUNDS
// FILE...
// Build with -DFASTLOAD_TESTS=ON -DFASTLOAD_SANITIZE=address,undefined. Ends at the first sanitizer
// report, or if the two rewrite paths differ. Every buffer has its exact size, so that a sanitizer
// detects reads beyond it.
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iterator>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "cpu/simd.h"
#include "jpeg/cut.h"
#include "jpeg/layout.h"
#include "jpeg/rewrite.h"

namespace {

using Bytes = std::vector<uint8_t>;
std::mt19937 engine(1);

uint32_t below(size_t n) {
    return n ? uint32_t(engine() % n) : 0;
}

struct Exact {  // on the heap, with its exact size
    std::unique_ptr<uint8_t[]> data;
    size_t size;
    explicit Exact(const Bytes& from) : data(new uint8_t[from.size()]), size(from.size()) {
        if (size) std::memcpy(data.get(), from.data(), size);
    }
};

void damage(Bytes& bytes) {
    static const uint8_t marker_bytes[] = {0x00, 0x01, 0x11, 0x22, 0x3F, 0x7F, 0x80, 0xC0, 0xC1,
                                           0xC2, 0xC4, 0xD0, 0xD9, 0xDA, 0xDB, 0xDD, 0xFF};
    for (uint32_t n = 1 + below(4); n && !bytes.empty(); --n) {
        size_t at = below(2) ? below(bytes.size()) : below(std::min<size_t>(bytes.size(), 700));
        switch (below(6)) {
            case 0:
                bytes[at] ^= uint8_t(1u << below(8));
                break;
            case 1:
                bytes[at] = marker_bytes[below(sizeof marker_bytes)];
                break;
            case 2:
                bytes[at] = uint8_t(engine());
                break;
            case 3:
                bytes.resize(at);
                break;
            case 4:
                bytes.erase(bytes.begin() + long(at),
                            bytes.begin() + long(std::min(bytes.size(), at + 1 + below(40))));
                break;
            default: {
                Bytes piece(bytes.begin() + long(at),
                            bytes.begin() + long(std::min(bytes.size(), at + 1 + below(40))));
                bytes.insert(bytes.begin() + long(below(bytes.size())), piece.begin(), piece.end());
            }
        }
    }
}

void fail(const char* what, const Exact& jpeg) {
    std::ofstream("fuzz_transform.jpg", std::ios::binary)
        .write(reinterpret_cast<const char*>(jpeg.data.get()), long(jpeg.size));
    std::fprintf(stderr, "%s: see fuzz_transform.jpg\n", what);
    std::abort();
}

// Cuts random regions with a valid or a damaged index. Returns the number of successful cuts.
size_t try_cuts(const Exact& jpeg, std::vector<uint32_t> index, uint32_t interval, uint32_t width,
                uint32_t height, bool good) {
    static Bytes out;
    size_t parts = 0;
    for (int i = 0; i < 4; ++i) {
        Bytes entries(index.size() * 4);
        if (!entries.empty()) std::memcpy(entries.data(), index.data(), entries.size());
        Exact exact(entries);
        fastload::Roi roi{below(width + 1), below(height + 1), below(width + 2), below(height + 2)};
        uint32_t x0, y0;
        bool cut = fastload::cut_jpeg(jpeg.data.get(), jpeg.size, exact.data.get(), index.size(),
                                      interval, roi, 1u << below(4), out, x0, y0);
        if (cut && (out.size() > jpeg.size || x0 > roi.x || y0 > roi.y))
            fail("cut: the output is too large, or does not contain the region", jpeg);
        parts += cut;
        if (good && cut) {
            fastload::JpegLayout layout;
            std::vector<uint32_t> found;
            if (!fastload::read_layout(out.data(), out.size(), layout) ||
                !fastload::find_segments(out.data(), out.size(), layout, found))
                fail("cut: the output is not a regular file", jpeg);
        }
        if (index.empty()) break;
        uint32_t &entry = index[below(index.size())], other = index[below(index.size())];
        entry = below(2)   ? uint32_t(engine())
                : below(2) ? below(jpeg.size + 4)
                : below(2) ? other
                           : entry + below(7) - 3;
        good = false;
    }
    return parts;
}

// Rewrites with optimal tables, by libjpeg.
std::string optimal(const std::string& jpeg, int restart) {
    fastload::RewriteOptions options;
    options.restart = restart;
    options.fast = false;
    const auto& done =
        fastload::rewrite_jpeg(reinterpret_cast<const uint8_t*>(jpeg.data()), jpeg.size(), options);
    return {reinterpret_cast<const char*>(done.bytes), done.size};
}

}  // namespace

int main(int argc, char** argv) {
    if (argc < 3) return std::fprintf(stderr, "usage: %s ROUNDS FILE...\n", argv[0]), 2;
    std::vector<Bytes> files;
    for (int i = 2; i < argc; ++i) {
        std::ifstream file(argv[i], std::ios::binary);
        files.emplace_back(std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>());
    }
    size_t rewritten = 0, parts = 0, rounds = size_t(std::atol(argv[1]));
    for (size_t round = 0; round < rounds; ++round) {
        Bytes bytes = files[round % files.size()];
        if (round >= files.size()) damage(bytes);
        Exact jpeg(bytes);
        fastload::RewriteOptions options;
        const int restart = options.restart = below(3) ? int(below(20)) : -1;
        fastload::set_simd(below(2) ? fastload::Simd::kAvx2 : fastload::Simd::kPortable);
        // With the old Huffman tables, with optimal ones, and by libjpeg.
        std::string text[3], result[3];
        fastload::RewrittenJpeg first;
        for (int way = 2; way >= 0; --way) {
            options.keep_tables = way == 0;
            options.fast = way < 2;
            try {
                const auto& done = fastload::rewrite_jpeg(jpeg.data.get(), jpeg.size, options);
                result[way].assign(reinterpret_cast<const char*>(done.bytes), done.size);
                first = done;
            } catch (const fastload::BadJpeg& error) {
                text[way] = error.what();
            }
        }
        if (result[1] != result[2] || text[1] != text[2])
            fail("rewrite: the two paths differ", jpeg);
        if (text[0] != text[2]) fail("rewrite: accepted only with other tables", jpeg);
        if (!result[0].empty() && optimal(result[0], int(first.interval)) != result[2])
            fail("rewrite: other coefficients with the old tables", jpeg);
        Bytes neighbor = files[below(files.size())];
        if (below(2)) damage(neighbor);
        Exact other(neighbor);
        std::string together;
        options = {};
        options.restart = restart;
        fastload::rewrite_jpegs({{other.data.get(), other.size}, {jpeg.data.get(), jpeg.size}},
                                options, [&](size_t number, const fastload::RewrittenJpeg* done) {
                                    if (number == 1 && done)
                                        together.assign(reinterpret_cast<const char*>(done->bytes),
                                                        done->size);
                                });
        if (together != result[0]) fail("rewrite: another result next to other images", jpeg);
        fastload::JpegLayout layout;
        std::vector<uint32_t> index;
        if (fastload::read_layout(jpeg.data.get(), jpeg.size, layout))
            fastload::find_segments(jpeg.data.get(), jpeg.size, layout, index);
        parts += try_cuts(jpeg, index, layout.interval, layout.width, layout.height, false);
        if (result[0].empty()) continue;
        ++rewritten;
        Exact written(Bytes(result[0].begin(), result[0].end()));
        parts += try_cuts(written, first.index, first.interval, first.width, first.height, true);
    }
    std::printf("%zu rounds: %zu rewritten, %zu parts cut\n", rounds, rewritten, parts);
}
