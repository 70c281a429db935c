// Preloaded into a process under test. Starting with the n-th change of the file system in a folder,
// all changes fail with ENOSPC. fault_arm(folder, 0) only counts the changes; fault_count() returns
// their number.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

static char folder[4096];
static atomic_long count;
static long limit = -1;

void fault_arm(const char *below, long n) {
    strncpy(folder, below, sizeof folder - 1);
    atomic_store(&count, 0);
    limit = n;
}

long fault_count(void) { return atomic_load(&count); }

static int fails_at(const char *path) {
    if (limit < 0 || !path || strncmp(path, folder, strlen(folder))) return 0;
    long number = atomic_fetch_add(&count, 1) + 1;
    if (!limit || number < limit) return 0;
    errno = ENOSPC;
    return 1;
}

static int fails(int descriptor) {
    char link[64], path[4096];
    if (limit < 0) return 0;
    snprintf(link, sizeof link, "/proc/self/fd/%d", descriptor);
    ssize_t length = readlink(link, path, sizeof path - 1);
    if (length < 0) return 0;
    path[length] = 0;
    return fails_at(path);
}

#define REAL(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))

#define WRAP(result, name, parameters, arguments) \
    result name parameters { return fails(fd) ? -1 : REAL(name) arguments; }

WRAP(ssize_t, write, (int fd, const void *data, size_t size), (fd, data, size))
WRAP(ssize_t, pwrite, (int fd, const void *data, size_t size, off_t at), (fd, data, size, at))
WRAP(ssize_t, pwrite64, (int fd, const void *data, size_t size, off64_t at), (fd, data, size, at))
WRAP(ssize_t, writev, (int fd, const struct iovec *parts, int n), (fd, parts, n))
WRAP(ssize_t, pwritev, (int fd, const struct iovec *parts, int n, off_t at), (fd, parts, n, at))
WRAP(ssize_t, pwritev64, (int fd, const struct iovec *parts, int n, off64_t at), (fd, parts, n, at))
WRAP(int, ftruncate, (int fd, off_t size), (fd, size))
WRAP(int, ftruncate64, (int fd, off64_t size), (fd, size))
WRAP(int, fsync, (int fd), (fd))
WRAP(int, fdatasync, (int fd), (fd))

int rename(const char *from, const char *to) { return fails_at(to) ? -1 : REAL(rename)(from, to); }
int mkdir(const char *path, mode_t mode) { return fails_at(path) ? -1 : REAL(mkdir)(path, mode); }

#define OPEN(name)                                                                 \
    int name(const char *path, int flags, ...) {                                   \
        va_list more;                                                              \
        va_start(more, flags);                                                     \
        mode_t mode = flags & O_CREAT ? va_arg(more, mode_t) : 0;                  \
        va_end(more);                                                              \
        if (flags & O_CREAT && fails_at(path)) return -1;                          \
        return REAL(name)(path, flags, mode);                                      \
    }

OPEN(open)
OPEN(open64)
