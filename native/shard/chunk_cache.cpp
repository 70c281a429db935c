#include "shard/chunk_cache.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstring>
#include <new>
#include <string>

namespace fastload {

ChunkCache::ChunkCache(size_t capacity)
    : slots_(std::max<size_t>(32, (capacity + kChunk - 1) / kChunk)) {
    size_t n_heads = 2;
    while (n_heads < 2 * slots_.size()) n_heads *= 2;
    heads_.assign(n_heads, kNone);
    // Pages of a chunk are allocated when it is first read.
    void* memory = mmap(nullptr, slots_.size() * kChunk, PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory == MAP_FAILED) throw std::bad_alloc();
    memory_ = static_cast<uint8_t*>(memory);
    // Records are read in random order, so most of them would miss the TLB. Failure is harmless.
    madvise(memory, slots_.size() * kChunk, MADV_HUGEPAGE);
}

ChunkCache::~ChunkCache() {
    munmap(memory_, slots_.size() * kChunk);
}

void ChunkCache::clear() {
    std::fill(slots_.begin(), slots_.end(), Slot{});
    std::fill(heads_.begin(), heads_.end(), kNone);
    oldest_ = 0;
}

int32_t& ChunkCache::head(uint64_t file, uint64_t chunk) {
    return heads_[size_t(chunk + file * 0x9E3779B1) & (heads_.size() - 1)];
}

void ChunkCache::remove(int32_t slot) {
    Slot& old = slots_[size_t(slot)];
    if (!old.size) return;
    int32_t* link = &head(old.file, old.chunk);
    while (*link != slot) link = &slots_[size_t(*link)].next;
    *link = old.next;
    old = Slot{};
}

int32_t ChunkCache::load(const ShardFile& file, uint64_t chunk) {
    const uint64_t offset = chunk * kChunk;
    if (offset >= file.size()) return kNone;
    const size_t size = size_t(std::min<uint64_t>(kChunk, file.size() - offset));
    const int32_t slot = int32_t(oldest_);
    remove(slot);
    std::string error;
    if (!file.read(offset, memory_ + size_t(slot) * kChunk, size, error)) return kNone;
    int32_t& first = head(file.number(), chunk);
    slots_[size_t(slot)] = {file.number(), chunk, size, first};
    first = slot;
    oldest_ = (oldest_ + 1) % slots_.size();
    return slot;
}

const uint8_t* ChunkCache::find(const ShardFile& file, uint64_t offset, size_t size) {
    const uint64_t chunk = offset / kChunk;
    int32_t slot = head(file.number(), chunk);
    while (slot != kNone &&
           (slots_[size_t(slot)].chunk != chunk || slots_[size_t(slot)].file != file.number()))
        slot = slots_[size_t(slot)].next;
    if (slot == kNone) slot = load(file, chunk);
    if (slot == kNone || offset % kChunk + size > slots_[size_t(slot)].size) return nullptr;
    return memory_ + size_t(slot) * kChunk + offset % kChunk;
}

const uint8_t* ChunkCache::page(const ShardFile& file, uint64_t number) {
    return find(file, number * kTreePageSize, kTreePageSize);
}

bool ChunkCache::copy(const ShardFile& file, uint64_t offset, uint8_t* to, size_t size) {
    while (size) {
        const size_t n = std::min<size_t>(size, kChunk - offset % kChunk);
        const uint8_t* bytes = find(file, offset, n);
        if (!bytes) return false;
        std::memcpy(to, bytes, n);
        offset += n;
        to += n;
        size -= n;
    }
    return true;
}

}  // namespace fastload
