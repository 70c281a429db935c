// Runs a job file (benchmarks/works.py) through the core, without Python:
//   driver JOB loop N       loads the samples N times in one thread; prints nanoseconds per sample
//                           and stage, and a checksum
//   driver JOB plain N      the same with the Huffman decoder of libjpeg
//   driver JOB avx2 N       the same without AVX-512
//   driver JOB portable N   the same without vector code
//   driver JOB pool N T     submits N batches to a pool of T threads
//   driver JOB stress N T   cancels batches and changes the number of threads at random times, for
//                           the sanitizers
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iterator>
#include <stdexcept>

#include "cpu/simd.h"
#include "jpeg/entropy_hook.h"
#include "pool/pool.h"
#include "shard/crc32c.h"

using namespace fastload;

namespace {

struct Job {
    std::vector<uint8_t> bytes;
    std::vector<DecodeRequest> requests;
    std::vector<SourceBytes> sources;
    BatchOutput output;
};

// Format: 8 int64 (requests, sources, height, width, channels, planar, dtype, color), the requests,
// the sizes of the sources, the sources.
Job read_job(const char* path) {
    Job job;
    std::ifstream file(path, std::ios::binary);
    job.bytes.assign(std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>());
    int64_t head[8];
    if (job.bytes.size() < sizeof head)
        throw std::runtime_error("not a job file: shorter than its header");
    std::memcpy(head, job.bytes.data(), sizeof head);
    job.requests.resize(size_t(head[0]));
    const uint8_t* at = job.bytes.data() + sizeof head;
    std::memcpy(static_cast<void*>(job.requests.data()), at,
                job.requests.size() * sizeof(DecodeRequest));
    at += job.requests.size() * sizeof(DecodeRequest);
    std::vector<uint64_t> sizes(static_cast<size_t>(head[1]));
    std::memcpy(sizes.data(), at, sizes.size() * 8);
    at += sizes.size() * 8;
    for (uint64_t size : sizes) {
        job.sources.push_back({at, size_t(size)});
        at += size;
    }
    BatchOutput& output = job.output;
    output.slots = head[0], output.height = head[2], output.width = head[3],
    output.channels = int(head[4]);
    output.dtype = Dtype(head[6]), output.color = Color(head[7]);
    output.bits = output.dtype == Dtype::kUint16 ? 16 : 8;
    const ptrdiff_t item = ptrdiff_t(output.item_size()), h = head[2], w = head[3], c = head[4];
    output.slot_stride = item * h * w * c;
    output.row_stride = item * (head[5] ? w : w * c);
    output.pixel_stride = item * (head[5] ? 1 : c);
    output.channel_stride = item * (head[5] ? h * w : 1);
    for (int i = 0; i < output.channels; ++i) output.mean[i] = 120, output.std[i] = 60;
    return job;
}

double now() {
    return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch())
        .count();
}

}  // namespace

// The function that callgrind measures: --toggle-collect=measured
extern "C" __attribute__((noinline)) SampleStatus measured(const Job& job, size_t i,
                                                           const BatchOutput& output,
                                                           const NormalizeTable* table,
                                                           SampleLoader& loader,
                                                           StageTimes& times) {
    std::string error;
    const DecodeRequest& request = job.requests[i];
    return loader.load(request, job.sources[request.source], output, table, int64_t(i), times,
                       error);
}

namespace {

// Takes the shortest time of each sample over all repeats, which removes other load on the machine.
int run_loop(const Job& job, int repeats) {
    const size_t n = job.requests.size();
    std::vector<uint8_t> memory(size_t(job.output.slot_stride) * n);
    BatchOutput output = job.output;
    output.memory = memory.data();
    NormalizeTable table(output);
    SampleLoader loader;
    std::vector<double> best(n, 1e9);
    std::vector<StageTimes> stages(n);
    size_t failed = 0;
    for (int repeat = 0; repeat < repeats; ++repeat)
        for (size_t i = 0; i < n; ++i) {
            StageTimes times{};
            const double begin = now();
            failed += measured(job, i, output, &table, loader, times) != SampleStatus::kOk;
            const double taken = now() - begin;
            if (taken < best[i]) best[i] = taken, stages[i] = times;
        }
    double total = 0, sums[kStages] = {};
    for (size_t i = 0; i < n; ++i) {
        total += best[i];
        for (size_t k = 0; k < kStages; ++k) sums[k] += double(stages[i][k]);
    }
    std::printf(
        "ns %.0f read %.0f cut %.0f decode %.0f resize %.0f finish %.0f failed %zu crc %08x\n",
        total / double(n) * 1e9, sums[0] / double(n), sums[1] / double(n), sums[2] / double(n),
        sums[3] / double(n), sums[4] / double(n), failed, crc32c(0, memory.data(), memory.size()));
    return 0;
}

int run_pool(const Job& job, int batches, int threads) {
    std::vector<std::vector<uint8_t>> memory;
    std::vector<std::shared_ptr<DecodeBatch>> in_flight;
    Pool pool(threads);
    const double begin = now();
    for (int i = 0; i < batches; ++i) {
        memory.emplace_back(size_t(job.output.slot_stride) * job.requests.size());
        BatchOutput output = job.output;
        output.memory = memory.back().data();
        in_flight.push_back(std::make_shared<DecodeBatch>(job.requests, job.sources, output));
        pool.submit(in_flight.back());
    }
    size_t failed = 0;
    for (auto& batch : in_flight) {
        while (!batch->wait_for(std::chrono::milliseconds(100))) {
        }
        for (SampleStatus status : batch->statuses()) failed += status != SampleStatus::kOk;
    }
    std::printf("ns %.0f failed %zu crc %08x\n",
                (now() - begin) / double(job.requests.size() * size_t(batches)) * 1e9, failed,
                crc32c(0, memory.back().data(), memory.back().size()));
    return 0;
}

// The sanitizers report the errors.
int run_stress(const Job& job, int rounds, int threads) {
    unsigned random = 1;
    auto draw = [&](unsigned n) { return (random = random * 1664525u + 1013904223u) / 65536u % n; };
    size_t cancelled = 0, done = 0;
    for (int round = 0; round < rounds; ++round) {
        Pool pool(1 + int(draw(unsigned(threads))));
        std::vector<std::vector<uint8_t>> memory(
            4, std::vector<uint8_t>(size_t(job.output.slot_stride) * job.requests.size()));
        std::vector<std::shared_ptr<DecodeBatch>> in_flight;
        for (auto& one : memory) {
            BatchOutput output = job.output;
            output.memory = one.data();
            in_flight.push_back(std::make_shared<DecodeBatch>(job.requests, job.sources, output));
            pool.submit(in_flight.back());
            if (draw(2)) pool.set_threads(1 + int(draw(unsigned(threads))));
        }
        if (draw(2)) in_flight[draw(4)]->cancel();
        if (draw(3) == 0) in_flight[0]->wait_for(std::chrono::milliseconds(draw(20)));
        if (draw(3) == 0) pool.close();
        for (auto& batch : in_flight) {
            if (draw(4) == 0) batch->cancel();
            while (!batch->wait_for(std::chrono::milliseconds(100))) {
            }
            for (SampleStatus status : batch->statuses())
                ++(status == SampleStatus::kCancelled ? cancelled : done);
        }
    }
    std::printf("done %zu cancelled %zu\n", done, cancelled);
    return 0;
}

}  // namespace

int main(int argc, char** argv) {
    if (argc < 4)
        return std::fprintf(stderr,
                            "usage: driver JOB loop|plain|avx2|portable|pool|stress N [THREADS]\n"),
               2;
    const Job job = read_job(argv[1]);
    const int n = std::atoi(argv[3]), threads = argc > 4 ? std::atoi(argv[4]) : 2;
    if (!std::strcmp(argv[2], "pool")) return run_pool(job, n, threads);
    if (!std::strcmp(argv[2], "stress")) return run_stress(job, n, threads);
    if (!std::strcmp(argv[2], "plain")) set_entropy_hook(false);
    if (!std::strcmp(argv[2], "avx2")) set_simd(Simd::kAvx2);
    if (!std::strcmp(argv[2], "portable")) set_simd(Simd::kPortable);
    return run_loop(job, n);
}
