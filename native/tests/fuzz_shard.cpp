// Reads a shard and damaged copies of it from several threads: fuzz_shard ROUNDS THREADS SHARD
// Looks up, reads ahead and parses every sample. In the undamaged shard each record must be found
// and valid. Also writes records and reads them back. Ends at the first sanitizer report, or with
// exit code 1.
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <memory>
#include <random>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "shard/read_ahead.h"
#include "shard/record.h"
#include "shard/shard_file.h"

using namespace fastload;

namespace {

using Bytes = std::vector<uint8_t>;

std::unique_ptr<ShardFile> open_copy(const Bytes& bytes) {
    char path[] = "/tmp/fuzz_shard.XXXXXX";
    const int file = mkstemp(path);
    if (file < 0) throw std::runtime_error("cannot create a temporary file");
    unlink(path);
    const bool written = write(file, bytes.data(), bytes.size()) == ssize_t(bytes.size());
    std::unique_ptr<ShardFile> opened;
    try {
        if (written) opened = std::make_unique<ShardFile>(file, bytes.size());
    } catch (const std::runtime_error&) {  // a damaged meta page
    }
    close(file);
    return opened;
}

// Reads ahead and parses every sample. Returns the number of valid records.
size_t read_all(const ShardFile& shard, size_t n_samples) {
    std::vector<int64_t> ids(n_samples + 2);  // two of them do not exist
    for (size_t i = 0; i < ids.size(); ++i) ids[i] = int64_t(i);
    const std::vector<int64_t> shards(ids.size(), 0);
    for (const ByteRun& run : find_runs({&shard}, shards.data(), ids.data(), ids.size()))
        request_pages(run);
    size_t right = 0;
    std::vector<PartRow> rows;
    for (int64_t id : ids) {
        std::string fault;
        LeafPage leaf;
        const RecordPlace place = shard.find(uint64_t(id), leaf, fault);
        if (!place.size) continue;
        const std::unique_ptr<uint8_t[]> bytes(new uint8_t[place.size]);
        if (!read_checked({&shard, place.offset, place.size, nullptr, 0}, bytes.get()).empty())
            continue;
        right += read_part_rows({bytes.get(), place.size}, uint64_t(id), 0, false, rows).empty();
    }
    return right;
}

size_t read_in_threads(const ShardFile& shard, size_t n_samples, int n_threads) {
    std::vector<size_t> right(static_cast<size_t>(n_threads));
    std::vector<std::thread> threads;
    for (size_t& count : right)
        threads.emplace_back([&shard, &count, n_samples] { count = read_all(shard, n_samples); });
    for (std::thread& thread : threads) thread.join();
    size_t least = right[0];
    for (size_t count : right) least = std::min(least, count);
    return least;
}

bool round_trip(std::mt19937& engine) {
    const Bytes data(engine() % 300 + 1, uint8_t(engine()));
    std::vector<NewPart> parts(engine() % 5);
    for (size_t i = 0; i < parts.size(); ++i) {
        parts[i].row.field = uint16_t(parts.size() - i);
        parts[i].row.codec = uint8_t(engine() % 6);
        parts[i].data = data.data();
        parts[i].size = engine() % (data.size() + 1);
    }
    const size_t size = place_parts(parts);
    // exactly `size` bytes, for the sanitizers
    std::unique_ptr<uint8_t[]> record(new uint8_t[size]);
    write_record(7, parts, record.get(), size);
    std::vector<PartRow> rows;
    if (!read_part_rows({record.get(), size}, 7, 0, true, rows).empty()) return false;
    if (rows.size() != parts.size()) return false;
    const size_t at = engine() % size;
    record[at] ^= uint8_t(1u << engine() % 8);
    return !read_part_rows({record.get(), size}, 7, 0, true, rows).empty();
}

}  // namespace

int main(int argc, char** argv) {
    if (argc != 4) return std::fprintf(stderr, "usage: %s ROUNDS THREADS SHARD\n", argv[0]), 2;
    const int rounds = std::atoi(argv[1]);
    const int n_threads = std::atoi(argv[2]);
    std::ifstream file(argv[3], std::ios::binary);
    const Bytes whole{std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
    const auto shard = open_copy(whole);
    if (!shard) return std::fprintf(stderr, "%s: not a shard\n", argv[3]), 2;
    const size_t n_samples = size_t(shard->entries());
    if (read_in_threads(*shard, n_samples, n_threads) != n_samples)
        return std::fprintf(stderr, "a record of the undamaged shard is invalid\n"), 1;
    std::mt19937 engine(1);
    size_t right = 0, opened = 0;
    for (int round = 0; round < rounds; ++round) {
        if (!round_trip(engine))
            return std::fprintf(stderr,
                                "a record was not read back, or its damage was not detected\n"),
                   1;
        Bytes damaged = whole;
        for (int i = 0; i < 8; ++i) {  // about half of them in the first three pages
            const size_t within = engine() % 2 ? damaged.size() : 3 * 4096;
            damaged[engine() % std::min(within, damaged.size())] = uint8_t(engine());
        }
        if (engine() % 4 == 0) damaged.resize(engine() % damaged.size() + 1);
        const auto copy = open_copy(damaged);
        if (!copy) continue;
        ++opened;
        right += read_in_threads(*copy, n_samples, n_threads);
    }
    std::printf("%zu samples; %d damaged shards: %zu opened, %zu valid records\n", n_samples,
                rounds, opened, right);
}
