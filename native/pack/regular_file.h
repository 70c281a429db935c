// Reads a source file in four system calls in the common case: a regular file, and no link in its
// path.
#pragma once

#include <sys/stat.h>

#include <cstddef>

namespace fastload {

// Rejects everything else (links, FIFOs, files that change, systems without openat2) without a
// reason. fastload/_pack/files.py then inspects the file and reports the error.
class RegularFile {
public:
    RegularFile() = default;
    ~RegularFile();
    RegularFile(const RegularFile&) = delete;
    RegularFile& operator=(const RegularFile&) = delete;

    // Opens an absolute path without blocking. Returns false also for an empty file and for more
    // than `limit` bytes.
    bool open(const char* path, size_t limit);
    size_t size() const { return size_t(before_.st_size); }
    // Reads the whole file. Returns false if it is shorter than when it was opened, or has changed
    // since.
    bool read(char* to);

private:
    int descriptor_ = -1;
    struct stat before_ = {};
};

}  // namespace fastload
