#include "pack/regular_file.h"

#include <fcntl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>

#if defined(SYS_openat2) && __has_include(<linux/openat2.h>)
#include <linux/openat2.h>
#define FASTLOAD_OPENAT2 1
#endif

namespace fastload {
namespace {

// The kernel rejects a link anywhere in the path while it resolves it, so no component can be
// swapped between a check and the open.
int open_without_links(const char* path) {
#ifdef FASTLOAD_OPENAT2
    open_how how = {};
    how.flags = O_RDONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC;
    how.resolve = RESOLVE_NO_SYMLINKS | RESOLVE_NO_MAGICLINKS;
    return int(syscall(SYS_openat2, AT_FDCWD, path, &how, sizeof how));
#else
    static_cast<void>(path);
    return -1;
#endif
}

bool is_same_time(const struct stat& one, const struct stat& other) {
#ifdef __linux__
    return one.st_mtim.tv_sec == other.st_mtim.tv_sec &&
           one.st_mtim.tv_nsec == other.st_mtim.tv_nsec;
#else
    return one.st_mtime == other.st_mtime;
#endif
}

}  // namespace

RegularFile::~RegularFile() {
    if (descriptor_ >= 0) close(descriptor_);
}

bool RegularFile::open(const char* path, size_t limit) {
    descriptor_ = open_without_links(path);
    return descriptor_ >= 0 && fstat(descriptor_, &before_) == 0 && S_ISREG(before_.st_mode) &&
           before_.st_size > 0 && size() <= limit;
}

bool RegularFile::read(char* to) {
    for (size_t done = 0; done < size();) {
        const ssize_t n = ::read(descriptor_, to + done, size() - done);
        if (n < 0 && errno == EINTR) continue;
        if (n <= 0) return false;
        done += size_t(n);
    }
    struct stat after;
    return fstat(descriptor_, &after) == 0 && after.st_size == before_.st_size &&
           is_same_time(after, before_);
}

}  // namespace fastload
