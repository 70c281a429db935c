// The usual case of reading a source file, in four system calls: a regular file by a path without
// any link.
#pragma once

#include <sys/stat.h>

#include <cstddef>

namespace fastload {

// Everything else (links, FIFOs, files that change, systems without openat2) is refused without a
// reason: fastload/_pack/files.py then looks for itself, and names what is wrong.
class RegularFile {
public:
    RegularFile() = default;
    ~RegularFile();
    RegularFile(const RegularFile&) = delete;
    RegularFile& operator=(const RegularFile&) = delete;

    // An absolute path; never waits. False also for an empty file and for more than `limit` bytes.
    bool open(const char* path, size_t limit);
    size_t size() const { return size_t(before_.st_size); }
    // All of it; false where it comes short or has changed since it was opened.
    bool read(char* to);

private:
    int descriptor_ = -1;
    struct stat before_ = {};
};

}  // namespace fastload
