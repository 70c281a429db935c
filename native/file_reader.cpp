#include "file_reader.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#if defined(__linux__) && __has_include(<linux/openat2.h>)
#include <linux/openat2.h>
#endif

namespace fastload {
namespace {

constexpr size_t kKeep = size_t(4) << 20;  // of its buffer a thread keeps

class Descriptor {
public:
    explicit Descriptor(int number) : number_(number) {}
    ~Descriptor() {
        if (number_ >= 0) close(number_);
    }
    Descriptor(const Descriptor&) = delete;
    Descriptor& operator=(const Descriptor&) = delete;
    int number() const { return number_; }

private:
    int number_;
};

// O_NONBLOCK: opening a FIFO nobody writes to would wait for ever. The kernel itself sees to it that no link leads out of the
// root, also when somebody moves folders at the same time.
int open_below(int root, const char* path) {
#if defined(SYS_openat2) && defined(RESOLVE_BENEATH)
    open_how how{};
    how.flags = O_RDONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC;
    how.resolve = RESOLVE_BENEATH | RESOLVE_NO_MAGICLINKS;
    return int(syscall(SYS_openat2, root, path, &how, sizeof how));
#else
    (void)root, (void)path;
    return -1;
#endif
}

bool same(const struct stat& a, const struct stat& b) {
    return a.st_size == b.st_size && a.st_mtim.tv_sec == b.st_mtim.tv_sec && a.st_mtim.tv_nsec == b.st_mtim.tv_nsec;
}

}  // namespace

const ByteBuffer* read_file_inside(const char* root, const char* path, size_t limit) {
    thread_local ByteBuffer content;
    content.shrink(kKeep);
    content.clear();
    Descriptor folder(open(root, O_PATH | O_DIRECTORY | O_CLOEXEC));
    if (folder.number() < 0) return nullptr;
    Descriptor file(open_below(folder.number(), path));
    struct stat before, after;
    if (file.number() < 0 || fstat(file.number(), &before) || !S_ISREG(before.st_mode)) return nullptr;
    if (before.st_size <= 0 || size_t(before.st_size) > limit) return nullptr;
    content.reserve(size_t(before.st_size) + 1);
    while (content.size() <= size_t(before.st_size)) {
        const ssize_t n = read(file.number(), content.end(), size_t(before.st_size) + 1 - content.size());
        if (n < 0) return nullptr;
        if (n == 0) break;
        content.end_at(content.end() + n);
    }
    if (content.size() != size_t(before.st_size) || fstat(file.number(), &after) || !same(before, after)) return nullptr;
    return &content;
}

bool start_writing(int descriptor) {
#ifdef SYNC_FILE_RANGE_WRITE
    return sync_file_range(descriptor, 0, 0, SYNC_FILE_RANGE_WRITE) == 0;
#else
    return descriptor < 0;
#endif
}

}  // namespace fastload
